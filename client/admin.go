package client

import (
	"context"
	"fmt"
	"slices"
	"sync"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Admin makes administrative calls. Each is a single request to one broker (or, where partitions matter, to their leaders):
// reads go on to another broker when one is not reachable. Changes are sent again, for up to a RequestTimeout, as long as they were
// certainly not executed: the broker could not be connected to, is starting, or does not lead (yet). A change that may have been
// executed is never sent twice. Safe for concurrent use.
type Admin struct{ c *Client }

// CreateTopic creates a topic, or with spec.DryRun tells what it would be. An existing name is ErrTopicExists.
func (a *Admin) CreateTopic(ctx context.Context, spec TopicSpec) (Topic, error) {
	r, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.CreateTopicResponse, error) {
		return api.CreateTopic(ctx, &runnelv1.CreateTopicRequest{
			Name: spec.Name, Partitions: spec.Partitions, Replicas: spec.Replicas, Config: spec.Config.proto(),
			ValidateOnly: spec.DryRun, Owner: spec.Owner,
		})
	})
	if err != nil {
		return Topic{}, fmt.Errorf("create topic %q: %w", spec.Name, err)
	}
	return topicOf(r.GetTopic()), nil
}

// UpdateTopic changes settings and the number of replicas, adds partitions, and returns the topic as it is then. With ch.Generation it fails with
// ErrConflict when somebody else was faster. ch.DryRun changes nothing; PlanTopic also tells the differences.
func (a *Admin) UpdateTopic(ctx context.Context, name string, ch TopicChange) (Topic, error) {
	t, _, err := a.updateTopic(ctx, name, ch)
	return t, err
}

// PlanTopic tells what UpdateTopic with the same arguments would change, without changing it.
func (a *Admin) PlanTopic(ctx context.Context, name string, ch TopicChange) (Topic, []ConfigChange, error) {
	ch.DryRun = true
	return a.updateTopic(ctx, name, ch)
}

func (a *Admin) updateTopic(ctx context.Context, name string, ch TopicChange) (Topic, []ConfigChange, error) {
	r, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.UpdateTopicResponse, error) {
		return api.UpdateTopic(ctx, &runnelv1.UpdateTopicRequest{
			Name: name, TopicId: idBytes(ch.ID), Generation: ch.Generation, Partitions: ch.Partitions, Replicas: ch.Replicas, Config: ch.Config.proto(),
			ResetFields: ch.Reset, ValidateOnly: ch.DryRun, Force: ch.Force,
		})
	})
	if err != nil {
		return Topic{}, nil, fmt.Errorf("update topic %q: %w", name, err)
	}
	changes := make([]ConfigChange, 0, len(r.GetChanges()))
	for _, c := range r.GetChanges() {
		changes = append(changes, ConfigChange{Field: c.GetField(), Before: c.GetBefore(), After: c.GetAfter()})
	}
	topic := topicOf(r.GetTopic())
	if !ch.DryRun {
		a.settle(ctx, topic)
	}
	return topic, changes, nil
}

// settle waits until this client's own metadata shows the partitions of a changed topic that it follows, so that the caller can produce
// to new ones at once. The change itself is done: metadata that does not come in time is no error of it.
func (a *Admin) settle(ctx context.Context, t Topic) {
	ctx, cancel := a.c.request(ctx)
	defer cancel()
	shown := make(chan struct{})
	var once sync.Once
	unsubscribe := a.c.meta.subscribe(func(s *snapshot) {
		if seen := s.topics[t.Name]; seen == nil || seen.id != t.ID || len(seen.partitions) >= int(t.Partitions) {
			once.Do(func() { close(shown) })
		}
	})
	defer unsubscribe()
	select {
	case <-shown:
	case <-ctx.Done():
	}
}

// DeleteTopic deletes the topic that has this name and id, never a namesake.
func (a *Admin) DeleteTopic(ctx context.Context, name string, id TopicID) error {
	return a.deleteTopic(ctx, name, id, false)
}

// ForceDeleteTopic deletes a topic although a resource owns it.
func (a *Admin) ForceDeleteTopic(ctx context.Context, name string, id TopicID) error {
	return a.deleteTopic(ctx, name, id, true)
}

func (a *Admin) deleteTopic(ctx context.Context, name string, id TopicID, force bool) error {
	if id.IsZero() {
		return fmt.Errorf("client: delete topic %q: %w: no topic id", name, ErrInvalidArgument)
	}
	_, err := change(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DeleteTopicResponse, error) {
		return api.DeleteTopic(ctx, &runnelv1.DeleteTopicRequest{Name: name, TopicId: id[:], Force: force})
	})
	if err != nil {
		return fmt.Errorf("delete topic %q: %w", name, err)
	}
	return nil
}

// Topics lists topics by name; without names, all of them. Names that do not exist are left out.
func (a *Admin) Topics(ctx context.Context, names ...string) ([]Topic, error) {
	var topics []Topic
	token := ""
	for {
		r, err := ask(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.ListTopicsResponse, error) {
			return api.ListTopics(ctx, &runnelv1.ListTopicsRequest{Names: names, PageToken: token})
		})
		if err != nil {
			return nil, fmt.Errorf("list topics: %w", err)
		}
		for _, t := range r.GetTopics() {
			topics = append(topics, topicOf(t))
		}
		if token = r.GetNextPageToken(); token == "" {
			return topics, nil
		}
	}
}

// DescribeTopic returns a topic and its partitions.
func (a *Admin) DescribeTopic(ctx context.Context, name string) (Topic, []PartitionInfo, error) {
	r, err := ask(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DescribeTopicResponse, error) {
		return api.DescribeTopic(ctx, &runnelv1.DescribeTopicRequest{Name: name})
	})
	if err != nil {
		return Topic{}, nil, fmt.Errorf("describe topic %q: %w", name, err)
	}
	return topicOf(r.GetTopic()), partitionsOf(r.GetPartitions()), nil
}

// DescribePartitions returns offsets, sizes and health of a topic's partitions; without numbers, of all.
func (a *Admin) DescribePartitions(ctx context.Context, topic string, partitions ...int32) ([]PartitionInfo, error) {
	r, err := ask(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DescribePartitionsResponse, error) {
		return api.DescribePartitions(ctx, &runnelv1.DescribePartitionsRequest{Topic: topic, Partitions: partitions})
	})
	if err != nil {
		return nil, fmt.Errorf("describe partitions of %q: %w", topic, err)
	}
	return partitionsOf(r.GetPartitions()), nil
}

// DescribeCluster returns the cluster and its brokers.
func (a *Admin) DescribeCluster(ctx context.Context) (ClusterInfo, error) {
	r, err := ask(ctx, a, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DescribeClusterResponse, error) {
		return api.DescribeCluster(ctx, &runnelv1.DescribeClusterRequest{})
	})
	if err != nil {
		return ClusterInfo{}, fmt.Errorf("describe cluster: %w", err)
	}
	info := ClusterInfo{
		ID: r.GetClusterId(), Controller: r.GetControllerId(), Topics: int(r.GetTopics()), Partitions: int(r.GetPartitions()),
		UnderReplicated: int(r.GetUnderReplicatedPartitions()), BelowMinimum: int(r.GetBelowMinimumPartitions()), Leaderless: int(r.GetLeaderlessPartitions()),
	}
	for _, b := range r.GetBrokers() {
		info.Brokers = append(info.Brokers, brokerOf(b))
	}
	return info, nil
}

// RecoverPartition brings a quarantined partition back online at the price of its damaged records: its leader's replica, or the first live one
// where there is no leader. Without accept it only tells what would be lost.
func (a *Admin) RecoverPartition(ctx context.Context, tp TopicPartition, accept bool) (RecoverInfo, error) {
	return a.RecoverReplica(ctx, tp, -1, accept)
}

// RecoverReplica is RecoverPartition for the replica of one broker; -1: as RecoverPartition chooses.
func (a *Admin) RecoverReplica(ctx context.Context, tp TopicPartition, broker int32, accept bool) (RecoverInfo, error) {
	meta, err := a.partitionMeta(ctx, tp)
	if err != nil {
		return RecoverInfo{}, fmt.Errorf("recover %s: %w", tp, err)
	}
	// A quarantined partition may have no leader; its replica answers.
	p := meta.partitions[tp.Partition]
	brokers := append([]int32{p.leader}, p.replicas...)
	req := &runnelv1.RecoverPartitionRequest{Topic: tp.Topic, TopicId: meta.id[:], Partition: tp.Partition, AcceptDataLoss: accept}
	if broker >= 0 {
		brokers, req.BrokerId = []int32{broker}, &broker
	}
	snap := a.c.meta.snapshot()
	i := slices.IndexFunc(brokers, snap.listed)
	if i < 0 {
		return RecoverInfo{}, fmt.Errorf("recover %s: %w: none of its brokers %v is up", tp, ErrUnavailable, brokers)
	}
	r, err := call(ctx, a, snap.address(brokers[i]), func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.RecoverPartitionResponse, error) {
		return api.RecoverPartition(ctx, req)
	})
	if err != nil {
		return RecoverInfo{}, fmt.Errorf("recover %s: %w", tp, err)
	}
	return RecoverInfo{KeptEnd: r.GetKeptEndOffset(), LostEnd: r.GetLostEndOffset(), Detail: r.GetDetail(), Applied: r.GetApplied()}, nil
}

func idBytes(id TopicID) []byte {
	if id.IsZero() {
		return nil
	}
	return id[:]
}
