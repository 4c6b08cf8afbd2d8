package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

// refusePoll is how often a broker that refuses an etcd looks whether it has been recovered.
const refusePoll = time.Second

// refusable reports whether an etcd that a broker met is this cluster's, but older than what the broker has seen, or one that has been
// set up anew, or is being recovered: what `runnel etcd recover` is for. Another cluster's is a mistake in the settings.
func refusable(err error) bool {
	if foreign, ok := errors.AsType[*metadata.ForeignEtcdError](err); ok {
		return foreign.What != "cluster id"
	}
	return errors.Is(err, metadata.ErrOlderEtcd) || errors.Is(err, metadata.ErrRecovering)
}

// refuse keeps the broker up, and out of the cluster, until etcd has been recovered. Epochs that an older etcd would give out may have been
// used already, so nothing is led and nothing registered; readiness says why, clients get a retriable error, and whoever recovers etcd can
// ask what the data directory holds. It returns nil once etcd may be used. A directory that never belonged to a cluster has nothing to say:
// its broker only waits, and p.store stays nil; else it is open then.
func (b *Broker) refuse(ctx context.Context, p *parts, why error) error {
	known, err := b.known()
	if err != nil {
		return err
	}
	if known.ClusterID == "" {
		b.enter(why.Error())
		b.lg.Warn("waiting until etcd was recovered", "reason", why)
		return ignoreEnd(ctx, b.awaitRecovery(ctx, p, known, why))
	}
	p.cluster = known.ClusterID
	if p.store, err = b.openStore(ctx, p); err != nil {
		return err
	}
	listeners, addresses, err := b.listen()
	if err != nil {
		return err
	}
	command := fmt.Sprintf("runnel etcd recover --endpoints %s --cluster %s --brokers %s,…",
		strings.Join(b.cfg.Etcd.Endpoints, ","), b.cfg.Cluster, addresses[b.cfg.PeerListener().Name])
	reason := fmt.Sprintf("%v (cluster %s): bring the newest etcd back and start this broker again, or run: %s", why, known.ClusterID, command)
	if errors.Is(why, metadata.ErrRecovering) {
		reason = fmt.Sprintf("%v (cluster %s): waiting for its end; if it was interrupted, it goes on with: %s --apply", why, known.ClusterID, command)
	}
	b.enter(reason)
	b.lg.Error("this etcd is refused; the broker serves nothing but its inventory until etcd was recovered", "reason", reason)
	metrics := &session{Registerer: b.deps.Registry}
	defer metrics.end()
	off := refusal{b: b, store: p.store, why: why}
	s, err := server.New(server.Config{
		BrokerID: b.cfg.BrokerID, Listeners: listeners, Partitions: off, Topics: off, ProducerIDs: off, Forwarder: off, Replication: off,
		Limits: server.Limits{StopTimeout: refusePoll}, Refused: off.err(),
		Metadata: newView(b.defaults), Clock: b.deps.Clock, Logger: b.lg, Registerer: metrics,
	})
	if err != nil {
		closeAll(listeners)
		return err
	}
	return runLayers(ctx, layer{s.Run, func(ctx context.Context) error { return ignoreEnd(ctx, b.awaitRecovery(ctx, p, known, why)) }})
}

// awaitRecovery returns nil once etcd may be used.
//
// An etcd that was older and is not any more is not trusted before a recovery has begun a new era: it may have been written to since it went
// back, by a broker that knew no better, and so have come as far as this one had been. Somebody who has brought the newest one back
// starts this broker again.
func (b *Broker) awaitRecovery(ctx context.Context, p *parts, known metadata.Position, why error) error {
	for warned := false; ; {
		if err := clock.Sleep(ctx, b.deps.Clock, refusePoll); err != nil {
			return err
		}
		cluster, err := p.client.Bootstrap(ctx)
		switch {
		case err == nil && (cluster.Era > known.Era || errors.Is(why, metadata.ErrRecovering)):
			return nil
		case err == nil && !warned:
			b.lg.Warn("this etcd is as far as it had been, in the same era: it may have been written to since it went back. If it is the newest one, start this "+
				"broker again", "era", cluster.Era)
			warned = true
		case err != nil && !refusable(err) && !errors.Is(err, metadata.ErrUnavailable):
			return err
		}
	}
}

// refusal answers every call of a broker that refuses its etcd. Inventories are for whoever recovers it: there is no registration that could
// prove who asks.
type refusal struct {
	b     *Broker
	store *storage.Store
	why   error
}

func (r refusal) err() error { return &metadata.UnavailableError{Op: "serve", Err: r.why} }

// Lookup implements server.Partitions.
func (r refusal) Lookup(ids.TopicID, int32) (*partition.Partition, error) { return nil, r.err() }

// Recover implements server.Partitions.
func (r refusal) Recover(context.Context, ids.TopicID, int32, bool) (server.RecoverPlan, error) {
	return server.RecoverPlan{}, r.err()
}

// CreateTopic implements server.TopicAdmin.
func (r refusal) CreateTopic(context.Context, *runnelv1.CreateTopicRequest) (*runnelv1.Topic, error) {
	return nil, r.err()
}

// UpdateTopic implements server.TopicAdmin.
func (r refusal) UpdateTopic(context.Context, *runnelv1.UpdateTopicRequest) (*runnelv1.Topic, []*runnelv1.ConfigChange, error) {
	return nil, nil, r.err()
}

// DeleteTopic implements server.TopicAdmin.
func (r refusal) DeleteTopic(context.Context, *runnelv1.DeleteTopicRequest) error { return r.err() }

// NextProducerID implements server.ProducerIDs.
func (r refusal) NextProducerID(context.Context) (int64, int16, error) { return 0, 0, r.err() }

// Conn implements server.Forwarder.
func (r refusal) Conn(int32) (grpc.ClientConnInterface, error) { return nil, r.err() }

// Outgoing implements server.Forwarder.
func (r refusal) Outgoing(ctx context.Context) context.Context { return ctx }

// VerifyPeer implements server.Forwarder.
func (r refusal) VerifyPeer(context.Context) (int32, error) { return metadata.NoLeader, nil }

// Replicate implements server.Replication.
func (r refusal) Replicate(grpc.ServerStream) error { return r.err() }

// Heartbeat implements server.Replication.
func (r refusal) Heartbeat(grpc.ServerStream) error { return r.err() }

// StartState implements server.Replication.
func (r refusal) StartState(*runnelv1.StartStateRequest, grpc.ServerStreamingServer[runnelv1.StartStateResponse]) error {
	return r.err()
}

// Inventory implements server.Replication.
func (r refusal) Inventory(stream grpc.ServerStreamingServer[runnelv1.InventoryResponse]) error {
	s := replication.Service{Inventories: func(ctx context.Context) (replication.Inventory, error) { return r.b.inventory(ctx, r.store) }}
	return s.Inventory(stream)
}

// session is a registerer that takes back all that was registered through it, so that a part can be made anew within one process.
type session struct {
	prometheus.Registerer
	mu  sync.Mutex
	all []prometheus.Collector
}

// Register implements prometheus.Registerer.
func (s *session) Register(c prometheus.Collector) error {
	err := s.Registerer.Register(c)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, c)
	}
	return err
}

// MustRegister implements prometheus.Registerer.
func (s *session) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := s.Register(c); err != nil {
			panic(err) // as documented
		}
	}
}

// Unregister implements prometheus.Registerer.
func (s *session) Unregister(c prometheus.Collector) bool { return s.Registerer.Unregister(c) }

func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		s.Registerer.Unregister(c)
	}
	s.all = nil
}
