package partition

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Waker is told that a partition may have something new: the high watermark or the log start moved, or leadership changed. Wake
// must not block and must not call the partition; it may be called more often than needed, on the sync goroutine.
type Waker interface {
	Wake()
}

// wakers is a set whose members are copied when something is to be woken for the first time after a change: waking takes no lock
// and allocates nothing, and a change costs the same however many wakers there are.
type wakers struct {
	mu      sync.Mutex
	members map[Waker]struct{}
	copied  atomic.Pointer[[]Waker] // nil after a change
}

// AddWaker registers w until RemoveWaker. A reader registers first and looks afterwards, and so misses nothing.
func (p *Partition) AddWaker(w Waker) {
	p.wakers.mu.Lock()
	defer p.wakers.mu.Unlock()
	if p.wakers.members == nil {
		p.wakers.members = map[Waker]struct{}{}
	}
	p.wakers.members[w] = struct{}{}
	p.wakers.copied.Store(nil)
}

// RemoveWaker ends a registration; a Wake that is under way may still arrive.
func (p *Partition) RemoveWaker(w Waker) {
	p.wakers.mu.Lock()
	defer p.wakers.mu.Unlock()
	delete(p.wakers.members, w)
	p.wakers.copied.Store(nil)
}

func (w *wakers) list() []Waker {
	if c := w.copied.Load(); c != nil {
		return *c
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c := slices.Collect(maps.Keys(w.members))
	w.copied.Store(&c)
	return c
}

func (p *Partition) wake() {
	for _, w := range p.wakers.list() {
		w.Wake()
	}
}
