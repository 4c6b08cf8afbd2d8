package log

// AdoptEpoch notes that this replica takes part in a leader epoch: it leads it, or has truncated to its leader's history. An epoch
// that is not newer than the one noted changes nothing; nothing but a newer one ever replaces it, a truncation neither. Memory
// only, at once; the journal gets it with the next sync round, after which AdoptedDurable names it and the OnFlushed functions
// are called. Never blocks on the disk.
//
// What it is for: nobody acknowledges anything in an epoch before AdoptedDurable has reached it. So of all directories the one with
// the newest adopted epoch (then: newest epoch with batches, then largest end) holds everything that was acknowledged, even when
// nobody is left to ask who was in sync.
func (l *Log) AdoptEpoch(epoch int32) {
	l.mu.Lock()
	newer := epoch > l.adopted.Load()
	if newer {
		l.adopted.Store(epoch)
	}
	l.mu.Unlock()
	if newer {
		l.markDirty()
	}
}

// Adopted returns the newest leader epoch that this replica takes part in, 0 before the first. (Epochs that brokers lead begin at 1.)
func (l *Log) Adopted() int32 { return l.adopted.Load() }

// AdoptedDurable returns the newest adopted epoch that a crash cannot take back, 0 before the first.
func (l *Log) AdoptedDurable() int32 { return l.adoptedDurable.Load() }
