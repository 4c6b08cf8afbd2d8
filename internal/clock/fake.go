package clock

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Fake is a clock that stands still until [Fake.Advance] moves it. Timers fire
// in the order of their deadlines, equal ones in the order of their creation,
// so a test sees the same order every time.
type Fake struct {
	mu struct {
		sync.Mutex
		now     time.Time
		seq     int64
		pending eventHeap
		changed chan struct{} // closed and replaced when pending changes
	}
}

// NewFake returns a clock that shows start.
func NewFake(start time.Time) *Fake {
	c := &Fake{}
	c.mu.now = start
	c.mu.changed = make(chan struct{})
	return c
}

// Now is the time that the clock shows.
func (c *Fake) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.now
}

// Since is the time that has passed since t.
func (c *Fake) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// Advance moves the clock by d, which must not be negative. Everything that
// falls due fires on the way, with the clock at its deadline; functions of
// AfterFunc run in the calling goroutine and may use the clock.
func (c *Fake) Advance(d time.Duration) {
	if d < 0 {
		panic("clock: advance by a negative duration")
	}
	c.mu.Lock()
	target := c.mu.now.Add(d)
	for len(c.mu.pending) > 0 && !c.mu.pending[0].at.After(target) {
		e := c.mu.pending[0]
		if e.at.After(c.mu.now) {
			c.mu.now = e.at
		}
		if call := c.fireLocked(e); call != nil {
			c.mu.Unlock()
			call()
			c.mu.Lock()
		}
	}
	// A function that ran may itself have advanced the clock beyond target.
	if target.After(c.mu.now) {
		c.mu.now = target
	}
	c.mu.Unlock()
}

// Pending is the number of timers and tickers that wait to fire.
func (c *Fake) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.pending)
}

// BlockUntil waits until at least n timers and tickers are pending, so that a
// test can be sure that other goroutines have armed theirs before it advances
// the clock. It returns the error of ctx if that ends first.
func (c *Fake) BlockUntil(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		enough, changed := len(c.mu.pending) >= n, c.mu.changed
		c.mu.Unlock()
		if enough {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// NewTimer fires once, when the clock has advanced by d; at once if d ≤ 0.
func (c *Fake) NewTimer(d time.Duration) Timer {
	e := &event{clock: c, ch: make(chan time.Time, 1)}
	e.Reset(d)
	return e
}

// NewTicker fires every d. It panics unless d is positive.
func (c *Fake) NewTicker(d time.Duration) Ticker {
	t := fakeTicker{&event{clock: c, ch: make(chan time.Time, 1)}}
	t.Reset(d)
	return t
}

// After is the channel of NewTimer.
func (c *Fake) After(d time.Duration) <-chan time.Time { return c.NewTimer(d).C() }

// AfterFunc calls f when the clock has advanced by d. If d ≤ 0 that is at the
// next Advance, even by 0, so that f never runs inside this call.
func (c *Fake) AfterFunc(d time.Duration, f func()) Timer {
	e := &event{clock: c, call: f}
	e.Reset(d)
	return e
}

// event is a timer or a ticker of a Fake. Its fields are guarded by clock.mu.
type event struct {
	clock  *Fake
	ch     chan time.Time
	call   func()
	period time.Duration // 0: fires once
	at     time.Time
	seq    int64
	index  int // position in the heap + 1; 0: not pending
}

func (e *event) C() <-chan time.Time { return e.ch }

func (e *event) Stop() bool {
	e.clock.mu.Lock()
	defer e.clock.mu.Unlock()
	return e.stopLocked()
}

func (e *event) Reset(d time.Duration) bool {
	e.clock.mu.Lock()
	defer e.clock.mu.Unlock()
	return e.resetLocked(d)
}

func (e *event) resetLocked(d time.Duration) bool {
	was := e.stopLocked()
	c := e.clock
	c.mu.seq++
	e.seq, e.at = c.mu.seq, c.mu.now.Add(max(d, 0))
	if d <= 0 && e.ch != nil {
		e.ch <- c.mu.now
		return was
	}
	heap.Push(&c.mu.pending, e)
	c.changedLocked()
	return was
}

// stopLocked also takes back a time that fired and was not received yet.
func (e *event) stopLocked() bool {
	select {
	case <-e.ch:
	default:
	}
	if e.index == 0 {
		return false
	}
	heap.Remove(&e.clock.mu.pending, e.index-1)
	e.clock.changedLocked()
	return true
}

// fireLocked delivers the first pending event; the caller runs the function
// that it returns, if any, without the lock.
func (c *Fake) fireLocked(e *event) func() {
	if e.period > 0 {
		c.mu.seq++
		e.seq, e.at = c.mu.seq, e.at.Add(e.period)
		heap.Fix(&c.mu.pending, e.index-1)
	} else {
		heap.Pop(&c.mu.pending)
		c.changedLocked()
	}
	if e.ch != nil {
		select {
		case e.ch <- c.mu.now:
		default: // a slow receiver misses the tick
		}
	}
	return e.call
}

func (c *Fake) changedLocked() {
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

type fakeTicker struct{ event *event }

func (t fakeTicker) C() <-chan time.Time { return t.event.ch }

func (t fakeTicker) Stop() { t.event.Stop() }

func (t fakeTicker) Reset(d time.Duration) {
	if d <= 0 {
		panic("clock: ticker period must be positive")
	}
	t.event.clock.mu.Lock()
	defer t.event.clock.mu.Unlock()
	t.event.period = d
	t.event.resetLocked(d)
}

// eventHeap orders pending events by deadline, then by age.
type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }

func (h eventHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}

func (h eventHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

func (h *eventHeap) Push(x any) {
	e := x.(*event)
	*h = append(*h, e)
	e.index = len(*h)
}

func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = 0
	return e
}
