package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

const (
	// forwardedHeader carries a runnelv1.ForwardEnvelope.
	forwardedHeader = "runnel-forwarded-bin"
	// routeHeader with the value routeDirect is how clients say that they go to leaders themselves, and want to be told when they are wrong.
	routeHeader = "runnel-route"
	routeDirect = "direct"

	maxEnvelope     = 1 << 10
	maxListenerName = 64
	maxPrincipal    = 512
	anonymous       = "anonymous"
)

// origin is where a forwarded call comes from.
type origin struct {
	broker    int32  // who forwards it
	principal string // whom it is made for
	listener  string // the client's way in
}

type originKey struct{}

// originOf returns nil for a call that a client makes itself.
func originOf(ctx context.Context) *origin {
	o, _ := ctx.Value(originKey{}).(*origin)
	return o
}

// forwarded opens the envelope that broker from sent.
func (l *listener) forwarded(ctx context.Context, from int32, values []string) (context.Context, error) {
	var env runnelv1.ForwardEnvelope
	if len(values) != 1 || len(values[0]) > maxEnvelope || proto.Unmarshal([]byte(values[0]), &env) != nil {
		return ctx, invalid(forwardedHeader, "malformed", "one envelope")
	}
	if n := len(env.GetListener()); n == 0 || n > maxListenerName {
		return ctx, invalid(forwardedHeader+" listener", lengthOf(n), fmt.Sprintf("1 to %d bytes", maxListenerName))
	}
	if n := len(env.GetPrincipal()); n == 0 || n > maxPrincipal {
		return ctx, invalid(forwardedHeader+" principal", lengthOf(n), fmt.Sprintf("1 to %d bytes", maxPrincipal))
	}
	return context.WithValue(ctx, originKey{}, &origin{broker: from, principal: env.GetPrincipal(), listener: env.GetListener()}), nil
}

// forClient returns the listener whose addresses the client of a call is to be told: of a forwarded call, the one that it came in on at the other
// broker, which need not exist here.
func (l *listener) forClient(ctx context.Context) *listener {
	o := originOf(ctx)
	if o == nil || o.listener == l.name {
		return l
	}
	return &listener{Server: l.Server, name: o.listener, in: l.in, grpc: l.grpc}
}

// forwards reports whether what other brokers have to do is forwarded to them: never twice.
func (l *listener) forwards(ctx context.Context) bool {
	return l.cfg.Forwarder != nil && originOf(ctx) == nil
}

// routes is forwards for calls whose clients may ask for the leader themselves.
func (l *listener) routes(ctx context.Context) bool {
	if !l.forwards(ctx) {
		return false
	}
	v := grpcmetadata.ValueFromIncomingContext(ctx, routeHeader)
	return len(v) != 1 || v[0] != routeDirect
}

// outgoing returns a context for calls to another broker on behalf of the client of ctx. The client's own metadata does not travel.
func (l *listener) outgoing(ctx context.Context) context.Context {
	env, err := proto.Marshal(&runnelv1.ForwardEnvelope{Principal: anonymous, Listener: l.name})
	if err != nil {
		env = nil // a name that is not UTF-8: the receiver refuses it
	}
	return l.cfg.Forwarder.Outgoing(grpcmetadata.NewOutgoingContext(ctx, grpcmetadata.Pairs(forwardedHeader, string(env))))
}

// connTo returns the connection to another live broker.
func (l *listener) connTo(id int32) (grpc.ClientConnInterface, error) {
	cc, err := l.cfg.Forwarder.Conn(id)
	if err != nil {
		return nil, &unreachableError{broker: id, cause: err}
	}
	return cc, nil
}

// unreachableError names the broker. errors.Is(err, errUnreachable).
type unreachableError struct {
	broker int32
	cause  error
	// refused: it was reached, and did nothing.
	refused bool
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("%v: broker %d: %v", errUnreachable, e.broker, e.cause)
}

func (e *unreachableError) Is(target error) bool { return target == errUnreachable }
