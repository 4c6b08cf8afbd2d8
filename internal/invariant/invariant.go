// Package invariant checks what must always hold. The checks are active in
// test binaries and in builds with the tag "invariants"; elsewhere they cost
// one branch. A broken invariant is a bug in Runnel, never bad input, so it
// panics.
package invariant

import "fmt"

// Check panics with the message if cond is false and checks are active.
//
// The arguments are evaluated, and boxed, even where checks are inactive. On a
// path where that counts, or where cond itself is costly, guard the call:
//
//	if invariant.Enabled() {
//		invariant.Check(sorted(segments), "segments out of order: %v", segments)
//	}
func Check(cond bool, format string, args ...any) {
	if !cond && Enabled() {
		fail(format, args)
	}
}

func fail(format string, args []any) {
	panic("invariant broken: " + fmt.Sprintf(format, args...))
}
