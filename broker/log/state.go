package log

import (
	"fmt"

	"runnel.dev/runnel/internal/vfs"
)

// Health is what a log can do.
type Health uint8

// The states of a log.
const (
	// Online: reads and appends.
	Online Health = iota
	// ReadOnly: the disk refused a write; reads go on, appends resume by themselves.
	ReadOnly
	// Quarantined: flushed bytes are damaged; nothing is served, the files stay untouched.
	Quarantined
	// Failed: a sync failed. Reads go on, appends are over for this process.
	Failed
	// Offline: closed, or its directory could not be opened.
	Offline
)

var healthNames = [...]string{"online", "read-only", "quarantined", "failed", "offline"}

// String returns the name in lower case.
func (h Health) String() string {
	if int(h) < len(healthNames) {
		return healthNames[h]
	}
	return fmt.Sprintf("health(%d)", uint8(h))
}

// State is the health of a log and why.
type State struct {
	Health Health
	Err    error // nil when Online
}

// Detail is the reason in words, empty when Online.
func (s State) Detail() string {
	if s.Err == nil {
		return ""
	}
	return s.Err.Error()
}

// State returns the health of the log. Takes no lock.
func (l *Log) State() State { return *l.state.Load() }

// setState changes the health unless the log is in a state that it cannot leave.
func (l *Log) setState(h Health, err error) {
	var next *State
	for {
		cur := l.state.Load()
		if h == Online && cur.Health == Online {
			return // every append says so
		}
		if cur.Health == Offline || cur.Health == Quarantined && h != Offline || cur.Health == Failed && h != Offline {
			return
		}
		if next == nil {
			next = &State{Health: h, Err: err}
		}
		if l.state.CompareAndSwap(cur, next) {
			return
		}
	}
}

// readable returns the error that reads get, if any.
func (l *Log) readable() error {
	switch s := l.state.Load(); s.Health {
	case Quarantined, Offline:
		return s.Err
	case Online, ReadOnly, Failed:
	}
	return nil
}

// diskError adds the class of a disk error, so that callers need not know errno values.
func diskError(err error) error {
	switch {
	case err == nil:
		return nil
	case vfs.IsNoSpace(err):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case vfs.IsReadOnly(err):
		return fmt.Errorf("%w: %w", ErrReadOnlyFS, err)
	case vfs.IsIO(err):
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return err
}
