package clock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"runnel.dev/runnel/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var start = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)

// fired tells whether a time is waiting in the channel, and which.
func fired(ch <-chan time.Time) (time.Duration, bool) {
	select {
	case t := <-ch:
		return t.Sub(start), true
	default:
		return 0, false
	}
}

func wantFired(t *testing.T, ch <-chan time.Time, at time.Duration) {
	t.Helper()
	if got, ok := fired(ch); !ok || got != at {
		t.Fatalf("fired %v at %v, want at %v", ok, got, at)
	}
}

func wantQuiet(t *testing.T, ch <-chan time.Time) {
	t.Helper()
	if got, ok := fired(ch); ok {
		t.Fatalf("fired at %v, want nothing", got)
	}
}

func TestFakeTimer(t *testing.T) {
	c := clock.NewFake(start)
	timer := c.NewTimer(10 * time.Second)
	c.Advance(9 * time.Second)
	wantQuiet(t, timer.C())
	c.Advance(5 * time.Second)
	wantFired(t, timer.C(), 10*time.Second) // the deadline, not the time of the advance
	if c.Since(start) != 14*time.Second {
		t.Fatalf("the clock shows %v", c.Since(start))
	}
	if timer.Stop() {
		t.Error("a fired timer was pending")
	}
	if timer.Reset(time.Second) {
		t.Error("a fired timer was pending")
	}
	if !timer.Reset(2 * time.Second) {
		t.Error("a reset timer was not pending")
	}
	c.Advance(time.Second)
	wantQuiet(t, timer.C())
	if !timer.Stop() {
		t.Error("a stopped timer was not pending")
	}
	c.Advance(time.Hour)
	wantQuiet(t, timer.C())
	wantFired(t, c.After(0), c.Since(start))
	wantFired(t, c.NewTimer(-1).C(), c.Since(start))
}

func TestFakeTimerForgetsOldTimes(t *testing.T) {
	c := clock.NewFake(start)
	timer := c.NewTimer(time.Second)
	c.Advance(time.Second)
	timer.Reset(time.Second) // the first time was never received
	wantQuiet(t, timer.C())
	c.Advance(time.Second)
	timer.Stop()
	wantQuiet(t, timer.C())
}

func TestFakeTicker(t *testing.T) {
	c := clock.NewFake(start)
	ticker := c.NewTicker(time.Second)
	c.Advance(time.Second)
	wantFired(t, ticker.C(), time.Second)
	c.Advance(3 * time.Second) // the receiver is late: one tick is kept
	wantFired(t, ticker.C(), 2*time.Second)
	wantQuiet(t, ticker.C())
	ticker.Reset(5 * time.Second)
	c.Advance(4 * time.Second)
	wantQuiet(t, ticker.C())
	c.Advance(time.Second)
	wantFired(t, ticker.C(), 9*time.Second)
	ticker.Stop()
	c.Advance(time.Hour)
	wantQuiet(t, ticker.C())
	if c.Pending() != 0 {
		t.Errorf("%d pending events", c.Pending())
	}
}

func TestFakeFiresInOrder(t *testing.T) {
	c := clock.NewFake(start)
	var got []string
	add := func(name string, d time.Duration) clock.Timer {
		return c.AfterFunc(d, func() { got = append(got, name+c.Since(start).String()) })
	}
	add("c", 3*time.Second)
	add("a", time.Second)
	add("b", 3*time.Second)
	add("gone", 2*time.Second).Stop()
	c.AfterFunc(time.Second, func() { add("nested", time.Second) })
	c.AfterFunc(time.Second, func() { add("now", 0) })
	c.Advance(10 * time.Second)
	want := []string{"a1s", "now1s", "nested2s", "c3s", "b3s"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFakeBlockUntil(t *testing.T) {
	c := clock.NewFake(start)
	done := make(chan time.Duration)
	for range 2 {
		go func() {
			<-c.After(time.Second)
			done <- c.Since(start)
		}()
	}
	if err := c.BlockUntil(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	c.Advance(time.Second)
	for range 2 {
		if got := <-done; got != time.Second {
			t.Errorf("woke at %v", got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.BlockUntil(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestFakePanics(t *testing.T) {
	c := clock.NewFake(start)
	for name, f := range map[string]func(){
		"advance": func() { c.Advance(-1) },
		"ticker":  func() { c.NewTicker(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// Both clocks follow one script; the system clock runs in a bubble of virtual
// time.
func TestSystemBehavesLikeFake(t *testing.T) {
	script := func(c clock.Clock, pass func(time.Duration)) []time.Duration {
		var got []time.Duration
		began := c.Now()
		take := func(ch <-chan time.Time) {
			select {
			case at := <-ch:
				got = append(got, at.Sub(began))
			default:
				got = append(got, -1)
			}
		}
		timer, ticker := c.NewTimer(time.Minute), c.NewTicker(10*time.Second)
		calls := 0
		c.AfterFunc(15*time.Second, func() { calls++ })
		after := c.After(20 * time.Second)
		pass(25 * time.Second)
		take(timer.C())
		take(ticker.C())
		take(after)
		got = append(got, time.Duration(calls))
		timer.Reset(time.Second)
		ticker.Reset(2 * time.Second)
		pass(3 * time.Second)
		take(timer.C())
		take(ticker.C())
		ticker.Stop()
		pass(time.Minute)
		take(ticker.C())
		return append(got, c.Since(began))
	}
	fake := clock.NewFake(start)
	want := script(fake, fake.Advance)
	synctest.Test(t, func(t *testing.T) {
		got := script(clock.System(), func(d time.Duration) {
			if err := clock.Sleep(t.Context(), clock.System(), d); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		})
		if !slices.Equal(got, want) {
			t.Errorf("system clock %v, fake clock %v", got, want)
		}
	})
}

func TestSleep(t *testing.T) {
	c := clock.NewFake(start)
	if err := clock.Sleep(t.Context(), c, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- clock.Sleep(ctx, c, time.Second) }()
	if err := c.BlockUntil(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	c.Advance(time.Second)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	go func() { result <- clock.Sleep(ctx, c, time.Second) }()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if err := clock.Sleep(ctx, c, time.Second); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if c.Pending() != 0 {
		t.Errorf("%d timers left", c.Pending())
	}
}
