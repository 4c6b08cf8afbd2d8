package etcdserver_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"runnel.dev/runnel/internal/etcdserver"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func config(t *testing.T) etcdserver.Config {
	t.Helper()
	return etcdserver.Config{
		DataDir: t.TempDir(), ClientURLs: []string{"http://127.0.0.1:0"}, PeerURLs: []string{"http://127.0.0.1:0"},
		HeartbeatInterval: 20 * time.Millisecond, ElectionTimeout: 100 * time.Millisecond,
	}
}

// run starts a server and returns it, and a function that stops it and returns what Run returned.
func run(t *testing.T, cfg etcdserver.Config) (*etcdserver.Server, func() error) {
	t.Helper()
	s, err := etcdserver.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		cancel()
		t.Fatalf("etcd ended before it was ready: %v", err)
	}
	return s, func() error {
		cancel()
		return <-done
	}
}

func TestServeStopAndServeAgain(t *testing.T) {
	cfg := config(t)
	s, stop := run(t, cfg)
	client, err := clientv3.New(clientv3.Config{Endpoints: s.ClientURLs()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), "k", "v"); err != nil {
		t.Fatal(err)
	}
	// A watch is a call that never ends: it must not hold up the stop.
	watch := client.Watch(t.Context(), "k")
	start := time.Now()
	if err := stop(); err != nil {
		t.Fatalf("Run returned %v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
	if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for range watch {
	}

	s, stop = run(t, cfg)
	client, err = clientv3.New(clientv3.Config{Endpoints: s.ClientURLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	resp, err := client.Get(t.Context(), "k")
	if err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "v" {
		t.Errorf("after a restart: %v, %v", resp, err)
	}
	client.Close()
	if err := stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

func TestUsedPort(t *testing.T) {
	s, stop := run(t, config(t))
	cfg := config(t)
	cfg.ClientURLs = s.ClientURLs()
	second, err := etcdserver.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("Run on a used port returned %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestValidateReportsAllFaults(t *testing.T) {
	_, err := etcdserver.New(etcdserver.Config{
		ClientURLs: []string{"https://127.0.0.1:1"}, PeerURLs: []string{"127.0.0.1:2"}, QuotaBytes: 1,
		CompactionRetention: time.Millisecond, HeartbeatInterval: time.Second, ElectionTimeout: time.Second,
	}, slog.New(slog.DiscardHandler))
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"DataDir", "PeerURLs", "AdvertisePeerURLs", "ClientTLS", "QuotaBytes", "CompactionRetention", "ElectionTimeout"} {
		if !strings.Contains(err.Error(), "etcd."+field+" is ") {
			t.Errorf("%s is not reported in:\n%v", field, err)
		}
	}
	if strings.Contains(err.Error(), "etcd.ClientURLs") {
		t.Errorf("ClientURLs is reported although it is right:\n%v", err)
	}
}
