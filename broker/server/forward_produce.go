package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
)

// peerPatience is how long a batch waits for room at a broker that does not get on before it is refused, so that the client's other partitions are
// not held up.
const peerPatience = time.Second

// produceProxy is a Produce stream to another broker, on behalf of one stream of a client. Batches go on without being copied, in the order in which
// they came; the answers find their way back by number.
type produceProxy struct {
	st     *produceStream
	broker int32
	share  *budget
	cancel context.CancelFunc
	signal chan struct{} // capacity 1
	mu     struct {
		sync.Mutex
		number uint64         // of the last one sent
		queue  []*produceWait // from head on, not sent yet
		head   int
		sent   map[uint64]*produceWait // handed to the transport, not answered yet
		failed error                   // nothing more is taken
	}
}

// proxy returns the stream to a broker, a new one when the last has failed. For the receiving goroutine.
func (st *produceStream) proxy(broker int32) *produceProxy {
	x := st.proxies[broker]
	if x != nil && !x.over() {
		return x
	}
	ctx, cancel := context.WithCancel(st.ctx)
	x = &produceProxy{st: st, broker: broker, share: st.l.loadOf(broker).bytes, cancel: cancel, signal: make(chan struct{}, 1)}
	x.mu.sent = map[uint64]*produceWait{}
	if st.proxies == nil {
		st.proxies = map[int32]*produceProxy{}
		st.l.receive(st.cancel, st.watchMoves)
	}
	st.mu.Lock()
	st.proxies[broker] = x
	st.mu.Unlock()
	st.l.receive(st.cancel, func() error { x.run(ctx); return nil })
	return x
}

func (x *produceProxy) over() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.failed != nil
}

// forward takes one batch, whose partition another broker leads, into flight to it.
func (st *produceStream) forward(f *codec.ProduceFrame, part *producePart, at where) error {
	w := st.take(f, part)
	waiting := part.unanswered.Add(1) > 1
	if err := part.enter(at.leader, at, waiting); err != nil {
		w.refuse(err)
		return nil
	}
	x := st.proxy(at.leader)
	if err := acquireWithin(st.ctx, x.share, w.size, peerPatience); err != nil {
		if st.ctx.Err() == nil {
			part.gap = fmt.Errorf("%w: broker %d", errPeerBusy, at.leader)
			w.refuse(part.gap)
			return nil
		}
		w.refuse(errStopping)
		return context.Cause(st.ctx)
	}
	w.share = x.share
	if err := st.l.budget.acquire(st.ctx, w.size); err != nil {
		w.refuse(errStopping)
		return context.Cause(st.ctx)
	}
	w.charged, w.epoch = true, at.epoch
	w.frame = codec.ProduceFrame{TopicID: f.TopicID, TopicIDLength: f.TopicIDLength, Partition: f.Partition, LeaderEpoch: f.LeaderEpoch, Acks: f.Acks}
	w.frame.SetBatch(f.TakeBatch())
	st.l.metrics.forwardedBytes.Add(float64(w.size))
	x.send(w)
	return nil
}

// acquireWithin gives up after a time.
func acquireWithin(ctx context.Context, b *budget, n int, most time.Duration) error {
	if b.tryAcquire(n) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return b.acquire(ctx, n)
}

func (w *produceWait) refuse(err error) {
	w.Acked(partition.Result{Base: -1, AppendTimeMS: -1, Err: err})
}

func (x *produceProxy) send(w *produceWait) {
	x.mu.Lock()
	failed := x.mu.failed
	if failed == nil {
		x.mu.queue = append(x.mu.queue, w)
	}
	x.mu.Unlock()
	if failed != nil {
		w.refuse(failed)
		return
	}
	select {
	case x.signal <- struct{}{}:
	default:
	}
}

// run sends what is queued until the stream ends, and then fails what is left.
func (x *produceProxy) run(ctx context.Context) {
	defer x.cancel()
	l := x.st.l
	cc, leave, err := l.connForStream(x.broker)
	if err != nil {
		x.fail(err)
		return
	}
	defer leave()
	stream, err := runnelv1.NewProducerClient(cc).Produce(l.outgoing(ctx), l.forwardOptions()...)
	if err != nil {
		x.fail(fromPeer(x.broker, err))
		return
	}
	var receiver sync.WaitGroup
	receiver.Go(func() {
		x.receive(stream)
		x.cancel()
	})
	x.pump(ctx, stream)
	x.cancel()
	receiver.Wait()
}

// pump is the sending half. It returns when ctx ends, or when the stream breaks: the receiving half then knows why.
func (x *produceProxy) pump(ctx context.Context, stream grpc.ClientStream) {
	var f codec.ProduceFrame
	for {
		if x.next(&f) {
			err := stream.SendMsg(&f)
			f.Free()
			if err != nil {
				return
			}
			continue
		}
		select {
		case <-x.signal:
		case <-ctx.Done():
			return
		}
	}
}

// next takes the first of the queue. From here on its outcome is unknown until it is answered.
func (x *produceProxy) next(f *codec.ProduceFrame) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.head == len(x.mu.queue) {
		x.mu.queue, x.mu.head = x.mu.queue[:0], 0
		return false
	}
	w := x.mu.queue[x.mu.head]
	x.mu.queue[x.mu.head] = nil
	x.mu.head++
	x.mu.number++
	*f, w.frame = w.frame, codec.ProduceFrame{}
	f.CorrelationID = x.mu.number
	x.mu.sent[x.mu.number] = w
	return true
}

// receive hands answers out, and fails what is left when the stream ends.
func (x *produceProxy) receive(stream runnelv1.Producer_ProduceClient) {
	var resp runnelv1.ProduceResponse
	for {
		if err := stream.RecvMsg(&resp); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it ended the stream")
			}
			x.fail(fromPeer(x.broker, err))
			return
		}
		x.mu.Lock()
		w := x.mu.sent[resp.GetCorrelationId()]
		delete(x.mu.sent, resp.GetCorrelationId())
		x.mu.Unlock()
		if w == nil {
			continue // given up since
		}
		w.Acked(partition.Result{
			Base: resp.GetBaseOffset(), AppendTimeMS: resp.GetLogAppendTimeMs(), LogStart: resp.GetLogStartOffset(),
			Duplicate: resp.GetDuplicate(), Err: remote(resp.GetError()),
		})
		resp.Error = nil
	}
}

// fail ends the proxy: what was not sent is refused with err, of the rest the outcome is unknown, unless the other broker has refused the stream as
// such.
func (x *produceProxy) fail(err error) {
	x.mu.Lock()
	if x.mu.failed != nil {
		x.mu.Unlock()
		return
	}
	x.mu.failed = err
	unsent, sent := x.mu.queue[x.mu.head:], x.mu.sent
	x.mu.queue, x.mu.head, x.mu.sent = nil, 0, nil
	x.mu.Unlock()
	lost := err
	if !notExecuted(err) {
		lost = fmt.Errorf("%w: %w", errForwardUnknown, err)
	}
	for _, w := range sent {
		w.refuse(lost)
	}
	for _, w := range unsent {
		w.refuse(err)
	}
}

// moved gives up on batches whose partition is led under a newer epoch than when they were sent on: the broker has had its time to answer, and
// may be one that never will.
func (x *produceProxy) moved(snap *Snapshot) {
	newer := func(w *produceWait) (where, bool) {
		now, ok := snap.leaderOf(w.key.topic, w.key.number)
		return now, ok && now.epoch > w.epoch
	}
	type answer struct {
		w   *produceWait
		err error
	}
	var answers []answer
	x.mu.Lock()
	for n, w := range x.mu.sent {
		if now, ok := newer(w); ok {
			delete(x.mu.sent, n)
			answers = append(answers, answer{w, fmt.Errorf("%w: broker %d leads by now", errForwardUnknown, now.leader)})
		}
	}
	kept := x.mu.queue[:0]
	for _, w := range x.mu.queue[x.mu.head:] {
		if now, ok := newer(w); ok {
			answers = append(answers, answer{w, &partition.NotLeaderError{LeaderID: now.leader, LeaderEpoch: now.epoch}})
			continue
		}
		kept = append(kept, w)
	}
	clear(x.mu.queue[len(kept):])
	x.mu.queue, x.mu.head = kept, 0
	x.mu.Unlock()
	for _, a := range answers {
		a.w.refuse(a.err)
	}
}

// watchMoves tells the proxies of a stream about new leaders.
func (st *produceStream) watchMoves() error {
	for {
		if !st.l.afterMove(st.ctx) {
			return nil
		}
		snap := st.l.cfg.Metadata.Snapshot()
		st.mu.Lock()
		proxies := slices.Collect(maps.Values(st.proxies))
		st.mu.Unlock()
		for _, x := range proxies {
			x.moved(snap)
		}
	}
}

// afterMove waits until the metadata has changed, and for the grace that follows; false when ctx has ended.
func (l *listener) afterMove(ctx context.Context) bool {
	select {
	case <-l.cfg.Metadata.Snapshot().Changed:
	case <-ctx.Done():
		return false
	}
	timer := l.cfg.Clock.NewTimer(moveGrace)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
