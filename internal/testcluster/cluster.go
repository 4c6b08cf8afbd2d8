package testcluster

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/vfs"
)

// Options describe a cluster.
type Options struct {
	// Etcd is where the cluster lives, under a name of its own; nil: a member of its own.
	Etcd *Etcd
	// Brokers is how many brokers are started, numbered from 1; 0: one. Negative: none.
	Brokers int
	// Configure edits the configuration of each broker that is added.
	Configure func(*config.Config)
	// FS is what brokers reach their data by; nil: the operating system. Brokers that share one have directories of their own.
	FS vfs.FS
	// ClientOptions are added for every client of Cluster.Client.
	ClientOptions []client.Option
}

// Cluster is an etcd and some brokers. Its methods are for the test's goroutine.
type Cluster struct {
	t       testing.TB
	o       Options
	name    string
	etcd    *Etcd
	brokers map[int32]*Broker
}

var clusters atomic.Int64

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// New starts a cluster that ends with the test, and returns once every broker is ready.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	c := &Cluster{t: t, o: o, name: clusterName(t.Name(), clusters.Add(1)), etcd: o.Etcd, brokers: map[int32]*Broker{}}
	if c.etcd == nil {
		c.etcd = StartEtcd(t, EtcdOptions{})
	}
	if o.Brokers == 0 {
		o.Brokers = 1
	}
	for id := range int32(max(o.Brokers, 0)) {
		c.AddBroker(id + 1).Start()
	}
	return c
}

// Name is the cluster's name in etcd.
func (c *Cluster) Name() string { return c.name }

// Etcd is the member that holds the cluster's metadata.
func (c *Cluster) Etcd() *Etcd { return c.etcd }

// Broker returns a broker by its id.
func (c *Cluster) Broker(id int32) *Broker {
	c.t.Helper()
	b, ok := c.brokers[id]
	if !ok {
		c.t.Fatalf("there is no broker %d", id)
	}
	return b
}

// AddBroker prepares a broker with an empty data directory, and starts nothing. A broker of the same id that was added before goes on,
// and Cluster.Broker returns the new one.
func (c *Cluster) AddBroker(id int32) *Broker {
	c.t.Helper()
	fsys, dir := c.o.FS, "/broker-"+itoa(int64(id))
	if fsys == nil {
		fsys, dir = vfs.OS(), filepath.Join(c.t.TempDir(), "data")
	}
	cfg := config.Default()
	cfg.BrokerID, cfg.Cluster = id, c.name
	cfg.Etcd.Endpoints = c.etcd.Endpoints()
	cfg.Storage.DataDir = dir
	cfg.Listeners = []config.Listener{{Name: "client", Address: Address(c.t)}}
	cfg.HTTP.Address = Address(c.t)
	cfg.ShutdownTimeout = config.Duration(3 * time.Second)
	if c.o.Configure != nil {
		c.o.Configure(&cfg)
	}
	b := &Broker{t: c.t, lg: newLogs(c.t), Config: cfg, FS: fsys}
	c.t.Cleanup(b.end)
	c.brokers[id] = b
	return b
}

// URL names all brokers, by their first listeners.
func (c *Cluster) URL() string {
	var addresses []string
	for _, id := range slices.Sorted(maps.Keys(c.brokers)) {
		addresses = append(addresses, c.brokers[id].Address())
	}
	return "runnel://" + strings.Join(addresses, ",")
}

// Client opens a client that is closed before the brokers are stopped.
func (c *Cluster) Client(opts ...client.Option) *client.Client {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), Patience)
	defer cancel()
	cl, err := client.Open(ctx, c.URL(), append(slices.Clone(c.o.ClientOptions), opts...)...)
	if err != nil {
		c.t.Fatalf("opening a client of %s: %v", c.URL(), err)
	}
	c.t.Cleanup(func() {
		// Records that a failed test left behind would be waited for: they are cut off.
		ctx, cancel := context.WithCancel(context.Background())
		if c.t.Failed() {
			cancel()
		}
		defer cancel()
		if err := cl.Close(ctx); err != nil && !c.t.Failed() {
			c.t.Errorf("closing a client: %v", err)
		}
	})
	return cl
}
