package fakebroker

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

func withDefaults(cfg *runnelv1.TopicConfig) *runnelv1.TopicConfig {
	full := &runnelv1.TopicConfig{
		RetentionMs: proto.Int64(7 * 24 * 3600 * 1000), RetentionBytes: proto.Int64(-1), SegmentBytes: proto.Int64(512 << 20),
		SegmentAgeMs: proto.Int64(24 * 3600 * 1000), MaxBatchBytes: proto.Int32(1 << 20), MaxTimestampAheadMs: proto.Int64(3600 * 1000),
		Compression: runnelv1.Compression_COMPRESSION_NONE.Enum(), TimestampType: runnelv1.TimestampType_TIMESTAMP_TYPE_CREATE_TIME.Enum(),
		CleanupPolicy: runnelv1.CleanupPolicy_CLEANUP_POLICY_DELETE.Enum(), MinInSyncReplicas: proto.Int32(1),
	}
	proto.Merge(full, cfg)
	return full
}

// admin serves one Admin call with the lock held.
func admin[R any](ctx context.Context, b *broker, call Call, f func(c *Cluster) (R, *Error)) (R, error) {
	var zero R
	after, err := b.unary(ctx, call)
	if err != nil {
		return zero, err
	}
	b.c.mu.Lock()
	r, refused := f(b.c)
	b.c.mu.Unlock()
	if refused != nil {
		return zero, rpcError(refused)
	}
	if err := after(); err != nil {
		return zero, err
	}
	return r, nil
}

// topicLocked finds a topic; an id that is given has to be its own.
func (c *Cluster) topicLocked(name string, id []byte) (*topic, *Error) {
	t := c.mu.topics[name]
	if t == nil {
		return nil, topicNotFound(name)
	}
	if len(id) > 0 && !bytes.Equal(id, t.id[:]) {
		return nil, refuse(codes.FailedPrecondition, "TOPIC_RECREATED", false, "topic %q has the id %s", name, t.id)
	}
	return t, nil
}

func (t *topic) proto() *runnelv1.Topic {
	return &runnelv1.Topic{
		Name: t.name, TopicId: slices.Clone(t.id[:]), Partitions: int32(len(t.partitions)), Replicas: int32(t.replicas), Config: proto.CloneOf(t.config),
		Generation: t.generation, State: runnelv1.TopicState_TOPIC_STATE_ACTIVE, Owner: t.owner,
	}
}

// CreateTopic implements runnelv1.AdminServer.
func (b *broker) CreateTopic(ctx context.Context, r *runnelv1.CreateTopicRequest) (*runnelv1.CreateTopicResponse, error) {
	return admin(ctx, b, Call{Method: "CreateTopic", Topic: r.GetName()}, func(c *Cluster) (*runnelv1.CreateTopicResponse, *Error) {
		switch {
		case r.GetName() == "" || len(r.GetName()) > 249:
			return nil, refuse(codes.InvalidArgument, "INVALID_NAME", false, "%d characters, want 1 to 249", len(r.GetName()))
		case c.mu.topics[r.GetName()] != nil:
			return nil, refuse(codes.AlreadyExists, "TOPIC_EXISTS", false, "topic %q exists", r.GetName())
		case r.GetConfig().GetCleanupPolicy() == runnelv1.CleanupPolicy_CLEANUP_POLICY_COMPACT:
			return nil, refuse(codes.Unimplemented, "NOT_YET_AVAILABLE", false, "compaction is not available yet")
		}
		n, replicas := max(int(r.GetPartitions()), 1), max(int(r.GetReplicas()), 1)
		if replicas > len(c.mu.brokers) {
			return nil, refuse(codes.InvalidArgument, "INVALID_ARGUMENT", false, "replicas: %d, there are %d brokers", replicas, len(c.mu.brokers))
		}
		if r.GetValidateOnly() {
			t := &topic{name: r.GetName(), config: withDefaults(r.GetConfig()), owner: r.GetOwner(), replicas: replicas, partitions: make([]*partition, n)}
			return &runnelv1.CreateTopicResponse{Topic: t.proto()}, nil
		}
		return &runnelv1.CreateTopicResponse{Topic: c.createLocked(r.GetName(), n, replicas, r.GetConfig(), r.GetOwner()).proto()}, nil
	})
}

// UpdateTopic implements runnelv1.AdminServer.
func (b *broker) UpdateTopic(ctx context.Context, r *runnelv1.UpdateTopicRequest) (*runnelv1.UpdateTopicResponse, error) {
	return admin(ctx, b, Call{Method: "UpdateTopic", Topic: r.GetName()}, func(c *Cluster) (*runnelv1.UpdateTopicResponse, *Error) {
		t, err := c.topicLocked(r.GetName(), r.GetTopicId())
		switch {
		case err != nil:
			return nil, err
		case r.GetGeneration() != 0 && r.GetGeneration() != t.generation:
			return nil, refuse(codes.Aborted, "CONFLICT", true, "generation %d, current %d", r.GetGeneration(), t.generation)
		case r.GetPartitions() != 0 && int(r.GetPartitions()) < len(t.partitions):
			return nil, refuse(codes.InvalidArgument, "INVALID_ARGUMENT", false, "partitions: %d, can only grow from %d", r.GetPartitions(), len(t.partitions))
		}
		resp := &runnelv1.UpdateTopicResponse{}
		after := t.proto()
		if n := r.GetPartitions(); n != 0 && n != after.GetPartitions() {
			resp.Changes = append(resp.Changes, &runnelv1.ConfigChange{Field: "partitions", Before: fmt.Sprint(after.GetPartitions()), After: fmt.Sprint(n)})
			after.Partitions = n
		}
		if n := r.GetReplicas(); n != 0 && n != after.GetReplicas() {
			if int(n) > len(c.mu.brokers) {
				return nil, refuse(codes.InvalidArgument, "INVALID_ARGUMENT", false, "replicas: %d, there are %d brokers", n, len(c.mu.brokers))
			}
			resp.Changes = append(resp.Changes, &runnelv1.ConfigChange{Field: "replicas", Before: fmt.Sprint(after.GetReplicas()), After: fmt.Sprint(n)})
			after.Replicas = n
		}
		defaults := withDefaults(nil).ProtoReflect()
		for _, name := range r.GetResetFields() {
			fd := defaults.Descriptor().Fields().ByName(protoreflect.Name(name))
			if fd == nil {
				return nil, refuse(codes.InvalidArgument, "INVALID_ARGUMENT", false, "reset_fields: unknown field %q", name)
			}
			after.GetConfig().ProtoReflect().Set(fd, defaults.Get(fd))
		}
		proto.Merge(after.GetConfig(), r.GetConfig())
		resp.Changes = append(resp.Changes, differences(t.config, after.GetConfig())...)
		if !r.GetValidateOnly() && len(resp.GetChanges()) > 0 {
			t.config = proto.CloneOf(after.GetConfig())
			t.generation++
			after.Generation = t.generation
			c.replicateLocked(t, int(after.GetReplicas()))
			c.growLocked(t, int(after.GetPartitions()))
		}
		resp.Topic = after
		return resp, nil
	})
}

func differences(before, after *runnelv1.TopicConfig) []*runnelv1.ConfigChange {
	var out []*runnelv1.ConfigChange
	fields := before.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		x, y := before.ProtoReflect().Get(fields.Get(i)), after.ProtoReflect().Get(fields.Get(i))
		if !x.Equal(y) {
			out = append(out, &runnelv1.ConfigChange{Field: string(fields.Get(i).Name()), Before: x.String(), After: y.String()})
		}
	}
	return out
}

// DeleteTopic implements runnelv1.AdminServer.
func (b *broker) DeleteTopic(ctx context.Context, r *runnelv1.DeleteTopicRequest) (*runnelv1.DeleteTopicResponse, error) {
	return admin(ctx, b, Call{Method: "DeleteTopic", Topic: r.GetName()}, func(c *Cluster) (*runnelv1.DeleteTopicResponse, *Error) {
		t, err := c.topicLocked(r.GetName(), r.GetTopicId())
		if err != nil {
			return nil, err
		}
		delete(c.mu.topics, t.name)
		c.changeLocked()
		return &runnelv1.DeleteTopicResponse{}, nil
	})
}

// ListTopics implements runnelv1.AdminServer; a page's token is its last name.
func (b *broker) ListTopics(ctx context.Context, r *runnelv1.ListTopicsRequest) (*runnelv1.ListTopicsResponse, error) {
	return admin(ctx, b, Call{Method: "ListTopics"}, func(c *Cluster) (*runnelv1.ListTopicsResponse, *Error) {
		resp := &runnelv1.ListTopicsResponse{}
		size := int(r.GetPageSize())
		if size <= 0 || size > 1000 {
			size = 1000
		}
		for _, name := range slices.Sorted(maps.Keys(c.mu.topics)) {
			if name <= r.GetPageToken() || (len(r.GetNames()) > 0 && !slices.Contains(r.GetNames(), name)) {
				continue
			}
			if len(resp.Topics) == size {
				resp.NextPageToken = resp.Topics[size-1].GetName()
				break
			}
			resp.Topics = append(resp.Topics, c.mu.topics[name].proto())
		}
		return resp, nil
	})
}

func (p *partition) status() *runnelv1.PartitionStatus {
	s := &runnelv1.PartitionStatus{
		Topic: p.topic.name, TopicId: slices.Clone(p.topic.id[:]), Partition: p.index, LeaderId: p.leader, LeaderEpoch: p.epoch,
		Replicas: p.replicas, Isr: p.isr, Adding: p.adding, Removing: p.removing, UnderReplicated: len(p.isr) < len(p.replicas),
		MinInSyncReplicas: p.topic.config.GetMinInSyncReplicas(), RecordsInPerSecond: -1, BytesInPerSecond: -1, BytesOutPerSecond: -1, Health: runnelv1.PartitionHealth_PARTITION_HEALTH_ONLINE,
		LogStartOffset: p.start, LocalStartOffset: p.start, TieredEndOffset: -1, FlushedOffset: p.end, HighWatermark: p.end, LogEndOffset: p.end,
		Segments: 1,
	}
	if p.leader < 0 {
		s.Health, s.Detail = runnelv1.PartitionHealth_PARTITION_HEALTH_OFFLINE, "no leader"
	}
	for _, b := range p.batches {
		s.SizeBytes += int64(len(b))
	}
	for _, id := range p.replicas {
		s.ReplicaStatus = append(s.ReplicaStatus, p.replica(id))
	}
	return s
}

// DescribeTopic implements runnelv1.AdminServer.
func (b *broker) DescribeTopic(ctx context.Context, r *runnelv1.DescribeTopicRequest) (*runnelv1.DescribeTopicResponse, error) {
	return admin(ctx, b, Call{Method: "DescribeTopic", Topic: r.GetName()}, func(c *Cluster) (*runnelv1.DescribeTopicResponse, *Error) {
		t, err := c.topicLocked(r.GetName(), nil)
		if err != nil {
			return nil, err
		}
		resp := &runnelv1.DescribeTopicResponse{Topic: t.proto()}
		for _, p := range t.partitions {
			resp.Partitions = append(resp.Partitions, p.status())
		}
		return resp, nil
	})
}

// DescribePartitions implements runnelv1.AdminServer.
func (b *broker) DescribePartitions(ctx context.Context, r *runnelv1.DescribePartitionsRequest) (*runnelv1.DescribePartitionsResponse, error) {
	return admin(ctx, b, Call{Method: "DescribePartitions", Topic: r.GetTopic()}, func(c *Cluster) (*runnelv1.DescribePartitionsResponse, *Error) {
		t, err := c.topicLocked(r.GetTopic(), nil)
		if err != nil {
			return nil, err
		}
		resp := &runnelv1.DescribePartitionsResponse{}
		for _, p := range t.partitions {
			if len(r.GetPartitions()) == 0 || slices.Contains(r.GetPartitions(), p.index) {
				resp.Partitions = append(resp.Partitions, p.status())
			}
		}
		return resp, nil
	})
}

// DeleteRecords implements runnelv1.AdminServer.
func (b *broker) DeleteRecords(ctx context.Context, r *runnelv1.DeleteRecordsRequest) (*runnelv1.DeleteRecordsResponse, error) {
	return admin(ctx, b, Call{Method: "DeleteRecords", Topic: r.GetTopic()}, func(c *Cluster) (*runnelv1.DeleteRecordsResponse, *Error) {
		t, err := c.topicLocked(r.GetTopic(), r.GetTopicId())
		if err != nil {
			return nil, err
		}
		resp := &runnelv1.DeleteRecordsResponse{}
		for _, target := range r.GetTargets() {
			res := &runnelv1.DeleteRecordsResult{Partition: target.GetPartition(), LogStartOffset: -1}
			p, err := b.findLocked(true, t.id[:], target.GetPartition(), -1)
			if err == nil {
				err = p.trim(target.GetBeforeOffset())
			}
			if err != nil {
				res.Error = err.item()
			} else {
				res.LogStartOffset = p.start
			}
			resp.Results = append(resp.Results, res)
		}
		c.changeLocked()
		return resp, nil
	})
}

// DescribeCluster implements runnelv1.AdminServer.
func (b *broker) DescribeCluster(ctx context.Context, _ *runnelv1.DescribeClusterRequest) (*runnelv1.DescribeClusterResponse, error) {
	return admin(ctx, b, Call{Method: "DescribeCluster"}, func(c *Cluster) (*runnelv1.DescribeClusterResponse, *Error) {
		resp := &runnelv1.DescribeClusterResponse{ClusterId: c.cfg.clusterID, ControllerId: c.controllerLocked(), Topics: int32(len(c.mu.topics))}
		byID := make(map[int32]*runnelv1.BrokerStatus)
		for _, id := range slices.Sorted(maps.Keys(c.mu.brokers)) {
			if st := c.brokerLocked(id, resp.GetControllerId()); st != nil {
				byID[id], resp.Brokers = st, append(resp.Brokers, st)
			}
		}
		for _, t := range c.mu.topics {
			for _, p := range t.partitions {
				p.count(resp, byID)
			}
		}
		return resp, nil
	})
}

// RecoverPartition implements runnelv1.AdminServer: nothing is ever damaged here.
func (b *broker) RecoverPartition(ctx context.Context, r *runnelv1.RecoverPartitionRequest) (*runnelv1.RecoverPartitionResponse, error) {
	return admin(ctx, b, Call{Method: "RecoverPartition", Topic: r.GetTopic(), Partition: r.GetPartition()}, func(c *Cluster) (*runnelv1.RecoverPartitionResponse, *Error) {
		t, err := c.topicLocked(r.GetTopic(), nil)
		if err != nil {
			return nil, err
		}
		if n := r.GetPartition(); n < 0 || int(n) >= len(t.partitions) {
			return nil, unknownPartition(t.name, n, len(t.partitions))
		}
		end := t.partitions[r.GetPartition()].end
		return &runnelv1.RecoverPartitionResponse{KeptEndOffset: end, LostEndOffset: end, Detail: "nothing is damaged", Applied: r.GetAcceptDataLoss()}, nil
	})
}
