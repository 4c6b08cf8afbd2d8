package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"runnel.dev/runnel/record"
)

// batchState is where a batch is on its way.
//
//	open → sealed → sent ⇄ retry
//	   └──────┴──────┴───────┴──→ done
type batchState uint8

const (
	// batchOpen takes more records.
	batchOpen batchState = iota
	// batchSealed is complete and was never sent: it is certainly not in the log.
	batchSealed
	// batchSent waits for the answer to its current attempt.
	batchSent
	// batchRetry was sent before and has to be sent again, with the same sequence numbers, before anything behind it.
	batchRetry
	// batchDone has an outcome, and leaves the queue once its callbacks have run.
	batchDone
)

// batch is some records of one partition on their way. It is reused, also by other partitions.
type batch struct {
	// gen changes whenever the batch is reused, attempt with every send; neither ever goes back, so that late timers and answers
	// recognise that they are not meant. Atomic, because those look while another partition may own the batch already.
	gen, attempt atomic.Uint64
	// Everything else is guarded by the partition's mu.
	batchUse
}

// batchUse is what belongs to one use of a batch.
type batchUse struct {
	builder *record.Builder
	codec   record.Codec
	entries []entry
	// contexts holds runs of records that were produced with one context that can end.
	contexts []contextRun
	// stops end the watches over contexts, which exist only once a batch has waited long.
	stops   []func() bool
	watched bool

	state batchState
	sends int // attempts of this use

	// ambiguous: an attempt may have reached the log, and no later answer has told.
	ambiguous bool
	// abandoned: the outcome was reported as unknown; the batch is resolved further, because its sequence numbers are.
	abandoned bool
	delivered bool
	// building: a sender encodes the batch without the lock, so it must not be reused yet.
	building bool

	queuedAt time.Time
	sentAt   time.Time

	hasSequence   bool
	producerID    int64
	producerEpoch int16
	sequence      int32
	count         int32

	wire   mem.Buffer
	wired  []byte
	result batchResult

	flushes []*flushWaiter
}

type entry struct {
	r    *Record
	done func(*Record, error)
	cost int64
}

type contextRun struct {
	ctx  context.Context //nolint:containedctx // a record's context lives until the record is sent
	from int
}

type batchResult struct {
	baseOffset int64
	appendTime int64 // milliseconds, -1: the records keep their timestamps
	duplicate  bool
	// err is the outcome of all records; errs, when there are some, of each.
	err  error
	errs []error
}

// unsent reports whether b was never handed to a connection.
func (b *batch) unsent() bool { return b.state == batchOpen || b.state == batchSealed }

// outstanding reports whether b was sent and its outcome is not settled.
func (b *batch) outstanding() bool { return b.state == batchSent || b.state == batchRetry }

// addContext notes that the next record belongs to ctx.
func (b *batch) addContext(ctx context.Context) (isNew bool) {
	if n := len(b.contexts); n > 0 && b.contexts[n-1].ctx == ctx {
		return false
	}
	if ctx.Done() == nil && len(b.contexts) == 0 {
		return false
	}
	b.contexts = append(b.contexts, contextRun{ctx, len(b.entries)})
	return ctx.Done() != nil
}

// firstCancelled is the index of the first record whose context has ended, or -1.
func (b *batch) firstCancelled() int {
	for _, run := range b.contexts {
		if run.ctx.Err() != nil {
			return run.from
		}
	}
	return -1
}

// contextErr is the error of record i's context.
func (b *batch) contextErr(i int) error {
	var err error
	for _, run := range b.contexts {
		if run.from > i {
			break
		}
		err = run.ctx.Err()
	}
	return err
}

func (b *batch) stopWatching() {
	for _, stop := range b.stops {
		stop()
	}
	clear(b.stops)
	b.stops, b.watched = b.stops[:0], false
}

// cost is what b's records take of the buffer.
func (b *batch) cost() int64 {
	var n int64
	for i := range b.entries {
		n += b.entries[i].cost
	}
	return n
}

// recycle makes b ready for its next use; the builder has been given back, and nobody refers to b but late timers and answers.
func (b *batch) recycle() {
	b.stopWatching()
	if b.wire != nil {
		b.wire.Free()
	}
	clear(b.entries)
	clear(b.contexts)
	clear(b.flushes)
	b.gen.Add(1)
	b.attempt.Add(1)
	b.batchUse = batchUse{entries: b.entries[:0], contexts: b.contexts[:0], stops: b.stops, flushes: b.flushes[:0]}
}

// flushWaiter counts what one Flush waits for.
type flushWaiter struct {
	done chan struct{}
	mu   struct {
		sync.Mutex
		pending         int
		records, failed int
		err             error
	}
}

func newFlushWaiter() *flushWaiter {
	f := &flushWaiter{done: make(chan struct{})}
	f.mu.pending = 1 // the caller's own, until it has asked every partition
	return f
}

func (f *flushWaiter) begin() {
	f.mu.Lock()
	f.mu.pending++
	f.mu.Unlock()
}

func (f *flushWaiter) end(records, failed int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.records += records
	f.mu.failed += failed
	if f.mu.err == nil {
		f.mu.err = err
	}
	if f.mu.pending--; f.mu.pending == 0 {
		close(f.done)
	}
}

// result is nil when every record was acknowledged.
func (f *flushWaiter) result() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.failed == 0 {
		return nil
	}
	return fmt.Errorf("client: %d of %d records failed, the first: %w", f.mu.failed, f.mu.records, f.mu.err)
}
