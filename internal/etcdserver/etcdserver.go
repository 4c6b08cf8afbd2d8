// Package etcdserver runs an etcd member inside a process of Runnel, so that a cluster needs no other software: `runnel etcd serve`
// and tests use it. Brokers do not: they take any etcd's endpoints.
package etcdserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"runnel.dev/runnel/internal/zaplog"
)

const (
	// stopGrace is how long calls in flight may go on once the member stops. Watches and lease streams never end by themselves.
	stopGrace = 300 * time.Millisecond
	// progressInterval is how often idle watches are told how far they are.
	progressInterval = 5 * time.Second
)

// ErrStopped says that the member ended without being told to.
var ErrStopped = errors.New("etcd member stopped by itself")

// Server is one etcd member. Methods are safe for concurrent use.
type Server struct {
	cfg   Config
	lg    *slog.Logger
	ready chan struct{}

	mu struct {
		sync.Mutex
		urls []string
		grpc []*grpc.Server
	}
}

// New checks the configuration; nothing is started or written.
func New(cfg Config, lg *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Server{cfg: cfg.withDefaults(), lg: lg.With("component", "etcd"), ready: make(chan struct{})}, nil
}

// Ready is closed once the member serves clients; that takes a quorum.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// ClientURLs is where clients reach the member, with real port numbers; nil before Ready.
func (s *Server) ClientURLs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.mu.urls)
}

// Run serves until ctx ends, and returns once everything has stopped: nil after ctx, ErrStopped or the cause otherwise. Calls in
// flight at the end are cut off; what etcd has answered is on disk. A Server runs once.
func (s *Server) Run(ctx context.Context) error {
	cfg, err := s.embedConfig()
	if err != nil {
		return err
	}
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("starting etcd in %s: %w", s.cfg.DataDir, err)
	}
	defer s.stop(etcd)
	select {
	case <-etcd.Server.ReadyNotify():
	case err := <-etcd.Err():
		return fmt.Errorf("%w: %w", ErrStopped, err)
	case <-etcd.Server.StopNotify():
		return ErrStopped
	case <-ctx.Done():
		return nil
	}
	s.mu.Lock()
	for i, l := range etcd.Clients {
		scheme := cfg.ListenClientUrls[min(i, len(cfg.ListenClientUrls)-1)].Scheme
		s.mu.urls = append(s.mu.urls, scheme+"://"+l.Addr().String())
	}
	s.mu.Unlock()
	s.lg.Info("etcd is ready", "client_urls", s.ClientURLs(), "data_dir", s.cfg.DataDir)
	close(s.ready)
	select {
	case err := <-etcd.Err():
		return fmt.Errorf("%w: %w", ErrStopped, err)
	case <-etcd.Server.StopNotify():
		return ErrStopped
	case <-ctx.Done():
		return nil
	}
}

// stop ends client connections first, because embed waits seconds for streams that never end, and then the member.
func (s *Server) stop(etcd *embed.Etcd) {
	s.mu.Lock()
	servers := slices.Clone(s.mu.grpc)
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, gs := range servers {
		wg.Go(gs.GracefulStop)
	}
	timer := time.AfterFunc(stopGrace, func() {
		for _, gs := range servers {
			gs.Stop()
		}
	})
	wg.Wait()
	timer.Stop()
	etcd.Close()
	s.lg.Info("etcd has stopped")
}

func (s *Server) embedConfig() (*embed.Config, error) {
	c := embed.NewConfig()
	c.Name, c.Dir = s.cfg.Name, s.cfg.DataDir
	var errs [4]error
	c.ListenClientUrls, errs[0] = parseURLs(s.cfg.ClientURLs)
	c.ListenPeerUrls, errs[1] = parseURLs(s.cfg.PeerURLs)
	c.AdvertiseClientUrls, errs[2] = parseURLs(s.cfg.AdvertiseClientURLs)
	c.AdvertisePeerUrls, errs[3] = parseURLs(s.cfg.AdvertisePeerURLs)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	c.InitialCluster, c.InitialClusterToken = s.cfg.InitialCluster, s.cfg.InitialClusterToken
	if s.cfg.JoinExisting {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	c.ClientTLSInfo, c.PeerTLSInfo = tlsInfo(s.cfg.ClientTLS), tlsInfo(s.cfg.PeerTLS)
	c.QuotaBackendBytes = s.cfg.QuotaBytes
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, s.cfg.CompactionRetention.String()
	c.TickMs, c.ElectionMs = uint(s.cfg.HeartbeatInterval.Milliseconds()), uint(s.cfg.ElectionTimeout.Milliseconds())
	c.WatchProgressNotifyInterval = progressInterval
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zaplog.New(s.lg, slog.LevelWarn))
	c.ServiceRegister = func(gs *grpc.Server) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.mu.grpc = append(s.mu.grpc, gs)
	}
	return c, nil
}

func tlsInfo(t TLS) transport.TLSInfo {
	return transport.TLSInfo{CertFile: t.CertFile, KeyFile: t.KeyFile, TrustedCAFile: t.CAFile, ClientCertAuth: t.CAFile != ""}
}
