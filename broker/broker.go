package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/controller"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/tlsreload"
	"runnel.dev/runnel/internal/version"
	"runnel.dev/runnel/internal/vfs"
)

const (
	// etcdRetry is the pause between two attempts to reach etcd at the start.
	etcdRetry = 500 * time.Millisecond
	// conflictGrace is how long beyond the lease's time a start waits for a registration of another storage to expire.
	conflictGrace = 2 * time.Second
)

// Deps is what a broker takes from its process.
type Deps struct {
	FS       vfs.FS
	Clock    clock.Clock
	Logger   *slog.Logger
	Registry *prometheus.Registry
	// Listen replaces net.Listen in tests; nil: TCP.
	Listen func(network, address string) (net.Listener, error)
	// Dial replaces the TCP dialer for etcd and other brokers, in tests; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Broker is one broker. Create it with New, run it once with Run.
type Broker struct {
	cfg      config.Config
	deps     Deps
	lg       *slog.Logger
	defaults *runnelv1.TopicConfig
	// running is set once the parts exist; before that, phase says what the start waits for.
	running atomic.Pointer[parts]
	phase   atomic.Pointer[string]
	// seen is the highest position that this process has seen. Only the goroutine of run uses it.
	seen metadata.Position
}

// parts are what a running broker consists of.
type parts struct {
	cluster   string // its id
	metrics   *session
	client    *metadata.Client
	store     *storage.Store
	reg       *metadata.Registration
	cache     *metadata.Cache
	dir       *directory
	conns     *peer.Conns
	leaders   *replication.Leaders
	followers *replication.Followers
	beats     *replication.Heartbeats
	isr       *isrWriter
	host      *host
	server    *server.Server
	ctrl      *controller.Controller
	ids       *metadata.ProducerIDs
	load      *meter
	stop      *handOver
	wake      func(context.Context) error // tells the controller of changes of health
}

// New checks the configuration and starts nothing. The error joins all faults.
func New(cfg config.Config, d Deps) (*Broker, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d.Listen == nil {
		d.Listen = net.Listen
	}
	b := &Broker{cfg: cfg, deps: d, lg: d.Logger.With("broker_id", cfg.BrokerID), defaults: clusterDefaults(cfg.Topics)}
	b.enter("starting")
	return b, nil
}

func (b *Broker) enter(phase string) { b.phase.Store(&phase) }

// Run serves until ctx ends, then stops gracefully: leaderships are handed over and calls in flight finish within ShutdownTimeout, data
// is synced, the registration is given back. It returns nil then, and an error when the broker cannot start or must not go on: a failed
// sync (*storage.SyncFailedError), another broker under the same id (metadata.ErrSuperseded), an etcd that is not this cluster's.
//
// ErrStopTimedOut is the one error after which parts still run, since they hang, in a disk for example: the process has to end. It loses
// nothing by that; what was acknowledged is on disk.
func (b *Broker) Run(ctx context.Context) error {
	return bounded(ctx, b.deps.Clock, b.cfg.ShutdownTimeout.Std()+stopGrace, b.lg, b.serveAll)
}

// serveAll runs the HTTP endpoint and the broker.
func (b *Broker) serveAll(ctx context.Context) error {
	if b.cfg.HTTP.Address == config.HTTPOff {
		return b.run(ctx)
	}
	l, err := b.deps.Listen("tcp", b.cfg.HTTP.Address)
	if err != nil {
		return fmt.Errorf("http listener: %w", err)
	}
	ops := newOpsServer(l, b.deps.Registry, b.conditions, b.lg)
	return runLayers(ctx, layer{ops.Run}, layer{b.run})
}

// run runs the parts until ctx ends, or for good. An etcd that goes back in time, or is recovered, under a running broker makes it begin
// anew.
func (b *Broker) run(ctx context.Context) error {
	for {
		err := b.runParts(ctx)
		if ctx.Err() != nil || !refusable(err) {
			return err
		}
		b.lg.Error("etcd is not what it was; the broker begins anew", "error", err)
	}
}

// runParts builds the parts and runs them.
func (b *Broker) runParts(ctx context.Context) (err error) {
	metrics := &session{Registerer: b.deps.Registry}
	defer metrics.end()
	p := &parts{metrics: metrics}
	defer b.running.Store(nil)
	b.enter("waiting for etcd")
	if p.client, err = b.openMetadata(p); err != nil {
		return ignoreEnd(ctx, err)
	}
	defer func() { err = errors.Join(err, p.client.Close()) }()
	defer func() {
		if saveErr := b.remember(p); saveErr != nil {
			b.lg.Error("saving the metadata position failed", "error", saveErr)
		}
		if p.store != nil {
			err = errors.Join(err, p.store.Close())
		}
	}()
	cluster, err := retry(ctx, b, "bootstrap", p.client.Bootstrap)
	if refusable(err) {
		if err = b.refuse(ctx, p, err); err != nil || ctx.Err() != nil {
			return ignoreEnd(ctx, err)
		}
		cluster, err = retry(ctx, b, "bootstrap", p.client.Bootstrap)
	}
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	p.cluster = cluster.ID
	if p.store == nil {
		b.enter("opening the data directory")
		if p.store, err = b.openStore(ctx, p); err != nil {
			return ignoreEnd(ctx, err)
		}
	}
	listeners, addresses, err := b.listen()
	if err != nil {
		return err
	}
	b.enter("registering")
	info := metadata.BrokerInfo{
		ID: b.cfg.BrokerID, Listeners: addresses, Rack: b.cfg.Rack, StorageID: p.store.StorageID(), Version: version.Get().Version,
	}
	p.reg, err = b.register(ctx, p.client, info)
	if err == nil {
		err = b.assemble(p, listeners)
	}
	if err != nil {
		closeAll(listeners)
		return ignoreEnd(ctx, err)
	}
	b.running.Store(p)
	b.lg.Info("broker started", "version", info.Version, "cluster_id", cluster.ID, "storage_id", info.StorageID, "broker_epoch", p.reg.Epoch(), "listeners", addresses)
	defer b.lg.Info("broker stopped")
	defer p.conns.Close()
	return runLayers(ctx,
		layer{func(ctx context.Context) error {
			err := p.store.Run(ctx)
			if err != nil {
				p.stop.run(failedTimeout)
				p.host.fail(err) // or the server would wait for answers that nobody gives any more
			}
			return err
		}},
		layer{p.cache.Run, p.reg.Run},
		layer{p.ctrl.Run, p.host.Run, p.host.Tick, p.isr.Run, p.ids.Run, p.followers.Run, p.beats.Run, p.wake, (&snapshots{p, b, b.deps.Clock}).Run},
		layer{p.server.Run, p.leaders.Run, b.followReadiness},
		layer{p.stop.Run},
	)
}

func closeAll(ls []server.Listener) {
	for _, l := range ls {
		_ = l.Listener.Close()
	}
}

// retry repeats f for as long as etcd does not answer. That it is being recovered is an answer.
func retry[T any](ctx context.Context, b *Broker, what string, f func(context.Context) (T, error)) (T, error) {
	for {
		v, err := f(ctx)
		if !errors.Is(err, metadata.ErrUnavailable) || errors.Is(err, metadata.ErrRecovering) || ctx.Err() != nil {
			return v, err
		}
		b.lg.Warn("etcd does not answer; will retry", "step", what, "endpoints", b.cfg.Etcd.Endpoints, "error", err)
		if err := clock.Sleep(ctx, b.deps.Clock, etcdRetry); err != nil {
			return v, err
		}
	}
}

// register announces the broker. Another storage's registration may be that of this broker before its disk was emptied or replaced, killed
// a moment ago: it is given the time of its lease to expire.
func (b *Broker) register(ctx context.Context, c *metadata.Client, info metadata.BrokerInfo) (*metadata.Registration, error) {
	deadline := b.deps.Clock.Now().Add(b.cfg.Etcd.LeaseTTL.Std() + conflictGrace)
	for warned := false; ; warned = true {
		reg, err := retry(ctx, b, "register", func(ctx context.Context) (*metadata.Registration, error) { return c.Register(ctx, info) })
		if !errors.Is(err, metadata.ErrBrokerConflict) || !b.deps.Clock.Now().Before(deadline) {
			return reg, err
		}
		if !warned {
			b.enter("waiting for another storage's registration to expire")
			b.lg.Warn("waiting for the registration of another storage under this id to expire", "error", err)
		}
		if err := clock.Sleep(ctx, b.deps.Clock, etcdRetry); err != nil {
			return nil, err
		}
	}
}

func (b *Broker) openMetadata(p *parts) (*metadata.Client, error) {
	known, err := b.known()
	if err != nil {
		return nil, err
	}
	secure, secured, err := b.etcdTLS()
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	e := b.cfg.Etcd
	return metadata.New(metadata.Config{
		Endpoints: e.Endpoints, TLS: secure, Cluster: b.cfg.Cluster,
		DialTimeout: e.DialTimeout.Std(), RequestTimeout: e.RequestTimeout.Std(), LeaseTTL: e.LeaseTTL.Std(),
		DialOptions: append(secured, b.dialer()...),
		Known:       known,
	}, b.deps.Clock, b.lg, p.metrics)
}

// etcdTLS returns the settings that etcd's client checks endpoints against, and what handshakes use instead of them: the credentials
// verify each certificate for the host of its endpoint, which settings that are given once cannot when that is an address.
func (b *Broker) etcdTLS() (*tls.Config, []grpc.DialOption, error) {
	t := b.cfg.Etcd.TLS
	c := tlsreload.Config{CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile, ServerName: t.ServerName}
	if !c.Enabled() {
		return nil, nil, nil
	}
	source, err := tlsreload.New(c, b.deps.Clock, b.lg)
	if err != nil {
		return nil, nil, err
	}
	return source.Client(), []grpc.DialOption{grpc.WithTransportCredentials(source.Credentials())}, nil
}

// dialer is how gRPC connects where a test has a way of its own.
func (b *Broker) dialer() []grpc.DialOption {
	if b.deps.Dial == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(b.deps.Dial)}
}

func (b *Broker) openStore(ctx context.Context, p *parts) (*storage.Store, error) {
	c := storage.DefaultConfig(b.cfg.Storage.DataDir, p.cluster)
	c.AllowNetworkStorage = b.cfg.Storage.AllowNetworkStorage
	c.OpenFiles = idleFiles(c.OpenFiles)
	c.ReserveBytes = int64(b.cfg.Storage.Reserve)
	c.SyncfsThreshold = b.cfg.Storage.SyncfsThreshold
	c.RetentionInterval = b.cfg.Storage.RetentionInterval.Std()
	c.LogConfig = decodeLogConfig(b.defaults)
	c.Retention = func(l *log.Log, target int64) { p.host.retention(l, target) } // called by Run, when there is a host
	return storage.Open(ctx, c, b.deps.FS, b.deps.Clock, b.lg, p.metrics)
}

// listen opens all listeners, and says how clients reach them.
func (b *Broker) listen() (out []server.Listener, advertised map[string]string, err error) {
	advertised = map[string]string{}
	defer func() {
		if err != nil {
			closeAll(out)
			out = nil
		}
	}()
	for _, c := range b.cfg.Listeners {
		l := server.Listener{Name: c.Name}
		if c.TLS.Enabled() {
			l.TLS, err = tlsreload.New(tlsreload.Config{
				CertFile: c.TLS.CertFile, KeyFile: c.TLS.KeyFile, CAFile: c.TLS.ClientCAFile, RequireClientCert: c.TLS.ClientCAFile != "",
			}, b.deps.Clock, b.lg)
			if err != nil {
				return out, nil, fmt.Errorf("listener %s: %w", c.Name, err)
			}
		}
		if l.Listener, err = b.deps.Listen("tcp", c.Address); err != nil {
			return out, nil, fmt.Errorf("listener %s: %w", c.Name, err)
		}
		l.Listener = netutil.LimitListener(l.Listener, b.cfg.Limits.MaxConnections)
		out = append(out, l)
		if advertised[c.Name], err = advertise(c, l.Listener.Addr()); err != nil {
			return out, nil, fmt.Errorf("listener %s: %w", c.Name, err)
		}
	}
	return out, advertised, nil
}

// advertise returns what the configuration says, else the address listened on, with this host's name for "every interface".
func advertise(c config.Listener, bound net.Addr) (string, error) {
	if c.Advertised != "" {
		return c.Advertised, nil
	}
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return bound.String(), nil //nolint:nilerr // not TCP: a test's listener
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return "", err
		}
	}
	return net.JoinHostPort(host, port), nil
}
