package client

import (
	"context"
	"errors"
	"fmt"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Reassign moves partitions to the brokers that targets name, each partition's preferred leader first. It returns when the work is recorded;
// Reassignments shows how it gets on. The results come in the order of the targets' request; the error joins those of partitions.
// Targets may be empty when only a throttle is set.
func (a *Admin) Reassign(ctx context.Context, targets []Reassignment, o ReassignOptions) ([]Reassignment, error) {
	req := &runnelv1.ReassignPartitionsRequest{ValidateOnly: o.DryRun, ThrottleBytesPerSecond: o.Throttle}
	for _, t := range targets {
		req.Targets = append(req.Targets, &runnelv1.PartitionTarget{Topic: t.Topic, Partition: t.Partition, Replicas: t.Target})
	}
	return a.reassign(ctx, "reassign partitions", req)
}

// CancelReassign takes partitions back to the replicas that they had; without partitions, everything that is under way.
func (a *Admin) CancelReassign(ctx context.Context, tps ...TopicPartition) ([]Reassignment, error) {
	req := &runnelv1.ReassignPartitionsRequest{Cancel: true}
	for _, tp := range tps {
		req.Targets = append(req.Targets, &runnelv1.PartitionTarget{Topic: tp.Topic, Partition: tp.Partition})
	}
	return a.reassign(ctx, "cancel reassignments", req)
}

func (a *Admin) reassign(ctx context.Context, what string, req *runnelv1.ReassignPartitionsRequest) ([]Reassignment, error) {
	r, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ReassignPartitionsResponse, error) {
		return api.ReassignPartitions(ctx, req)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	out := make([]Reassignment, 0, len(r.GetResults()))
	errs := make([]error, 0, len(r.GetResults()))
	for _, res := range r.GetResults() {
		m := Reassignment{
			TopicPartition: TopicPartition{res.GetTopic(), res.GetPartition()}, Replicas: res.GetReplicas(), Target: res.GetTarget(),
			Adding: res.GetAdding(), Removing: res.GetRemoving(), Bytes: res.GetBytesToCopy(), Err: fromItem(res.GetError()),
		}
		if m.Err != nil {
			errs = append(errs, &PartitionError{m.TopicPartition, m.Err})
		}
		out = append(out, m)
	}
	return out, errors.Join(errs...)
}

// Reassignments lists what is under way, of these topics or of all; at most limit, 0: 1,000.
func (a *Admin) Reassignments(ctx context.Context, limit int, topics ...string) (Reassignments, error) {
	r, err := ask(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ListReassignmentsResponse, error) {
		return api.ListReassignments(ctx, &runnelv1.ListReassignmentsRequest{Topics: topics, Limit: int32(limit)})
	})
	if err != nil {
		return Reassignments{}, fmt.Errorf("list reassignments: %w", err)
	}
	out := Reassignments{Total: int(r.GetTotal()), Throttle: r.GetThrottleBytesPerSecond()}
	for _, m := range r.GetReassignments() {
		out.List = append(out.List, Reassignment{
			TopicPartition: TopicPartition{m.GetTopic(), m.GetPartition()}, Replicas: m.GetReplicas(), Target: m.GetTarget(),
			Adding: m.GetAdding(), Removing: m.GetRemoving(), ISR: m.GetIsr(), Bytes: -1, Blocked: m.GetBlocked(),
		})
	}
	return out, nil
}

// ElectPreferred moves leaderships to partitions' first replicas where those are in sync; without partitions, everywhere. With dryRun it only says where.
func (a *Admin) ElectPreferred(ctx context.Context, dryRun bool, tps ...TopicPartition) ([]Election, error) {
	req := &runnelv1.ElectLeadersRequest{Type: runnelv1.ElectionType_ELECTION_TYPE_PREFERRED, ValidateOnly: dryRun}
	for _, tp := range tps {
		req.Targets = append(req.Targets, &runnelv1.ElectionTarget{Topic: tp.Topic, Partition: tp.Partition})
	}
	return a.elect(ctx, req)
}

// ElectUnclean makes broker lead a partition although it is not in sync. Acknowledged records that it lacks are lost. Without accept it only says what it
// would do.
func (a *Admin) ElectUnclean(ctx context.Context, tp TopicPartition, broker int32, accept bool) (Election, error) {
	out, err := a.elect(ctx, &runnelv1.ElectLeadersRequest{
		Type: runnelv1.ElectionType_ELECTION_TYPE_UNCLEAN, AcceptDataLoss: accept, ValidateOnly: !accept,
		Targets: []*runnelv1.ElectionTarget{{Topic: tp.Topic, Partition: tp.Partition, BrokerId: &broker}},
	})
	if len(out) != 1 {
		if err == nil {
			err = fmt.Errorf("elect a leader of %s: %w: no answer for it", tp, ErrUnavailable)
		}
		return Election{TopicPartition: tp, OldLeader: -1, Leader: -1}, err
	}
	return out[0], err
}

func (a *Admin) elect(ctx context.Context, req *runnelv1.ElectLeadersRequest) ([]Election, error) {
	r, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ElectLeadersResponse, error) {
		return api.ElectLeaders(ctx, req)
	})
	if err != nil {
		return nil, fmt.Errorf("elect leaders: %w", err)
	}
	out := make([]Election, 0, len(r.GetResults()))
	errs := make([]error, 0, len(r.GetResults()))
	for _, res := range r.GetResults() {
		e := Election{
			TopicPartition: TopicPartition{res.GetTopic(), res.GetPartition()}, OldLeader: res.GetOldLeaderId(), Leader: res.GetLeaderId(),
			LeaderEpoch: res.GetLeaderEpoch(), Err: fromItem(res.GetError()),
		}
		if e.Err != nil {
			errs = append(errs, &PartitionError{e.TopicPartition, e.Err})
		}
		out = append(out, e)
	}
	return out, errors.Join(errs...)
}

// DrainBroker moves every replica away from a broker and keeps new ones away until UndrainBroker. It returns when that is recorded; Operations shows
// how it gets on. With dryRun it only says what has to move. Draining a broker that is being drained says what is left.
func (a *Admin) DrainBroker(ctx context.Context, id int32, dryRun bool) (DrainInfo, error) {
	r, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DrainBrokerResponse, error) {
		return api.DrainBroker(ctx, &runnelv1.DrainBrokerRequest{BrokerId: id, ValidateOnly: dryRun})
	})
	if err != nil {
		return DrainInfo{}, fmt.Errorf("drain broker %d: %w", id, err)
	}
	return DrainInfo{
		Replicas: int(r.GetReplicas()), Bytes: r.GetBytesToCopy(), Blocked: blockingOf(r.GetBlocked()), TotalBlocked: int(r.GetTotalBlocked()),
	}, nil
}

// UndrainBroker ends a drain. What has moved stays where it is.
func (a *Admin) UndrainBroker(ctx context.Context, id int32) error {
	_, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.UndrainBrokerResponse, error) {
		return api.UndrainBroker(ctx, &runnelv1.UndrainBrokerRequest{BrokerId: id})
	})
	if err != nil {
		return fmt.Errorf("undrain broker %d: %w", id, err)
	}
	return nil
}

// DecommissionBroker declares that a broker's storage holds nothing and will not come back. ErrBrokerNotEmpty while it holds replicas. With dryRun it only
// says whether it could.
func (a *Admin) DecommissionBroker(ctx context.Context, id int32, storageID string, dryRun bool) error {
	_, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DecommissionBrokerResponse, error) {
		return api.DecommissionBroker(ctx, &runnelv1.DecommissionBrokerRequest{BrokerId: id, StorageId: storageID, ValidateOnly: dryRun})
	})
	if err != nil {
		return fmt.Errorf("decommission broker %d: %w", id, err)
	}
	return nil
}

// FenceBroker declares that a broker's storage, the one with that id, is lost. ErrUnsafe when a partition would be left without an in-sync replica, unless
// acceptLoss. With dryRun it only says what it would do.
func (a *Admin) FenceBroker(ctx context.Context, id int32, storageID string, acceptLoss, dryRun bool) (FenceInfo, error) {
	r, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.FenceBrokerResponse, error) {
		return api.FenceBroker(ctx, &runnelv1.FenceBrokerRequest{BrokerId: id, StorageId: storageID, AcceptDataLoss: acceptLoss, ValidateOnly: dryRun})
	})
	if err != nil {
		return FenceInfo{}, fmt.Errorf("fence broker %d: %w", id, err)
	}
	return FenceInfo{Affected: blockingOf(r.GetAffected()), TotalAffected: int(r.GetTotalAffected())}, nil
}

// UnfenceBroker takes a fencing back: the storage's replicas are followers again, and catch up.
func (a *Admin) UnfenceBroker(ctx context.Context, id int32, storageID string) error {
	_, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.UnfenceBrokerResponse, error) {
		return api.UnfenceBroker(ctx, &runnelv1.UnfenceBrokerRequest{BrokerId: id, StorageId: storageID})
	})
	if err != nil {
		return fmt.Errorf("unfence broker %d: %w", id, err)
	}
	return nil
}

// SafeToStop says whether every partition stays available while a broker is stopped. It promises nothing for later. At most limit partitions are
// listed, 0: 100.
func (a *Admin) SafeToStop(ctx context.Context, id int32, limit int) (StopInfo, error) {
	r, err := ask(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.SafeToStopResponse, error) {
		return api.SafeToStop(ctx, &runnelv1.SafeToStopRequest{BrokerId: id, Limit: int32(limit)})
	})
	if err != nil {
		return StopInfo{}, fmt.Errorf("is it safe to stop broker %d: %w", id, err)
	}
	return StopInfo{
		Safe: r.GetSafe(), Blocking: blockingOf(r.GetBlocking()), TotalBlocking: int(r.GetTotalBlocking()),
		SingleReplica: int(r.GetSingleReplicaPartitions()), Controller: r.GetController(), Leaders: int(r.GetLeaders()),
	}, nil
}

// Operations lists what takes time, and how far it is.
func (a *Admin) Operations(ctx context.Context) ([]Operation, error) {
	r, err := ask(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ListOperationsResponse, error) {
		return api.ListOperations(ctx, &runnelv1.ListOperationsRequest{})
	})
	if err != nil {
		return nil, fmt.Errorf("list operations: %w", err)
	}
	out := make([]Operation, 0, len(r.GetOperations()))
	for _, op := range r.GetOperations() {
		o := Operation{
			Kind: operationKindOf(op.GetType()), Broker: -1, Partitions: int(op.GetPartitionsTotal()), PartitionsDone: int(op.GetPartitionsDone()),
			Bytes: op.GetBytesTotal(), BytesDone: op.GetBytesDone(), Blocked: op.GetBlocked(), Blocking: blockingOf(op.GetBlocking()),
		}
		if op.BrokerId != nil {
			o.Broker = op.GetBrokerId()
		}
		if op.GetSince() != nil {
			o.Since = op.GetSince().AsTime()
		}
		out = append(out, o)
	}
	return out, nil
}

// BrokerConfig lists a broker's settings in force, by name, without secrets.
func (a *Admin) BrokerConfig(ctx context.Context, id int32) ([]Setting, error) {
	r, err := ask(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DescribeConfigResponse, error) {
		return api.DescribeConfig(ctx, &runnelv1.DescribeConfigRequest{BrokerId: &id})
	})
	if err != nil {
		return nil, fmt.Errorf("describe the configuration of broker %d: %w", id, err)
	}
	out := make([]Setting, 0, len(r.GetEntries()))
	for _, e := range r.GetEntries() {
		out = append(out, Setting{Name: e.GetName(), Value: e.GetValue(), Changed: e.GetChanged()})
	}
	return out, nil
}
