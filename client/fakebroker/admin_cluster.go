package fakebroker

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// HoldReassignments keeps reassignments under way until it is called with false: both old and new replicas are there meanwhile.
func (c *Cluster) HoldReassignments(hold bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.held = hold
	if !hold {
		for _, t := range c.mu.topics {
			for _, p := range t.partitions {
				p.settle(true)
			}
		}
	}
	c.changeLocked()
}

// place moves p to brokers, at once or, when that is held up, some day.
func (c *Cluster) place(p *partition, target []int32) {
	old := p.replicas
	p.replicas, p.adding, p.removing = slices.Clone(target), nil, nil
	for _, id := range target {
		if !slices.Contains(old, id) {
			p.adding = append(p.adding, id)
		}
	}
	for _, id := range old {
		if !slices.Contains(target, id) {
			p.removing = append(p.removing, id)
		}
	}
	p.replicas = append(p.replicas, p.removing...)
	if !c.mu.held {
		p.settle(true)
	}
}

// settle ends a reassignment: at the new replicas, or at the old ones.
func (p *partition) settle(done bool) {
	gone := p.adding
	if done {
		gone = p.removing
	}
	moved := len(p.adding)+len(p.removing) > 0
	p.replicas = slices.DeleteFunc(slices.Clone(p.replicas), func(id int32) bool { return slices.Contains(gone, id) })
	p.adding, p.removing = nil, nil
	if !moved {
		return
	}
	p.isr = slices.Clone(p.replicas)
	if p.leader >= 0 && !slices.Contains(p.replicas, p.leader) {
		p.leader = p.replicas[0]
		p.epoch++
	}
}

func (c *Cluster) replicateLocked(t *topic, replicas int) {
	t.replicas = replicas
	brokers := slices.Sorted(maps.Keys(c.mu.brokers))
	for _, p := range t.partitions {
		target := slices.Clone(p.replicas[:min(replicas, len(p.replicas))])
		for i := 0; len(target) < replicas; i++ {
			if id := brokers[(int(p.index)+i)%len(brokers)]; !slices.Contains(target, id) {
				target = append(target, id)
			}
		}
		c.place(p, target)
	}
}

func (p *partition) replica(id int32) *runnelv1.ReplicaStatus {
	r := &runnelv1.ReplicaStatus{
		BrokerId: id, InSync: slices.Contains(p.isr, id), Adding: slices.Contains(p.adding, id), Removing: slices.Contains(p.removing, id),
		AckedOffset: p.end, BrokerLive: true, BrokerState: runnelv1.BrokerState_BROKER_STATE_ACTIVE, RecordsPerSecond: -1,
		State: runnelv1.ReplicaState_REPLICA_STATE_IN_SYNC,
	}
	switch {
	case id == p.leader:
		r.State = runnelv1.ReplicaState_REPLICA_STATE_LEADER
	case !r.InSync:
		r.State, r.AckedOffset, r.Lag, r.CaughtUpMsAgo = runnelv1.ReplicaState_REPLICA_STATE_CATCHING_UP, p.end/2, p.end-p.end/2, -1
		r.RecordsPerSecond, r.Detail = 1000, fmt.Sprintf("copying: %d of %d", p.end/2, p.end)
	}
	return r
}

func (c *Cluster) brokerLocked(id, controller int32) *runnelv1.BrokerStatus {
	b := c.mu.brokers[id]
	st := &runnelv1.BrokerStatus{
		Id: id, State: c.stateLocked(id), Live: b.server != nil && !b.lapsed, Controller: id == controller, StorageId: storageOf(id),
		SizeBytes: -1, FreeBytes: -1, TotalBytes: -1, FullInMs: -1, BytesInPerSecond: -1, BytesOutPerSecond: -1,
	}
	if st.GetLive() {
		st.BrokerEpoch, st.Version, st.Eligible, st.Listeners = 1, "fake", true, map[string]string{"default": b.address}
	}
	if st.GetState() == runnelv1.BrokerState_BROKER_STATE_DECOMMISSIONED && !st.GetLive() {
		return nil
	}
	return st
}

func storageOf(id int32) string { return fmt.Sprintf("storage-%d", id) }

func (c *Cluster) stateLocked(id int32) runnelv1.BrokerState {
	if s, ok := c.mu.states[id]; ok {
		return s
	}
	return runnelv1.BrokerState_BROKER_STATE_ACTIVE
}

func (p *partition) count(resp *runnelv1.DescribeClusterResponse, byID map[int32]*runnelv1.BrokerStatus) {
	resp.Partitions++
	if len(p.isr) < len(p.replicas) {
		resp.UnderReplicatedPartitions++
	}
	if len(p.isr) < int(p.topic.config.GetMinInSyncReplicas()) {
		resp.BelowMinimumPartitions++
	}
	if p.leader < 0 {
		resp.LeaderlessPartitions++
	} else if b := byID[p.leader]; b != nil {
		b.Leaders++
	}
	for _, id := range p.replicas {
		if b := byID[id]; b != nil {
			b.Replicas++
			if !slices.Contains(p.isr, id) {
				b.UnderReplicated++
			}
		}
	}
}

func (c *Cluster) partitionLocked(name string, id []byte, n int32) (*partition, *Error) {
	t, err := c.topicLocked(name, id)
	if err != nil {
		return nil, err
	}
	if n < 0 || int(n) >= len(t.partitions) {
		return nil, unknownPartition(name, n, len(t.partitions))
	}
	return t.partitions[n], nil
}

// ReassignPartitions implements runnelv1.AdminServer.
func (b *broker) ReassignPartitions(ctx context.Context, r *runnelv1.ReassignPartitionsRequest) (*runnelv1.ReassignPartitionsResponse, error) {
	return admin(ctx, b, Call{Method: "ReassignPartitions"}, func(c *Cluster) (*runnelv1.ReassignPartitionsResponse, *Error) {
		resp := &runnelv1.ReassignPartitionsResponse{}
		targets := r.GetTargets()
		if r.GetCancel() && len(targets) == 0 {
			for _, m := range c.reassignmentsLocked() {
				targets = append(targets, &runnelv1.PartitionTarget{Topic: m.GetTopic(), Partition: m.GetPartition()})
			}
		}
		for _, t := range targets {
			resp.Results = append(resp.Results, c.reassignLocked(t, r))
		}
		if r.ThrottleBytesPerSecond != nil && !r.GetValidateOnly() {
			c.mu.throttle = r.GetThrottleBytesPerSecond()
		}
		c.changeLocked()
		return resp, nil
	})
}

func (c *Cluster) reassignLocked(t *runnelv1.PartitionTarget, r *runnelv1.ReassignPartitionsRequest) *runnelv1.ReassignmentResult {
	res := &runnelv1.ReassignmentResult{Topic: t.GetTopic(), Partition: t.GetPartition(), Target: t.GetReplicas(), BytesToCopy: -1}
	p, err := c.partitionLocked(t.GetTopic(), t.GetTopicId(), t.GetPartition())
	for _, id := range t.GetReplicas() {
		if err == nil && c.mu.brokers[id] == nil {
			err = refuse(codes.NotFound, "BROKER_UNKNOWN", false, "unknown broker: %d", id)
		}
	}
	switch {
	case err == nil && r.GetCancel() && len(p.adding)+len(p.removing) == 0:
		err = refuse(codes.FailedPrecondition, "NO_REASSIGNMENT", false, "no reassignment is under way")
	case err == nil && !r.GetCancel() && len(t.GetReplicas()) == 0:
		err = refuse(codes.InvalidArgument, "INVALID_ARGUMENT", false, "targets.replicas is empty")
	}
	if err != nil {
		res.Error = err.item()
		return res
	}
	res.Replicas, res.BytesToCopy = slices.Clone(p.replicas), 0
	undo := *p
	if r.GetCancel() {
		p.settle(false)
		res.Target = p.replicas
	} else {
		held := c.mu.held
		c.mu.held = held || r.GetValidateOnly()
		c.place(p, t.GetReplicas())
		c.mu.held = held
		for _, id := range t.GetReplicas() {
			if !slices.Contains(res.GetReplicas(), id) {
				res.Adding = append(res.Adding, id)
				for _, b := range p.batches {
					res.BytesToCopy += int64(len(b))
				}
			}
		}
		for _, id := range res.GetReplicas() {
			if !slices.Contains(t.GetReplicas(), id) {
				res.Removing = append(res.Removing, id)
			}
		}
	}
	if r.GetValidateOnly() {
		*p = undo
	}
	return res
}

func (c *Cluster) reassignmentsLocked() []*runnelv1.Reassignment {
	var out []*runnelv1.Reassignment
	for _, name := range slices.Sorted(maps.Keys(c.mu.topics)) {
		for _, p := range c.mu.topics[name].partitions {
			if len(p.adding)+len(p.removing) == 0 {
				continue
			}
			target := slices.DeleteFunc(slices.Clone(p.replicas), func(id int32) bool { return slices.Contains(p.removing, id) })
			out = append(out, &runnelv1.Reassignment{
				Topic: name, TopicId: slices.Clone(p.topic.id[:]), Partition: p.index, Replicas: p.replicas, Target: target, Adding: p.adding,
				Removing: p.removing, Isr: p.isr,
			})
		}
	}
	return out
}

// ListReassignments implements runnelv1.AdminServer.
func (b *broker) ListReassignments(ctx context.Context, r *runnelv1.ListReassignmentsRequest) (*runnelv1.ListReassignmentsResponse, error) {
	return admin(ctx, b, Call{Method: "ListReassignments"}, func(c *Cluster) (*runnelv1.ListReassignmentsResponse, *Error) {
		all := slices.DeleteFunc(c.reassignmentsLocked(), func(m *runnelv1.Reassignment) bool {
			return len(r.GetTopics()) > 0 && !slices.Contains(r.GetTopics(), m.GetTopic())
		})
		resp := &runnelv1.ListReassignmentsResponse{Total: int32(len(all)), ThrottleBytesPerSecond: c.mu.throttle}
		limit := int(r.GetLimit())
		if limit == 0 {
			limit = 1000
		}
		resp.Reassignments = all[:min(len(all), limit)]
		return resp, nil
	})
}

// ElectLeaders implements runnelv1.AdminServer.
func (b *broker) ElectLeaders(ctx context.Context, r *runnelv1.ElectLeadersRequest) (*runnelv1.ElectLeadersResponse, error) {
	return admin(ctx, b, Call{Method: "ElectLeaders"}, func(c *Cluster) (*runnelv1.ElectLeadersResponse, *Error) {
		resp := &runnelv1.ElectLeadersResponse{}
		targets, all := r.GetTargets(), len(r.GetTargets()) == 0
		if all {
			for _, name := range slices.Sorted(maps.Keys(c.mu.topics)) {
				for _, p := range c.mu.topics[name].partitions {
					targets = append(targets, &runnelv1.ElectionTarget{Topic: name, Partition: p.index})
				}
			}
		}
		for _, t := range targets {
			if res := c.electLocked(t, r); !all || res.GetLeaderId() != res.GetOldLeaderId() {
				resp.Results = append(resp.Results, res)
			}
		}
		c.changeLocked()
		return resp, nil
	})
}

func (c *Cluster) electLocked(t *runnelv1.ElectionTarget, r *runnelv1.ElectLeadersRequest) *runnelv1.ElectionResult {
	res := &runnelv1.ElectionResult{Topic: t.GetTopic(), Partition: t.GetPartition(), OldLeaderId: -1, LeaderId: -1}
	p, err := c.partitionLocked(t.GetTopic(), t.GetTopicId(), t.GetPartition())
	if err != nil {
		res.Error = err.item()
		return res
	}
	to, unclean := p.replicas[0], r.GetType() == runnelv1.ElectionType_ELECTION_TYPE_UNCLEAN
	if unclean {
		to = t.GetBrokerId()
	}
	res.OldLeaderId, res.LeaderId, res.LeaderEpoch = p.leader, p.leader, p.epoch
	switch {
	case !slices.Contains(p.replicas, to), !unclean && !slices.Contains(p.isr, to):
		res.Error = refuse(codes.FailedPrecondition, "NOT_IN_SYNC", false, "the replica is not in sync: broker %d", to).item()
		return res
	case to == p.leader:
		return res
	case r.GetValidateOnly():
		res.LeaderId = to
		return res
	}
	p.lead(to)
	if unclean {
		p.isr = []int32{to}
	}
	res.LeaderId, res.LeaderEpoch = p.leader, p.epoch
	return res
}

func (c *Cluster) brokerKnownLocked(id int32) *Error {
	if c.mu.brokers[id] == nil {
		return refuse(codes.NotFound, "BROKER_UNKNOWN", false, "unknown broker: %d", id)
	}
	return nil
}

func (c *Cluster) heldByLocked(id int32) []*partition {
	var out []*partition
	for _, name := range slices.Sorted(maps.Keys(c.mu.topics)) {
		for _, p := range c.mu.topics[name].partitions {
			if slices.Contains(p.replicas, id) {
				out = append(out, p)
			}
		}
	}
	return out
}
