package fakebroker

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// DrainBroker implements runnelv1.AdminServer.
func (b *broker) DrainBroker(ctx context.Context, r *runnelv1.DrainBrokerRequest) (*runnelv1.DrainBrokerResponse, error) {
	return admin(ctx, b, Call{Method: "DrainBroker"}, func(c *Cluster) (*runnelv1.DrainBrokerResponse, *Error) {
		id := r.GetBrokerId()
		if err := c.brokerKnownLocked(id); err != nil {
			return nil, err
		}
		resp := &runnelv1.DrainBrokerResponse{}
		if !r.GetValidateOnly() {
			c.mu.states[id] = runnelv1.BrokerState_BROKER_STATE_DRAINING
		}
		for _, p := range c.heldByLocked(id) {
			resp.Replicas++
			if slices.Contains(p.removing, id) {
				continue // on its way
			}
			to := c.elsewhereLocked(p, id)
			if to < 0 {
				resp.TotalBlocked++
				resp.Blocked = append(resp.Blocked, &runnelv1.BlockingPartition{
					Topic: p.topic.name, Partition: p.index, Reason: "no other broker can take it", InSync: int32(len(p.isr)),
					MinInSync: p.topic.config.GetMinInSyncReplicas(),
				})
				continue
			}
			for _, batch := range p.batches {
				resp.BytesToCopy += int64(len(batch))
			}
			if !r.GetValidateOnly() && len(p.adding) == 0 {
				target := slices.Clone(p.replicas)
				target[slices.Index(target, id)] = to
				c.place(p, target)
			}
		}
		c.changeLocked()
		return resp, nil
	})
}

func (c *Cluster) elsewhereLocked(p *partition, id int32) int32 {
	for _, to := range slices.Sorted(maps.Keys(c.mu.brokers)) {
		if to != id && c.stateLocked(to) == runnelv1.BrokerState_BROKER_STATE_ACTIVE && c.mu.brokers[to].server != nil && !slices.Contains(p.replicas, to) {
			return to
		}
	}
	return -1
}

// UndrainBroker implements runnelv1.AdminServer.
func (b *broker) UndrainBroker(ctx context.Context, r *runnelv1.UndrainBrokerRequest) (*runnelv1.UndrainBrokerResponse, error) {
	return admin(ctx, b, Call{Method: "UndrainBroker"}, func(c *Cluster) (*runnelv1.UndrainBrokerResponse, *Error) {
		if err := c.brokerKnownLocked(r.GetBrokerId()); err != nil {
			return nil, err
		}
		delete(c.mu.states, r.GetBrokerId())
		c.changeLocked()
		return &runnelv1.UndrainBrokerResponse{}, nil
	})
}

func (c *Cluster) storageLocked(id int32, storage string) *Error {
	if err := c.brokerKnownLocked(id); err != nil {
		return err
	}
	if storage != storageOf(id) {
		return refuse(codes.FailedPrecondition, "STORAGE_MISMATCH", false, "the broker has another storage: %s", storageOf(id))
	}
	return nil
}

// DecommissionBroker implements runnelv1.AdminServer.
func (b *broker) DecommissionBroker(ctx context.Context, r *runnelv1.DecommissionBrokerRequest) (*runnelv1.DecommissionBrokerResponse, error) {
	return admin(ctx, b, Call{Method: "DecommissionBroker"}, func(c *Cluster) (*runnelv1.DecommissionBrokerResponse, *Error) {
		id := r.GetBrokerId()
		if err := c.storageLocked(id, r.GetStorageId()); err != nil {
			return nil, err
		}
		if n := len(c.heldByLocked(id)); n > 0 {
			return nil, refuse(codes.FailedPrecondition, "NOT_EMPTY", false, "the broker still holds replicas: %d", n)
		}
		if !r.GetValidateOnly() {
			c.mu.states[id] = runnelv1.BrokerState_BROKER_STATE_DECOMMISSIONED
			c.changeLocked()
		}
		return &runnelv1.DecommissionBrokerResponse{}, nil
	})
}

// FenceBroker implements runnelv1.AdminServer.
func (b *broker) FenceBroker(ctx context.Context, r *runnelv1.FenceBrokerRequest) (*runnelv1.FenceBrokerResponse, error) {
	return admin(ctx, b, Call{Method: "FenceBroker"}, func(c *Cluster) (*runnelv1.FenceBrokerResponse, *Error) {
		id := r.GetBrokerId()
		if err := c.storageLocked(id, r.GetStorageId()); err != nil {
			return nil, err
		}
		resp := &runnelv1.FenceBrokerResponse{}
		for _, p := range c.heldByLocked(id) {
			left := slices.DeleteFunc(slices.Clone(p.isr), func(o int32) bool { return o == id })
			if len(left) == 0 && !r.GetAcceptDataLoss() {
				return nil, refuse(codes.FailedPrecondition, "UNSAFE", false, "acknowledged records could be lost: %s/%d has no other in-sync replica", p.topic.name, p.index)
			}
			if len(left) < int(p.topic.config.GetMinInSyncReplicas()) {
				resp.TotalAffected++
				resp.Affected = append(resp.Affected, &runnelv1.BlockingPartition{
					Topic: p.topic.name, Partition: p.index, Reason: "below its minimum", InSync: int32(len(left)), MinInSync: p.topic.config.GetMinInSyncReplicas(),
				})
			}
			if r.GetValidateOnly() {
				continue
			}
			if p.isr = left; p.leader == id {
				p.leader = -1
				if len(left) > 0 {
					p.leader = left[0]
				}
				p.epoch++
			}
		}
		if !r.GetValidateOnly() {
			c.mu.states[id] = runnelv1.BrokerState_BROKER_STATE_FENCED
			c.changeLocked()
		}
		return resp, nil
	})
}

// UnfenceBroker implements runnelv1.AdminServer.
func (b *broker) UnfenceBroker(ctx context.Context, r *runnelv1.UnfenceBrokerRequest) (*runnelv1.UnfenceBrokerResponse, error) {
	return admin(ctx, b, Call{Method: "UnfenceBroker"}, func(c *Cluster) (*runnelv1.UnfenceBrokerResponse, *Error) {
		if err := c.storageLocked(r.GetBrokerId(), r.GetStorageId()); err != nil {
			return nil, err
		}
		delete(c.mu.states, r.GetBrokerId())
		c.changeLocked()
		return &runnelv1.UnfenceBrokerResponse{}, nil
	})
}

// SafeToStop implements runnelv1.AdminServer.
func (b *broker) SafeToStop(ctx context.Context, r *runnelv1.SafeToStopRequest) (*runnelv1.SafeToStopResponse, error) {
	return admin(ctx, b, Call{Method: "SafeToStop"}, func(c *Cluster) (*runnelv1.SafeToStopResponse, *Error) {
		id := r.GetBrokerId()
		if err := c.brokerKnownLocked(id); err != nil {
			return nil, err
		}
		resp := &runnelv1.SafeToStopResponse{Controller: id == c.controllerLocked()}
		for _, p := range c.heldByLocked(id) {
			if p.leader == id {
				resp.Leaders++
			}
			left := len(slices.DeleteFunc(slices.Clone(p.isr), func(o int32) bool { return o == id }))
			switch {
			case len(p.replicas) == 1:
				resp.SingleReplicaPartitions++
			case left < int(p.topic.config.GetMinInSyncReplicas()):
				resp.TotalBlocking++
				resp.Blocking = append(resp.Blocking, &runnelv1.BlockingPartition{
					Topic: p.topic.name, Partition: p.index, Reason: "it would be below its minimum of in-sync replicas", InSync: int32(left),
					MinInSync: p.topic.config.GetMinInSyncReplicas(),
				})
			}
		}
		resp.Safe = resp.GetTotalBlocking() == 0
		return resp, nil
	})
}

// ListOperations implements runnelv1.AdminServer: the brokers that are drained.
func (b *broker) ListOperations(ctx context.Context, _ *runnelv1.ListOperationsRequest) (*runnelv1.ListOperationsResponse, error) {
	return admin(ctx, b, Call{Method: "ListOperations"}, func(c *Cluster) (*runnelv1.ListOperationsResponse, *Error) {
		resp := &runnelv1.ListOperationsResponse{}
		for _, id := range slices.Sorted(maps.Keys(c.mu.states)) {
			if left := len(c.heldByLocked(id)); left > 0 && c.mu.states[id] == runnelv1.BrokerState_BROKER_STATE_DRAINING {
				resp.Operations = append(resp.Operations, &runnelv1.Operation{
					Type: runnelv1.OperationType_OPERATION_TYPE_DRAIN, BrokerId: &id, PartitionsTotal: int32(left), BytesTotal: -1, BytesDone: -1,
				})
			}
		}
		if n := len(c.reassignmentsLocked()); n > 0 {
			resp.Operations = append(resp.Operations, &runnelv1.Operation{
				Type: runnelv1.OperationType_OPERATION_TYPE_REASSIGNMENT, PartitionsTotal: int32(n), BytesTotal: -1, BytesDone: -1,
			})
		}
		return resp, nil
	})
}

// DescribeConfig implements runnelv1.AdminServer.
func (b *broker) DescribeConfig(ctx context.Context, r *runnelv1.DescribeConfigRequest) (*runnelv1.DescribeConfigResponse, error) {
	return admin(ctx, b, Call{Method: "DescribeConfig"}, func(c *Cluster) (*runnelv1.DescribeConfigResponse, *Error) {
		id := b.id
		if r.BrokerId != nil {
			id = r.GetBrokerId()
		}
		if err := c.brokerKnownLocked(id); err != nil {
			return nil, err
		}
		return &runnelv1.DescribeConfigResponse{BrokerId: id, Entries: []*runnelv1.ConfigEntry{
			{Name: "brokerID", Value: fmt.Sprint(id), Changed: true}, {Name: "cluster", Value: "runnel"},
		}}, nil
	})
}
