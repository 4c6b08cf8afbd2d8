package clock

import "time"

// System returns the clock of the operating system.
func System() Clock { return system{} }

type system struct{}

func (system) Now() time.Time { return time.Now() }

func (system) Since(t time.Time) time.Duration { return time.Since(t) }

func (system) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

func (system) NewTicker(d time.Duration) Ticker { return systemTicker{time.NewTicker(d)} }

func (system) After(d time.Duration) <-chan time.Time { return time.After(d) }

func (system) AfterFunc(d time.Duration, f func()) Timer {
	return systemTimer{time.AfterFunc(d, f)}
}

type systemTimer struct{ *time.Timer }

func (t systemTimer) C() <-chan time.Time { return t.Timer.C }

type systemTicker struct{ *time.Ticker }

func (t systemTicker) C() <-chan time.Time { return t.Ticker.C }
