package broker

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"runnel.dev/runnel/internal/etcdserver"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	// etcdURLs is the etcd of the tests that need a registration; each has a cluster name of its own.
	etcdURLs []string
)

// TestMain runs one etcd for the package. No goroutine may be left at the end; no leak is ignored.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "broker-test-")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // the system's temporary folder: leaving it is no harm
	server, err := etcdserver.New(etcdserver.Config{
		DataDir: dir, ClientURLs: []string{"http://127.0.0.1:0"}, PeerURLs: []string{"http://127.0.0.1:0"},
		HeartbeatInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
	}, quiet)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	code := 1
	select {
	case <-server.Ready():
		etcdURLs = server.ClientURLs()
		code = m.Run()
	case err := <-done:
		done <- err
	}
	cancel()
	if err := <-done; err != nil {
		return fail(err)
	}
	if err := goleak.Find(); err != nil && code == 0 {
		return fail(err)
	}
	return code
}
