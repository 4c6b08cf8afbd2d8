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
	if req.GetReplicas() < 0 {
		return nil, invalid("replicas", req.GetReplicas(), "1 or more, or 0 for no change")
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
func (l *listener) DescribeTopic(ctx context.Context, req *runnelv1.DescribeTopicRequest) (*runnelv1.DescribeTopicResponse, error) {
	t, err := l.cfg.Metadata.Snapshot().topic(req.GetName(), nil)
	if err != nil {
		return nil, err
	}
	return &runnelv1.DescribeTopicResponse{Topic: topicMessage(t), Partitions: l.forClient(ctx).statuses(ctx, t, numbers(t))}, nil
}
