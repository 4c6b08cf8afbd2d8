package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/controller"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/internal/ids"
)

// maxBlocking is how many partitions an answer names.
const maxBlocking = 100

// clusterAdmin implements server.ClusterAdmin over this broker's controller. What only the controller may do fails with
// metadata.ErrNotController elsewhere; the server then asks there.
type clusterAdmin struct {
	b *Broker
	p *parts
	m *meter
}

// resolve finds the partition that a request names.
func (a *clusterAdmin) resolve(s *metadata.State, topic string, id []byte, n int32) (metadata.PartitionRef, error) {
	t, ok := s.Topic(topic)
	if ok && len(id) > 0 && topicID(id) != t.ID {
		ok = false
	}
	if !ok {
		return metadata.PartitionRef{}, &metadata.TopicError{Name: topic, ID: topicID(id), Err: metadata.ErrTopicNotFound}
	}
	ref := metadata.PartitionRef{TopicID: t.ID, Partition: n}
	if _, ok := s.Partition(t.ID, n); !ok {
		return ref, fmt.Errorf("%w: %s/%d", controller.ErrUnknownPartition, topic, n)
	}
	return ref, nil
}

// Throttle implements server.ClusterAdmin.
func (a *clusterAdmin) Throttle(bytesPerSecond int64) {
	a.b.lg.Info("the limit of copies was changed", "audit", true, "bytes_per_second", bytesPerSecond, "before", a.p.leaders.CatchUpRate())
	a.p.leaders.SetCatchUpRate(bytesPerSecond)
}

// ReassignPartitions implements server.ClusterAdmin.
func (a *clusterAdmin) ReassignPartitions(ctx context.Context, r *runnelv1.ReassignPartitionsRequest) ([]server.ReassignResult, error) {
	s := a.p.cache.Snapshot()
	out := make([]server.ReassignResult, len(r.GetTargets()))
	var requests []controller.ReassignRequest
	var refs []metadata.PartitionRef
	var at []int // where in out
	for i, t := range r.GetTargets() {
		ref, err := a.resolve(s, t.GetTopic(), t.GetTopicId(), t.GetPartition())
		if err != nil {
			out[i].Err = err
			continue
		}
		at = append(at, i)
		refs = append(refs, ref)
		requests = append(requests, controller.ReassignRequest{Partition: ref, Replicas: t.GetReplicas()})
	}
	if len(r.GetTargets()) > 0 && len(refs) == 0 {
		return out, nil
	}
	var done []controller.Reassignment
	var err error
	switch {
	case r.GetCancel() && r.GetValidateOnly():
		return nil, &metadata.ArgumentError{Field: "validate_only", Value: "true", Limit: "false with cancel", Err: metadata.ErrInvalidArgument}
	case r.GetCancel():
		done, err = a.p.ctrl.CancelReassign(ctx, refs)
	case r.GetValidateOnly():
		done, err = a.p.ctrl.PreviewReassign(requests, a.sizes(refs))
	default:
		done, err = a.p.ctrl.Reassign(ctx, requests)
	}
	if err != nil {
		return nil, err
	}
	for i, d := range done {
		res := server.ReassignResult{Err: d.Err, Message: &runnelv1.ReassignmentResult{
			Topic: d.Topic, Partition: d.Partition.Partition, Replicas: d.Before, Target: d.Target, Adding: d.Adding, Removing: d.Removing,
			BytesToCopy: d.Bytes,
		}}
		if i < len(at) {
			res.Message.Topic = r.GetTargets()[at[i]].GetTopic()
			out[at[i]] = res
		} else { // everything was cancelled
			out = append(out, res)
		}
	}
	return out, nil
}

// sizes are the bytes of those logs that are here.
func (a *clusterAdmin) sizes(refs []metadata.PartitionRef) map[metadata.PartitionRef]int64 {
	out := map[metadata.PartitionRef]int64{}
	for _, ref := range refs {
		if p, ok := a.p.host.lookup(ref); ok {
			out[ref] = p.Log().Size()
		}
	}
	return out
}

// ListReassignments implements server.ClusterAdmin.
func (a *clusterAdmin) ListReassignments(_ context.Context, r *runnelv1.ListReassignmentsRequest) (*runnelv1.ListReassignmentsResponse, error) {
	all, err := a.p.ctrl.Reassignments()
	if err != nil {
		return nil, err
	}
	limit := int(r.GetLimit())
	if limit == 0 {
		limit = 1000
	}
	out := &runnelv1.ListReassignmentsResponse{ThrottleBytesPerSecond: a.p.leaders.CatchUpRate()}
	for _, m := range all {
		if len(r.GetTopics()) > 0 && !slices.Contains(r.GetTopics(), m.Topic) {
			continue
		}
		out.Total++
		if len(out.Reassignments) < limit {
			out.Reassignments = append(out.Reassignments, &runnelv1.Reassignment{
				Topic: m.Topic, TopicId: m.Partition.TopicID[:], Partition: m.Partition.Partition, Replicas: union(m.Before, m.Target), Target: m.Target,
				Adding: m.Adding, Removing: m.Removing, Isr: m.ISR, Blocked: m.Waiting,
			})
		}
	}
	return out, nil
}

func union(a, b []int32) []int32 {
	out := slices.Clone(a)
	for _, id := range b {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// ElectLeaders implements server.ClusterAdmin.
func (a *clusterAdmin) ElectLeaders(ctx context.Context, r *runnelv1.ElectLeadersRequest) ([]server.ElectResult, error) {
	s := a.p.cache.Snapshot()
	out := make([]server.ElectResult, len(r.GetTargets()))
	var refs []metadata.PartitionRef
	var at []int
	for i, t := range r.GetTargets() {
		ref, err := a.resolve(s, t.GetTopic(), t.GetTopicId(), t.GetPartition())
		if err == nil && r.GetType() == runnelv1.ElectionType_ELECTION_TYPE_UNCLEAN {
			out[i] = a.unclean(ctx, s, ref, t, r.GetValidateOnly())
			err = out[i].Err
			if errors.Is(err, metadata.ErrNotController) {
				return nil, err
			}
			continue
		}
		if err != nil {
			out[i].Err = err
			continue
		}
		refs, at = append(refs, ref), append(at, i)
	}
	if len(r.GetTargets()) > 0 && len(refs) == 0 {
		return out, nil
	}
	done, err := a.p.ctrl.ElectLeaders(ctx, refs, r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	for i, e := range done {
		res := server.ElectResult{Err: e.Err, Message: &runnelv1.ElectionResult{
			Partition: e.Partition.Partition, OldLeaderId: e.Before, LeaderId: e.After, LeaderEpoch: e.Epoch,
		}}
		if t, ok := s.TopicByID(e.Partition.TopicID); ok {
			res.Message.Topic = t.Name
		}
		if i < len(at) {
			out[at[i]] = res
		} else {
			out = append(out, res)
		}
	}
	return out, nil
}

// unclean makes a replica that is not in sync the only one that counts: somebody has accepted the loss. The controller then elects it.
func (a *clusterAdmin) unclean(ctx context.Context, s *metadata.State, ref metadata.PartitionRef, t *runnelv1.ElectionTarget, dryRun bool) server.ElectResult {
	p, _ := s.Partition(ref.TopicID, ref.Partition)
	res := server.ElectResult{Message: &runnelv1.ElectionResult{
		Topic: t.GetTopic(), Partition: ref.Partition, OldLeaderId: p.Leader, LeaderId: p.Leader, LeaderEpoch: p.LeaderEpoch,
	}}
	if res.Err = a.p.ctrl.AllowUnclean(ref, t.GetBrokerId(), "admin"); res.Err != nil || dryRun {
		return res
	}
	b, alive := s.Broker(t.GetBrokerId())
	if !alive {
		res.Err = fmt.Errorf("%w: broker %d is not registered", metadata.ErrNotEligible, t.GetBrokerId())
		return res
	}
	logID, err := a.logOf(ctx, b.ID, ref)
	if err != nil {
		res.Err = err
		return res
	}
	done, err := a.p.client.AcceptUncleanFor(ctx, metadata.RegRef{BrokerID: b.ID, StorageID: b.StorageID, Epoch: b.Epoch}, s, p, logID)
	if err == nil && done.Count() == 0 {
		err = fmt.Errorf("partition %s/%d changed meanwhile: %w", t.GetTopic(), ref.Partition, metadata.ErrConflict)
	}
	if err != nil {
		res.Err = err
		return res
	}
	now, err := a.p.cache.Wait(ctx, func(s *metadata.State) bool {
		now, ok := s.Partition(ref.TopicID, ref.Partition)
		return !ok || now.LeaderEpoch > p.LeaderEpoch+1
	})
	if err != nil {
		res.Err = fmt.Errorf("the replica was accepted and does not lead yet: %w", err)
		return res
	}
	if next, ok := now.Partition(ref.TopicID, ref.Partition); ok {
		res.Message.LeaderId, res.Message.LeaderEpoch = next.Leader, next.LeaderEpoch
	}
	return res
}

// logOf asks a broker for the identity of its log.
func (a *clusterAdmin) logOf(ctx context.Context, broker int32, ref metadata.PartitionRef) (ids.LogID, error) {
	if broker == a.p.reg.BrokerID() {
		if l, ok := a.p.store.Log(ref.TopicID, ref.Partition); ok {
			return l.LogID(), nil
		}
		return ids.LogID{}, fmt.Errorf("%w: broker %d has no log", controller.ErrNotInSync, broker)
	}
	conn, err := a.p.conns.Conn(broker, peer.ClassForward)
	if err != nil {
		return ids.LogID{}, err
	}
	inv, err := replication.ReadInventory(ctx, conn)
	if err != nil {
		return ids.LogID{}, fmt.Errorf("inventory of broker %d: %w", broker, err)
	}
	for _, l := range inv.Logs {
		if topicID(l.GetTopicId()) == ref.TopicID && l.GetPartition() == ref.Partition && len(l.GetLogId()) == len(ids.LogID{}) {
			return ids.LogID(l.GetLogId()), nil
		}
	}
	return ids.LogID{}, fmt.Errorf("%w: broker %d has no log", controller.ErrNotInSync, broker)
}

// DrainBroker implements server.ClusterAdmin.
func (a *clusterAdmin) DrainBroker(ctx context.Context, r *runnelv1.DrainBrokerRequest) (*runnelv1.DrainBrokerResponse, error) {
	st, err := a.p.ctrl.Drain(ctx, r.GetBrokerId(), r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	return &runnelv1.DrainBrokerResponse{
		Replicas: int32(st.Replicas), BytesToCopy: -1, Blocked: blocking(st.Blocked, maxBlocking), TotalBlocked: int32(len(st.Blocked)), // partitions
	}, nil
}

// UndrainBroker implements server.ClusterAdmin.
func (a *clusterAdmin) UndrainBroker(ctx context.Context, r *runnelv1.UndrainBrokerRequest) (*runnelv1.UndrainBrokerResponse, error) {
	if err := a.p.ctrl.Undrain(ctx, r.GetBrokerId()); err != nil {
		return nil, err
	}
	return &runnelv1.UndrainBrokerResponse{}, nil
}

// storageID reads the storage that a request means.
func storageID(s string) (ids.StorageID, error) {
	id, err := ids.ParseStorageID(s)
	if err != nil {
		return id, &metadata.ArgumentError{Field: "storage_id", Value: s, Limit: "a UUID, as the broker's status shows it", Err: metadata.ErrInvalidArgument}
	}
	return id, nil
}

// DecommissionBroker implements server.ClusterAdmin.
func (a *clusterAdmin) DecommissionBroker(ctx context.Context, r *runnelv1.DecommissionBrokerRequest) (*runnelv1.DecommissionBrokerResponse, error) {
	id, err := storageID(r.GetStorageId())
	if err == nil {
		err = a.p.ctrl.Decommission(ctx, r.GetBrokerId(), id, r.GetValidateOnly())
	}
	if err != nil {
		return nil, err
	}
	return &runnelv1.DecommissionBrokerResponse{}, nil
}

// FenceBroker implements server.ClusterAdmin.
func (a *clusterAdmin) FenceBroker(ctx context.Context, r *runnelv1.FenceBrokerRequest) (*runnelv1.FenceBrokerResponse, error) {
	id, err := storageID(r.GetStorageId())
	if err != nil {
		return nil, err
	}
	affected, err := a.p.ctrl.Fence(ctx, r.GetBrokerId(), id, r.GetAcceptDataLoss(), r.GetValidateOnly())
	if err != nil {
		return nil, err
	}
	return &runnelv1.FenceBrokerResponse{Affected: blocking(affected, maxBlocking), TotalAffected: int32(len(affected))}, nil // partitions
}

// UnfenceBroker implements server.ClusterAdmin.
func (a *clusterAdmin) UnfenceBroker(ctx context.Context, r *runnelv1.UnfenceBrokerRequest) (*runnelv1.UnfenceBrokerResponse, error) {
	id, err := storageID(r.GetStorageId())
	if err == nil {
		err = a.p.ctrl.Unfence(ctx, r.GetBrokerId(), id)
	}
	if err != nil {
		return nil, err
	}
	return &runnelv1.UnfenceBrokerResponse{}, nil
}

// SafeToStop implements server.ClusterAdmin.
func (a *clusterAdmin) SafeToStop(_ context.Context, r *runnelv1.SafeToStopRequest) (*runnelv1.SafeToStopResponse, error) {
	st, err := a.p.ctrl.SafeToStop(r.GetBrokerId())
	if err != nil {
		return nil, err
	}
	limit := int(r.GetLimit())
	if limit == 0 {
		limit = maxBlocking
	}
	return &runnelv1.SafeToStopResponse{
		Safe: st.Safe(), Blocking: blocking(st.Blocking, limit), TotalBlocking: int32(len(st.Blocking)), SingleReplicaPartitions: int32(st.Single), // partitions
		Controller: st.Controller, Leaders: int32(st.Leaders),
	}, nil
}

func blocking(all []controller.Blocker, most int) []*runnelv1.BlockingPartition {
	out := make([]*runnelv1.BlockingPartition, 0, min(len(all), most))
	for _, b := range all[:min(len(all), most)] {
		out = append(out, &runnelv1.BlockingPartition{
			Topic: b.Topic, Partition: b.Partition.Partition, Reason: b.Reason, InSync: int32(b.InSync), MinInSync: int32(b.MinInSync), // replicas
		})
	}
	return out
}

// ListOperations implements server.ClusterAdmin.
func (a *clusterAdmin) ListOperations(context.Context, *runnelv1.ListOperationsRequest) (*runnelv1.ListOperationsResponse, error) {
	all, err := a.p.ctrl.Operations()
	if err != nil {
		return nil, err
	}
	out := &runnelv1.ListOperationsResponse{}
	for _, o := range all {
		m := &runnelv1.Operation{
			Type: operationType(o.Kind), PartitionsTotal: int32(o.Total), PartitionsDone: int32(o.Done), BytesTotal: -1, BytesDone: -1, // partitions
			Since: timestamppb.New(o.Since), Blocked: o.Waiting, Blocking: blocking(o.Blocking, maxBlocking),
		}
		if o.Broker != metadata.NoLeader {
			m.BrokerId = &o.Broker
		}
		out.Operations = append(out.Operations, m)
	}
	return out, nil
}

func operationType(k controller.OperationKind) runnelv1.OperationType {
	switch k {
	case controller.OperationReassignment:
		return runnelv1.OperationType_OPERATION_TYPE_REASSIGNMENT
	case controller.OperationDrain:
		return runnelv1.OperationType_OPERATION_TYPE_DRAIN
	case controller.OperationBalance:
		return runnelv1.OperationType_OPERATION_TYPE_BALANCE
	case controller.OperationRepair:
		return runnelv1.OperationType_OPERATION_TYPE_REPAIR
	}
	return runnelv1.OperationType_OPERATION_TYPE_UNSPECIFIED
}
