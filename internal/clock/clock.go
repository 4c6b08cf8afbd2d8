// Package clock is the seam between Runnel and time. Logic takes a [Clock] and
// never calls time.Now or time.Sleep, so that tests decide what time it is.
//
// [System] is the real clock, [Fake] one that moves only when it is told to.
package clock

import (
	"context"
	"time"
)

// Clock tells the time and fires timers. Methods are safe for concurrent use.
type Clock interface {
	// Now is the current time.
	Now() time.Time
	// Since is the time that has passed since t.
	Since(t time.Time) time.Duration
	// NewTimer fires once, after d.
	NewTimer(d time.Duration) Timer
	// NewTicker fires every d, which must be positive. A slow receiver misses
	// ticks.
	NewTicker(d time.Duration) Ticker
	// After is the channel of a timer that cannot be stopped.
	After(d time.Duration) <-chan time.Time
	// AfterFunc calls f once, after d. The channel of its timer is nil.
	AfterFunc(d time.Duration, f func()) Timer
}

// Timer is one pending event. After Stop or Reset has returned, the channel
// never delivers a time from before.
type Timer interface {
	// C receives the time when the timer fires.
	C() <-chan time.Time
	// Stop cancels the timer and tells whether it was pending.
	Stop() bool
	// Reset lets the timer fire after d from now, and tells whether it was
	// pending.
	Reset(d time.Duration) bool
}

// Ticker is a repeated event.
type Ticker interface {
	// C receives the time at each tick.
	C() <-chan time.Time
	// Stop ends the ticks. It does not close the channel.
	Stop()
	// Reset starts again with the period d, which must be positive.
	Reset(d time.Duration)
}

// Sleep waits for d or for the end of ctx, whose error it then returns.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
