package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/clock"
)

// DeletedRecords is the outcome for one partition.
type DeletedRecords struct {
	TopicPartition
	// LogStart is the partition's first offset now.
	LogStart int64
	Err      error
}

// DeleteRecords moves log starts forward to the given offsets; -1 stands for the high watermark. Partitions are asked at their
// leaders, again for up to a RequestTimeout while a request was certainly not executed, e.g. because the leader has moved. The
// results come by partition; the error joins theirs.
func (a *Admin) DeleteRecords(ctx context.Context, topic string, before map[int32]int64) ([]DeletedRecords, error) {
	patience, cancel := a.c.request(ctx)
	defer cancel()
	meta, err := a.c.meta.topic(patience, topic)
	if err != nil {
		return nil, fmt.Errorf("delete records: %w", err)
	}
	d := &deletion{a: a, topic: topic, id: meta.id, before: before, out: make(map[int32]DeletedRecords, len(before))}
	left := slices.Sorted(maps.Keys(before))
	var back backoff
	for {
		d.once(patience, left)
		left = slices.DeleteFunc(left, func(n int32) bool { return !notExecuted(d.out[n].Err) })
		if len(left) == 0 || clock.Sleep(patience, a.c.cfg.clock, back.next()) != nil {
			break
		}
	}
	out := slices.SortedFunc(maps.Values(d.out), func(a, b DeletedRecords) int { return cmp.Compare(a.Partition, b.Partition) })
	errs := make([]error, 0, len(out))
	for _, res := range out {
		if res.Err != nil {
			errs = append(errs, &PartitionError{res.TopicPartition, res.Err})
		}
	}
	return out, errors.Join(errs...)
}

// deletion is one DeleteRecords call.
type deletion struct {
	a      *Admin
	topic  string
	id     TopicID // of the topic that was meant, whatever happens to its name
	before map[int32]int64

	mu  sync.Mutex
	out map[int32]DeletedRecords
}

func (d *deletion) set(partition int32, start int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.out[partition] = DeletedRecords{TopicPartition: TopicPartition{d.topic, partition}, LogStart: start, Err: err}
}

// once asks each leader once for the partitions that are left.
func (d *deletion) once(ctx context.Context, left []int32) {
	snap := d.a.c.meta.snapshot()
	meta := snap.topics[d.topic]
	groups := make(map[string][]int32)
	for _, n := range left {
		switch {
		case meta == nil:
			d.set(n, 0, ErrUnknownTopic)
		case meta.id != d.id:
			d.set(n, 0, ErrTopicRecreated)
		case n < 0 || int(n) >= len(meta.partitions):
			d.set(n, 0, fmt.Errorf("%w: the topic has %d", ErrUnknownPartition, len(meta.partitions)))
		default:
			leader := meta.partitions[n].leader
			address := snap.address(leader)
			if address == "" {
				d.set(n, 0, &Error{Code: codes.Unavailable, Message: noLeader(leader), retriable: true, unsent: true})
				continue
			}
			groups[address] = append(groups[address], n)
		}
	}
	var wg sync.WaitGroup
	for address, partitions := range groups {
		wg.Go(func() { d.ask(ctx, address, partitions) })
	}
	wg.Wait()
}

func (d *deletion) ask(ctx context.Context, address string, partitions []int32) {
	req := &runnelv1.DeleteRecordsRequest{Topic: d.topic, TopicId: d.id[:]}
	for _, n := range partitions {
		req.Targets = append(req.Targets, &runnelv1.DeleteRecordsTarget{Partition: n, BeforeOffset: d.before[n]})
	}
	r, err := call(ctx, d.a, address, func(ctx context.Context, api runnelv1.AdminClient) (*runnelv1.DeleteRecordsResponse, error) {
		return api.DeleteRecords(ctx, req)
	})
	answers := make(map[int32]*runnelv1.DeleteRecordsResult, len(partitions))
	for _, res := range r.GetResults() {
		answers[res.GetPartition()] = res
	}
	for _, n := range partitions {
		res := answers[n]
		switch {
		case err != nil:
			d.set(n, 0, err)
		case res == nil:
			d.set(n, 0, fmt.Errorf("client: %s did not answer for it", address))
		case res.GetError() != nil:
			e := itemError(res.GetError())
			d.a.c.meta.hint(d.topic, d.id, n, e.leader)
			d.set(n, 0, e)
		default:
			d.set(n, res.GetLogStartOffset(), nil)
		}
	}
}
