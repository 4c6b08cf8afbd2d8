package broker

import (
	"context"
	"fmt"
	"time"

	"runnel.dev/runnel/api/runnel/codec"
	"runnel.dev/runnel/broker/controller"
	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/internal/tlsreload"
)

// assemble makes the parts that need a registration.
func (b *Broker) assemble(p *parts, listeners []server.Listener) (err error) {
	d := b.deps
	p.cache, p.ids = metadata.NewCache(p.client), metadata.NewProducerIDs(p.client)
	shared := codec.New()
	p.dir = newDirectory(p.cluster, b.cfg.PeerListener().Name, p.cache, p.reg)
	secure, err := b.peerTLS()
	if err != nil {
		return fmt.Errorf("peer: %w", err)
	}
	p.conns = peer.New(peer.Config{Directory: p.dir, TLS: secure, Codec: shared, Logger: b.lg, Dial: d.Dial})
	if err := b.replicate(p, shared); err != nil {
		return err
	}
	if err := b.control(p); err != nil {
		return err
	}
	return b.serve(p, listeners)
}

// peerTLS is what secures connections to other brokers; nil for plain text.
func (b *Broker) peerTLS() (*tlsreload.Source, error) {
	t := b.cfg.Peer.TLS
	if !t.Enabled() && !b.cfg.PeerListener().TLS.Enabled() {
		return nil, nil //nolint:nilnil // plain text
	}
	return tlsreload.New(tlsreload.Config{CertFile: t.CertFile, KeyFile: t.KeyFile, CAFile: t.CAFile, ServerName: t.ServerName}, b.deps.Clock, b.lg)
}

// replicate makes the host and both sides of replication.
func (b *Broker) replicate(p *parts, shared *codec.Codec) (err error) {
	r, d := b.cfg.Replication, b.deps
	settings := replication.Settings{
		TailStreams: r.TailStreams, Window: int64(r.Window), CatchUpRate: int64(r.CatchUpBytesPerSecond),
	}
	p.leaders, err = replication.NewLeaders(replication.LeadersConfig{
		Settings: settings, Directory: p.dir, Pool: shared.Pool(), Clock: d.Clock, Logger: b.lg,
		Lookup: func(ref metadata.PartitionRef) (replication.LeaderPartition, bool) { return p.host.lookup(ref) },
	})
	if err != nil {
		return err
	}
	p.followers, err = replication.NewFollowers(replication.FollowersConfig{
		Settings: settings, Directory: p.dir, Dialer: p.conns, Clock: d.Clock, Logger: b.lg,
	})
	if err != nil {
		return err
	}
	p.isr = newISRWriter(p.client, p.cache, p.reg, func(s *metadata.State, part *metadata.Partition) int { return p.host.minISR(s, part) }, d.Clock, b.lg)
	p.host = newHost(hostConfig{
		client: p.client, cache: p.cache, reg: p.reg, store: p.store, view: newView(b.defaults), clk: d.Clock, lg: b.lg,
		lagTimeout: r.LagTimeout.Std(), transport: p.followers, writer: p.isr, starts: leaderStates{p.conns}, seen: p.dir.note,
	})
	p.stop = newHandOver(p, b.cfg.ShutdownTimeout.Std(), d.Clock, b.lg)
	return nil
}

// control makes the failure detector and the controller.
func (b *Broker) control(p *parts) (err error) {
	r, d := b.cfg.Replication, b.deps
	p.load = newMeter(p.host, d.Clock)
	p.beats = replication.NewHeartbeats(replication.HeartbeatsConfig{
		Directory: p.dir, Dialer: p.conns, Clock: d.Clock, Logger: b.lg,
		Detector: liveness.Config{Self: b.cfg.BrokerID, Interval: r.HeartbeatInterval.Std(), SuspectAfter: r.SuspectAfter.Std()},
		Local: func() replication.Local {
			l := replication.Local{SyncAge: p.store.SyncAge(), Stopping: p.stop.begun(), Controller: metadata.NoLeader}
			refused := p.store.Refusals()
			l.Unwritable = refused.Volume != nil
			for _, ref := range refused.Logs {
				l.UnwritableLogs = append(l.UnwritableLogs, liveness.Log(ref))
			}
			if c := p.cache.Snapshot().Controller(); c != nil {
				l.Controller = c.BrokerID
			}
			return l
		},
		Load: p.load.report,
		OnLoad: func(id int32, all []replication.PartitionLoad) {
			report := controller.LoadReport{Broker: id, Partitions: make(map[metadata.PartitionRef]controller.PartitionLoad, len(all))}
			for _, l := range all {
				report.Partitions[l.Ref] = controller.PartitionLoad{BytesIn: l.BytesIn, BytesOut: l.BytesOut, RecordsIn: l.RecordsIn}
			}
			p.ctrl.ReportLoad(report)
		},
		OnStates: func(_ int32, states []replication.PushedState) { p.cache.Offer(offered(states)) },
	})
	wake := make(chan struct{}, 1)
	p.wake = func(ctx context.Context) error { return relay(ctx, p.beats.Changed, wake) }
	balance := r.BalanceInterval.Std()
	if balance == 0 {
		balance = -time.Second // never
	}
	p.ctrl, err = controller.New(controller.Config{
		Client: p.client, Cache: p.cache, Registration: p.reg, Defaults: b.defaults, Clock: d.Clock, Logger: b.lg, Registerer: p.metrics,
		Health: p.beats.View, Wake: wake, Settings: controller.Settings{BalanceInterval: balance},
		Push: func(written []metadata.PartitionValue) { p.beats.Push(pushed(written)) },
	})
	return err
}

// pushed and offered translate between what the controller writes and what brokers tell each other.

func pushed(written []metadata.PartitionValue) []replication.PushedState {
	out := make([]replication.PushedState, len(written))
	for i, v := range written {
		out[i] = replication.PushedState{Ref: v.Ref, Era: v.Era, ModRevision: v.Revision, Value: v.Value}
	}
	return out
}

func offered(states []replication.PushedState) []metadata.PartitionValue {
	out := make([]metadata.PartitionValue, len(states))
	for i, s := range states {
		out[i] = metadata.PartitionValue{Ref: s.Ref, Era: s.Era, Revision: s.ModRevision, Value: s.Value}
	}
	return out
}

// relay puts a token into wake whenever changed announces something, until ctx ends.
func relay(ctx context.Context, changed func() <-chan struct{}, wake chan<- struct{}) error {
	for {
		next := changed() // before the token: whoever takes it has seen all that came earlier
		select {
		case wake <- struct{}{}:
		default:
		}
		select {
		case <-next:
		case <-ctx.Done():
			return nil
		}
	}
}

// serve makes the server.
func (b *Broker) serve(p *parts, listeners []server.Listener) (err error) {
	d, lim, shown := b.deps, b.cfg.Limits, p.host.view
	p.server, err = server.New(server.Config{
		BrokerID: b.cfg.BrokerID, Listeners: listeners, AutoCreateTopics: b.cfg.Topics.AutoCreate,
		Limits: server.Limits{
			InFlightBytes: int64(lim.MaxInFlightBytes), StreamInFlightBytes: int64(lim.MaxStreamInFlightBytes),
			StreamsPerConnection: lim.MaxConcurrentStreams,
		},
		StopWithin:  p.stop.left,
		Partitions:  p.host,
		Topics:      &topicAdmin{client: p.client, cache: p.cache, view: shown, defaults: b.defaults, partitions: b.cfg.Topics.Partitions, most: lim.MaxPartitions},
		Metadata:    shown,
		ProducerIDs: producerIDs{p.ids},
		Forwarder:   forwarder{p.conns, p.dir},
		Cluster:     &clusterAdmin{b: b, p: p, m: p.load},
		Replication: &replication.Service{
			Directory: p.dir, Leaders: p.leaders, Heartbeats: p.beats,
			StartStates: func(ref metadata.PartitionRef) (replication.StartStater, bool) { return p.host.lookup(ref) },
			Inventories: func(ctx context.Context) (replication.Inventory, error) { return b.inventory(ctx, p.store) },
		},
		Clock: d.Clock, Logger: b.lg, Registerer: p.metrics,
	})
	return err
}
