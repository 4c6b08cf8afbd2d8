package client

import (
	"context"
	"sync"
	"time"

	"runnel.dev/runnel/internal/clock"
)

// timers runs functions at their times on one goroutine, so that a partition costs no timer of the runtime's.
type timers struct {
	clk  clock.Clock
	wake chan struct{}
	mu   struct {
		sync.Mutex
		events eventHeap
	}
}

type event struct {
	at  time.Time
	run func(now time.Time, b *batch, gen uint64)
	// b and gen are handed to run; gen tells whether b is still the batch that was meant.
	b   *batch
	gen uint64
}

// eventHeap is a binary heap by time. container/heap would box every event.
type eventHeap []event

func (h *eventHeap) push(e event) {
	*h = append(*h, e)
	q := *h
	for i := len(q) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q[i].at.Before(q[parent].at) {
			break
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
}

func (h *eventHeap) pop() event {
	q := *h
	first, last := q[0], len(q)-1
	q[0], q[last] = q[last], event{}
	q = q[:last]
	*h = q
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q) {
			return first
		}
		if right := child + 1; right < len(q) && q[right].at.Before(q[child].at) {
			child = right
		}
		if !q[child].at.Before(q[i].at) {
			return first
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
}

func newTimers(clk clock.Clock) *timers { return &timers{clk: clk, wake: make(chan struct{}, 1)} }

// at schedules an event. It never blocks and may be called with partition locks held.
func (t *timers) at(e event) {
	t.mu.Lock()
	t.mu.events.push(e)
	first := t.mu.events[0].at.Equal(e.at)
	t.mu.Unlock()
	if first {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// run serves events until ctx ends.
func (t *timers) run(ctx context.Context) {
	timer := t.clk.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := t.fire()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer.C():
		}
	}
}

// fire runs what is due and returns the time until the next event.
func (t *timers) fire() time.Duration {
	for {
		now := t.clk.Now()
		t.mu.Lock()
		if len(t.mu.events) == 0 {
			t.mu.Unlock()
			return time.Hour
		}
		if wait := t.mu.events[0].at.Sub(now); wait > 0 {
			t.mu.Unlock()
			return wait
		}
		e := t.mu.events.pop()
		t.mu.Unlock()
		e.run(now, e.b, e.gen)
	}
}
