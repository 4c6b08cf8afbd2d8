package replication

import (
	"errors"
	"fmt"
	"time"
)

// Settings are the transport's knobs. Zero fields take the defaults.
type Settings struct {
	// TailStreams is the number of tail streams to each leader. Default 2, 1 to 4.
	TailStreams int
	// Window is what one partition may have in flight to one follower: sent and not yet acknowledged as flushed. It may be exceeded by
	// one batch. Default 8 MiB, at least 64 KiB.
	Window int64
	// StreamWindow is the same for a whole stream; above it each partition has one quantum. Default 64 MiB, at least Window.
	StreamWindow int64
	// Quantum is what a partition is sent per turn. Default and maximum 256 KiB, at least 4 KiB.
	Quantum int
	// CatchUpRate bounds what all catch-up streams of a leader send together, bytes/s. Default 0: unlimited.
	CatchUpRate int64
	// OffsetsDelay is how long a moved high watermark waits for batches to travel with. A follower needs it only when it comes to lead.
	// Default 20 ms.
	OffsetsDelay time.Duration
	// OpenTimeout bounds how long a follower waits for a leader to welcome a stream. Default 2 s.
	OpenTimeout time.Duration
	// IdleTimeout is how long a stream without subscriptions stays open. Default 30 s.
	IdleTimeout time.Duration
}

// WithDefaults returns s with defaults in place of zeros.
func (s Settings) WithDefaults() Settings {
	set(&s.TailStreams, 2)
	set(&s.Window, 8<<20)
	set(&s.StreamWindow, max(64<<20, s.Window))
	set(&s.Quantum, 256<<10)
	set(&s.OffsetsDelay, 20*time.Millisecond)
	set(&s.OpenTimeout, 2*time.Second)
	set(&s.IdleTimeout, 30*time.Second)
	return s
}

func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Validate returns all faults, joined.
func (s Settings) Validate() error {
	s = s.WithDefaults()
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("replication: "+format, args...))
		}
	}
	check(s.TailStreams >= 1 && s.TailStreams <= 4, "tail streams are %d, they must be 1 to 4", s.TailStreams)
	check(s.Window >= 64<<10, "window is %d bytes, it must be at least %d", s.Window, 64<<10)
	check(s.StreamWindow >= s.Window, "stream window is %d bytes, it must be at least the window, %d", s.StreamWindow, s.Window)
	check(s.Quantum >= 4<<10 && s.Quantum <= 256<<10, "quantum is %d bytes, it must be %d to %d", s.Quantum, 4<<10, 256<<10)
	check(s.CatchUpRate >= 0, "catch-up rate is %d bytes/s, it must not be negative", s.CatchUpRate)
	check(s.OffsetsDelay > 0 && s.OpenTimeout > 0 && s.IdleTimeout > 0, "times %v, %v and %v must be positive", s.OffsetsDelay, s.OpenTimeout, s.IdleTimeout)
	return errors.Join(faults...)
}
