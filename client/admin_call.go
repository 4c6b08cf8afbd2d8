package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/clock"
)

// call makes one request to the broker at address.
func call[R any](ctx context.Context, a *Admin, address string, f func(context.Context, runnelv1.AdminClient) (R, error)) (R, error) {
	var zero R
	cc, err := a.c.conns.get(address, forControl)
	if err != nil {
		return zero, err
	}
	rctx, cancel := a.c.request(ctx)
	defer cancel()
	conn := &tracedConn{ClientConnInterface: cc}
	r, err := f(rctx, runnelv1.NewAdminClient(conn))
	err = fromRPC(err)
	if e, ok := errors.AsType[*Error](err); ok {
		e.unsent = e.Code == codes.Unavailable && conn.peer.Addr == nil
	}
	return r, err
}

// tracedConn notes whom a unary call was sent to. The peer stays empty when the call got no connection, and so was never sent.
type tracedConn struct {
	grpc.ClientConnInterface
	peer peer.Peer
}

// Invoke implements grpc.ClientConnInterface.
func (c *tracedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, append(opts, grpc.Peer(&c.peer))...)
}

// ask asks one broker after the other until one answers, again for as long as a request may take: reading twice changes nothing.
func ask[R any](ctx context.Context, a *Admin, f func(context.Context, runnelv1.AdminClient) (R, error)) (r R, err error) {
	patience, cancel := a.c.request(ctx)
	defer cancel()
	var back backoff
	for round := 0; ; round++ {
		for _, address := range a.c.meta.addresses() {
			answer, failure := callWithin(patience, a, address, hungAfter<<min(round, 10), f)
			if !elsewhere(failure) || patience.Err() != nil {
				if err != nil && patience.Err() != nil {
					return r, err // why it did not work says more than that time was up
				}
				return answer, failure
			}
			err = failure
		}
		if clock.Sleep(patience, a.c.cfg.clock, back.next()) != nil {
			return r, err
		}
	}
}

// hungAfter is how long one broker may take before another is asked, at first; it doubles each time that all were asked in vain.
const hungAfter = 3 * time.Second

func callWithin[R any](ctx context.Context, a *Admin, address string, most time.Duration, f func(context.Context, runnelv1.AdminClient) (R, error)) (R, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return call(ctx, a, address, f)
}

// elsewhere reports whether another broker may answer what failed with err.
func elsewhere(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == codes.Unavailable
}

// change asks the controller if it is known, or else any broker, again while it was certainly not executed.
func change[R any](ctx context.Context, a *Admin, f func(context.Context, runnelv1.AdminClient) (R, error)) (R, error) {
	patience, cancel := a.c.request(ctx)
	defer cancel()
	var back backoff
	for i := 0; ; i++ {
		snap := a.c.meta.snapshot()
		address := snap.address(snap.controller)
		if address == "" {
			addresses := a.c.meta.addresses()
			address = addresses[i%len(addresses)]
		}
		r, err := call(patience, a, address, f)
		if !notExecuted(err) || clock.Sleep(patience, a.c.cfg.clock, back.next()) != nil {
			return r, err
		}
	}
}

// notExecuted reports whether a change that failed with err certainly changed nothing, and can succeed when it is sent again.
func notExecuted(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch e.Reason {
	case reasonNotLeader, reasonNotReady, reasonStarting, reasonNotController, reasonUnreachable, reasonBrokerBusy:
		return true
	}
	return e.unsent
}
