package server

import (
	"context"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

const (
	// overhead is what one request in flight costs beside its bytes.
	overhead = 512
	// answerOverhead is the same in the budget of a stream. It is larger than what an answer takes, because it alone bounds the
	// answers that a client does not read: 16,384 by default.
	answerOverhead = 4096
)

// budget bounds bytes in flight. Whoever wants more waits its turn, and does not read from its stream meanwhile.
type budget struct {
	sem  *semaphore.Weighted
	size int64
	each int64 // charged beside the bytes
	used atomic.Int64
}

func newBudget(size, each int64) *budget {
	return &budget{sem: semaphore.NewWeighted(size), size: size, each: each}
}

// cost is what a batch is charged: never more than the whole budget, so that a large batch waits for an empty one.
func (b *budget) cost(n int) int64 { return min(int64(n)+b.each, b.size) }

// acquire waits for room or for ctx.
func (b *budget) acquire(ctx context.Context, n int) error {
	if err := b.sem.Acquire(ctx, b.cost(n)); err != nil {
		return err
	}
	b.used.Add(b.cost(n))
	return nil
}

// tryAcquire does not wait.
func (b *budget) tryAcquire(n int) bool {
	if !b.sem.TryAcquire(b.cost(n)) {
		return false
	}
	b.used.Add(b.cost(n))
	return true
}

func (b *budget) release(n int) {
	b.used.Add(-b.cost(n))
	b.sem.Release(b.cost(n))
}

// throttleMS is how long clients are asked to wait: nothing until the budget is nearly used up.
func (b *budget) throttleMS() int64 {
	const most = 100
	used := b.used.Load()
	if used <= b.size-b.size/10 {
		return 0
	}
	return most * (used - (b.size - b.size/10)) / max(b.size/10, 1)
}
