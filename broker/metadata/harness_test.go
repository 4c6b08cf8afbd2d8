package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/etcdserver"
	"runnel.dev/runnel/internal/ids"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	// shared is the etcd of all tests that do not stop it; each test has a cluster, which is a key prefix, of its own.
	shared []string
)

// TestMain runs one etcd for the package. Nothing of it or of the clients may be left at the end; no leak is ignored.
func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "metadata-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := etcdserver.New(serverConfig(dir), quiet)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	code := 1
	select {
	case <-server.Ready():
		shared = server.ClientURLs()
		code = m.Run()
	case err := <-done:
		done <- err
	}
	cancel()
	if err := <-done; err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func serverConfig(dir string) etcdserver.Config {
	return etcdserver.Config{
		DataDir: dir, ClientURLs: []string{"http://127.0.0.1:0"}, PeerURLs: []string{"http://127.0.0.1:0"},
		HeartbeatInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
	}
}

// ownEtcd starts an etcd that the test may stop.
func ownEtcd(t *testing.T, cfg etcdserver.Config) (urls []string, stop func()) {
	t.Helper()
	server, err := etcdserver.New(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // ended by a clean-up, after those of its clients
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("etcd: %v", err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-server.Ready():
	case err := <-done:
		done <- nil
		t.Fatalf("etcd ended before it was ready: %v", err)
	}
	return server.ClientURLs(), stop
}

var clusters struct {
	sync.Mutex
	names map[*testing.T]string
}

// clusterOf returns a name that no other run of any test has.
func clusterOf(t *testing.T) string {
	t.Helper()
	clusters.Lock()
	defer clusters.Unlock()
	name, ok := clusters.names[t]
	if !ok {
		name = fmt.Sprintf("test-%d", len(clusters.names))
		if clusters.names == nil {
			clusters.names = map[*testing.T]string{}
		}
		clusters.names[t] = name
	}
	return name
}

func testConfig(t *testing.T, faults *faults) Config {
	t.Helper()
	cfg := Config{Endpoints: shared, Cluster: clusterOf(t), LeaseTTL: 2 * time.Second, ProgressInterval: 200 * time.Millisecond}
	if faults != nil {
		cfg.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(faults.intercept)}
	}
	return cfg
}

// open returns a client that is not bootstrapped.
func open(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg, clock.System(), quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// client returns a bootstrapped client of the test's cluster.
func client(t *testing.T, faults *faults) *Client {
	t.Helper()
	c := open(t, testConfig(t, faults))
	if _, err := c.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// register registers a broker and keeps it alive until the test ends, or until stop is called, which revokes it.
func register(t *testing.T, c *Client, id int32, storage ids.StorageID) (r *Registration, stop func() error) {
	t.Helper()
	r, err := c.Register(t.Context(), BrokerInfo{ID: id, StorageID: storage, Listeners: map[string]string{"client": "host:7650"}})
	if err != nil {
		t.Fatal(err)
	}
	return r, start(t, r.Run)
}

// start runs f in the background until the test ends or stop is called.
func start(t *testing.T, f func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// follow returns a running cache that has listed.
func follow(t *testing.T, c *Client) *Cache {
	t.Helper()
	cache := NewCache(c)
	start(t, cache.Run)
	wait(t, cache, func(*State) bool { return true })
	return cache
}

func wait(t *testing.T, cache *Cache, cond func(*State) bool) *State {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	s, err := cache.Wait(ctx, cond)
	if err != nil {
		t.Fatalf("the cache never showed what was waited for: %v", err)
	}
	return s
}

// lapse makes a registration's lease end now, as if it had expired.
func lapse(t *testing.T, c *Client, r *Registration) {
	t.Helper()
	if _, err := c.etcd.Revoke(t.Context(), clientv3.LeaseID(r.LeaseID())); err != nil {
		t.Fatal(err)
	}
}

func closed(t *testing.T, ch <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s never happened", what)
	}
}

// faults loses answers of transactions, as networks do.
type faults struct {
	mu sync.Mutex
	// plan holds what happens to the next transactions; afterwards all is well.
	plan []fault
	// late are requests that were held back.
	late []func() error
	seen atomic.Int64
}

type fault int

const (
	// lost: etcd commits, the answer gets lost.
	lost fault = iota
	// delayed: the request is on its way for a long time; deliver lets it arrive.
	delayed
	// fine: nothing happens to this one.
	fine
)

func (f *faults) next(plan ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan = plan
}

func (f *faults) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method != "/etcdserverpb.KV/Txn" {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen.Add(1)
	if len(f.plan) == 0 || f.plan[0] == fine {
		f.plan = f.plan[min(1, len(f.plan)):]
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	kind := f.plan[0]
	f.plan = f.plan[1:]
	switch kind {
	case lost:
		if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
			return err
		}
	case delayed:
		ctx.Value(sentKey{}).(*atomic.Bool).Store(true) //nolint:forcetypeassert // the client sets it
		ctx = context.WithoutCancel(ctx)
		f.late = append(f.late, func() error { return invoke(ctx, method, req, reply, cc, opts...) })
	case fine:
	}
	return status.Error(codes.Unavailable, "the answer was lost")
}

// deliver lets the delayed requests arrive, and returns how many there were.
func (f *faults) deliver(t *testing.T) int {
	t.Helper()
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, call := range late {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	return len(late)
}
