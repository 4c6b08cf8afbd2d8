package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
)

// maxFrame is the largest frame of whole batches, unless one batch alone is larger.
const maxFrame = 1 << 20

// fetchStream is one Fetch call. The receiver applies control frames; the handler sends. Subscriptions that may have something to
// send stand in ready, in the order in which they became so, and go back to its end after each frame: that is the fairness.
//
// Invariant: a subscription is in ready at most once (queued), and one that has records, credit and no pause is in ready, or is
// being served by the handler, or the stream has no credit.
type fetchStream struct {
	l    *listener
	grpc grpc.ServerStream
	ctx  context.Context //nolint:containedctx // the stream's own

	signal chan struct{} // capacity 1
	mu     struct {
		sync.Mutex
		subs   map[uint32]*subscription
		ready  []*subscription
		head   int
		credit int64 // of the stream
		closed bool  // the client will send no more control frames
	}
}

// subscription is one partition of a stream. Fields without a guard belong to the handler.
type subscription struct {
	st       *fetchStream
	id       uint32
	p        *partition.Partition
	maxFrame int
	offset   int64
	// told is the high watermark that the client knows.
	told int64

	// Guarded by st.mu.
	credit int64
	paused bool
	queued bool
	ended  bool
	err    error // what ends it: found when it was added, or while it may not send
}

// Wake implements partition.Waker.
func (s *subscription) Wake() {
	s.st.mu.Lock()
	s.st.enqueueLocked(s)
	s.st.mu.Unlock()
	s.st.wakeUp()
}

func (st *fetchStream) enqueueLocked(s *subscription) {
	if s.queued || s.ended {
		return
	}
	s.queued = true
	if st.mu.head > 0 && len(st.mu.ready) == cap(st.mu.ready) {
		st.mu.ready = append(st.mu.ready[:0], st.mu.ready[st.mu.head:]...)
		st.mu.head = 0
	}
	st.mu.ready = append(st.mu.ready, s)
}

func (st *fetchStream) wakeUp() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

// Fetch implements runnelv1.ConsumerServer.
func (l *listener) Fetch(stream grpc.BidiStreamingServer[runnelv1.FetchRequest, runnelv1.FetchResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	st := &fetchStream{l: l, grpc: stream, ctx: ctx, signal: make(chan struct{}, 1)}
	st.mu.subs = map[uint32]*subscription{}
	defer st.close()
	l.receive(cancel, st.receive)
	return st.send()
}

// close ends all subscriptions.
func (st *fetchStream) close() {
	st.mu.Lock()
	subs := st.mu.subs
	st.mu.subs = nil
	for _, s := range subs {
		s.ended = true
	}
	st.mu.Unlock()
	for _, s := range subs {
		if s.p != nil {
			s.p.RemoveWaker(s)
		}
	}
}

// receive applies control frames until the client has no more. A client that closes its side ends the stream.
func (st *fetchStream) receive() error {
	var req runnelv1.FetchRequest
	for first := true; ; first = false {
		if err := st.grpc.RecvMsg(&req); err != nil {
			if errors.Is(err, io.EOF) {
				st.mu.Lock()
				st.mu.closed = true
				st.mu.Unlock()
				st.wakeUp()
				return nil
			}
			return err
		}
		if first && req.GetStreamCreditBytes() <= 0 {
			return invalid("stream_credit_bytes", req.GetStreamCreditBytes(), "more than 0 in the first frame")
		}
		if err := st.apply(&req); err != nil {
			return err
		}
		st.wakeUp()
	}
}

// apply applies one control frame. What concerns one subscription ends that alone; what breaks the protocol ends the stream.
func (st *fetchStream) apply(req *runnelv1.FetchRequest) error {
	if n := req.GetStreamCreditBytes(); n < 0 {
		return invalid("stream_credit_bytes", n, "0 or more")
	}
	for _, a := range req.GetAdd() {
		if err := st.add(a); err != nil {
			return err
		}
	}
	for _, id := range req.GetRemove() {
		st.remove(id)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.subs == nil {
		return nil // the handler has left
	}
	st.mu.credit = addCredit(st.mu.credit, req.GetStreamCreditBytes())
	for _, id := range req.GetPause() {
		if s := st.mu.subs[id]; s != nil {
			s.paused = true
		}
	}
	for _, id := range req.GetResume() {
		if s := st.mu.subs[id]; s != nil {
			s.paused = false
			st.enqueueLocked(s)
		}
	}
	for _, c := range req.GetCredit() {
		if c.GetBytes() < 0 {
			return invalid("credit.bytes", c.GetBytes(), "0 or more")
		}
		if s := st.mu.subs[c.GetSubscriptionId()]; s != nil {
			s.credit = addCredit(s.credit, c.GetBytes())
			st.enqueueLocked(s)
		}
	}
	return nil
}

// addCredit adds without overflow.
func addCredit(have, more int64) int64 {
	if have > 0 && more > math.MaxInt64-have {
		return math.MaxInt64
	}
	return have + more
}

func (st *fetchStream) add(a *runnelv1.FetchAdd) error {
	switch {
	case a.GetCreditBytes() < 0:
		return invalid("add.credit_bytes", a.GetCreditBytes(), "0 or more")
	case a.GetMaxFrameBytes() < 0:
		return invalid("add.max_frame_bytes", a.GetMaxFrameBytes(), "0 or more")
	}
	s := &subscription{st: st, id: a.GetSubscriptionId(), offset: a.GetOffset(), credit: a.GetCreditBytes(), maxFrame: maxFrame, told: -1}
	if n := int(a.GetMaxFrameBytes()); n > 0 {
		s.maxFrame = min(n, maxFrame)
	}
	s.p, s.err = st.find(a)
	st.mu.Lock()
	switch {
	case st.mu.subs == nil:
		st.mu.Unlock()
		return nil
	case st.mu.subs[s.id] != nil:
		st.mu.Unlock()
		return invalid("add.subscription_id", s.id, "an id that is not in use on this stream")
	case len(st.mu.subs) >= st.l.limits.Subscriptions:
		st.mu.Unlock()
		return invalid("add", fmt.Sprintf("subscription number %d", st.l.limits.Subscriptions+1), fmt.Sprintf("at most %d subscriptions per stream", st.l.limits.Subscriptions))
	}
	st.mu.subs[s.id] = s
	st.enqueueLocked(s)
	st.mu.Unlock()
	if s.p != nil {
		s.p.AddWaker(s)
		// The handler may have left between the two steps, and would not know the waker.
		st.mu.Lock()
		gone := s.ended
		st.mu.Unlock()
		if gone {
			s.p.RemoveWaker(s)
		}
	}
	return nil
}

func (st *fetchStream) find(a *runnelv1.FetchAdd) (*partition.Partition, error) {
	id, err := topicID(a.GetTopicId())
	if err != nil {
		return nil, err
	}
	if a.GetPartition() < 0 {
		return nil, invalid("partition", a.GetPartition(), "0 or more")
	}
	if a.GetOffset() < 0 {
		return nil, invalid("offset", a.GetOffset(), "0 or more")
	}
	p, err := st.l.cfg.Partitions.Lookup(id, a.GetPartition())
	if err != nil {
		return nil, partitionFault(err)
	}
	if _, err := p.Limits(a.GetLeaderEpoch()); err != nil {
		return nil, err
	}
	return p, nil
}

func (st *fetchStream) remove(id uint32) {
	st.mu.Lock()
	s := st.mu.subs[id]
	if s != nil {
		s.ended = true
		delete(st.mu.subs, id)
	}
	st.mu.Unlock()
	if s != nil && s.p != nil {
		s.p.RemoveWaker(s)
	}
}

// next takes the subscription that is to be served now, and how many bytes it may get.
func (st *fetchStream) next() (s *subscription, allowed int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.mu.head < len(st.mu.ready) {
		s = st.mu.ready[st.mu.head]
		if blocked := s.paused || s.credit <= 0; blocked || st.mu.credit <= 0 {
			// Bytes have to wait; that the partition is gone does not.
			if s.err == nil {
				_, s.err = s.p.Limits(-1)
			}
			if s.err == nil && !s.ended && !blocked {
				return nil, 0 // it stays first until the stream has credit
			}
		}
		st.mu.ready[st.mu.head] = nil
		st.mu.head++
		s.queued = false
		if s.ended || s.err == nil && (s.paused || s.credit <= 0) {
			continue
		}
		return s, min(s.credit, st.mu.credit)
	}
	st.mu.ready, st.mu.head = st.mu.ready[:0], 0
	return nil, 0
}

// send serves subscriptions until the stream ends.
func (st *fetchStream) send() error {
	var f codec.FetchFrame
	defer f.Free()
	for {
		for {
			s, allowed := st.next()
			if s == nil {
				break
			}
			if err := st.serve(s, allowed, &f); err != nil {
				return err
			}
			if st.ctx.Err() != nil {
				break
			}
		}
		st.mu.Lock()
		closed := st.mu.closed
		st.mu.Unlock()
		if closed {
			return nil
		}
		select {
		case <-st.signal:
		case <-st.l.stopping:
			return errStopping
		case <-st.ctx.Done():
			return context.Cause(st.ctx)
		}
	}
}

// serve sends one frame of s, or finds that there is nothing to send.
func (st *fetchStream) serve(s *subscription, allowed int64, f *codec.FetchFrame) error {
	err := s.err
	if err == nil {
		err = st.read(s, allowed, f)
	}
	if errors.Is(err, errNothing) {
		return nil
	}
	if errors.Is(err, log.ErrTruncated) {
		s.Wake() // look again
		return nil
	}
	if err != nil {
		st.remove(s.id)
		*f = codec.FetchFrame{SubscriptionID: s.id, FetchOffset: s.offset, NextOffset: s.offset, Error: st.l.item(s.fault(err))}
		if s.p != nil {
			if lim, err := s.p.Limits(-1); err == nil {
				f.HighWatermark, f.LogStartOffset, f.LeaderEpoch = lim.HighWatermark, lim.LogStart, lim.LeaderEpoch
				f.LastStableOffset = lim.HighWatermark
			}
		}
	}
	n := int64(len(f.Batch()))
	sendErr := st.grpc.SendMsg(f)
	f.Free()
	if sendErr != nil {
		return sendErr
	}
	st.l.metrics.fetchedFrames.Inc()
	st.l.metrics.fetchedBytes.Add(float64(n))
	s.offset, s.told = f.NextOffset, f.HighWatermark
	st.mu.Lock()
	s.credit -= n
	st.mu.credit -= n
	if n > 0 {
		st.enqueueLocked(s)
	}
	st.mu.Unlock()
	return nil
}

// errNothing: the reader is at the high watermark and knows it.
var errNothing = errors.New("nothing to send")

// read fills f with the next batches of s, or with a heartbeat when the client does not know yet that it has caught up.
func (st *fetchStream) read(s *subscription, allowed int64, f *codec.FetchFrame) error {
	r, lim, err := s.p.Read(s.offset, int(min(allowed, int64(s.maxFrame))))
	if err != nil {
		return err
	}
	defer r.Release()
	if r.Len == 0 && s.told == lim.HighWatermark {
		return errNothing
	}
	*f = codec.FetchFrame{
		SubscriptionID: s.id, FetchOffset: s.offset, NextOffset: s.offset, HighWatermark: lim.HighWatermark, LogStartOffset: lim.LogStart,
		LastStableOffset: lim.HighWatermark, LeaderEpoch: lim.LeaderEpoch,
	}
	if r.Len == 0 {
		return nil
	}
	buf, b := st.l.codec.Pool().Buffer(r.Len)
	if err := r.ReadInto(b); err != nil {
		buf.Free()
		return err
	}
	f.NextOffset = r.Next
	f.SetBatch(buf)
	return nil
}

// fault says of an offset out of range what a consumer can read: up to the high watermark, not to the log end.
func (s *subscription) fault(err error) error {
	var oor *log.OutOfRangeError
	if !errors.As(err, &oor) || s.p == nil {
		return err
	}
	lim, limErr := s.p.Limits(-1)
	if limErr != nil {
		return limErr
	}
	return &log.OutOfRangeError{Asked: s.offset, Earliest: lim.LogStart, Latest: lim.HighWatermark}
}
