package partition

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Waker is told that a partition may have something new: the high watermark or the log start moved, or leadership changed. Wake
// must not block and must not call the partition; it may be called more often than needed, on the sync goroutine.
type Waker interface {
	Wake()
}

// wakers is a set that is copied on change, so that waking takes no lock and allocates nothing.
type wakers struct {
	mu  sync.Mutex
	set atomic.Pointer[[]Waker]
}

// AddWaker registers w until RemoveWaker. A reader registers first and looks afterwards, and so misses nothing.
func (p *Partition) AddWaker(w Waker) {
	p.wakers.mu.Lock()
	defer p.wakers.mu.Unlock()
	next := append(slices.Clone(p.wakers.list()), w)
	p.wakers.set.Store(&next)
}

// RemoveWaker ends a registration; a Wake that is under way may still arrive.
func (p *Partition) RemoveWaker(w Waker) {
	p.wakers.mu.Lock()
	defer p.wakers.mu.Unlock()
	old := p.wakers.list()
	i := slices.Index(old, w)
	if i < 0 {
		return
	}
	next := slices.Delete(slices.Clone(old), i, i+1)
	p.wakers.set.Store(&next)
}

func (w *wakers) list() []Waker {
	if s := w.set.Load(); s != nil {
		return *s
	}
	return nil
}

func (p *Partition) wake() {
	for _, w := range p.wakers.list() {
		w.Wake()
	}
}
