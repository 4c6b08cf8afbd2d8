package partition

import "sync"

// Waiter is told what became of a produce. Acked is called exactly once, in the order of appends, possibly on the sync
// goroutine: it must not block and must not call the partition.
type Waiter interface {
	Acked(Result)
}

// Result is the outcome of a produce.
type Result struct {
	// Base is the offset of the first record, the original's for a duplicate; -1 with Err.
	Base int64
	// AppendTimeMS is -1 unless the topic stamps log append time.
	AppendTimeMS int64
	LogStart     int64
	Duplicate    bool
	Err          error
}

// waiting is one produce that has not been answered.
type waiting struct {
	waiter Waiter
	result Result
	// end and gen say when it may be answered: once the high watermark reaches end, with the log in the same truncation
	// generation. ready entries only keep their place in the order.
	end   int64
	gen   uint64
	epoch int32
	ready bool
}

// fifo holds what waits, oldest first, in a ring that grows by doubling.
type fifo struct {
	mu   sync.Mutex
	ring []waiting
	head int
	n    int
	// held: the log is being truncated, and its offsets mean nothing until that is done.
	held bool
}

func (f *fifo) pushLocked(w waiting) {
	if f.n == len(f.ring) {
		grown := make([]waiting, max(16, 2*len(f.ring)))
		for i := range f.n {
			grown[i] = f.ring[(f.head+i)%len(f.ring)]
		}
		f.ring, f.head = grown, 0
	}
	f.ring[(f.head+f.n)%len(f.ring)] = w
	f.n++
}

func (f *fifo) frontLocked() *waiting { return &f.ring[f.head] }

func (f *fifo) popLocked() {
	f.ring[f.head] = waiting{} // drop references
	f.head = (f.head + 1) % len(f.ring)
	f.n--
}

// settleLocked answers what the high watermark has passed, and says whom to wake.
//
// Interleavings: every value that an answer rests on is read under pending.mu, after the entry was queued. A truncation takes
// the same lock to set held before it begins, and to clear it after the offsets went down. So no high watermark of before a
// truncation can meet an entry of after it. Needs pending.mu.
func (p *Partition) settleLocked() notes {
	if p.pending.held {
		return 0
	}
	hw, gen := p.log.HighWatermark(), p.log.TruncationGen()
	var n notes
	if hw > p.wokenAt {
		p.wokenAt, n = hw, noteReaders|noteFollowers
	}
	start := p.log.LogStart()
	for p.pending.n > 0 {
		w := p.pending.frontLocked()
		if !w.ready {
			if w.gen != gen {
				w.result = unknown(w, errTruncated)
			} else if w.end > hw {
				break
			}
		}
		w.result.LogStart = start
		waiter, result := w.waiter, w.result
		p.pending.popLocked()
		waiter.Acked(result)
	}
	return n
}

func (p *Partition) settle() {
	p.pending.mu.Lock()
	n := p.settleLocked()
	p.pending.mu.Unlock()
	p.notify(n)
}

// failPendingLocked answers everything that waits. Needs pending.mu.
func (p *Partition) failPendingLocked(cause error) {
	for p.pending.n > 0 {
		w := p.pending.frontLocked()
		if !w.ready {
			w.result = unknown(w, cause)
		}
		waiter, result := w.waiter, w.result
		p.pending.popLocked()
		waiter.Acked(result)
	}
}

func unknown(w *waiting, cause error) Result {
	return Result{Base: -1, AppendTimeMS: -1, Err: &OutcomeError{Offset: w.result.Base, Epoch: w.epoch, Cause: cause}}
}

// Waiting returns how many produces wait for their answer.
func (p *Partition) Waiting() int {
	p.pending.mu.Lock()
	defer p.pending.mu.Unlock()
	return p.pending.n
}
