package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/record"
)

// producerPartition queues the records of one partition and settles their outcomes in order.
//
// Order and idempotence rest on these rules:
//
//   - queue holds batches in the order of their records. What was sent forms, apart from done batches, its front.
//   - A batch keeps its producer id and sequence from its first attempt to its end. While it has to be retried, nothing behind it
//     is sent before it is, and only when no earlier attempt of the partition is still unanswered.
//   - When a batch fails, everything behind it that was never sent fails with it, and nothing new is sent until every outstanding
//     batch is settled: the sequence numbers of what was refused are used again then, and a batch that is still on its way must
//     not find the gap before it filled.
//   - A batch whose outcome was reported as unknown stays at the front and is retried until the broker tells. Only then is it
//     known where the sequence goes on.
//   - A new producer id is taken only when no outstanding batch is ambiguous.
type producerPartition struct {
	topic *producerTopic
	p     *Producer
	index int32
	tp    TopicPartition

	hasLeader atomic.Bool

	// sending serialises choosing, building and registering a batch, so that a partition that moves between brokers never builds
	// one batch twice. Taken before mu.
	sending sync.Mutex

	mu struct {
		sync.Mutex
		queue []*batch
		open  *batch // the last of queue, if it takes more records
		// inFlight counts batches in state sent.
		inFlight int

		topicID       TopicID
		maxBatchBytes int
		codec         record.Codec
		leader        int32
		leaderEpoch   int32
		sender        *sender // nil while there is no leader
		queued        *sender // whose ready list holds the partition

		producerID    int64 // -1: none yet
		producerEpoch int16
		awaitsID      bool // is offered again once the producer has an id
		// nextSequence is for the next batch; settledSequence follows the last batch that is known to be in the log.
		nextSequence, settledSequence int32
		// failing: a batch failed, and outstanding ones behind it are not settled yet.
		failing bool
		// renew: the producer id is of no use any more.
		renew bool

		retryAt time.Time
		back    backoff
		// cause is why the last attempt failed; nil after one that did not.
		cause error

		delivering bool
		closed     error // refuses records
		headers    []record.HeaderKV
		headerKeys []byte
	}
}

func newProducerPartition(t *producerTopic, index int32) *producerPartition {
	pt := &producerPartition{topic: t, p: t.p, index: index, tp: TopicPartition{t.name, index}}
	pt.mu.producerID, pt.mu.leader = -1, -1
	return pt
}

// append queues r. An error means that it was not queued.
func (pt *producerPartition) append(ctx context.Context, r *Record, done func(*Record, error), cost int64) error {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	mu := &pt.mu
	if mu.closed != nil {
		return mu.closed
	}
	if r.Timestamp.IsZero() {
		r.Timestamp = pt.p.c.cfg.clock.Now()
	}
	ts := r.Timestamp.UnixMilli()
	if ts < 0 {
		return fmt.Errorf("%w: timestamp %v lies before 1970", ErrInvalidArgument, r.Timestamp)
	}
	headers := pt.convertLocked(r.Headers)
	b := mu.open
	// bound exceeds what a record can take; the exact size matters only near the limit.
	bound := int(cost)
	if b != nil && b.builder.Size()+bound > min(pt.p.cfg.batchBytes, mu.maxBatchBytes) &&
		b.builder.SizeWith(ts, r.Key, r.Value, headers) > min(pt.p.cfg.batchBytes, mu.maxBatchBytes) {
		pt.sealLocked(b)
		b = nil
	}
	if b == nil {
		if record.HeaderSize+bound > mu.maxBatchBytes {
			if size := record.NewBuilder(record.CodecNone).SizeWith(ts, r.Key, r.Value, headers); size > mu.maxBatchBytes {
				return &RecordTooLargeError{Size: size, Limit: mu.maxBatchBytes}
			}
		}
		b = pt.openLocked()
	}
	if b.addContext(ctx) && b.watched {
		pt.watchLocked(ctx, b)
	}
	b.builder.Append(ts, r.Key, r.Value, headers)
	b.entries = append(b.entries, entry{r, done, cost})
	r.Partition = pt.index
	if pt.p.cfg.linger == 0 || b.builder.Size() >= min(pt.p.cfg.batchBytes, mu.maxBatchBytes) {
		pt.offerLocked()
	}
	return nil
}

// convertLocked makes the record package's headers of h, in memory that is reused.
func (pt *producerPartition) convertLocked(h []Header) []record.HeaderKV {
	if len(h) == 0 {
		return nil
	}
	keys, out := pt.mu.headerKeys[:0], pt.mu.headers[:0]
	for i := range h {
		keys = append(keys, h[i].Key...)
	}
	pt.mu.headerKeys = keys
	for i := range h {
		n := len(h[i].Key)
		out = append(out, record.HeaderKV{Key: keys[:n:n], Value: h[i].Value})
		keys = keys[n:]
	}
	pt.mu.headers = out
	return out
}

func (pt *producerPartition) openLocked() *batch {
	b := pt.p.newBatch(pt.mu.codec)
	now := pt.p.c.cfg.clock.Now()
	b.queuedAt = now
	pt.mu.queue = append(pt.mu.queue, b)
	pt.mu.open = b
	if pt.p.cfg.linger > 0 {
		pt.p.timers.at(event{at: now.Add(pt.p.cfg.linger), run: pt.onLinger, b: b, gen: b.gen.Load()})
	}
	pt.p.timers.at(event{at: now.Add(stallAfter), run: pt.onStall, b: b, gen: b.gen.Load()})
	pt.p.armTimeouts(now)
	return b
}

// stallAfter is how long a batch waits before the contexts of its records are watched. The usual batch is sent sooner, and
// looks at them once, when it is.
const stallAfter = 50 * time.Millisecond

// sealLocked completes b and offers it to the broker.
func (pt *producerPartition) sealLocked(b *batch) {
	if b.state != batchOpen {
		return
	}
	b.state = batchSealed
	pt.mu.open = nil
	pt.topic.moveSticky(pt.index)
	pt.offerLocked()
}

// offerLocked puts the partition on its broker's ready list when it has something that may be sent now.
func (pt *producerPartition) offerLocked() {
	s := pt.mu.sender
	if s == nil || pt.mu.queued == s || pt.mu.awaitsID || pt.nextLocked(pt.p.c.cfg.clock.Now()) == nil {
		return
	}
	pt.mu.queued = s
	s.offer(pt)
}

// nextLocked is the batch that may be sent now, or nil.
func (pt *producerPartition) nextLocked(now time.Time) *batch {
	mu := &pt.mu
	if mu.inFlight >= pt.p.cfg.maxInFlight || now.Before(mu.retryAt) || (mu.renew && mu.inFlight > 0) {
		return nil
	}
	sent := 0
	for _, b := range mu.queue {
		switch b.state {
		case batchSent:
			sent++
		case batchRetry:
			if sent != mu.inFlight {
				return nil // attempts of batches behind it are still unanswered
			}
			return b
		case batchSealed, batchOpen:
			if mu.failing || (b.state == batchOpen && !pt.ripeLocked(b, now)) {
				return nil
			}
			return b
		case batchDone:
		}
	}
	return nil
}

// ripeLocked reports whether an open batch need not wait any longer.
func (pt *producerPartition) ripeLocked(b *batch, now time.Time) bool {
	return pt.p.cfg.linger == 0 || now.Sub(b.queuedAt) >= pt.p.cfg.linger || len(b.flushes) > 0 ||
		b.builder.Size() >= min(pt.p.cfg.batchBytes, pt.mu.maxBatchBytes)
}

func (pt *producerPartition) onLinger(_ time.Time, b *batch, gen uint64) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if b.gen.Load() == gen && b.state == batchOpen {
		pt.offerLocked()
	}
}

// onStall watches the contexts of a batch that could not be sent soon.
func (pt *producerPartition) onStall(_ time.Time, b *batch, gen uint64) {
	pt.mu.Lock()
	defer pt.mu.Unlock()
	if b.gen.Load() != gen || !b.unsent() || b.watched {
		return
	}
	b.watched = true
	for _, run := range b.contexts {
		if run.ctx.Done() != nil {
			pt.watchLocked(run.ctx, b)
		}
	}
}

func (pt *producerPartition) watchLocked(ctx context.Context, b *batch) {
	b.stops = append(b.stops, context.AfterFunc(ctx, func() {
		pt.mu.Lock()
		pt.dropCancelledLocked()
		pt.mu.Unlock()
		pt.p.deliverLater(pt)
	}))
}

// dropCancelledLocked fails the first never-sent record whose context has ended, and what is queued behind it.
func (pt *producerPartition) dropCancelledLocked() {
	for i, b := range pt.mu.queue {
		if !b.unsent() {
			continue
		}
		cut := b.firstCancelled()
		if cut < 0 {
			continue
		}
		rest := b
		if cut > 0 {
			rest = pt.splitLocked(b, cut)
			pt.mu.queue = slices.Insert(pt.mu.queue, i+1, rest)
			i++
		} else if pt.mu.open == b {
			pt.mu.open = nil
		}
		rest.result.errs = make([]error, len(rest.entries))
		cause := rest.contextErr(0)
		earlier := pt.failure(ErrNotWritten, fmt.Errorf("%w: %w", ErrEarlierFailed, cause))
		for j := range rest.entries {
			rest.result.errs[j] = earlier
			if err := rest.contextErr(j); err != nil {
				rest.result.errs[j] = pt.failure(ErrNotWritten, err)
			}
		}
		rest.result.err = rest.result.errs[0]
		rest.state = batchDone
		pt.failUnsentLocked(i+1, cause)
		pt.offerLocked() // what was before it
		return
	}
}

// splitLocked cuts b before record cut: b keeps the records before it, encoded anew, and is sealed; the others come back.
func (pt *producerPartition) splitLocked(b *batch, cut int) *batch {
	rest := pt.p.newBatch(pt.mu.codec)
	rest.queuedAt = b.queuedAt
	rest.entries = append(rest.entries, b.entries[cut:]...)
	for _, f := range b.flushes {
		f.begin()
		rest.flushes = append(rest.flushes, f)
	}
	for _, run := range b.contexts {
		rest.contexts = append(rest.contexts, contextRun{run.ctx, max(0, run.from-cut)})
	}
	clear(b.entries[cut:])
	b.entries = b.entries[:cut]
	b.contexts = slices.DeleteFunc(b.contexts, func(run contextRun) bool { return run.from >= cut })
	b.builder.Reset()
	for i := range b.entries {
		r := b.entries[i].r
		b.builder.Append(r.Timestamp.UnixMilli(), r.Key, r.Value, pt.convertLocked(r.Headers))
	}
	if pt.mu.open == b {
		pt.mu.open = nil
		b.state = batchSealed
	}
	return rest
}

func (pt *producerPartition) failure(outcome, cause error) error {
	return &ProduceError{TopicPartition: pt.tp, Outcome: outcome, Cause: cause}
}

// failUnsentLocked fails what was never sent from queue index i on.
func (pt *producerPartition) failUnsentLocked(i int, cause error) {
	if !errors.Is(cause, ErrEarlierFailed) {
		cause = fmt.Errorf("%w: %w", ErrEarlierFailed, cause)
	}
	err := pt.failure(ErrNotWritten, cause)
	for _, b := range pt.mu.queue[i:] {
		if b.unsent() {
			b.state, b.result.err = batchDone, err
		}
	}
	pt.mu.open = nil
}

// addSequence adds n to a sequence number, which wraps from MaxInt32 to 0.
func addSequence(seq, n int32) int32 { return int32((int64(seq) + int64(n)) & math.MaxInt32) }

// settleLocked draws the conclusions once an outstanding batch was settled.
func (pt *producerPartition) settleLocked() {
	mu := &pt.mu
	outstanding, ambiguous := false, false
	for _, b := range mu.queue {
		outstanding = outstanding || b.outstanding()
		ambiguous = ambiguous || (b.outstanding() && b.ambiguous)
	}
	if mu.renew && mu.inFlight == 0 && !ambiguous {
		pt.p.discardID(mu.producerID)
		mu.renew, mu.producerID = false, -1
		mu.nextSequence, mu.settledSequence = 0, 0
		for _, b := range mu.queue {
			if b.outstanding() {
				b.hasSequence = false
			}
		}
	}
	if !outstanding {
		mu.failing, mu.nextSequence = false, mu.settledSequence
	}
}

// failLocked fails batch i of the queue and everything behind it that was never sent. Outstanding batches behind it are refused
// by the broker, whose expected sequence they do not have; failing holds new batches back until they are settled.
func (pt *producerPartition) failLocked(i int, cause error) {
	b := pt.mu.queue[i]
	outcome := ErrNotWritten
	if b.ambiguous {
		outcome = ErrOutcomeUnknown
		pt.mu.renew = true // where the sequence goes on cannot be known any more
	}
	b.state = batchDone
	if b.abandoned { // its failure was reported before, and what was queued behind it has failed then
		pt.settleLocked()
		return
	}
	b.result.err = pt.failure(outcome, cause)
	pt.mu.failing = true
	pt.failUnsentLocked(i+1, cause)
	pt.settleLocked()
}

// abandonLocked reports, from queue index i on, what is sent as unknown and fails the rest; outstanding batches stay and are
// resolved further.
func (pt *producerPartition) abandonLocked(i int, cause error) {
	first := true
	for _, b := range pt.mu.queue[i:] {
		if b.abandoned || !b.outstanding() {
			continue
		}
		why := cause
		if !first {
			why = fmt.Errorf("%w: %w", ErrEarlierFailed, cause)
		}
		first = false
		if b.state == batchRetry && !b.ambiguous { // every attempt was refused
			b.state, b.result.err = batchDone, pt.failure(ErrNotWritten, why)
			continue
		}
		b.abandoned, b.result.err = true, pt.failure(ErrOutcomeUnknown, why)
	}
	pt.mu.failing = true
	if first { // nothing was sent: the first record itself has the cause
		for _, b := range pt.mu.queue[i:] {
			if b.unsent() {
				b.state, b.result.err = batchDone, pt.failure(ErrNotWritten, cause)
				break
			}
		}
	}
	pt.failUnsentLocked(i, cause)
	pt.settleLocked()
}
