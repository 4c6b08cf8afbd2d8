package broker

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/ids"
)

// view is the metadata as the server shows it: what host has brought into effect, so that clients are never sent to a leader which does
// not know yet that it leads. host is its only writer; unchanged topics and brokers keep their pointers from one snapshot to the next.
type view struct {
	defaults *runnelv1.TopicConfig
	current  atomic.Pointer[published]
}

type published struct {
	snapshot *server.Snapshot
	state    *metadata.State // nil before the first
	changed  chan struct{}   // the snapshot's Changed
}

func newView(defaults *runnelv1.TopicConfig) *view {
	v := &view{defaults: defaults}
	changed := make(chan struct{})
	v.current.Store(&published{snapshot: &server.Snapshot{ControllerID: -1, Changed: changed}, changed: changed})
	return v
}

// Snapshot implements server.Metadata.
func (v *view) Snapshot() *server.Snapshot { return v.current.Load().snapshot }

// publish shows a state that is in effect. Readers of the snapshot before are told once they can load the new one.
func (v *view) publish(s *metadata.State) {
	old := v.current.Load()
	if old.state == s {
		return
	}
	changed := make(chan struct{})
	next := &published{state: s, changed: changed, snapshot: v.build(old, s)}
	next.snapshot.Changed = changed
	v.current.Store(next)
	close(old.changed)
}

// wait returns once cond holds.
func (v *view) wait(ctx context.Context, cond func(*metadata.State) bool) (*metadata.State, error) {
	for {
		now := v.current.Load()
		if now.state != nil && cond(now.state) {
			return now.state, nil
		}
		select {
		case <-now.changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (v *view) build(old *published, s *metadata.State) *server.Snapshot {
	out := &server.Snapshot{Revision: s.Revision(), ControllerID: -1}
	if c := s.Cluster(); c != nil {
		out.ClusterID = c.ID
	}
	if c := s.Controller(); c != nil {
		out.ControllerID = c.BrokerID
	}
	if old.state == nil {
		out.Brokers, out.Storages = brokers(s, nil), storages(s)
		out.Topics, out.TopicsByID = map[string]*server.Topic{}, map[ids.TopicID]*server.Topic{}
		for _, t := range s.Topics() {
			v.put(out, s, t)
		}
		return out
	}
	delta := s.Since(old.state)
	out.Brokers, out.Storages = old.snapshot.Brokers, old.snapshot.Storages
	if delta.Brokers {
		out.Brokers, out.Storages = brokers(s, old.snapshot.Brokers), storages(s)
	}
	out.Topics, out.TopicsByID = old.snapshot.Topics, old.snapshot.TopicsByID
	if len(delta.Topics) == 0 {
		return out
	}
	out.Topics, out.TopicsByID = maps.Clone(out.Topics), maps.Clone(out.TopicsByID)
	for _, id := range delta.Topics {
		if before, ok := out.TopicsByID[id]; ok {
			delete(out.TopicsByID, id)
			if out.Topics[before.Name] == before {
				delete(out.Topics, before.Name)
			}
		}
	}
	for _, id := range delta.Topics {
		if t, ok := s.TopicByID(id); ok {
			v.put(out, s, t)
		}
	}
	return out
}

func (v *view) put(out *server.Snapshot, s *metadata.State, t *metadata.Topic) {
	topic := v.topic(s, t)
	out.TopicsByID[t.ID] = topic
	if _, taken := out.Topics[t.Name]; !taken || t.State != metadata.TopicDeleting {
		out.Topics[t.Name] = topic
	}
}

func (v *view) topic(s *metadata.State, t *metadata.Topic) *server.Topic {
	out := &server.Topic{
		Name: t.Name, ID: t.ID, Replicas: t.Replicas, Generation: t.Generation, Owner: t.Owner, Created: t.Created,
		Config: topicconfig.Effective(t.Config, v.defaults, t.Replicas),
		State:  topicState(t.State),
	}
	for _, p := range s.Partitions(t.ID) {
		if p == nil || p.Partition >= t.ReadyPartitions {
			break
		}
		isr := make([]int32, 0, len(p.ISR))
		for _, m := range p.ISR {
			isr = append(isr, m.BrokerID)
		}
		out.Partitions = append(out.Partitions, server.Partition{
			LeaderID: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: isr, Adding: p.Adding, Removing: p.Removing,
			Revision: p.Revision,
		})
	}
	return out
}

func topicState(s metadata.TopicState) runnelv1.TopicState {
	switch s {
	case metadata.TopicCreating:
		return runnelv1.TopicState_TOPIC_STATE_CREATING
	case metadata.TopicActive:
		return runnelv1.TopicState_TOPIC_STATE_ACTIVE
	case metadata.TopicDeleting:
		return runnelv1.TopicState_TOPIC_STATE_DELETING
	default:
		return runnelv1.TopicState_TOPIC_STATE_UNSPECIFIED
	}
}

// storages is the durable registry.
func storages(s *metadata.State) map[int32]*server.Storage {
	out := map[int32]*server.Storage{}
	for _, st := range s.Storages() {
		e := &server.Storage{
			BrokerID: st.BrokerID, StorageID: st.StorageID.String(), State: brokerState(st.State), EligibleEpoch: st.EligibleEpoch,
		}
		for _, m := range st.Marks {
			if e.Damaged == nil {
				e.Damaged = map[server.PartitionRef]bool{}
			}
			e.Damaged[server.PartitionRef(m.Partition)] = true
		}
		out[st.BrokerID] = e
	}
	return out
}

func brokerState(s metadata.StorageState) runnelv1.BrokerState {
	switch s {
	case metadata.StorageActive:
		return runnelv1.BrokerState_BROKER_STATE_ACTIVE
	case metadata.StorageDraining:
		return runnelv1.BrokerState_BROKER_STATE_DRAINING
	case metadata.StorageDecommissioned:
		return runnelv1.BrokerState_BROKER_STATE_DECOMMISSIONED
	case metadata.StorageFenced:
		return runnelv1.BrokerState_BROKER_STATE_FENCED
	}
	return runnelv1.BrokerState_BROKER_STATE_UNSPECIFIED
}

// brokers keeps the pointer of a registration that is in before.
func brokers(s *metadata.State, before []*server.Broker) []*server.Broker {
	out := make([]*server.Broker, 0, len(s.Brokers()))
	for _, b := range s.Brokers() {
		i := slices.IndexFunc(before, func(x *server.Broker) bool { return x.ID == b.ID && x.Epoch == b.Epoch })
		if i >= 0 {
			out = append(out, before[i])
			continue
		}
		out = append(out, &server.Broker{
			ID: b.ID, Epoch: b.Epoch, Rack: b.Rack, Version: b.Version, StorageID: b.StorageID.String(), Listeners: b.Listeners,
		})
	}
	return out
}
