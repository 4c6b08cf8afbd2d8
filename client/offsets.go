package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/clock"
)

// ListOffsets looks pos up in partitions, at their leaders; what can succeed later, e.g. because a leader has moved, is tried again for
// up to a RequestTimeout. The results come in the order of tps, an error of one partition in its result. The error of the call
// joins those.
func (a *Admin) ListOffsets(ctx context.Context, pos Position, tps ...TopicPartition) ([]OffsetInfo, error) {
	out := make([]OffsetInfo, len(tps))
	left := make([]int, len(tps))
	for i, tp := range tps {
		out[i].TopicPartition, left[i] = tp, i
	}
	patience, cancel := a.c.request(ctx)
	defer cancel()
	var back backoff
	for {
		a.listOnce(ctx, pos, out, left)
		left = slices.DeleteFunc(left, func(i int) bool { return out[i].Err == nil || !transient(out[i].Err) })
		if len(left) == 0 || clock.Sleep(patience, a.c.cfg.clock, back.next()) != nil {
			break
		}
	}
	errs := make([]error, 0, len(out))
	for i := range out {
		if out[i].Err != nil {
			errs = append(errs, &PartitionError{out[i].TopicPartition, out[i].Err})
		}
	}
	return out, errors.Join(errs...)
}

// listOnce asks each leader once for the partitions of out that indexes name.
func (a *Admin) listOnce(ctx context.Context, pos Position, out []OffsetInfo, indexes []int) {
	groups := make(map[int32][]int)
	queries := make(map[int]offsetQuery, len(indexes))
	for _, i := range indexes {
		tp := out[i].TopicPartition
		meta, err := a.partitionMeta(ctx, tp)
		if err != nil {
			out[i].Err = err
			continue
		}
		p := meta.partitions[tp.Partition]
		queries[i] = offsetQuery{tp: tp, id: meta.id, epoch: p.leaderEpoch, pos: pos}
		groups[p.leader] = append(groups[p.leader], i)
	}
	var wg sync.WaitGroup
	for leader, idx := range groups {
		wg.Go(func() {
			qs := make([]offsetQuery, len(idx))
			for k, i := range idx {
				qs[k] = queries[i]
			}
			for k, res := range a.c.listOffsets(ctx, leader, qs) {
				out[idx[k]] = res
			}
		})
	}
	wg.Wait()
}

// EndOffsets returns the high watermarks of all partitions of topics: where reading is up to date now.
func (a *Admin) EndOffsets(ctx context.Context, topics ...string) (map[TopicPartition]int64, error) {
	var tps []TopicPartition
	for _, name := range topics {
		meta, err := a.c.meta.topic(ctx, name)
		if err != nil {
			return nil, err
		}
		for i := range meta.partitions {
			tps = append(tps, TopicPartition{name, int32(i)})
		}
	}
	infos, err := a.ListOffsets(ctx, Latest, tps...)
	if err != nil {
		return nil, err
	}
	ends := make(map[TopicPartition]int64, len(infos))
	for _, info := range infos {
		ends[info.TopicPartition] = info.HighWatermark
	}
	return ends, nil
}

func (a *Admin) partitionMeta(ctx context.Context, tp TopicPartition) (*topicMeta, error) {
	meta, err := a.c.meta.topic(ctx, tp.Topic)
	if err != nil {
		return nil, err
	}
	if tp.Partition < 0 || int(tp.Partition) >= len(meta.partitions) {
		return nil, fmt.Errorf("%w: %s, the topic has %d", ErrUnknownPartition, tp, len(meta.partitions))
	}
	return meta, nil
}

type offsetQuery struct {
	tp    TopicPartition
	id    TopicID
	epoch int32
	pos   Position
}

// listOffsets asks one broker once, and answers every query. A query without an answer has an error: no offset is ever made up.
func (c *Client) listOffsets(ctx context.Context, leader int32, qs []offsetQuery) []OffsetInfo {
	out := make([]OffsetInfo, len(qs))
	for i, q := range qs {
		out[i].TopicPartition = q.tp
	}
	fail := func(err error) []OffsetInfo {
		for i := range out {
			out[i] = OffsetInfo{TopicPartition: qs[i].tp, Err: err}
		}
		return out
	}
	address := c.meta.snapshot().address(leader)
	if address == "" {
		return fail(&Error{Code: codes.Unavailable, Message: noLeader(leader), retriable: true})
	}
	cc, err := c.conns.get(address, forControl)
	if err != nil {
		return fail(err)
	}
	req := &runnelv1.ListOffsetsRequest{Queries: make([]*runnelv1.OffsetQuery, len(qs))}
	for i, q := range qs {
		req.Queries[i] = &runnelv1.OffsetQuery{TopicId: q.id[:], Partition: q.tp.Partition, LeaderEpoch: q.epoch, At: q.pos.proto()}
	}
	rctx, cancel := c.request(ctx)
	defer cancel()
	r, err := runnelv1.NewConsumerClient(cc).ListOffsets(c.cfg.route(rctx), req)
	if err != nil {
		return fail(fromRPC(err))
	}
	if len(r.GetResults()) != len(qs) {
		return fail(&Error{Code: codes.Unavailable, Message: fmt.Sprintf("%s answered %d of %d offset look-ups", address, len(r.GetResults()), len(qs)), retriable: true})
	}
	for i, res := range r.GetResults() {
		if res.GetError() != nil {
			e := itemError(res.GetError())
			c.meta.hint(qs[i].tp.Topic, qs[i].id, qs[i].tp.Partition, e.leader)
			out[i].Err = e
			continue
		}
		out[i].Offset, out[i].LogStart, out[i].HighWatermark = res.GetOffset(), res.GetLogStartOffset(), res.GetHighWatermark()
		if ms := res.GetTimestampMs(); ms >= 0 && qs[i].pos.kind == posTime {
			out[i].Timestamp = time.UnixMilli(ms)
		}
	}
	return out
}

func noLeader(id int32) string {
	if id < 0 {
		return "the partition has no leader"
	}
	return fmt.Sprintf("the partition's leader, broker %d, is not running", id)
}

func (p Position) proto() *runnelv1.Position {
	switch p.kind {
	case posLatest:
		return &runnelv1.Position{At: &runnelv1.Position_Latest{Latest: true}}
	case posOffset:
		return &runnelv1.Position{At: &runnelv1.Position_Offset{Offset: p.value}}
	case posTime:
		return &runnelv1.Position{At: &runnelv1.Position_TimestampMs{TimestampMs: p.value}}
	case posEarliest:
	}
	return &runnelv1.Position{At: &runnelv1.Position_Earliest{Earliest: true}}
}
