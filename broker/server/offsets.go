package server

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/ids"
)

// ListOffsets implements runnelv1.ConsumerServer.
func (l *listener) ListOffsets(ctx context.Context, req *runnelv1.ListOffsetsRequest) (*runnelv1.ListOffsetsResponse, error) {
	if err := count("queries", len(req.GetQueries())); err != nil {
		return nil, err
	}
	l = l.forClient(ctx)
	results, err := l.listOffsets(ctx, req, l.routes(ctx))
	if err != nil {
		return nil, err
	}
	return &runnelv1.ListOffsetsResponse{Results: results, ThrottleMs: l.budget.throttleMS()}, nil
}

// listOffsets answers here what can be, and with routes asks the leaders for the rest.
func (l *listener) listOffsets(ctx context.Context, req *runnelv1.ListOffsetsRequest, routes bool) ([]*runnelv1.OffsetResult, error) {
	results := make([]*runnelv1.OffsetResult, len(req.GetQueries()))
	groups := map[int32][]int{}
	for i, q := range req.GetQueries() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if id := q.GetTopicId(); routes && len(id) == len(ids.TopicID{}) {
			if at, ok := l.elsewhere(ids.TopicID(id), q.GetPartition()); ok {
				groups[at.leader] = append(groups[at.leader], i)
				continue
			}
		}
		results[i] = &runnelv1.OffsetResult{TopicId: q.GetTopicId(), Partition: q.GetPartition(), Offset: -1, TimestampMs: -1, LeaderEpoch: -1}
		if err := l.listOffset(q, results[i]); err != nil {
			results[i].Error = l.item(err)
		}
	}
	fan(groups, func(broker int32, items []int) {
		sub := &runnelv1.ListOffsetsRequest{IsolationLevel: req.GetIsolationLevel()}
		for _, i := range items {
			sub.Queries = append(sub.Queries, req.GetQueries()[i])
		}
		resp, err := ask(ctx, l, broker, func(ctx context.Context, cc grpc.ClientConnInterface) (*runnelv1.ListOffsetsResponse, error) {
			return runnelv1.NewConsumerClient(cc).ListOffsets(ctx, sub)
		})
		if err == nil && len(resp.GetResults()) != len(items) {
			err = &unreachableError{broker: broker, cause: errShort}
		}
		for n, i := range items {
			if err == nil {
				results[i] = resp.GetResults()[n]
				continue
			}
			q := req.GetQueries()[i]
			results[i] = &runnelv1.OffsetResult{
				TopicId: q.GetTopicId(), Partition: q.GetPartition(), Offset: -1, TimestampMs: -1, LeaderEpoch: -1, Error: l.item(err),
			}
		}
	})
	return results, nil
}

// errShort: another broker's answer lacks results.
var errShort = errors.New("its answer does not fit the question")

func (l *listener) listOffset(q *runnelv1.OffsetQuery, r *runnelv1.OffsetResult) error {
	id, err := topicID(q.GetTopicId())
	if err != nil {
		return err
	}
	if q.GetPartition() < 0 {
		return invalid("partition", q.GetPartition(), "0 or more")
	}
	p, err := l.cfg.Partitions.Lookup(id, q.GetPartition())
	if err != nil {
		return partitionFault(err)
	}
	lim, err := p.Limits(q.GetLeaderEpoch())
	if err != nil {
		return err
	}
	r.LeaderEpoch, r.LogStartOffset = lim.LeaderEpoch, lim.LogStart
	if r.Offset, r.TimestampMs, err = position(p, lim, q.GetAt()); err != nil {
		return err
	}
	// A leader whose epoch has just begun may know a lower one than clients have seen: who reads up to there would miss records.
	r.HighWatermark, err = p.Latest(-1)
	if errors.Is(err, partition.ErrNotReady) {
		r.HighWatermark, err = -1, nil
	}
	return err
}

// position resolves a place in a partition; the timestamp is -1 unless it was looked up by time. Without a place: the log start.
func position(p *partition.Partition, lim partition.Limits, at *runnelv1.Position) (offset, timestamp int64, err error) {
	switch at := at.GetAt().(type) {
	case nil, *runnelv1.Position_Earliest:
		return lim.LogStart, -1, nil
	case *runnelv1.Position_Latest:
		offset, err = p.Latest(-1)
		return offset, -1, err
	case *runnelv1.Position_Offset:
		if at.Offset < 0 {
			return -1, -1, invalid("offset", at.Offset, "0 or more")
		}
		return at.Offset, -1, nil
	case *runnelv1.Position_TimestampMs:
		if at.TimestampMs < 0 {
			return -1, -1, invalid("timestamp_ms", at.TimestampMs, "0 or more")
		}
		offset, timestamp, found, err := p.OffsetForTime(-1, at.TimestampMs)
		if err != nil {
			return -1, -1, err
		}
		if found {
			return offset, timestamp, nil
		}
		offset, err = p.Latest(-1)
		return offset, -1, err
	}
	return -1, -1, invalid("at", "unknown", "earliest, latest, offset or timestamp_ms")
}
