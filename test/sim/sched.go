package sim

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// sched runs events in virtual time. Events of the same moment run in the order in which they were scheduled.
type sched struct {
	now   time.Duration
	seq   uint64
	queue eventQueue
	rng   *rand.Rand
	trace trace
	cov   *Coverage
	steps int
}

type event struct {
	at  time.Duration
	seq uint64
	run func()
}

// after schedules f.
func (s *sched) after(d time.Duration, f func()) {
	s.seq++
	heap.Push(&s.queue, event{at: s.now + max(d, 0), seq: s.seq, run: f})
}

// step runs the next event; false when there is none.
func (s *sched) step() bool {
	if len(s.queue) == 0 {
		return false
	}
	e := heap.Pop(&s.queue).(event) //nolint:forcetypeassert // the queue holds nothing else
	s.now = e.at
	s.steps++
	e.run()
	return true
}

// chance is true with probability p.
func (s *sched) chance(p float64) bool { return p > 0 && s.rng.Float64() < p }

// between draws a duration from [lo, hi).
func (s *sched) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(s.rng.Int64N(int64(hi-lo)))
}

// pick draws an element.
func pick[T any](s *sched, from []T) T { return from[s.rng.IntN(len(from))] }

// id16 draws an identity.
func (s *sched) id16() (id [16]byte) {
	for i := 0; i < len(id); i += 8 {
		v := s.rng.Uint64()
		for j := range 8 {
			id[i+j] = byte(v >> (8 * j))
		}
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // a version 4 UUID, as the real ones are
	return id
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }

func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}

func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *eventQueue) Push(x any) { *q = append(*q, x.(event)) } //nolint:forcetypeassert // only events are pushed

// Pop implements heap.Interface.
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}
