package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// produceStream is one Produce call. The receiver validates and appends; acknowledgements, which come on sync goroutines, are
// queued and sent by the handler.
type produceStream struct {
	l      *listener
	grpc   grpc.ServerStream
	ctx    context.Context //nolint:containedctx // the stream's own
	cancel context.CancelCauseFunc
	bytes  *budget
	parts  map[partitionKey]*producePart
	// routes: batches for partitions that others lead are forwarded. proxies are written by the receiver, with mu; it may read without.
	routes  bool
	proxies map[int32]*produceProxy

	signal chan struct{} // capacity 1: the queue or the end changed
	mu     struct {
		sync.Mutex
		queue       []*produceWait
		outstanding int  // received, answer not sent
		closed      bool // no more requests will come
		dropped     bool // nobody sends answers any more
	}
}

type partitionKey struct {
	topic  ids.TopicID
	number int32
}

// producePart is a partition that the stream has written to.
type producePart struct {
	key partitionKey
	p   *partition.Partition
	// unanswered counts batches whose answer is not queued yet; while there are any, every further answer has to queue in the
	// partition, or it would overtake.
	unanswered atomic.Int32

	// On streams that route, answers come from several sides, and line up in order; guarded by produceStream.mu.
	order []*produceWait
	head  int
	// route is the broker that the unanswered batches went to, gap what the last refused one was refused with while others were unanswered.
	// For the receiver.
	route int32
	gap   error
}

// produceWait is a batch on its way to an answer. Pooled.
type produceWait struct {
	st          *produceStream
	part        *producePart // nil: refused before a partition was known
	key         partitionKey
	correlation uint64
	size        int
	records     int32
	charged     bool // has a share of the server's budget
	answered    bool
	result      partition.Result

	// Forwarded batches: the frame until it is sent, the other broker's budget, and the leader epoch that was known.
	frame codec.ProduceFrame
	share *budget
	epoch int32
}

// Acked implements partition.Waiter.
//
// The batch's bytes are gone by now, so its share of the server's budget goes back here: a client that does not read its answers
// uses up the budget of its own stream, and never that of the other clients.
func (w *produceWait) Acked(r partition.Result) {
	w.result = r
	w.frame.Free()
	st, part := w.st, w.part
	if w.charged {
		st.l.budget.release(w.size)
	}
	if w.share != nil {
		w.share.release(w.size)
	}
	st.mu.Lock()
	w.answered = true
	dropped := st.mu.dropped
	if !dropped {
		st.queueLocked(w)
	}
	st.mu.Unlock()
	if part != nil {
		part.unanswered.Add(-1) // after queueing: a later answer may now be queued directly
	}
	if dropped {
		st.done(w)
		return
	}
	st.wakeUp()
}

// queueLocked lines an answer up for sending, and on a stream that routes whatever of its partition waited for it.
func (st *produceStream) queueLocked(w *produceWait) {
	part := w.part
	if part == nil || !st.routes {
		st.mu.queue = append(st.mu.queue, w)
		return
	}
	for part.head < len(part.order) && part.order[part.head].answered {
		st.mu.queue = append(st.mu.queue, part.order[part.head])
		part.order[part.head] = nil
		part.head++
	}
	if part.head == len(part.order) {
		part.order, part.head = part.order[:0], 0
	}
}

func (st *produceStream) wakeUp() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

// Produce implements runnelv1.ProducerServer.
func (l *listener) Produce(stream grpc.BidiStreamingServer[runnelv1.ProduceRequest, runnelv1.ProduceResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	st := &produceStream{
		l: l.forClient(ctx), grpc: stream, ctx: ctx, cancel: cancel, bytes: newBudget(l.limits.StreamInFlightBytes, answerOverhead),
		parts: map[partitionKey]*producePart{}, routes: l.routes(ctx), signal: make(chan struct{}, 1),
	}
	l.receive(cancel, func() error {
		if err := st.receive(); err != nil {
			return err
		}
		st.mu.Lock()
		st.mu.closed = true
		st.mu.Unlock()
		st.wakeUp()
		return nil
	})
	return st.send()
}

// receive takes batches until the client has no more, and hands them to their partitions.
func (st *produceStream) receive() error {
	var f codec.ProduceFrame
	defer f.Free()
	for {
		if err := st.grpc.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if f.Malformed != nil {
			return &malformedError{f.Malformed}
		}
		if err := st.accept(&f); err != nil {
			return err
		}
		f.Free()
	}
}

type malformedError struct{ err error }

func (e *malformedError) Error() string   { return e.err.Error() }
func (e *malformedError) Unwrap() []error { return []error{errMalformed, e.err} }

// accept takes one batch into flight. It blocks while too much is in flight, which is what slows the producer down.
func (st *produceStream) accept(f *codec.ProduceFrame) error {
	n := len(f.Batch())
	if err := st.bytes.acquire(st.ctx, n); err != nil {
		return context.Cause(st.ctx)
	}
	// Before it is looked at whether the server stops: else the stream could end as one without unanswered batches, which says that nothing was
	// done, while this one is appended.
	st.mu.Lock()
	st.mu.outstanding++
	st.mu.Unlock()
	st.l.metrics.producedBytes.Add(float64(n))
	if part, at := st.elsewhere(f); part != nil {
		return st.forward(f, part, at)
	}
	if err := st.l.budget.acquire(st.ctx, n); err != nil {
		return context.Cause(st.ctx) // the stream is over, and its budget with it
	}
	part, err := st.find(f)
	w := st.take(f, part)
	w.charged = true
	if part == nil {
		w.refuse(err)
		return nil
	}
	waiting := part.unanswered.Add(1) > 1
	if err == nil && st.routes {
		at, _ := st.l.cfg.Metadata.Snapshot().leaderOf(f.TopicID, f.Partition)
		err = part.enter(st.l.cfg.BrokerID, at, waiting)
	}
	inOrder := waiting && !st.routes
	var h record.Header
	if err == nil {
		h, err = st.validate(f, part.p)
	}
	switch {
	case err != nil && inOrder:
		part.p.Refuse(w, err)
	case err != nil:
		w.refuse(err)
	default:
		w.records = h.Count
		part.p.Produce(&partition.Produce{
			Batch: f.Batch(), Header: h, LeaderEpoch: f.LeaderEpoch, AcksLeader: f.Acks == runnelv1.Acks_ACKS_LEADER,
			InOrder: inOrder, Waiter: w,
		})
	}
	return nil
}

// take begins to account for a batch, whose place in its partition's order is behind all before.
func (st *produceStream) take(f *codec.ProduceFrame, part *producePart) *produceWait {
	w := st.l.waits.Get().(*produceWait)
	*w = produceWait{
		st: st, part: part, key: partitionKey{f.TopicID, f.Partition}, correlation: f.CorrelationID, size: len(f.Batch()),
	}
	if st.routes && part != nil {
		st.mu.Lock()
		part.order = append(part.order, w)
		st.mu.Unlock()
	}
	return w
}

// enter decides whether a batch may go to a broker while earlier ones of its partition may be unanswered. What went to another broker before may
// fail, and this must not overtake it: it is refused until everything of before is answered.
func (part *producePart) enter(broker int32, at where, waiting bool) error {
	if waiting && part.gap == nil && part.route != broker {
		part.gap = &partition.NotLeaderError{LeaderID: at.leader, LeaderEpoch: at.epoch}
	}
	if waiting && part.gap != nil {
		return part.gap
	}
	part.gap, part.route = nil, broker
	return nil
}

// elsewhere returns the partition of a batch that another broker has to append; nil when it is to be appended, or refused, here.
func (st *produceStream) elsewhere(f *codec.ProduceFrame) (*producePart, where) {
	if !st.routes || f.TopicIDLength != codec.TopicIDLen || st.l.isStopping() {
		return nil, where{}
	}
	at, ok := st.l.elsewhere(f.TopicID, f.Partition)
	if !ok {
		return nil, where{}
	}
	key := partitionKey{f.TopicID, f.Partition}
	part := st.parts[key]
	if part == nil {
		part = &producePart{key: key, route: at.leader}
		st.parts[key] = part
	}
	return part, at
}

// find returns the partition that a batch is for. An error may come with a partition, in whose order the refusal has its place.
func (st *produceStream) find(f *codec.ProduceFrame) (*producePart, error) {
	if f.TopicIDLength != codec.TopicIDLen {
		return nil, invalid("topic_id", lengthOf(f.TopicIDLength), "16 bytes")
	}
	key := partitionKey{f.TopicID, f.Partition}
	part := st.parts[key]
	if st.l.isStopping() {
		return part, errStopping
	}
	if f.Partition < 0 {
		return nil, invalid("partition", f.Partition, "0 or more")
	}
	if a := f.Acks; a < runnelv1.Acks_ACKS_UNSPECIFIED || a > runnelv1.Acks_ACKS_LEADER {
		return part, invalid("acks", int32(a), "0 (all), 1 (all) or 2 (leader)")
	}
	p, err := st.l.cfg.Partitions.Lookup(f.TopicID, f.Partition)
	if err != nil {
		return part, partitionFault(err)
	}
	if part == nil {
		part = &producePart{key: key, route: st.l.cfg.BrokerID}
		st.parts[key] = part
	}
	part.p = p
	return part, nil
}

func (st *produceStream) validate(f *codec.ProduceFrame, p *partition.Partition) (record.Header, error) {
	return st.l.validate(st.ctx, f.Batch(), p.Config())
}

// send sends answers until everything is answered and nothing more can come.
func (st *produceStream) send() error {
	var queue []*produceWait
	var resp runnelv1.ProduceResponse
	stopping := st.l.stopping
	for {
		select {
		case <-st.signal:
		case <-stopping:
			stopping = nil // from here on batches are refused; those in flight are answered
		case <-st.ctx.Done():
			st.drop()
			return context.Cause(st.ctx)
		}
		st.mu.Lock()
		queue, st.mu.queue = st.mu.queue, queue[:0]
		st.mu.Unlock()
		for i, w := range queue {
			st.fill(&resp, w)
			err := st.grpc.SendMsg(&resp)
			st.done(w)
			queue[i] = nil
			if err != nil {
				for _, w := range queue[i+1:] {
					st.done(w)
				}
				st.drop()
				return err
			}
		}
		st.mu.Lock()
		idle := st.mu.outstanding == 0
		closed := st.mu.closed
		st.mu.Unlock()
		if idle && closed {
			return nil
		}
		if idle && stopping == nil {
			return errStopping
		}
	}
}

func (st *produceStream) fill(resp *runnelv1.ProduceResponse, w *produceWait) {
	r := &w.result
	resp.CorrelationId, resp.Partition = w.correlation, w.key.number
	resp.TopicId = append(resp.TopicId[:0], w.key.topic[:]...)
	resp.BaseOffset, resp.LogAppendTimeMs, resp.LogStartOffset, resp.Duplicate = r.Base, r.AppendTimeMS, r.LogStart, r.Duplicate
	resp.Error = nil
	resp.ThrottleMs = st.l.budget.throttleMS()
	if r.Err != nil {
		resp.Error = st.l.item(r.Err)
		st.l.metrics.refusedBatches.Inc()
		return
	}
	st.l.metrics.producedBatches.Inc()
	st.l.metrics.producedRecords.Add(float64(w.records))
}

// done gives a batch's share of the stream's budget back.
func (st *produceStream) done(w *produceWait) {
	st.bytes.release(w.size)
	st.mu.Lock()
	st.mu.outstanding--
	st.mu.Unlock()
	*w = produceWait{}
	st.l.waits.Put(w)
}

// drop gives up on answers, because the stream is gone: from here on they only give their share of the budget back.
func (st *produceStream) drop() {
	st.mu.Lock()
	queue := st.mu.queue
	st.mu.queue, st.mu.dropped = nil, true
	st.mu.Unlock()
	for _, w := range queue {
		st.done(w)
	}
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}
