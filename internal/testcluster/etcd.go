package testcluster

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"runnel.dev/runnel/internal/etcdserver"
)

// EtcdOptions describe an etcd member.
type EtcdOptions struct {
	// TLS, when set, makes the member speak https with this identity.
	TLS Identity
	// ClientCA, when set, is a PEM file; clients then have to show a certificate that leads to it.
	ClientCA string
}

// Etcd is one etcd member that keeps its address and data over restarts. Its methods are for one goroutine.
type Etcd struct {
	cfg    etcdserver.Config
	lg     *slog.Logger
	cancel context.CancelFunc
	done   chan error // nil: not running
}

// StartEtcd starts a member that ends with the test.
func StartEtcd(t testing.TB, o EtcdOptions) *Etcd {
	t.Helper()
	scheme := "http://"
	if o.TLS.Cert != "" {
		scheme = "https://"
	}
	e := newEtcd(t.TempDir(), scheme+Address(t), newLogs(t))
	e.cfg.ClientTLS = etcdserver.TLS{CertFile: o.TLS.Cert, KeyFile: o.TLS.Key, CAFile: o.ClientCA}
	t.Cleanup(func() { e.Stop(t) })
	e.Start(t)
	return e
}

func newEtcd(dir, clientURL string, lg *slog.Logger) *Etcd {
	return &Etcd{lg: lg, cfg: etcdserver.Config{
		DataDir: dir, ClientURLs: []string{clientURL}, PeerURLs: []string{"http://127.0.0.1:0"},
		HeartbeatInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
	}}
}

// Endpoints is where brokers reach the member.
func (e *Etcd) Endpoints() []string { return e.cfg.ClientURLs }

// Start starts a stopped member and returns once it serves.
func (e *Etcd) Start(t testing.TB) {
	t.Helper()
	if err := e.start(); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the member; a stopped one stays so.
func (e *Etcd) Stop(t testing.TB) {
	t.Helper()
	if err := e.stop(); err != nil {
		t.Errorf("etcd: %v", err)
	}
}

func (e *Etcd) start() error {
	server, err := etcdserver.New(e.cfg, e.lg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	select {
	case <-server.Ready():
	case err := <-done:
		cancel()
		return errors.Join(errors.New("etcd ended before it was ready"), err)
	}
	e.cfg.ClientURLs = server.ClientURLs()
	e.cancel, e.done = cancel, done
	return nil
}

func (e *Etcd) stop() error {
	if e.done == nil {
		return nil
	}
	e.cancel()
	err := <-e.done
	e.done = nil
	return err
}

// clusterName makes a name in etcd of a test's name: [a-zA-Z0-9._-], at most 63 characters.
func clusterName(test string, n int64) string {
	clean := strings.Map(func(r rune) rune {
		if r < 128 && (r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			return r
		}
		return '-'
	}, test)
	return strings.Join([]string{clean[:min(len(clean), 40)], itoa(n)}, "-")
}
