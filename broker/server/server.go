package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/record"
)

// Transport settings. Few, large socket operations are what throughput depends on; windows are static, because estimating them
// costs a ping per round trip and starts too small for batches.
const (
	socketBuffer    = 256 << 10
	streamWindow    = 8 << 20
	connWindow      = 32 << 20
	maxHeaderBytes  = 16 << 10
	keepaliveEvery  = 30 * time.Second
	keepaliveWait   = 10 * time.Second
	keepaliveLeast  = 5 * time.Second
	connectDeadline = 10 * time.Second
)

// Server serves all listeners of a broker. New starts nothing.
type Server struct {
	cfg     Config
	limits  Limits
	lg      *slog.Logger
	metrics *metrics
	codec   *codec.Codec
	health  *health.Server
	budget  *budget
	// unpacked bounds what compressed batches expand to while they are checked.
	unpacked *budget
	peers    struct {
		sync.Mutex
		loads map[int32]*peerLoad // what is under way to other brokers
	}
	reads  atomic.Int64  // fetch streams to other brokers
	spread atomic.Uint32 // where the next record without key and partition goes

	validators sync.Pool // of *record.Validator
	readers    sync.Pool // of *record.Reader
	waits      sync.Pool // of *produceWait

	stopping chan struct{} // closed when Run begins to stop
	stopOnce sync.Once
	receives sync.WaitGroup // receiving goroutines of bidirectional streams

	listeners []*listener
}

// listener is the service implementation of one way in.
type listener struct {
	*Server
	name string
	in   Listener
	grpc *grpc.Server

	runnelv1.UnimplementedProducerServer
	runnelv1.UnimplementedConsumerServer
	runnelv1.UnimplementedAdminServer
	runnelv1.UnimplementedMetadataServer
	runnelv1.UnimplementedReplicationServer
}

// New checks cfg and builds the servers.
func New(cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, limits: cfg.Limits.withDefaults(), lg: cfg.Logger, codec: codec.New(), health: health.NewServer(),
		stopping: make(chan struct{}),
	}
	s.validators.New = func() any { return &record.Validator{} }
	s.readers.New = func() any { r := newReader(); return &r }
	s.waits.New = func() any { return &produceWait{} }
	s.budget = newBudget(s.limits.InFlightBytes, overhead)
	s.peers.loads = map[int32]*peerLoad{}
	s.unpacked = newUnpackBudget()
	m, err := newMetrics(cfg.Registerer, s.budget)
	if err != nil {
		return nil, err
	}
	s.metrics = m
	for _, in := range cfg.Listeners {
		l := &listener{Server: s, name: in.Name, in: in}
		l.grpc = grpc.NewServer(l.options()...)
		runnelv1.RegisterProducerServer(l.grpc, l)
		runnelv1.RegisterConsumerServer(l.grpc, l)
		runnelv1.RegisterAdminServer(l.grpc, l)
		runnelv1.RegisterMetadataServer(l.grpc, l)
		runnelv1.RegisterReplicationServer(l.grpc, l)
		healthv1.RegisterHealthServer(l.grpc, s.health)
		reflection.Register(l.grpc)
		s.listeners = append(s.listeners, l)
	}
	s.SetReady(false)
	return s, nil
}

func (l *listener) options() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(l.codec),
		grpc.ChainUnaryInterceptor(l.unary),
		grpc.ChainStreamInterceptor(l.stream),
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(2 * MaxMessageBytes),
		grpc.MaxConcurrentStreams(l.limits.StreamsPerConnection),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(connectDeadline),
		grpc.ReadBufferSize(socketBuffer),
		grpc.WriteBufferSize(socketBuffer),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveEvery, Timeout: keepaliveWait}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveLeast, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if l.in.TLS != nil {
		opts = append(opts, grpc.Creds(l.in.TLS.Credentials()))
	}
	return opts
}

// SetReady sets what the standard health service answers, for the whole server (the empty name) and for each service.
func (s *Server) SetReady(ready bool) {
	st := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		st = healthv1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", st)
	for _, l := range s.listeners[:min(1, len(s.listeners))] {
		for name := range l.grpc.GetServiceInfo() {
			s.health.SetServingStatus(name, st)
		}
	}
}

// Run serves until ctx ends or a listener fails. Then it says goodbye (GOAWAY, NOT_SERVING), lets what is in flight finish within
// Config.StopWithin, cuts off the rest, and returns once everything that it started has ended.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var serving sync.WaitGroup
	for _, l := range s.listeners {
		serving.Go(func() {
			if err := l.grpc.Serve(l.in.Listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				cancel(fmt.Errorf("listener %s: %w", l.name, err))
			}
		})
	}
	<-ctx.Done()
	s.stop()
	serving.Wait()
	s.receives.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *Server) stop() {
	s.stopOnce.Do(func() { close(s.stopping) })
	s.health.Shutdown()
	var graceful sync.WaitGroup
	done := make(chan struct{})
	for _, l := range s.listeners {
		graceful.Go(l.grpc.GracefulStop)
	}
	go func() { graceful.Wait(); close(done) }()
	limit := s.limits.StopTimeout
	if s.cfg.StopWithin != nil {
		limit = s.cfg.StopWithin()
	}
	timer := s.cfg.Clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return
	case <-timer.C():
		s.lg.Warn("requests were cut off: they did not end in time", slog.Duration("timeout", limit))
	}
	for _, l := range s.listeners {
		l.grpc.Stop()
	}
	<-done
}

// receive runs f, the receiving half of a stream, beside the handler; an error of it ends the stream. Run waits for it.
func (s *Server) receive(cancel context.CancelCauseFunc, f func() error) {
	s.receives.Go(func() {
		defer func() {
			if r := recover(); r != nil {
				cancel(s.panicked(r))
			}
		}()
		if err := f(); err != nil {
			cancel(err)
		}
	})
}

// panicked logs a panic of a request and returns what the client is told.
func (s *Server) panicked(r any) error {
	s.metrics.panics.Inc()
	s.lg.Error("panic in a request", slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
	return errInternal
}

// addressOf returns where clients of this listener reach a broker, empty when unknown.
func (l *listener) addressOf(id int32) string {
	if b := l.cfg.Metadata.Snapshot().broker(id); b != nil {
		return b.Listeners[l.name]
	}
	return ""
}
