package partition

import "sync"

// Workers is a pool for work that waits for the disk. Its goroutines end when there is nothing left to do. Safe for concurrent use.
type Workers struct {
	limit int
	wg    sync.WaitGroup
	mu    struct {
		sync.Mutex
		queue   []func()
		running int
	}
}

// NewWorkers returns a pool of at most limit goroutines, 1 or more.
func NewWorkers(limit int) *Workers { return &Workers{limit: max(limit, 1)} }

// Go runs f as soon as a goroutine is free. It does not wait.
func (w *Workers) Go(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.running == w.limit {
		w.mu.queue = append(w.mu.queue, f)
		return
	}
	w.mu.running++
	w.wg.Go(func() { w.work(f) })
}

func (w *Workers) work(f func()) {
	for f != nil {
		f()
		f = w.next()
	}
}

// next returns the oldest work that waits; nil ends the goroutine.
func (w *Workers) next() func() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.queue) == 0 {
		w.mu.queue = nil
		w.mu.running--
		return nil
	}
	f := w.mu.queue[0]
	w.mu.queue[0] = nil
	w.mu.queue = w.mu.queue[1:]
	return f
}

// Wait returns once nothing runs. The caller sees to it that nothing new comes.
func (w *Workers) Wait() { w.wg.Wait() }
