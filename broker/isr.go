package broker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
)

// isrRetry is the pause before changes of in-sync sets whose outcome is not known are asked for again.
const isrRetry = 50 * time.Millisecond

// isrWriter writes changes of in-sync sets for all partitions of this broker. What comes while one transaction is in flight goes into the
// next, so a follower that leaves thousands of in-sync sets costs a few transactions. It implements partition.MetadataWriter.
//
// Invariant: an answer is given only for a change whose outcome is certain. Until then the leader counts old and new members alike.
type isrWriter struct {
	client *metadata.Client
	cache  *metadata.Cache
	reg    *metadata.Registration
	minISR func(*metadata.State, *metadata.Partition) int
	clk    clock.Clock
	lg     *slog.Logger
	wake   chan struct{}

	mu struct {
		sync.Mutex
		queue []*proposal
	}

	// written are the records that this writer has seen and the cache may not have yet. Only Run uses it.
	written map[metadata.PartitionRef]*metadata.Partition
}

// proposal is a change that has not been answered.
type proposal struct {
	p        *partition.Partition
	id       uint64
	revision int64
	change   metadata.ISRChange
}

func newISRWriter(client *metadata.Client, cache *metadata.Cache, reg *metadata.Registration,
	minISR func(*metadata.State, *metadata.Partition) int, clk clock.Clock, lg *slog.Logger,
) *isrWriter {
	return &isrWriter{
		client: client, cache: cache, reg: reg, minISR: minISR, clk: clk, lg: lg, wake: make(chan struct{}, 1),
		written: map[metadata.PartitionRef]*metadata.Partition{},
	}
}

// ProposeISR implements partition.MetadataWriter.
func (w *isrWriter) ProposeISR(p *partition.Partition, id uint64, revision int64, isr []replica.Member, added []replica.Added) {
	ch := metadata.ISRChange{ISR: make([]metadata.Member, len(isr)), Added: make([]metadata.AddedMember, len(added))}
	for i, m := range isr {
		ch.ISR[i] = metadata.Member(m)
	}
	for i, a := range added {
		ch.Added[i] = metadata.AddedMember(a)
	}
	w.mu.Lock()
	w.mu.queue = append(w.mu.queue, &proposal{p: p, id: id, revision: revision, change: ch})
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends. What is unanswered then stays so: the process is about to end, or its registration is over.
func (w *isrWriter) Run(ctx context.Context) error {
	var open []*proposal
	for {
		var retry <-chan time.Time
		if len(open) > 0 {
			retry = w.clk.After(isrRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		case <-retry:
		}
		w.mu.Lock()
		open = append(open, w.mu.queue...)
		w.mu.queue = nil
		w.mu.Unlock()
		open = w.write(ctx, open)
	}
}

// write asks for all changes at once and returns those that are still open.
func (w *isrWriter) write(ctx context.Context, work []*proposal) (open []*proposal) {
	s := w.cache.Snapshot()
	w.forget(s)
	asked := make([]*proposal, 0, len(work))
	changes := make([]metadata.ISRChange, 0, len(work))
	for _, pr := range work {
		if !pr.change.Unsettled && !w.base(s, pr) {
			continue
		}
		asked, changes = append(asked, pr), append(changes, pr.change)
	}
	if len(asked) == 0 {
		return nil
	}
	results, _ := w.client.ChangeISRs(ctx, w.reg, s, changes) // each has its own error
	for i, pr := range asked {
		r := results[i]
		var unavailable *metadata.UnavailableError
		switch {
		case errors.As(r.Err, &unavailable):
			pr.change.Unsettled = pr.change.Unsettled || unavailable.Unsettled
			open = append(open, pr)
		case errors.Is(r.Err, metadata.ErrNotRegistered), r.Err != nil && (ctx.Err() != nil || pr.change.Unsettled):
			// The registration is over, and the leadership ends with it; an attempt before may have been applied. Until then both sets count.
		default:
			if r.Err != nil {
				w.lg.Debug("a change of an in-sync set was not made", "topic_id", pr.p.TopicID(), "partition", pr.p.Number(), "error", r.Err)
			}
			w.settle(s, pr, r.Applied, r.Partition)
		}
	}
	if len(open) > 0 {
		w.lg.Warn("changes of in-sync sets are not settled; will retry", "partitions", len(open))
	}
	return open
}

// base finds the record that a change is based on. A change of one that is not the newest is answered.
func (w *isrWriter) base(s *metadata.State, pr *proposal) bool {
	ref := metadata.PartitionRef{TopicID: pr.p.TopicID(), Partition: pr.p.Number()}
	now, ok := s.Partition(ref.TopicID, ref.Partition)
	if own := w.written[ref]; own != nil && (!ok || own.Revision > now.Revision) {
		now, ok = own, true
	}
	if !ok || now.Revision != pr.revision {
		w.settle(s, pr, false, now)
		return false
	}
	pr.change.Partition = now
	return true
}

// settle answers a change. now is the record after it; nil: there is none.
func (w *isrWriter) settle(s *metadata.State, pr *proposal, applied bool, now *metadata.Partition) {
	if now == nil {
		pr.p.ProposalSettled(pr.id, applied, nil)
		return
	}
	w.written[now.PartitionRef] = now
	pr.p.ProposalSettled(pr.id, applied, replicaRecord(now, w.minISR(s, now)))
}

// forget drops records that the cache has by now.
func (w *isrWriter) forget(s *metadata.State) {
	for ref, p := range w.written {
		if p.Revision <= s.Revision() {
			delete(w.written, ref)
		}
	}
}

// replicaRecord is a partition's record as far as replication cares.
func replicaRecord(p *metadata.Partition, minISR int) *replica.Record {
	r := &replica.Record{
		Revision: p.Revision, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, LeaderBrokerEpoch: p.LeaderBrokerEpoch,
		Replicas: p.Replicas, ISR: make([]replica.Member, len(p.ISR)), MinISR: minISR,
	}
	for i, m := range p.ISR {
		r.ISR[i] = replica.Member(m)
	}
	return r
}
