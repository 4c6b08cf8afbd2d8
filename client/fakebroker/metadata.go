package fakebroker

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

const (
	defaultPartitions = 3
	maxNames          = 10_000 // of one watch
)

// Watch implements runnelv1.MetadataServer: a snapshot, then what differs.
func (b *broker) Watch(r *runnelv1.WatchRequest, stream grpc.ServerStreamingServer[runnelv1.WatchResponse]) error {
	if _, err := b.unary(stream.Context(), Call{Method: "Watch"}); err != nil {
		return err
	}
	if n := len(r.GetTopics()); n > maxNames {
		return rpcError(refuse(codes.InvalidArgument, "INVALID_ARGUMENT", false, "topics: %d items long, want at most %d items", n, maxNames))
	}
	c := b.c
	sent := make(map[string]*runnelv1.TopicMetadata)
	missing := make(map[string]bool)
	var brokers []*runnelv1.BrokerEndpoint
	for first := true; ; first = false {
		c.mu.Lock()
		changed := c.mu.changed
		if r.GetAutoCreate() && !r.GetAllTopics() && c.mu.autoCreate && first {
			for _, name := range r.GetTopics() {
				if c.mu.topics[name] == nil {
					c.createLocked(name, defaultPartitions, 1, nil, "")
				}
			}
			changed = c.mu.changed
		}
		resp := &runnelv1.WatchResponse{ClusterId: c.cfg.clusterID, Snapshot: first, Revision: c.mu.revision, ControllerId: c.controllerLocked(), HeartbeatMs: r.GetHeartbeatMs()}
		now := c.endpointsLocked()
		if first || !slices.EqualFunc(now, brokers, func(a, b *runnelv1.BrokerEndpoint) bool { return proto.Equal(a, b) }) {
			brokers, resp.BrokersChanged, resp.Brokers = now, true, now
		}
		names := r.GetTopics()
		if r.GetAllTopics() {
			names = slices.Sorted(maps.Keys(c.mu.topics))
			clear(missing)
			for name := range sent {
				if c.mu.topics[name] == nil {
					names = append(names, name)
				}
			}
		}
		for _, name := range names {
			t := c.mu.topics[name]
			switch {
			case t == nil && !missing[name]:
				missing[name] = true
				delete(sent, name)
				resp.MissingTopics = append(resp.MissingTopics, name)
			case t != nil:
				if m := c.describeLocked(t); !proto.Equal(m, sent[name]) {
					sent[name] = m
					delete(missing, name)
					resp.Topics = append(resp.Topics, m)
				}
			}
		}
		c.mu.Unlock()
		if first || resp.GetBrokersChanged() || len(resp.GetTopics())+len(resp.GetMissingTopics()) > 0 {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		if err := b.beat(r, stream, changed); err != nil {
			return err
		}
	}
}

// beat waits for a change, and tells the client as often as it has asked for that the broker is there.
func (b *broker) beat(r *runnelv1.WatchRequest, stream grpc.ServerStreamingServer[runnelv1.WatchResponse], changed <-chan struct{}) error {
	var beat <-chan time.Time
	if ms := r.GetHeartbeatMs(); ms > 0 {
		ticker := b.c.cfg.clock.NewTicker(time.Duration(ms) * time.Millisecond)
		defer ticker.Stop()
		beat = ticker.C()
	}
	for {
		select {
		case <-changed:
			return nil
		case <-beat:
			b.c.mu.Lock()
			resp := &runnelv1.WatchResponse{
				ClusterId: b.c.cfg.clusterID, Revision: b.c.mu.revision, ControllerId: b.c.controllerLocked(), HeartbeatMs: r.GetHeartbeatMs(),
			}
			b.c.mu.Unlock()
			if err := stream.Send(resp); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// controllerLocked is the lowest id that runs, -1 for none.
func (c *Cluster) controllerLocked() int32 {
	for _, id := range slices.Sorted(maps.Keys(c.mu.brokers)) {
		if c.mu.brokers[id].server != nil {
			return id
		}
	}
	return -1
}

func (c *Cluster) endpointsLocked() []*runnelv1.BrokerEndpoint {
	var out []*runnelv1.BrokerEndpoint
	for _, id := range slices.Sorted(maps.Keys(c.mu.brokers)) {
		if b := c.mu.brokers[id]; b.server != nil && !b.lapsed {
			out = append(out, &runnelv1.BrokerEndpoint{Id: id, Address: b.address})
		}
	}
	return out
}

func (c *Cluster) describeLocked(t *topic) *runnelv1.TopicMetadata {
	m := &runnelv1.TopicMetadata{Name: t.name, TopicId: slices.Clone(t.id[:]), Config: proto.CloneOf(t.config)}
	for _, p := range t.partitions {
		m.Partitions = append(m.Partitions, &runnelv1.PartitionMetadata{
			Partition: p.index, LeaderId: p.leader, LeaderEpoch: p.epoch, Replicas: p.replicas, Isr: p.isr,
		})
	}
	return m
}
