package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"

	"runnel.dev/runnel/api/runnel/codec"
	"runnel.dev/runnel/internal/tlsreload"
)

// Class separates connections to one peer.
type Class uint8

// Classes.
const (
	ClassData      Class = iota // tails of partitions
	ClassCatchup                // partitions that are far behind
	ClassHeartbeat              // beats, and nothing else
	ClassForward                // requests of clients that another broker answers

	classes = 4
)

// String names the class.
func (c Class) String() string {
	return [...]string{"data", "catch-up", "heartbeat", "forward"}[c]
}

// Transport settings, those of the server's other end. Windows are static: estimating them costs a ping per round trip.
const (
	streamWindow = 16 << 20
	connWindow   = 64 << 20
	// maxMessage is what the server sends at most: twice its own limit.
	maxMessage   = 34 << 20
	socketBuffer = 256 << 10
	keepEvery    = 10 * time.Second
	keepWait     = 5 * time.Second
	// idleAfter: a connection without calls is closed, and dialed again by the next call.
	idleAfter = 5 * time.Minute
)

// backoff is short: failover takes less than a second, and a broker that restarts should be found at once.
var backoff = grpcbackoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}

// ErrClosed says that Close was called.
var ErrClosed = errors.New("peer connections are closed")

// Config is what Conns need.
type Config struct {
	Directory Directory
	// TLS is nil for plain text.
	TLS *tlsreload.Source
	// Codec moves batches without copying them; required.
	Codec  *codec.Codec
	Logger *slog.Logger
	// Dial replaces the TCP dialer, for tests.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Conns keeps lazily dialed connections to peers, one per peer and class. All calls made over them carry this broker's credentials of
// the time of the call. Safe for concurrent use.
type Conns struct {
	cfg Config
	mu  struct {
		sync.Mutex
		closed bool
		byKey  map[key]*conn
	}
}

type key struct {
	id    int32
	class Class
}

type conn struct {
	*grpc.ClientConn
	address string
	epoch   int64

	mu struct {
		sync.Mutex
		dialed error // how the last attempt to connect ended
	}
}

// New returns connections; it dials nothing.
func New(cfg Config) *Conns {
	c := &Conns{cfg: cfg}
	c.mu.byKey = map[key]*conn{}
	return c
}

// Conn returns the connection to a peer. It is dialed with its first call, again and again with a short back-off, and replaced when the
// peer's address or registration changes. ErrUnknown for a broker that is not known, ErrClosed after Close. Does not block.
func (c *Conns) Conn(id int32, class Class) (grpc.ClientConnInterface, error) {
	p, ok := c.cfg.Directory.Peer(id)
	if !ok || p.Address == "" {
		return nil, fmt.Errorf("%w: broker %d", ErrUnknown, id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, ErrClosed
	}
	k := key{id, class}
	if cc := c.mu.byKey[k]; cc != nil {
		if cc.address == p.Address && cc.epoch >= p.Epoch {
			return cc, nil
		}
		c.dropLocked(k)
	}
	cc, err := c.dial(p)
	if err != nil {
		return nil, fmt.Errorf("connect to broker %d at %s: %w", id, p.Address, err)
	}
	c.mu.byKey[k] = cc
	return cc, nil
}

// Refused reports whether the last attempt to connect to a peer met a host where nobody listens.
func (c *Conns) Refused(id int32, class Class) bool {
	c.mu.Lock()
	cc := c.mu.byKey[key{id, class}]
	c.mu.Unlock()
	if cc == nil {
		return false
	}
	cc.mu.Lock()
	defer cc.mu.Unlock()
	return errors.Is(cc.mu.dialed, syscall.ECONNREFUSED)
}

// Retry lets the next call to a peer connect at once, whatever the back-off. A connection that waits for it is replaced: gRPC's own way to
// cut it short (ResetConnectBackoff, as of 1.85) reads a map that the connection may be changing.
func (c *Conns) Retry(id int32, class Class) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := key{id, class}
	if cc := c.mu.byKey[k]; cc != nil && cc.GetState() == connectivity.TransientFailure {
		c.dropLocked(k)
	}
}

// Prune closes the connections to registrations that are not there any more, or have another address; their streams break.
func (c *Conns) Prune() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, cc := range c.mu.byKey {
		if p, ok := c.cfg.Directory.Peer(k.id); !ok || cc.address != p.Address || cc.epoch < p.Epoch {
			c.dropLocked(k)
		}
	}
}

// Close closes all connections. Calls in progress fail.
func (c *Conns) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	for k := range c.mu.byKey {
		c.dropLocked(k)
	}
}

func (c *Conns) dropLocked(k key) {
	_ = c.mu.byKey[k].Close()
	delete(c.mu.byKey, k)
}

func (c *Conns) dial(p Peer) (*conn, error) {
	cc := &conn{address: p.Address, epoch: p.Epoch}
	dial := c.cfg.Dial
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	creds := insecure.NewCredentials()
	if c.cfg.TLS != nil {
		creds = c.cfg.TLS.Credentials()
	}
	g, err := grpc.NewClient("passthrough:///"+p.Address,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			nc, err := dial(ctx, address)
			cc.mu.Lock()
			cc.mu.dialed = err
			cc.mu.Unlock()
			return nc, err
		}),
		grpc.WithUserAgent("runnel-broker"),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c.cfg.Codec), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithReadBufferSize(socketBuffer), grpc.WithWriteBufferSize(socketBuffer),
		experimental.WithBufferPool(c.cfg.Codec.Pool()), // gRPC's own clears every buffer that it hands out
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepEvery, Timeout: keepWait}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * time.Second, Backoff: backoff}),
		grpc.WithIdleTimeout(idleAfter),
		grpc.WithUnaryInterceptor(c.unary), grpc.WithStreamInterceptor(c.stream),
	)
	if err != nil {
		return nil, err
	}
	cc.ClientConn = g
	return cc, nil
}

func (c *Conns) credentials(ctx context.Context) context.Context {
	if hasOutgoing(ctx) {
		return ctx
	}
	return Outgoing(ctx, c.cfg.Directory.Self())
}

func (c *Conns) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	return invoke(c.credentials(ctx), method, req, reply, cc, opts...)
}

func (c *Conns) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(c.credentials(ctx), desc, cc, method, opts...)
}
