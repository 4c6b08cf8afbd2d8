package server

import (
	"context"
	"errors"
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
	// routes: partitions that others lead are read there. proxies, and what cancels the stream, are the handler's.
	routes  bool
	proxies map[int32]*fetchProxy
	cancel  context.CancelCauseFunc

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
	p        *partition.Partition // nil: led elsewhere, or refused
	source   *remoteSource        // where, when it is led elsewhere
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
	// remote is the subscription at the other broker, nil while there is none: before the first credit, and while paused.
	remote *remoteSub
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
	if len(st.mu.ready) == cap(st.mu.ready) {
		st.compactLocked()
	}
	st.mu.ready = append(st.mu.ready, s)
}

// compactLocked drops what was served and what has ended, so that a client that adds and removes without end, while nothing can be
// sent, does not make the queue grow.
func (st *fetchStream) compactLocked() {
	kept := st.mu.ready[:0]
	for _, s := range st.mu.ready[st.mu.head:] {
		if !s.ended {
			kept = append(kept, s)
		}
	}
	clear(st.mu.ready[len(kept):])
	st.mu.ready, st.mu.head = kept, 0
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
	st := &fetchStream{
		l: l.forClient(ctx), grpc: stream, ctx: ctx, cancel: cancel, routes: l.routes(ctx), signal: make(chan struct{}, 1),
	}
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
		s.unsubscribe()
	}
}

// next takes the subscription that is to be served now, and how many bytes it may get, or what ends it.
func (st *fetchStream) next() (s *subscription, allowed int64, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.mu.head < len(st.mu.ready) {
		s = st.mu.ready[st.mu.head]
		if blocked := s.paused || s.credit <= 0; blocked || st.mu.credit <= 0 {
			// Bytes have to wait; that the partition is gone does not.
			if s.err == nil {
				s.err = s.over()
			}
			if s.err == nil && !s.ended && !blocked {
				return nil, 0, nil // it stays first until the stream has credit
			}
		}
		st.mu.ready[st.mu.head] = nil
		st.mu.head++
		s.queued = false
		if s.ended || s.err == nil && (s.paused || s.credit <= 0) {
			continue
		}
		return s, min(s.credit, st.mu.credit), s.err
	}
	st.mu.ready, st.mu.head = st.mu.ready[:0], 0
	return nil, 0, nil
}

// send serves subscriptions until the stream ends.
func (st *fetchStream) send() error {
	var f codec.FetchFrame
	defer f.Free()
	for {
		for {
			s, allowed, err := st.next()
			if s == nil {
				break
			}
			if err := st.serve(s, allowed, err, &f); err != nil {
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

// serve sends one frame of s, err when that has ended it, or finds that there is nothing to send.
func (st *fetchStream) serve(s *subscription, allowed int64, err error, f *codec.FetchFrame) error {
	switch {
	case err != nil:
	case s.p == nil:
		err = st.readRemote(s, f)
	default:
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
				f.HighWatermark, f.LogStartOffset, f.LeaderEpoch = end(lim), lim.LogStart, lim.LeaderEpoch
				f.LastStableOffset = f.HighWatermark
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

// over returns what ends a subscription that may not send, nil while nothing does.
func (s *subscription) over() error {
	switch {
	case s.p != nil:
		_, err := s.p.Limits(-1)
		return err
	case s.remote != nil:
		return s.remote.failure()
	}
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
	if r.Len == 0 && s.told == end(lim) {
		return errNothing
	}
	*f = codec.FetchFrame{
		SubscriptionID: s.id, FetchOffset: s.offset, NextOffset: s.offset, HighWatermark: end(lim), LogStartOffset: lim.LogStart,
		LastStableOffset: end(lim), LeaderEpoch: lim.LeaderEpoch,
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

// end is the high watermark that a client is shown, -1 while the leader may know a lower one than clients have seen: it never goes back.
func end(lim partition.Limits) int64 {
	if !lim.Ready {
		return -1
	}
	return lim.HighWatermark
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
