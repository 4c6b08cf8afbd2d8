package server

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// DeleteRecords implements runnelv1.AdminServer.
func (l *listener) DeleteRecords(ctx context.Context, req *runnelv1.DeleteRecordsRequest) (*runnelv1.DeleteRecordsResponse, error) {
	if err := count("targets", len(req.GetTargets())); err != nil {
		return nil, err
	}
	t, err := l.cfg.Metadata.Snapshot().topic(req.GetTopic(), req.GetTopicId())
	if err != nil {
		return nil, err
	}
	l = l.forClient(ctx)
	resp := &runnelv1.DeleteRecordsResponse{Results: make([]*runnelv1.DeleteRecordsResult, len(req.GetTargets()))}
	groups := map[int32][]int{}
	for i, target := range req.GetTargets() {
		if at, ok := l.elsewhere(t.ID, target.GetPartition()); ok && l.forwards(ctx) {
			groups[at.leader] = append(groups[at.leader], i)
			continue
		}
		start, err := l.deleteRecords(ctx, t, target)
		resp.Results[i] = l.deleted(target, start, err)
	}
	fan(groups, func(broker int32, items []int) {
		sub := &runnelv1.DeleteRecordsRequest{Topic: t.Name, TopicId: t.ID[:]}
		for _, i := range items {
			sub.Targets = append(sub.Targets, req.GetTargets()[i])
		}
		part, err := tell(ctx, l, broker, func(ctx context.Context, cc grpc.ClientConnInterface) (*runnelv1.DeleteRecordsResponse, error) {
			return runnelv1.NewAdminClient(cc).DeleteRecords(ctx, sub)
		})
		if err == nil && len(part.GetResults()) != len(items) {
			err = &unreachableError{broker: broker, cause: errShort}
		}
		for n, i := range items {
			if err == nil {
				resp.Results[i] = part.GetResults()[n]
			} else {
				resp.Results[i] = l.deleted(req.GetTargets()[i], 0, err)
			}
		}
	})
	return resp, nil
}

func (l *listener) deleted(target *runnelv1.DeleteRecordsTarget, start int64, err error) *runnelv1.DeleteRecordsResult {
	r := &runnelv1.DeleteRecordsResult{Partition: target.GetPartition(), LogStartOffset: start}
	if err != nil {
		r.LogStartOffset, r.Error = -1, l.item(err)
	}
	return r
}

func (l *listener) deleteRecords(ctx context.Context, t *Topic, target *runnelv1.DeleteRecordsTarget) (int64, error) {
	if _, err := t.partition(target.GetPartition()); err != nil {
		return 0, err
	}
	if target.GetBeforeOffset() < -1 {
		return 0, invalid("before_offset", target.GetBeforeOffset(), "0 or more, or -1 for the high watermark")
	}
	p, err := l.cfg.Partitions.Lookup(t.ID, target.GetPartition())
	if err != nil {
		return 0, partitionFault(err)
	}
	return p.DeleteRecords(ctx, target.GetBeforeOffset())
}

// DescribePartitions implements runnelv1.AdminServer.
func (l *listener) DescribePartitions(ctx context.Context, req *runnelv1.DescribePartitionsRequest) (*runnelv1.DescribePartitionsResponse, error) {
	if err := count("partitions", len(req.GetPartitions())); err != nil {
		return nil, err
	}
	t, err := l.cfg.Metadata.Snapshot().topic(req.GetTopic(), req.GetTopicId())
	if err != nil {
		return nil, err
	}
	wanted := req.GetPartitions()
	if len(wanted) == 0 {
		wanted = numbers(t)
	}
	return &runnelv1.DescribePartitionsResponse{Partitions: l.forClient(ctx).statuses(ctx, t, wanted)}, nil
}

// numbers returns all of a topic's partition numbers.
func numbers(t *Topic) []int32 {
	out := make([]int32, len(t.Partitions))
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// statuses describes partitions: those that this broker can tell most of itself, the others as their brokers say. What a broker does not answer in
// time is what the metadata says, with the error.
func (l *listener) statuses(ctx context.Context, t *Topic, wanted []int32) []*runnelv1.PartitionStatus {
	out := make([]*runnelv1.PartitionStatus, len(wanted))
	groups := map[int32][]int{}
	snap := l.cfg.Metadata.Snapshot()
	for i, n := range wanted {
		p, err := t.partition(n)
		if err == nil && snap.gone(p) {
			out[i] = l.offline(t, n, p)
			continue
		}
		if err == nil && l.forwards(ctx) {
			if id := l.keeper(snap, p); id != l.cfg.BrokerID {
				groups[id] = append(groups[id], i)
				continue
			}
		}
		out[i] = l.partitionStatus(t, n)
	}
	fan(groups, func(broker int32, items []int) {
		sub := &runnelv1.DescribePartitionsRequest{Topic: t.Name, TopicId: t.ID[:]}
		for _, i := range items {
			sub.Partitions = append(sub.Partitions, wanted[i])
		}
		part, err := ask(ctx, l, broker, func(ctx context.Context, cc grpc.ClientConnInterface) (*runnelv1.DescribePartitionsResponse, error) {
			return runnelv1.NewAdminClient(cc).DescribePartitions(ctx, sub)
		})
		if err == nil && len(part.GetPartitions()) != len(items) {
			err = &unreachableError{broker: broker, cause: errShort}
		}
		for n, i := range items {
			if err != nil {
				out[i] = l.byMetadata(t, wanted[i])
				out[i].Error = l.item(err)
				continue
			}
			out[i] = part.GetPartitions()[n]
			// The other broker may be behind in the metadata: offsets are its own, who leads is what the newer epoch says.
			if here := l.byMetadata(t, wanted[i]); here.GetLeaderEpoch() > out[i].GetLeaderEpoch() {
				out[i].LeaderId, out[i].LeaderEpoch, out[i].Isr, out[i].UnderReplicated = here.LeaderId, here.LeaderEpoch, here.Isr, here.UnderReplicated
				out[i].Replicas = here.Replicas
			}
		}
	})
	return out
}

// gone reports whether a partition's leader is not registered any more. A record that is newer than the snapshot as a whole may name a
// broker whose registration is only on its way.
func (s *Snapshot) gone(p *Partition) bool {
	return p.LeaderID >= 0 && p.Revision <= s.Revision && s.broker(p.LeaderID) == nil
}

// offline describes a partition whose leader's registration has ended. It stays so while nobody else may lead it.
func (l *listener) offline(t *Topic, n int32, p *Partition) *runnelv1.PartitionStatus {
	st := l.byMetadata(t, n)
	st.Health = runnelv1.PartitionHealth_PARTITION_HEALTH_OFFLINE
	st.Detail = fmt.Sprintf("its leader, broker %d, is not running; in sync are %v", p.LeaderID, p.ISR)
	return st
}

// keeper is the broker that can tell most of a partition: its leader, or else this broker, or else the first live one that holds it.
func (l *listener) keeper(snap *Snapshot, p *Partition) int32 {
	if p.LeaderID >= 0 {
		return p.LeaderID
	}
	if !slices.Contains(p.Replicas, l.cfg.BrokerID) {
		for _, id := range p.Replicas {
			if snap.broker(id) != nil {
				return id
			}
		}
	}
	return l.cfg.BrokerID
}

// RecoverPartition implements runnelv1.AdminServer.
func (l *listener) RecoverPartition(ctx context.Context, req *runnelv1.RecoverPartitionRequest) (*runnelv1.RecoverPartitionResponse, error) {
	snap := l.cfg.Metadata.Snapshot()
	t, err := snap.topic(req.GetTopic(), req.GetTopicId())
	if err != nil {
		return nil, err
	}
	p, err := t.partition(req.GetPartition())
	if err != nil {
		return nil, err
	}
	broker := l.keeper(snap, p)
	if req.BrokerId != nil {
		if broker = req.GetBrokerId(); !slices.Contains(p.Replicas, broker) {
			return nil, invalid("broker_id", broker, fmt.Sprintf("one of the replicas %v", p.Replicas))
		}
	}
	if broker != l.cfg.BrokerID && l.forwards(ctx) {
		sub := &runnelv1.RecoverPartitionRequest{
			Topic: t.Name, TopicId: t.ID[:], Partition: req.GetPartition(), AcceptDataLoss: req.GetAcceptDataLoss(), BrokerId: &broker,
		}
		return tell(ctx, l, broker, func(ctx context.Context, cc grpc.ClientConnInterface) (*runnelv1.RecoverPartitionResponse, error) {
			return runnelv1.NewAdminClient(cc).RecoverPartition(ctx, sub)
		})
	}
	if req.BrokerId != nil && broker != l.cfg.BrokerID {
		return nil, &unreachableError{broker: broker, cause: errors.New("calls are not forwarded")}
	}
	plan, err := l.cfg.Partitions.Recover(ctx, t.ID, req.GetPartition(), req.GetAcceptDataLoss())
	if err != nil {
		return nil, partitionFault(err)
	}
	return &runnelv1.RecoverPartitionResponse{
		KeptEndOffset: plan.KeptEnd, LostEndOffset: plan.LostEnd, Detail: plan.Detail, Applied: plan.Applied,
	}, nil
}
