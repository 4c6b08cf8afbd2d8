package metadata

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	etcdserverpb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/zaplog"
)

// Client reads and writes a cluster's metadata. It is safe for concurrent use. Nothing but Bootstrap works before Bootstrap has
// succeeded once. Every method bounds its own time (Config.RequestTimeout) besides honouring ctx, and returns an error that wraps
// ErrUnavailable when etcd does not answer; the same call works again once etcd is back.
type Client struct {
	cfg     Config
	build   Builder
	keys    keyspace
	etcd    *clientv3.Client
	clk     clock.Clock
	lg      *slog.Logger
	metrics *metrics

	mu struct {
		sync.Mutex
		// Invariant: grows, by (era, revision); the zero EtcdClusterID means that Bootstrap has not succeeded.
		pos Position
	}
}

// pingInterval is as often as gRPC lets a client probe an idle connection. Etcd refuses probes that come faster than every 5 s.
const pingInterval = 10 * time.Second

// New returns a client. It connects in the background and does not wait for that; Close ends it.
func New(cfg Config, clk clock.Clock, lg *slog.Logger, reg prometheus.Registerer) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	m, err := newMetrics(reg)
	if err != nil {
		return nil, fmt.Errorf("registering metadata metrics: %w", err)
	}
	lg = lg.With("component", "metadata")
	retry := backoff.Config{BaseDelay: minBackOff, Multiplier: 2, Jitter: 0.2, MaxDelay: maxBackOff}
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, TLS: cfg.TLS, DialTimeout: cfg.DialTimeout,
		DialKeepAliveTime: pingInterval, DialKeepAliveTimeout: cfg.AttemptTimeout,
		DialOptions: append([]grpc.DialOption{
			grpc.WithStatsHandler(sentRecorder{}),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: min(cfg.DialTimeout, maxBackOff)}),
		}, cfg.DialOptions...),
		Logger: zaplog.New(lg.With("library", "etcd"), slog.LevelError),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd client for %q: %w", cfg.Endpoints, err)
	}
	build := NewBuilder(cfg.Cluster)
	return &Client{cfg: cfg, build: build, keys: build.keys, etcd: etcd, clk: clk, lg: lg, metrics: m}, nil
}

// Close ends the connections. Calls in flight fail.
func (c *Client) Close() error { return c.etcd.Close() }

// Position is the highest point in the metadata's history that this client has seen; zero before Bootstrap. Brokers persist it and
// pass it to the next process as Config.Known.
func (c *Client) Position() Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.pos
}

// advance raises the position to what an answer or the cache has shown.
func (c *Client) advance(era, revision int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := (Position{Era: era, Revision: revision}); c.mu.pos.Before(p) {
		c.mu.pos.Era, c.mu.pos.Revision = era, revision
	}
}

// verify checks an answer's header against where the client has been before it asked.
func (c *Client) verify(h *etcdserverpb.ResponseHeader, before Position) error {
	if before.EtcdClusterID == 0 {
		return ErrNotBootstrapped
	}
	if h.ClusterId != before.EtcdClusterID {
		return &ForeignEtcdError{What: "etcd cluster id", Want: hex(before.EtcdClusterID), Got: hex(h.ClusterId)}
	}
	if h.Revision < before.Revision {
		return &OlderEtcdError{Want: before, Got: Position{EtcdClusterID: h.ClusterId, Era: before.Era, Revision: h.Revision}}
	}
	c.advance(before.Era, h.Revision)
	return nil
}

func hex(id uint64) string { return fmt.Sprintf("%016x", id) }

// Bootstrap finds the cluster, or creates it when etcd has none and this broker never saw one, and checks that etcd is neither
// foreign nor older than Config.Known (ErrForeignEtcd, ErrOlderEtcd, ErrFormatVersion). While the metadata is being recovered the error is an
// *UnavailableError with ErrRecovering: try again. Bootstrap has to succeed before anything else.
func (c *Client) Bootstrap(ctx context.Context) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RequestTimeout)
	defer cancel()
	known := c.cfg.Known
	for {
		resp, err := c.getRaw(ctx, "bootstrap", c.keys.cluster())
		if err != nil {
			return nil, err
		}
		if len(resp.Kvs) == 1 {
			cluster, err := decodeCluster(resp.Kvs[0])
			if err != nil {
				return nil, err
			}
			if cluster.Recovery != nil && (known.ClusterID == "" || known.ClusterID == cluster.ID) {
				return nil, &UnavailableError{Op: "bootstrap", Err: ErrRecovering}
			}
			return cluster, c.adopt(cluster, resp.Header, known)
		}
		if known.ClusterID != "" || known.Revision > 0 {
			return nil, &OlderEtcdError{Want: known, Got: Position{EtcdClusterID: resp.Header.ClusterId, Revision: resp.Header.Revision}}
		}
		if err := c.createCluster(ctx); err != nil {
			return nil, err
		}
	}
}

// createCluster writes the cluster's record unless there is one. Whoever wins, the caller reads again.
func (c *Client) createCluster(ctx context.Context) error {
	tx, err := c.build.CreateCluster(&Cluster{ID: uuid.NewString(), Era: 1, FormatVersion: FormatVersion, FeatureLevel: 1, Created: c.clk.Now()})
	if err != nil {
		return err
	}
	_, _, err = c.commitRaw(ctx, &tx)
	return err
}

// adopt takes a cluster on, if it is the known one and not older.
func (c *Client) adopt(cluster *Cluster, h *etcdserverpb.ResponseHeader, known Position) error {
	now := Position{ClusterID: cluster.ID, EtcdClusterID: h.ClusterId, Era: cluster.Era, Revision: h.Revision}
	if known.ClusterID != "" && known.ClusterID != cluster.ID {
		return &ForeignEtcdError{What: "cluster id", Want: known.ClusterID, Got: cluster.ID}
	}
	if known.Era == cluster.Era && known.EtcdClusterID != 0 && known.EtcdClusterID != h.ClusterId {
		return &ForeignEtcdError{What: "etcd cluster id", Want: hex(known.EtcdClusterID), Got: hex(h.ClusterId)}
	}
	if now.Before(known) {
		return &OlderEtcdError{Want: known, Got: now}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.pos.Before(now) {
		c.mu.pos = now
	}
	return nil
}
