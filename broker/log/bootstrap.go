package log

import "errors"

// ReplicaStart returns the offset at which another replica of this log begins: the base of the batch that holds the log start, which a
// user may have put into the middle of one. It lies at or below LogStart, and is LogStart nearly always. Takes no lock.
func (l *Log) ReplicaStart() int64 { return min(l.replicaStart.Load(), l.logStart.Load()) }

// findReplicaStart looks the base of the batch up that holds start. What cannot be read now will not be read by a replica either; such
// a log is found to be damaged then.
func (l *Log) findReplicaStart(start int64) int64 {
	if base, err := l.boundary(start); err == nil {
		return base
	}
	return start
}

// StartStateAt returns what another replica needs to begin at offset: the epochs below, and the producer state there. Offset in the answer
// is the base of the batch that holds offset: a log begins with a whole batch. *OutOfRangeError outside ReplicaStart up to the high
// watermark or the flushed offset, whichever is smaller. Blocks for the disk and for moves of the log start, not for appends; costs a
// walk over the headers from the last producer snapshot below offset on, which for the log start is short.
func (l *Log) StartStateAt(offset int64) (StartState, error) {
	l.startMu.Lock()
	defer l.startMu.Unlock()
	if err := l.readable(); err != nil {
		return StartState{}, err
	}
	start, limit := l.ReplicaStart(), min(l.hw.Load(), l.flushed.Load())
	if offset < start || offset > limit {
		return StartState{}, &OutOfRangeError{Asked: offset, Earliest: start, Latest: limit}
	}
	base, err := l.boundary(offset)
	if err != nil {
		return StartState{}, l.readFailed(err)
	}
	ps, err := l.producersAt(base)
	if errors.Is(err, ErrCorrupt) {
		err = l.readFailed(err)
	}
	if err != nil {
		return StartState{}, err
	}
	return StartState{Offset: base, Epochs: (*l.epochs.Load()).upTo(base), Producers: ps.export()}, nil
}

// ReadReplicaRange is ReadRange for other replicas: up to the log end, and from ReplicaStart on.
func (l *Log) ReadReplicaRange(offset int64, maxBytes int) (Range, error) {
	return l.readRange(offset, maxBytes, l.end.Load(), true)
}
