package mem

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"runnel.dev/runnel/tiering/objectstore"
)

// Call is one call of a store's method.
type Call struct {
	Op  objectstore.Op
	Key string // the prefix, of a list; the first key, of a delete
	// N is the number of the call among those of its Op, from 1.
	N int64
	// Offset and Length are those of a Get.
	Offset, Length int64
}

// Fault is what goes wrong with a call. Fields combine; they take effect in the
// order in which they stand here. The zero value is no fault.
type Fault struct {
	// Slow is how long the call takes on the clock of the store before it does
	// anything.
	Slow time.Duration
	// Before is an error that is returned without anything having happened:
	// objectstore.ErrUnavailable, ErrThrottled, ErrDenied, or another one.
	Before error
	// Hang waits for the end of the context without anything having happened.
	Hang bool
	// Body changes the bytes on their way: of a Put those that arrive, of a Get
	// those that are read.
	Body BodyFault
	// BodyAt is the byte that Body concerns, from the start of what is sent.
	BodyAt int64
	// Stale lets a List show the state as it was before the last Stale changes,
	// up to MaxStale.
	Stale int
	// After is an error that is returned although the call took effect, as if
	// the answer had been lost.
	After error
	// HangAfter lets the call take effect and then waits for the end of the
	// context: success, then a timeout.
	HangAfter bool
}

// BodyFault is what happens to a body.
type BodyFault uint8

// The faults of bodies. A body that ends before BodyAt is left alone.
const (
	// NoBodyFault leaves the bytes alone.
	NoBodyFault BodyFault = iota
	// Truncate ends the body before byte BodyAt.
	Truncate
	// Flip changes a bit of byte BodyAt.
	Flip
	// Stall waits for the end of the context before byte BodyAt.
	Stall
)

// Injector decides the fate of each call before it begins. It is called
// concurrently, without locks of the store.
type Injector func(Call) Fault

// Always gives all calls of the methods the same fault; without methods, those
// of every one.
func Always(f Fault, ops ...objectstore.Op) Injector {
	return func(c Call) Fault {
		if len(ops) == 0 || slices.Contains(ops, c.Op) {
			return f
		}
		return Fault{}
	}
}

// Nth gives a fault to the n-th call (from 1) of a method that the injector
// sees.
func Nth(op objectstore.Op, n int, f Fault) Injector {
	var mu sync.Mutex
	seen := 0
	return func(c Call) Fault {
		if c.Op != op {
			return Fault{}
		}
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen == n {
			return f
		}
		return Fault{}
	}
}

// Unavailable is the fault of a service that answers 5xx, or not at all.
func Unavailable() Fault {
	return Fault{Before: fmt.Errorf("%w: injected", objectstore.ErrUnavailable)}
}

// Throttled is the fault of a service that asks for fewer requests.
func Throttled() Fault {
	return Fault{Before: fmt.Errorf("%w: injected", objectstore.ErrThrottled)}
}
