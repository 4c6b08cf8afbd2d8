package client

import (
	"container/heap"
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

type eventHeap []event

func (h eventHeap) Len() int           { return len(h) }
func (h eventHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h eventHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *eventHeap) Push(x any) { *h = append(*h, x.(event)) } //nolint:errcheck,forcetypeassert // heap of events

// Pop implements heap.Interface.
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*h = old[:len(old)-1]
	return e
}

func newTimers(clk clock.Clock) *timers { return &timers{clk: clk, wake: make(chan struct{}, 1)} }

// at schedules an event. It never blocks and may be called with partition locks held.
func (t *timers) at(e event) {
	t.mu.Lock()
	heap.Push(&t.mu.events, e)
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
		e := heap.Pop(&t.mu.events).(event) //nolint:errcheck,forcetypeassert // heap of events
		t.mu.Unlock()
		e.run(now, e.b, e.gen)
	}
}
