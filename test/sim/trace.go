package sim

import (
	"fmt"
	"io"
	"time"
)

// tailLines is how much of the trace a failing run prints.
const tailLines = 250

// trace is what happened: a hash over all of it, its last lines, and everything on out if that is set.
type trace struct {
	out  io.Writer
	hash uint64
	buf  []byte
	tail [tailLines][]byte
	n    int
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func newTrace(out io.Writer) trace { return trace{out: out, hash: fnvOffset} }

// tracef adds a line.
func (s *sched) tracef(format string, args ...any) {
	t := &s.trace
	t.buf = appendTime(t.buf[:0], s.now)
	t.buf = fmt.Appendf(t.buf, format, args...)
	t.buf = append(t.buf, '\n')
	h := t.hash
	for _, c := range t.buf {
		h = (h ^ uint64(c)) * fnvPrime
	}
	t.hash = h
	slot := &t.tail[t.n%tailLines]
	*slot = append((*slot)[:0], t.buf...)
	t.n++
	if t.out != nil {
		_, _ = t.out.Write(t.buf)
	}
}

// appendTime writes seconds with six digits behind the point, and a space.
func appendTime(b []byte, d time.Duration) []byte {
	return fmt.Appendf(b, "%3d.%06d ", d/time.Second, d%time.Second/time.Microsecond)
}

// lines returns the last lines, oldest first.
func (t *trace) lines() []string {
	var out []string
	for i := max(0, t.n-tailLines); i < t.n; i++ {
		line := t.tail[i%tailLines]
		out = append(out, string(line[:len(line)-1]))
	}
	return out
}
