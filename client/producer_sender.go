package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/record"
)

// sender sends the batches of all partitions that one broker leads, over one stream.
type sender struct {
	p      *Producer
	broker int32
	wake   chan struct{}
	news   chan struct{} // capacity 1: ends a pause, metadata says that the broker leads

	mu struct {
		sync.Mutex
		ready  []*producerPartition
		stream *produceStream
		resume time.Time // a throttled stream sends nothing before
	}
	spare []*producerPartition // run's other ready list
	frame codec.ProduceFrame
	back  backoff
	// answers is set by the receiving side: the broker works, so the next wait starts small.
	answers atomic.Bool
}

// produceStream is one Produce call.
type produceStream struct {
	s       *sender
	address string
	grpc    grpc.BidiStreamingClient[runnelv1.ProduceRequest, runnelv1.ProduceResponse]
	cancel  context.CancelCauseFunc
	ended   chan struct{} // closed once every attempt on the stream is settled

	mu struct {
		sync.Mutex
		next     uint64
		attempts map[uint64]attemptRef
		dead     bool
	}
}

func newSender(p *Producer, broker int32) *sender {
	return &sender{p: p, broker: broker, wake: make(chan struct{}, 1), news: make(chan struct{}, 1)}
}

// hurry ends a pause after a failure: what metadata has just said is a better reason to try than the time that has passed.
func (s *sender) hurry() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// offer puts a partition on the ready list. It never blocks.
func (s *sender) offer(pt *producerPartition) {
	s.mu.Lock()
	s.mu.ready = append(s.mu.ready, pt)
	s.mu.Unlock()
	s.poke()
}

func (s *sender) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// abort ends the current stream: what it has not answered is sent again on a new one.
func (s *sender) abort(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.stream != nil {
		s.mu.stream.cancel(cause)
	}
}

// run sends until ctx ends.
func (s *sender) run(ctx context.Context) {
	defer s.closeStream(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for s.turn(ctx) {
			continue
		}
	}
}

// turn sends one batch of each ready partition, so that a busy one does not starve others. It reports whether there may be more.
func (s *sender) turn(ctx context.Context) bool {
	s.mu.Lock()
	ready, resume := s.mu.ready, s.mu.resume
	s.mu.ready = s.spare[:0]
	s.mu.Unlock()
	s.spare = ready
	if len(ready) == 0 {
		return false
	}
	clk := s.p.c.cfg.clock
	if wait := resume.Sub(clk.Now()); wait > 0 {
		_ = clock.Sleep(ctx, clk, wait)
	}
	select {
	case <-s.news: // this attempt is for it
	default:
	}
	stream, err := s.connected(ctx)
	var unsent []*producerPartition
	for i, pt := range ready {
		if err == nil {
			err = s.sendOne(stream, pt)
		}
		if err != nil {
			unsent = slices.Clone(ready[i:])
			s.putBack(unsent)
			break
		}
	}
	clear(ready)
	if err == nil {
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	s.p.c.cfg.logger.Debug("produce stream", "broker", s.broker, "error", err)
	if s.answers.Swap(false) {
		s.back.reset()
	}
	wait := s.back.next()
	if errors.Is(err, errStreamEnded) {
		wait = 0
	} else {
		for _, pt := range unsent {
			pt.notSent(err, wait)
		}
	}
	if pause(ctx, clk, wait, s.news) {
		s.back.reset()
		s.p.c.conns.retry(s.p.c.meta.snapshot().address(s.broker), forProduce)
	}
	return ctx.Err() == nil
}

var errStreamEnded = errors.New("the stream has ended")

// putBack returns partitions to the front of the ready list, those that still belong here.
func (s *sender) putBack(pts []*producerPartition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.ready = append(append(make([]*producerPartition, 0, len(pts)+len(s.mu.ready)), pts...), s.mu.ready...)
}

// connected returns the current stream, or a new one.
func (s *sender) connected(ctx context.Context) (*produceStream, error) {
	s.mu.Lock()
	cur := s.mu.stream
	s.mu.Unlock()
	if cur != nil {
		return cur, nil
	}
	address := s.p.c.meta.snapshot().address(s.broker)
	if address == "" {
		return nil, fmt.Errorf("%w: broker %d is not running", ErrUnavailable, s.broker)
	}
	cc, err := s.p.c.conns.get(address, forProduce)
	if err != nil {
		return nil, err
	}
	sctx, cancel := context.WithCancelCause(ctx)
	patience := s.p.c.cfg.clock.AfterFunc(s.p.c.cfg.requestTimeout, func() { cancel(context.DeadlineExceeded) })
	g, err := runnelv1.NewProducerClient(cc).Produce(s.p.c.cfg.route(sctx))
	patience.Stop()
	if err != nil {
		cancel(err)
		return nil, fromRPC(err)
	}
	st := &produceStream{s: s, address: address, grpc: g, cancel: cancel, ended: make(chan struct{})}
	st.mu.attempts = make(map[uint64]attemptRef)
	s.mu.Lock()
	s.mu.stream = st
	s.mu.Unlock()
	s.p.c.cfg.hooks.Connected(address, "produce")
	s.p.wg.Go(func() { st.receive(sctx) })
	return st, nil
}

// readdress ends the stream when metadata has another address for the broker, or none.
func (s *sender) readdress(snap *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if address := snap.address(s.broker); s.mu.stream != nil && s.mu.stream.address != address {
		s.mu.stream.cancel(fmt.Errorf("%w: broker %d is not at %s any more", ErrUnavailable, s.broker, s.mu.stream.address))
	}
}

func (s *sender) closeStream(ctx context.Context) {
	s.mu.Lock()
	st := s.mu.stream
	s.mu.Unlock()
	if st != nil {
		st.cancel(context.Cause(ctx))
		<-st.ended
	}
}

// sendOne sends the partition's next batch, and puts the partition back on the list when there is another.
func (s *sender) sendOne(st *produceStream, pt *producerPartition) error {
	pt.sending.Lock()
	b, dropped := s.pick(st, pt)
	if b == nil {
		pt.sending.Unlock()
		if dropped {
			pt.deliver()
		}
		return nil
	}
	pt.sending.Unlock()
	err := st.grpc.SendMsg(&s.frame)
	s.frame.Free()
	if err != nil {
		st.cancel(err) // the receiving side reports why and settles the attempts, this one included
		<-st.ended
		return errStreamEnded
	}
	pt.mu.Lock()
	pt.offerLocked()
	pt.mu.Unlock()
	return nil
}

// pick chooses and builds the next batch, registers the attempt, and fills s.frame.
func (s *sender) pick(st *produceStream, pt *producerPartition) (b *batch, dropped bool) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if pt.mu.queued == s {
		pt.mu.queued = nil
	}
	if pt.mu.sender != s {
		return nil, false
	}
	now := s.p.c.cfg.clock.Now()
	b = pt.nextLocked(now)
	if b != nil && b.unsent() && b.firstCancelled() >= 0 {
		pt.dropCancelledLocked()
		dropped = true
		b = pt.nextLocked(now)
	}
	if b == nil {
		return nil, dropped
	}
	if !pt.prepareLocked(b, st.address) {
		return nil, dropped // it is offered again once there is a producer id
	}
	if b.wire == nil {
		// Building takes long, and new records must not wait for it. The batch counts as sent meanwhile; sending keeps other
		// senders away.
		b.state, b.sentAt, b.building = batchSent, now, true
		pt.mu.inFlight++
		pt.mu.Unlock()
		err := s.build(b)
		pt.mu.Lock()
		b.building = false
		if b.state != batchSent { // recalled or ended in the meantime
			return nil, true
		}
		if err != nil {
			pt.mu.inFlight--
			b.ambiguous = false
			pt.failLocked(slices.Index(pt.mu.queue, b), err)
			return nil, true
		}
	} else {
		b.state = batchSent
		pt.mu.inFlight++
	}
	b.sends++
	b.sentAt = now
	ref := attemptRef{pt, b, b.attempt.Add(1)}
	corr, ok := st.register(ref)
	if !ok {
		pt.mu.inFlight--
		pt.retryLocked(b, errStreamEnded, false)
		return nil, true
	}
	s.p.armTimeouts(now)
	s.frame = codec.ProduceFrame{
		CorrelationID: corr, TopicID: pt.mu.topicID, Partition: pt.index, LeaderEpoch: pt.mu.leaderEpoch, Acks: s.p.acks(),
	}
	b.wire.Ref()
	s.frame.SetBatch(b.wire)
	return b, dropped
}

// prepareLocked gives b its sequence and takes it out of the reach of new records and of contexts.
// It fails when there is no producer id yet, which is then asked for, at address first.
func (pt *producerPartition) prepareLocked(b *batch, address string) bool {
	mu := &pt.mu
	if mu.producerID < 0 {
		id, epoch, ok := pt.p.takeID(pt, address)
		if !ok {
			return false
		}
		mu.producerID, mu.producerEpoch = id, epoch
	}
	if mu.open == b {
		mu.open = nil
		pt.topic.moveSticky(pt.index)
	}
	b.stopWatching()
	if b.hasSequence {
		return true
	}
	if b.wire == nil {
		b.count = int32(b.builder.Count())
	}
	b.hasSequence = true
	b.producerID, b.producerEpoch, b.sequence = mu.producerID, mu.producerEpoch, mu.nextSequence
	mu.nextSequence = addSequence(mu.nextSequence, b.count)
	if b.wire != nil { // sent before under another id; the old bytes may still be with a dying connection
		wire, bytes := pt.p.c.codec.Pool().Buffer(len(b.wired))
		copy(bytes, b.wired)
		record.SetProducerOn(bytes, b.producerID, b.producerEpoch, b.sequence)
		b.wire.Free()
		b.wire, b.wired = wire, bytes
	}
	return true
}

// build encodes b. Only the sender that holds the partition's sending lock calls it.
func (s *sender) build(b *batch) error {
	pool := s.p.c.codec.Pool()
	b.builder.SetProducer(b.producerID, b.producerEpoch, b.sequence)
	buf := pool.Get(b.builder.Size())
	out, err := b.builder.Build((*buf)[:0])
	if err != nil {
		pool.Put(buf)
		return fmt.Errorf("%w: %w", ErrInvalidArgument, err)
	}
	*buf = out
	b.wire, b.wired = mem.NewBuffer(buf, pool), out
	s.p.freeBuilder(b)
	return nil
}

// register notes an attempt; it fails when the stream has ended.
func (st *produceStream) register(ref attemptRef) (correlation uint64, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.dead {
		return 0, false
	}
	st.mu.next++
	st.mu.attempts[st.mu.next] = ref
	return st.mu.next, true
}

// receive takes answers until the stream ends, then settles what was not answered.
func (st *produceStream) receive(ctx context.Context) {
	s := st.s
	var err error
	for {
		r := new(runnelv1.ProduceResponse)
		if err = st.grpc.RecvMsg(r); err != nil {
			break
		}
		s.answers.Store(true)
		st.throttle(r.GetThrottleMs())
		st.mu.Lock()
		ref, known := st.mu.attempts[r.GetCorrelationId()]
		delete(st.mu.attempts, r.GetCorrelationId())
		st.mu.Unlock()
		if !known {
			err = fmt.Errorf("client: %s answered correlation id %d, which was not asked", st.address, r.GetCorrelationId())
			break
		}
		ref.pt.answered(ref, r)
	}
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: the broker ended the produce stream", ErrUnavailable)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	err = fromRPC(err)
	st.cancel(err)
	s.p.c.cfg.hooks.Disconnected(st.address, "produce", err)
	st.mu.Lock()
	st.mu.dead = true
	left := st.mu.attempts
	st.mu.attempts = nil
	st.mu.Unlock()
	s.mu.Lock()
	if s.mu.stream == st {
		s.mu.stream = nil
	}
	s.mu.Unlock()
	for _, ref := range left {
		ref.pt.lost(ref, err)
	}
	close(st.ended)
	for _, ref := range left {
		ref.pt.deliver()
	}
	s.poke()
}

func (st *produceStream) throttle(ms int64) {
	if ms <= 0 {
		return
	}
	wait := time.Duration(ms) * time.Millisecond
	st.s.mu.Lock()
	st.s.mu.resume = st.s.p.c.cfg.clock.Now().Add(wait)
	st.s.mu.Unlock()
	st.s.p.c.cfg.hooks.Throttled(st.address, wait)
}
