package replication

import (
	"context"
	"sync"
	"time"

	"runnel.dev/runnel/internal/clock"
)

// bucket bounds bytes per second. Who takes more than there is goes into debt, and whoever comes next waits until it is paid, so that a
// batch of any size passes. Safe for concurrent use.
type bucket struct {
	clk clock.Clock
	mu  struct {
		sync.Mutex
		rate    int64   // bytes/s; 0: unlimited
		tokens  float64 // at most a tenth of a second's worth
		at      time.Time
		changed chan struct{} // closed and replaced when the rate changes
	}
}

func newBucket(clk clock.Clock, rate int64) *bucket {
	b := &bucket{clk: clk}
	b.mu.rate, b.mu.at, b.mu.changed = rate, clk.Now(), make(chan struct{})
	return b
}

func (b *bucket) rate() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.rate
}

func (b *bucket) setRate(rate int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refillLocked()
	b.mu.rate = max(rate, 0)
	close(b.mu.changed)
	b.mu.changed = make(chan struct{})
}

func (b *bucket) refillLocked() {
	now := b.clk.Now()
	b.mu.tokens = min(b.mu.tokens+now.Sub(b.mu.at).Seconds()*float64(b.mu.rate), float64(b.mu.rate)/10)
	b.mu.at = now
}

// wait returns once there is no debt, or with the error of ctx.
func (b *bucket) wait(ctx context.Context) error {
	for {
		b.mu.Lock()
		b.refillLocked()
		var left time.Duration
		if b.mu.rate > 0 && b.mu.tokens < 0 {
			left = time.Duration(-b.mu.tokens / float64(b.mu.rate) * float64(time.Second))
		}
		changed := b.mu.changed
		b.mu.Unlock()
		if left <= 0 {
			return nil
		}
		timer := b.clk.NewTimer(left + time.Microsecond)
		select {
		case <-timer.C():
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// take takes n bytes that are sent now.
func (b *bucket) take(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.rate > 0 {
		b.refillLocked()
		b.mu.tokens -= float64(n)
	}
}
