package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	grpcmetadata "google.golang.org/grpc/metadata"

	"runnel.dev/runnel/api/runnel/codec"
	"runnel.dev/runnel/internal/tlsreload"
)

// purpose separates connections: a large fetch must not hold up an acknowledgement, and neither must hold up metadata.
type purpose uint8

const (
	forControl purpose = iota
	forProduce
	forFetch
)

// Flow control windows: the largest batch fits, and gRPC's bandwidth probing, which starts at 64 KiB, stays off.
const (
	streamWindow   = 16 << 20
	connWindow     = 32 << 20
	maxMessageSize = 64 << 20
	socketBuffer   = 128 << 10
)

// connectBackoff is short: failover takes less than a second, and a broker that restarts should be found at once.
var connectBackoff = grpcbackoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3, MaxDelay: time.Second}

// connectTimeout bounds one attempt to connect, TLS and HTTP/2 included. A host that answers nothing is tried again that soon: it may be back.
const connectTimeout = 2 * time.Second

const (
	// routeHeader tells brokers that the client goes to leaders itself, and wants to be told when it is wrong instead of being forwarded.
	routeHeader = "runnel-route"
	routeDirect = "direct"
)

// route marks a call on records, unless brokers are to forward it.
func (c *config) route(ctx context.Context) context.Context {
	if c.anyBroker {
		return ctx
	}
	return grpcmetadata.AppendToOutgoingContext(ctx, routeHeader, routeDirect)
}

// conns keeps one lazily dialled gRPC connection per address and purpose.
type conns struct {
	opts []grpc.DialOption

	mu struct {
		sync.Mutex
		closed bool
		byKey  map[connKey]*grpc.ClientConn
		// retired were replaced while they could not connect; a call that was about to use one still fails as it would have.
		retired map[connKey]*grpc.ClientConn
	}
}

type connKey struct {
	address string
	purpose purpose
}

func newConns(cfg *config, cdc *codec.Codec) (*conns, error) {
	creds := insecure.NewCredentials()
	switch {
	case cfg.tls != nil:
		creds = credentials.NewTLS(cfg.tls)
	case cfg.tlsFiles != nil:
		source, err := tlsreload.New(*cfg.tlsFiles, cfg.clock, cfg.logger)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		creds = source.Credentials()
	}
	dial := cfg.dialer
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	c := &conns{opts: append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(dial),
		grpc.WithUserAgent(cfg.clientID),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(cdc), grpc.MaxCallRecvMsgSize(maxMessageSize), grpc.MaxCallSendMsgSize(maxMessageSize)),
		grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(socketBuffer), grpc.WithWriteBufferSize(socketBuffer),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		// Streams carry their own time-outs; this notices a peer that vanished while a stream is idle.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTimeout, Backoff: connectBackoff}),
		grpc.WithIdleTimeout(0),
	}, cfg.dialOptions...)}
	c.mu.byKey, c.mu.retired = make(map[connKey]*grpc.ClientConn), make(map[connKey]*grpc.ClientConn)
	return c, nil
}

func (c *conns) get(address string, p purpose) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, fmt.Errorf("client: %w", ErrClosed)
	}
	key := connKey{address, p}
	if cc := c.mu.byKey[key]; cc != nil {
		return cc, nil
	}
	cc, err := grpc.NewClient("passthrough:///"+address, c.opts...)
	if err != nil {
		return nil, fmt.Errorf("client: connect to %s: %w", address, err)
	}
	c.mu.byKey[key] = cc
	return cc, nil
}

// retry lets connections to an address be tried at once, whatever their back-off: there is news of the broker. Without purposes, all of them.
// Connections that wait are replaced: gRPC's own way to cut the back-off short (ResetConnectBackoff, as of 1.85) reads a map that the
// connection may be changing.
func (c *conns) retry(address string, purposes ...purpose) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(purposes) == 0 {
		purposes = []purpose{forControl, forProduce, forFetch}
	}
	for _, p := range purposes {
		key := connKey{address, p}
		cc := c.mu.byKey[key]
		if cc == nil || cc.GetState() != connectivity.TransientFailure {
			continue
		}
		if old := c.mu.retired[key]; old != nil {
			_ = old.Close()
		}
		c.mu.retired[key] = cc
		delete(c.mu.byKey, key)
	}
}

// retain closes the connections to all other addresses.
func (c *conns) retain(addresses map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conns := range []map[connKey]*grpc.ClientConn{c.mu.byKey, c.mu.retired} {
		for key, cc := range conns {
			if !addresses[key.address] {
				_ = cc.Close()
				delete(conns, key)
			}
		}
	}
}

func (c *conns) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.closed = true
	for _, conns := range []map[connKey]*grpc.ClientConn{c.mu.byKey, c.mu.retired} {
		for key, cc := range conns {
			_ = cc.Close()
			delete(conns, key)
		}
	}
}

// jitter returns a random duration in [0, d].
func jitter(d time.Duration) time.Duration {
	return time.Duration(rand.Int64N(int64(d) + 1))
}
