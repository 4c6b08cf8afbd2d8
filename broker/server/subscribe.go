package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/record"
)

const (
	// subscribeRead is how many bytes of batches are decoded at a time.
	subscribeRead = 256 << 10
	// subscribeBytes and subscribeRecords bound one answer; a single larger record is sent alone.
	subscribeBytes   = 256 << 10
	subscribeRecords = 1000
)

// subscriber is one Subscribe call: it reads its partitions in turn and sends plain records. Partitions that others lead are read there, and followed
// when they move.
type subscriber struct {
	l      *listener
	req    *runnelv1.SubscribeRequest
	stream grpc.ServerStreamingServer[runnelv1.SubscribeResponse]
	parts  []*subscribed
	signal chan struct{}
	reader *record.Reader // while reading
	resp   runnelv1.SubscribeResponse
	bytes  int   // of resp
	left   int64 // records until the limit; -1: none
	hold   hold

	// follows: what another broker leads is read there.
	follows bool
	ctx     context.Context //nolint:containedctx // the stream's own
	cancel  context.CancelCauseFunc
	proxies map[int32]*fetchProxy
	moves   chan struct{} // capacity 1: leaders may have changed
	lost    int           // partitions with a lostAt
}

// subscribed is one partition of a Subscribe call.
type subscribed struct {
	topic  *Topic
	number int32
	p      *partition.Partition // when this broker leads it
	remote *remoteSub           // when another one does
	offset int64                // -1: not known yet
	until  int64                // -1: for ever
	over   bool
	wake   *signalWaker
	// lostAt is since when there is nowhere to read from, zero while there is; retryAt is when to look again.
	lostAt, retryAt time.Time
}

// signalWaker wakes a subscriber and says which partition is worth a look.
type signalWaker struct {
	ready  atomic.Bool
	signal chan<- struct{}
}

// Wake implements partition.Waker.
func (w *signalWaker) Wake() {
	if !w.ready.Swap(true) {
		select {
		case w.signal <- struct{}{}:
		default:
		}
	}
}

// Subscribe implements runnelv1.ConsumerServer.
func (l *listener) Subscribe(req *runnelv1.SubscribeRequest, stream grpc.ServerStreamingServer[runnelv1.SubscribeResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	s := &subscriber{
		l: l.forClient(ctx), req: req, stream: stream, signal: make(chan struct{}, 1), left: -1, follows: l.forwards(ctx), ctx: ctx, cancel: cancel,
		moves: make(chan struct{}, 1),
	}
	if req.GetMaxRecords() > 0 {
		s.left = req.GetMaxRecords()
	}
	defer s.close()
	if err := s.open(); err != nil {
		return err
	}
	return s.run(ctx)
}

// open checks the request and finds the partitions and where to begin.
func (s *subscriber) open() error {
	req := s.req
	if req.GetGroup() != "" {
		return fmt.Errorf("%w: consumer groups (group %s)", errNotYet, clip(req.GetGroup()))
	}
	if req.GetMaxRecords() < 0 {
		return invalid("max_records", req.GetMaxRecords(), "0 or more")
	}
	if n := len(req.GetTopics()); n < 1 || n > maxItems {
		return invalid("topics", fmt.Sprintf("%d items long", n), fmt.Sprintf("1 to %d items", maxItems))
	}
	if len(req.GetPartitions()) > 0 && len(req.GetTopics()) != 1 {
		return invalid("partitions", fmt.Sprintf("set with %d topics", len(req.GetTopics())), "to be set with one topic")
	}
	if err := count("partitions", len(req.GetPartitions())); err != nil {
		return err
	}
	snap := s.l.cfg.Metadata.Snapshot()
	for _, name := range slices.Compact(slices.Sorted(slices.Values(req.GetTopics()))) {
		t, err := snap.topic(name, nil)
		if err != nil {
			return err
		}
		numbers := slices.Compact(slices.Sorted(slices.Values(req.GetPartitions())))
		if len(numbers) == 0 {
			for i := range t.Partitions {
				numbers = append(numbers, int32(i))
			}
		}
		for _, n := range numbers {
			if _, err := t.partition(n); err != nil {
				return err
			}
			s.parts = append(s.parts, &subscribed{topic: t, number: n, offset: -1, until: -1, wake: &signalWaker{signal: s.signal}})
		}
	}
	for chunk := range slices.Chunk(s.parts, maxItems/2) {
		if err := s.begin(chunk); err != nil {
			return err
		}
	}
	return nil
}

// fail reports one partition and gives it up.
func (s *subscriber) fail(p *subscribed, err error) error {
	p.over = true
	p.detach()
	if err := s.flush(); err != nil {
		return err
	}
	if err := s.letGo(); err != nil {
		return err
	}
	return s.stream.Send(&runnelv1.SubscribeResponse{
		Failed: &runnelv1.TopicPartition{Topic: p.topic.Name, Partition: p.number}, Error: s.l.item(err),
	})
}

func (s *subscriber) close() {
	for _, p := range s.parts {
		p.detach()
	}
}

// run sends records until the limits are reached, every partition is over, or the stream ends.
func (s *subscriber) run(ctx context.Context) error {
	for {
		busy, open := false, false
		for _, p := range s.parts {
			if p.over || s.left == 0 {
				continue
			}
			if p.wake.ready.Load() {
				more, err := s.read(ctx, p)
				if err != nil {
					return err
				}
				busy = busy || more
			}
			open = open || !p.over
		}
		if err := s.flush(); err != nil {
			return err
		}
		if !open || s.left == 0 {
			return nil
		}
		if busy {
			if err := ctx.Err(); err != nil {
				return err
			}
			continue
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// wait returns when there may be something to do.
func (s *subscriber) wait(ctx context.Context) error {
	retry, stop := s.retryTimer()
	defer stop()
	select {
	case <-s.signal:
	case <-s.moves:
		return s.findMoved()
	case <-retry:
		return s.findAgain()
	case <-s.l.stopping:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// read sends the next batches of p, and reports whether there may be more.
func (s *subscriber) read(ctx context.Context, p *subscribed) (more bool, err error) {
	p.wake.ready.Store(false) // before looking: what comes later sets it again
	switch {
	case p.remote != nil:
		return s.readRemote(ctx, p)
	case p.p == nil:
		return false, nil
	}
	r, _, err := p.p.Read(p.offset, subscribeRead)
	if err != nil {
		return false, s.lose(p, err)
	}
	if r.Len == 0 {
		r.Release()
		return false, nil
	}
	p.wake.ready.Store(true)
	buf, b := s.l.codec.Pool().Buffer(r.Len)
	defer buf.Free()
	err = r.ReadInto(b)
	r.Release()
	switch {
	case errors.Is(err, log.ErrTruncated):
		return true, nil
	case err != nil:
		return false, s.lose(p, err)
	}
	s.l.metrics.fetchedBytes.Add(float64(len(b)))
	return s.batches(ctx, p, b, p.p.Config().MaxBatchBytes)
}

// batches sends the records of b, which holds whole batches, and reports whether p goes on.
func (s *subscriber) batches(ctx context.Context, p *subscribed, b []byte, maxBatch int) (more bool, err error) {
	s.reader = s.l.readers.Get().(*record.Reader)
	defer func() { s.l.readers.Put(s.reader); s.reader = nil }()
	for batch, err := range record.Frames(b) {
		if err != nil {
			return false, s.fail(p, corrupt(p, err))
		}
		for whole := false; !whole; {
			if whole, err = s.batch(ctx, p, batch, maxBatch); err != nil {
				return false, err
			}
			if p.over || s.left == 0 {
				return false, nil
			}
		}
	}
	return true, nil
}

func corrupt(p *subscribed, err error) error {
	return fmt.Errorf("%w: batch at or above offset %d: %w", log.ErrCorrupt, p.offset, err)
}

// records sends the records of the batch that the reader holds, until the hold is full.
func (s *subscriber) records(p *subscribed) error {
	var rec record.Record
	for s.left != 0 && s.reader.Next(&rec) {
		if rec.Offset < p.offset {
			continue
		}
		if p.until >= 0 && rec.Offset >= p.until {
			break
		}
		out := &runnelv1.SubscribedRecord{
			Topic: p.topic.Name, Partition: p.number, Offset: rec.Offset, TimestampMs: rec.Timestamp,
			Key: slices.Clone(rec.Key), Value: slices.Clone(rec.Value), LeaderEpoch: s.reader.Header().LeaderEpoch,
		}
		size := len(rec.Key) + len(rec.Value) + 64
		for _, h := range rec.Headers {
			out.Headers = append(out.Headers, &runnelv1.Header{Key: string(h.Key), Value: slices.Clone(h.Value)})
			size += len(h.Key) + len(h.Value) + 8
		}
		if len(s.resp.GetRecords()) > 0 && (s.bytes+size > subscribeBytes || len(s.resp.GetRecords()) >= subscribeRecords) {
			if err := s.flush(); err != nil {
				return err
			}
			if s.hold.full() {
				return nil
			}
		}
		s.resp.Records = append(s.resp.Records, out)
		s.bytes += size
		p.offset = rec.Offset + 1
		if s.left > 0 {
			s.left--
		}
	}
	if err := s.reader.Err(); err != nil {
		return s.fail(p, corrupt(p, err))
	}
	if s.left != 0 {
		p.offset = max(p.offset, s.reader.Header().NextOffset())
	}
	if p.until >= 0 && p.offset >= p.until {
		p.over = true
		p.detach()
	}
	return nil
}

func (s *subscriber) flush() error {
	if len(s.resp.GetRecords()) == 0 {
		return nil
	}
	if s.hold.on {
		s.hold.add(s.resp.GetRecords(), s.bytes)
		s.resp.Records, s.bytes = nil, 0
		return nil
	}
	err := s.stream.Send(&s.resp)
	s.resp.Records, s.bytes = s.resp.Records[:0], 0
	return err
}
