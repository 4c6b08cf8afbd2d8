package server

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

const (
	// proxyWindow is what one stream to another broker may have sent that the client has not taken yet, bytes. One batch more is possible.
	proxyWindow = 2 << 20
	// leastWindow is what remains of it however many streams there are.
	leastWindow = 64 << 10
)

// readWindow is proxyWindow as long as all streams together stay within a share of what clients may have in flight, and less when they do not:
// clients that do not read must not add up.
func (s *Server) readWindow() int64 {
	return min(max(s.limits.InFlightBytes/peerShare/max(s.reads.Load(), 1), leastWindow), proxyWindow)
}

// fetchProxy is a Fetch stream to another broker on behalf of one stream of a client. Frames wait in their subscription until the client has credit;
// how many may wait is bounded by a window over all of them, which the other broker sees as the stream's credit.
type fetchProxy struct {
	l      *listener
	broker int32
	cancel context.CancelFunc
	signal chan struct{} // capacity 1: there is something to tell the other broker

	mu struct {
		sync.Mutex
		subs   map[uint32]*remoteSub
		lastID uint32
		// What the other broker has to be told; credits are added up per subscription.
		adds    map[uint32]*runnelv1.FetchAdd
		removes []uint32
		credits map[uint32]int64
		grant   int64 // of the window
		open    int64 // of the window, granted and not used up by frames that were taken
		failed  error
	}
}

// remoteSub is one partition of a proxy's stream. Its frames carry the proxy's number of it, which no client ever sees.
type remoteSub struct {
	x  *fetchProxy
	id uint32
	// wake is called, without a lock, whenever there is something to take.
	wake func()

	// Guarded by x.mu.
	frames []*codec.FetchFrame
	ended  bool
	err    error // comes behind the frames
}

// newFetchProxy starts a stream to a broker, which ends with ctx. run has to be run beside the caller.
func (l *listener) newFetchProxy(ctx context.Context, broker int32) (x *fetchProxy, run func()) {
	ctx, cancel := context.WithCancel(ctx)
	x = &fetchProxy{l: l, broker: broker, cancel: cancel, signal: make(chan struct{}, 1)}
	x.mu.subs, x.mu.adds, x.mu.credits = map[uint32]*remoteSub{}, map[uint32]*runnelv1.FetchAdd{}, map[uint32]int64{}
	l.reads.Add(1)
	x.mu.open = l.readWindow()
	x.mu.grant = x.mu.open
	return x, func() { x.run(ctx) }
}

func (x *fetchProxy) over() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.failed != nil
}

// add subscribes a partition; add's number and the client's credit are set here.
func (x *fetchProxy) add(a *runnelv1.FetchAdd, wake func()) *remoteSub {
	x.mu.Lock()
	x.mu.lastID++
	s := &remoteSub{x: x, id: x.mu.lastID, wake: wake}
	if x.mu.failed != nil {
		s.ended, s.err = true, x.mu.failed
		x.mu.Unlock()
		return s
	}
	a.SubscriptionId = s.id
	x.mu.subs[s.id] = s
	x.mu.adds[s.id] = a
	x.mu.Unlock()
	x.tell()
	return s
}

// grant passes credit of the client on.
func (s *remoteSub) grant(n int64) {
	s.x.mu.Lock()
	if !s.ended && n > 0 {
		s.x.mu.credits[s.id] = addCredit(s.x.mu.credits[s.id], n)
	}
	s.x.mu.Unlock()
	s.x.tell()
}

// close ends the subscription; frames that wait are dropped.
func (s *remoteSub) close() {
	x := s.x
	x.mu.Lock()
	if x.mu.subs[s.id] == s {
		delete(x.mu.subs, s.id)
		delete(x.mu.credits, s.id)
		if x.mu.adds[s.id] != nil { // the other broker never heard of it: a client can come and go faster than a broker listens
			delete(x.mu.adds, s.id)
		} else {
			x.mu.removes = append(x.mu.removes, s.id)
		}
	}
	s.ended = true
	for _, f := range s.frames {
		x.takenLocked(f)
		f.Free()
	}
	s.frames = nil
	x.mu.Unlock()
	x.tell()
}

// take returns the next frame, which the caller has to Free; nil when there is none. An error ends the subscription, and comes last.
func (s *remoteSub) take() (*codec.FetchFrame, error) {
	x := s.x
	x.mu.Lock()
	if len(s.frames) == 0 {
		err := s.err
		x.mu.Unlock()
		return nil, err
	}
	f := s.frames[0]
	s.frames[0] = nil
	s.frames = s.frames[1:]
	x.takenLocked(f)
	grant := x.mu.grant > 0
	x.mu.Unlock()
	if grant {
		x.tell()
	}
	return f, nil
}

// takenLocked gives a frame's share of the window back, in large steps, or what is left of it when the window has become smaller.
func (x *fetchProxy) takenLocked(f *codec.FetchFrame) {
	x.mu.open -= int64(len(f.Batch()))
	window := x.l.readWindow()
	if n := window - x.mu.open; n >= window/4 {
		x.mu.grant += n
		x.mu.open = window
	}
}

// failure is what ends the subscription, nil while nothing does.
func (s *remoteSub) failure() error {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	return s.err
}

func (x *fetchProxy) tell() {
	select {
	case x.signal <- struct{}{}:
	default:
	}
}

func (x *fetchProxy) run(ctx context.Context) {
	defer x.l.reads.Add(-1)
	defer x.cancel()
	cc, leave, err := x.l.connForStream(x.broker)
	if err != nil {
		x.fail(err)
		return
	}
	defer leave()
	stream, err := runnelv1.NewConsumerClient(cc).Fetch(x.l.outgoing(ctx), x.l.forwardOptions()...)
	if err != nil {
		x.fail(fromPeer(x.broker, err))
		return
	}
	var receiver sync.WaitGroup
	receiver.Go(func() {
		x.fail(x.receive(stream))
		x.cancel()
	})
	x.pump(ctx, stream)
	x.cancel()
	receiver.Wait()
}

// pump sends what the other broker has to be told, as one message however much came together.
func (x *fetchProxy) pump(ctx context.Context, stream grpc.ClientStream) {
	for {
		if req := x.pending(); req != nil {
			if err := stream.SendMsg(req); err != nil {
				return // the receiving half knows why
			}
		}
		select {
		case <-x.signal:
		case <-ctx.Done():
			return
		}
	}
}

// pending returns nil when there is nothing to tell.
func (x *fetchProxy) pending() *runnelv1.FetchRequest {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.mu.adds)+len(x.mu.removes)+len(x.mu.credits) == 0 && x.mu.grant == 0 {
		return nil
	}
	req := &runnelv1.FetchRequest{Add: slices.Collect(maps.Values(x.mu.adds)), Remove: x.mu.removes, StreamCreditBytes: x.mu.grant}
	for id, n := range x.mu.credits {
		req.Credit = append(req.Credit, &runnelv1.FetchCredit{SubscriptionId: id, Bytes: n})
	}
	clear(x.mu.adds)
	clear(x.mu.credits)
	x.mu.removes, x.mu.grant = nil, 0
	return req
}

func (x *fetchProxy) receive(stream runnelv1.Consumer_FetchClient) error {
	for {
		f := &codec.FetchFrame{}
		if err := stream.RecvMsg(f); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("it ended the stream")
			}
			return fromPeer(x.broker, err)
		}
		x.l.metrics.forwardedBytes.Add(float64(len(f.Batch())))
		if s := x.deliver(f); s != nil {
			s.wake()
		}
	}
}

// deliver puts a frame into its subscription, which it returns unless it has ended.
func (x *fetchProxy) deliver(f *codec.FetchFrame) *remoteSub {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.mu.subs[f.SubscriptionID]
	if s == nil {
		x.takenLocked(f)
		f.Free()
		x.tell()
		return nil
	}
	if f.Error != nil {
		s.ended, s.err = true, remote(f.Error)
		delete(x.mu.subs, s.id)
		delete(x.mu.credits, s.id)
		f.Free()
		return s
	}
	// Of frames without batches only the newest matters, so that a client without credit does not make them pile up.
	if n := len(s.frames); n > 0 && len(s.frames[n-1].Batch()) == 0 {
		s.frames[n-1] = f
		return s
	}
	s.frames = append(s.frames, f)
	return s
}

// fail ends all subscriptions.
func (x *fetchProxy) fail(err error) {
	x.mu.Lock()
	if x.mu.failed == nil {
		x.mu.failed = err
	}
	subs := x.mu.subs
	x.mu.subs = nil
	for _, s := range subs {
		s.ended, s.err = true, err
	}
	x.mu.Unlock()
	for _, s := range subs {
		s.wake()
	}
}
