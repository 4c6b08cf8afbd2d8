package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// budget bounds the bytes that a producer holds. Taking is one atomic addition while there is room; otherwise takers queue in
// order.
//
// A taker announces itself in waiting before it looks at used a last time, and a giver lowers used before it looks at waiting:
// one of them sees the other, so nobody sleeps while there is room.
type budget struct {
	limit   int64
	used    atomic.Int64
	waiting atomic.Int32
	mu      struct {
		sync.Mutex
		queue []*budgetWaiter
	}
}

type budgetWaiter struct {
	n     int64
	ready chan struct{}
}

// try takes n without waiting, and reports whether it could.
func (b *budget) try(n int64) bool {
	if b.waiting.Load() > 0 {
		return false
	}
	if b.used.Add(n) <= b.limit {
		return true
	}
	b.give(n)
	return false
}

// wait takes n, waiting for it until ctx ends or closed is closed.
func (b *budget) wait(ctx context.Context, closed <-chan struct{}, n int64) error {
	w := &budgetWaiter{n: n, ready: make(chan struct{})}
	b.mu.Lock()
	b.mu.queue = append(b.mu.queue, w)
	b.waiting.Add(1)
	b.grantLocked()
	b.mu.Unlock()
	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-closed:
		err = ErrClosed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.mu.queue, w); i >= 0 {
		b.mu.queue = slices.Delete(b.mu.queue, i, i+1)
		b.waiting.Add(-1)
	} else {
		b.used.Add(-n) // granted in the meantime
	}
	b.grantLocked()
	return err
}

// give returns n.
func (b *budget) give(n int64) {
	b.used.Add(-n)
	if b.waiting.Load() > 0 {
		b.mu.Lock()
		b.grantLocked()
		b.mu.Unlock()
	}
}

func (b *budget) grantLocked() {
	for len(b.mu.queue) > 0 {
		w := b.mu.queue[0]
		if b.used.Add(w.n) > b.limit {
			b.used.Add(-w.n)
			return
		}
		b.mu.queue = slices.Delete(b.mu.queue, 0, 1)
		b.waiting.Add(-1)
		close(w.ready)
	}
}
