package server

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
)

// maxPage is the most topics of one answer of ListTopics, and the default.
const maxPage = 1000

// CreateTopic implements runnelv1.AdminServer.
func (l *listener) CreateTopic(ctx context.Context, req *runnelv1.CreateTopicRequest) (*runnelv1.CreateTopicResponse, error) {
	if err := metadata.ValidateTopicName(req.GetName()); err != nil {
		return nil, err
	}
	if req.GetPartitions() < 0 {
		return nil, invalid("partitions", req.GetPartitions(), "1 or more, or 0 for the default")
	}
	if req.GetReplicas() < 0 {
		return nil, invalid("replicas", req.GetReplicas(), "1 or more, or 0 for the default")
	}
	t, err := l.cfg.Topics.CreateTopic(ctx, req)
	if err != nil {
		return nil, err
	}
	return &runnelv1.CreateTopicResponse{Topic: t}, nil
}

// UpdateTopic implements runnelv1.AdminServer.
func (l *listener) UpdateTopic(ctx context.Context, req *runnelv1.UpdateTopicRequest) (*runnelv1.UpdateTopicResponse, error) {
	if err := named(req.GetName(), req.GetTopicId(), false); err != nil {
		return nil, err
	}
	if req.GetPartitions() < 0 {
		return nil, invalid("partitions", req.GetPartitions(), "more than now, or 0 for no change")
	}
	t, changes, err := l.cfg.Topics.UpdateTopic(ctx, req)
	if err != nil {
		return nil, err
	}
	return &runnelv1.UpdateTopicResponse{Topic: t, Changes: changes}, nil
}

// DeleteTopic implements runnelv1.AdminServer.
func (l *listener) DeleteTopic(ctx context.Context, req *runnelv1.DeleteTopicRequest) (*runnelv1.DeleteTopicResponse, error) {
	if err := named(req.GetName(), req.GetTopicId(), true); err != nil {
		return nil, err
	}
	if err := l.cfg.Topics.DeleteTopic(ctx, req); err != nil {
		return nil, err
	}
	return &runnelv1.DeleteTopicResponse{}, nil
}

// named checks a topic's name and id for form.
func named(name string, id []byte, idRequired bool) error {
	if err := metadata.ValidateTopicName(name); err != nil {
		return err
	}
	if len(id) == 0 && !idRequired {
		return nil
	}
	_, err := topicID(id)
	return err
}

// ListTopics implements runnelv1.AdminServer. The page token is the last name of the page before.
func (l *listener) ListTopics(_ context.Context, req *runnelv1.ListTopicsRequest) (*runnelv1.ListTopicsResponse, error) {
	size := int(req.GetPageSize())
	if size < 0 || size > maxPage {
		return nil, invalid("page_size", size, fmt.Sprintf("0 to %d", maxPage))
	}
	if size == 0 {
		size = maxPage
	}
	if err := count("names", len(req.GetNames())); err != nil {
		return nil, err
	}
	snap := l.cfg.Metadata.Snapshot()
	names := req.GetNames()
	if len(names) == 0 {
		names = slices.Collect(maps.Keys(snap.Topics))
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	resp := &runnelv1.ListTopicsResponse{}
	for _, name := range names[sort.SearchStrings(names, req.GetPageToken()):] {
		t, ok := snap.Topics[name]
		if !ok || name == req.GetPageToken() {
			continue
		}
		if len(resp.Topics) == size {
			resp.NextPageToken = resp.Topics[size-1].GetName()
			break
		}
		resp.Topics = append(resp.Topics, topicMessage(t))
	}
	return resp, nil
}

func topicMessage(t *Topic) *runnelv1.Topic {
	return &runnelv1.Topic{
		Name: t.Name, TopicId: t.ID[:], Partitions: int32(len(t.Partitions)), Replicas: t.Replicas, Config: t.Config,
		Generation: t.Generation, State: t.State, Owner: t.Owner, Created: timestamppb.New(t.Created),
	}
}

// DescribeTopic implements runnelv1.AdminServer.
func (l *listener) DescribeTopic(_ context.Context, req *runnelv1.DescribeTopicRequest) (*runnelv1.DescribeTopicResponse, error) {
	t, err := l.cfg.Metadata.Snapshot().topic(req.GetName(), nil)
	if err != nil {
		return nil, err
	}
	resp := &runnelv1.DescribeTopicResponse{Topic: topicMessage(t)}
	for i := range t.Partitions {
		resp.Partitions = append(resp.Partitions, l.partitionStatus(t, int32(i)))
	}
	return resp, nil
}

// DeleteRecords implements runnelv1.AdminServer.
func (l *listener) DeleteRecords(ctx context.Context, req *runnelv1.DeleteRecordsRequest) (*runnelv1.DeleteRecordsResponse, error) {
	if err := count("targets", len(req.GetTargets())); err != nil {
		return nil, err
	}
	t, err := l.cfg.Metadata.Snapshot().topic(req.GetTopic(), req.GetTopicId())
	if err != nil {
		return nil, err
	}
	resp := &runnelv1.DeleteRecordsResponse{}
	for _, target := range req.GetTargets() {
		r := &runnelv1.DeleteRecordsResult{Partition: target.GetPartition(), LogStartOffset: -1}
		start, err := l.deleteRecords(ctx, t, target)
		if err != nil {
			r.Error = l.item(err)
		} else {
			r.LogStartOffset = start
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
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

// DescribeCluster implements runnelv1.AdminServer.
func (l *listener) DescribeCluster(context.Context, *runnelv1.DescribeClusterRequest) (*runnelv1.DescribeClusterResponse, error) {
	snap := l.cfg.Metadata.Snapshot()
	resp := &runnelv1.DescribeClusterResponse{ClusterId: snap.ClusterID, ControllerId: snap.ControllerID}
	byID := map[int32]*runnelv1.BrokerStatus{}
	for _, b := range snap.Brokers {
		st := &runnelv1.BrokerStatus{Id: b.ID, BrokerEpoch: b.Epoch, Rack: b.Rack, Version: b.Version, StorageId: b.StorageID, Listeners: b.Listeners}
		byID[b.ID] = st
		resp.Brokers = append(resp.Brokers, st)
	}
	for name := range snap.Topics {
		t, ok := snap.active(name)
		if !ok {
			continue
		}
		resp.Topics++
		for _, p := range t.Partitions {
			resp.Partitions++
			if b := byID[p.LeaderID]; b != nil {
				b.Leaders++
			}
			for _, id := range p.Replicas {
				if b := byID[id]; b != nil {
					b.Replicas++
				}
			}
		}
	}
	return resp, nil
}

// DescribePartitions implements runnelv1.AdminServer.
func (l *listener) DescribePartitions(_ context.Context, req *runnelv1.DescribePartitionsRequest) (*runnelv1.DescribePartitionsResponse, error) {
	if err := count("partitions", len(req.GetPartitions())); err != nil {
		return nil, err
	}
	t, err := l.cfg.Metadata.Snapshot().topic(req.GetTopic(), nil)
	if err != nil {
		return nil, err
	}
	numbers := req.GetPartitions()
	if len(numbers) == 0 {
		for i := range t.Partitions {
			numbers = append(numbers, int32(i))
		}
	}
	resp := &runnelv1.DescribePartitionsResponse{}
	for _, n := range numbers {
		resp.Partitions = append(resp.Partitions, l.partitionStatus(t, n))
	}
	return resp, nil
}

// RecoverPartition implements runnelv1.AdminServer.
func (l *listener) RecoverPartition(ctx context.Context, req *runnelv1.RecoverPartitionRequest) (*runnelv1.RecoverPartitionResponse, error) {
	t, err := l.cfg.Metadata.Snapshot().topic(req.GetTopic(), nil)
	if err != nil {
		return nil, err
	}
	if _, err := t.partition(req.GetPartition()); err != nil {
		return nil, err
	}
	plan, err := l.cfg.Partitions.Recover(ctx, t.ID, req.GetPartition(), req.GetAcceptDataLoss())
	if err != nil {
		return nil, partitionFault(err)
	}
	return &runnelv1.RecoverPartitionResponse{
		KeptEndOffset: plan.KeptEnd, LostEndOffset: plan.LostEnd, Detail: plan.Detail, Applied: plan.Applied,
	}, nil
}
