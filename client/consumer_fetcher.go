package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// fetcher fetches everything that one broker leads, over one stream. Its goroutine sends control frames, another receives.
type fetcher struct {
	cs     *Consumer
	broker int32
	wake   chan struct{}
	news   chan struct{} // capacity 1: ends a pause, there is something new to fetch

	// Guarded by the consumer's mu.
	claims map[*claim]struct{}
	remove []uint32 // subscription ids of the current stream to end
	credit map[*claim]struct{}
	owed   int64 // stream credit to give back
	held   int64 // bytes that are queued or being read, of the streams before as well
	stream *fetchStream
}

// fetchStream is one Fetch call.
type fetchStream struct {
	f       *fetcher
	address string
	grpc    grpc.BidiStreamingClient[runnelv1.FetchRequest, runnelv1.FetchResponse]
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	byID    map[uint32]*claim // guarded by the consumer's mu
}

func (cs *Consumer) fetcherLocked(broker int32) *fetcher {
	f := cs.mu.fetchers[broker]
	if f == nil {
		f = &fetcher{cs: cs, broker: broker, wake: make(chan struct{}, 1), news: make(chan struct{}, 1), claims: make(map[*claim]struct{}), credit: make(map[*claim]struct{})}
		cs.mu.fetchers[broker] = f
		cs.wg.Go(f.run)
	}
	return f
}

func (f *fetcher) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *fetcher) attachLocked(cl *claim) {
	cl.fetcher, cl.id, cl.owed = f, 0, 0
	f.claims[cl] = struct{}{}
	f.poke()
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// detachLocked ends fetching for a claim; frames that are queued keep their place.
func (cs *Consumer) detachLocked(cl *claim) {
	f := cl.fetcher
	if f == nil {
		return
	}
	delete(f.claims, cl)
	delete(f.credit, cl)
	if cl.id != 0 && f.stream != nil {
		delete(f.stream.byID, cl.id)
		f.remove = append(f.remove, cl.id)
		f.poke()
	}
	cl.fetcher, cl.id, cl.owed = nil, 0, 0
}

// creditLocked gives back what an item took: to the current stream, which was granted what the queue left, and to its subscription,
// when that still exists. Small amounts are collected.
func (cs *Consumer) creditLocked(it *item) {
	if it.batch == nil || it.stream == nil {
		return
	}
	n := int64(it.batch.Len())
	f := it.stream.f
	f.held -= n
	if f.stream == nil {
		f.poke() // it may wait for room
		return
	}
	f.owed += n
	if cl := it.claim; f.stream == it.stream && cl.fetcher == f && cl.id == it.id && it.id != 0 {
		cl.owed += n
		if cl.owed >= cs.cfg.partitionCredit/2 {
			f.credit[cl] = struct{}{}
			f.poke()
		}
	}
	if f.owed >= cs.cfg.streamCredit/4 {
		f.poke()
	}
}

// readdressLocked ends the stream when metadata has another address for the broker.
func (f *fetcher) readdressLocked(snap *snapshot) {
	if address := snap.address(f.broker); f.stream != nil && f.stream.address != address {
		f.stream.cancel(fmt.Errorf("%w: broker %d is not at %s any more", ErrUnavailable, f.broker, f.stream.address))
	}
}

// run keeps a stream open while there is something to fetch, until the consumer ends.
func (f *fetcher) run() {
	ctx, clk := f.cs.ctx, f.cs.c.cfg.clock
	var back backoff
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		}
		for f.wanted() && ctx.Err() == nil {
			select {
			case <-f.news: // this attempt is for it
			default:
			}
			began := clk.Now()
			err := f.serve(ctx)
			if ctx.Err() != nil {
				return
			}
			if clk.Since(began) > backoffMax {
				back.reset()
			}
			f.cs.c.cfg.logger.Debug("fetch stream", "broker", f.broker, "error", err)
			if pause(ctx, clk, back.next(), f.news) {
				back.reset()
				f.cs.c.conns.retry(f.cs.c.meta.snapshot().address(f.broker), forFetch)
			}
		}
	}
}

// wanted: there is something to fetch, and room for it. A stream begins with at least a quarter of its credit.
func (f *fetcher) wanted() bool {
	f.cs.mu.Lock()
	defer f.cs.mu.Unlock()
	return len(f.claims) > 0 && f.roomLocked()
}

func (f *fetcher) roomLocked() bool {
	return f.cs.cfg.streamCredit-f.held >= max(f.cs.cfg.streamCredit/4, 1)
}

// serve opens a stream and sends control frames until it ends.
func (f *fetcher) serve(ctx context.Context) error {
	cs := f.cs
	address := cs.c.meta.snapshot().address(f.broker)
	if address == "" {
		return fmt.Errorf("%w: broker %d is not running", ErrUnavailable, f.broker)
	}
	cc, err := cs.c.conns.get(address, forFetch)
	if err != nil {
		return err
	}
	sctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := cs.c.cfg.clock.AfterFunc(cs.c.cfg.requestTimeout, func() { cancel(context.DeadlineExceeded) })
	g, err := runnelv1.NewConsumerClient(cc).Fetch(cs.c.cfg.route(sctx))
	patience.Stop()
	if err != nil {
		return fromRPC(err)
	}
	st := &fetchStream{f: f, address: address, grpc: g, cancel: cancel, ended: make(chan struct{}), byID: make(map[uint32]*claim)}
	cs.mu.Lock()
	f.stream, f.remove, f.owed = st, nil, cs.cfg.streamCredit-f.held
	clear(f.credit)
	for cl := range f.claims {
		cl.id, cl.owed = 0, 0
	}
	cs.mu.Unlock()
	cs.c.cfg.hooks.Connected(address, "fetch")
	var recvErr error
	cs.wg.Go(func() {
		recvErr = st.receive()
		cancel(recvErr)
		close(st.ended)
	})
	for {
		if req := f.control(st); req != nil {
			if g.Send(req) != nil {
				cancel(nil)
				break // the receiving side knows why
			}
		}
		select {
		case <-f.wake:
			continue
		case <-st.ended:
		}
		break
	}
	<-st.ended
	if cause := context.Cause(sctx); cause != nil && recvErr == nil {
		recvErr = cause
	}
	cs.mu.Lock()
	f.stream = nil
	for cl := range f.claims {
		cl.id, cl.owed = 0, 0
	}
	cs.mu.Unlock()
	cs.c.cfg.hooks.Disconnected(address, "fetch", recvErr)
	return recvErr
}

// control collects what the broker has to be told, nil when that is nothing.
func (f *fetcher) control(st *fetchStream) *runnelv1.FetchRequest {
	cs := f.cs
	cs.mu.Lock()
	defer cs.mu.Unlock()
	req := &runnelv1.FetchRequest{Remove: f.remove}
	f.remove = nil
	for cl := range f.claims {
		if cl.id != 0 {
			continue
		}
		cs.mu.lastID++
		cl.id, cl.owed = cs.mu.lastID, 0
		st.byID[cl.id] = cl
		req.Add = append(req.Add, &runnelv1.FetchAdd{
			SubscriptionId: cl.id, TopicId: cl.sub.topicID[:], Partition: cl.sub.tp.Partition, Offset: cl.next,
			LeaderEpoch: cl.sub.leaderEpoch, CreditBytes: cs.cfg.partitionCredit,
		})
	}
	for cl := range f.credit {
		req.Credit = append(req.Credit, &runnelv1.FetchCredit{SubscriptionId: cl.id, Bytes: cl.owed})
		cl.owed = 0
	}
	clear(f.credit)
	if f.owed >= cs.cfg.streamCredit/4 {
		req.StreamCreditBytes, f.owed = f.owed, 0
	}
	if len(req.Remove)+len(req.Add)+len(req.Credit) == 0 && req.StreamCreditBytes == 0 {
		return nil
	}
	return req
}

// receive takes frames until the stream ends.
func (st *fetchStream) receive() error {
	cs := st.f.cs
	var frame codec.FetchFrame
	for {
		if err := st.grpc.RecvMsg(&frame); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: the broker ended the fetch stream", ErrUnavailable)
			}
			return fromRPC(err)
		}
		if frame.ThrottleMS > 0 {
			cs.c.cfg.hooks.Throttled(st.address, time.Duration(frame.ThrottleMS)*time.Millisecond)
		}
		cs.mu.Lock()
		cl := st.byID[frame.SubscriptionID]
		var after func()
		switch {
		case frame.Error != nil && cl != nil:
			after = cs.refusedLocked(st, cl, itemError(frame.Error))
		case len(frame.Batch()) > 0:
			cs.arrivedLocked(st, cl, &frame)
		}
		cs.mu.Unlock()
		frame.Free()
		if after != nil {
			after()
		}
	}
}

// arrivedLocked queues a frame, or drops it when its subscription has ended.
func (cs *Consumer) arrivedLocked(st *fetchStream, cl *claim, frame *codec.FetchFrame) {
	if cl == nil {
		st.f.owed += int64(len(frame.Batch()))
		if st.f.owed >= cs.cfg.streamCredit/4 {
			st.f.poke()
		}
		return
	}
	it := item{claim: cl, id: frame.SubscriptionID, stream: st, next: frame.NextOffset, hw: frame.HighWatermark}
	if frame.NextOffset <= cl.next {
		st.f.owed += int64(len(frame.Batch()))
		cs.failLocked(cl.sub, fmt.Errorf("%w: %s sent batches up to offset %d for a fetch at %d", ErrCorrupt, st.address, frame.NextOffset, cl.next))
		return
	}
	it.batch = frame.TakeBatch()
	st.f.held += int64(it.batch.Len())
	cl.next = frame.NextOffset
	cl.sub.back.reset()
	cl.sub.outage = outage{asked: cl.id}
	cs.pushLocked(it)
	cs.c.cfg.hooks.Fetched(FetchedFrame{TopicPartition: cl.sub.tp, Bytes: it.batch.Len(), NextOffset: it.next, HighWatermark: it.hw})
}

// refusedLocked takes an error that has ended a subscription. What it returns is to be called without the lock.
func (cs *Consumer) refusedLocked(st *fetchStream, cl *claim, e *Error) (after func()) {
	s := cl.sub
	delete(st.byID, cl.id)
	cl.id = 0 // the broker has ended it: nothing to remove
	cs.detachLocked(cl)
	switch {
	case e.Reason == reasonOutOfRange:
		return cs.outOfRangeLocked(s, cl, outOfRange(e, s.tp, cl.next))
	case transient(e):
		cs.retryLocked(s, e)
		id, tp := s.topicID, s.tp
		return func() { cs.c.meta.hint(tp.Topic, id, tp.Partition, e.leader) }
	default:
		cs.failLocked(s, e)
	}
	return nil
}

// outOfRangeLocked applies the policy, behind what was fetched before.
func (cs *Consumer) outOfRangeLocked(s *subscription, cl *claim, err *OffsetOutOfRangeError) (after func()) {
	to := err.Earliest
	if cs.cfg.outOfRange == ResetToLatest {
		to = err.Latest
	}
	if cs.cfg.outOfRange == FailOutOfRange || to < 0 {
		cs.failLocked(s, err)
		return nil
	}
	if to < cl.next && cl.next <= err.Latest {
		cs.failLocked(s, err) // the broker contradicts itself; going back would deliver twice
		return nil
	}
	cl.next = to
	cs.pushLocked(item{claim: cl, jump: true, next: to})
	cs.reconcileLocked(s)
	return func() {
		cs.c.cfg.logger.Warn("position out of range, moved by policy", "partition", s.tp.String(), "asked", err.Asked, "earliest", err.Earliest, "latest", err.Latest, "to", to)
		cs.c.cfg.hooks.Reset(err, to)
	}
}

// transient reports whether the same request can succeed later.
func transient(err error) bool {
	return Retriable(err) || isCancelled(err)
}
