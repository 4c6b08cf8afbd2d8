package log

import (
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/record"
)

// retryDisk is how long a read-only log waits before an append tries the disk again.
const retryDisk = time.Second

// Appended is the place of a batch in the log.
type Appended struct {
	Base, Last int64 // offsets of the first and last record
	// AppendTimeMS is the time that LogAppendTime stamped, -1 with CreateTime.
	AppendTimeMS int64
	// End is the log end behind the batch: it is acknowledged once the flushed offset (or the high watermark) is ≥ End
	// in the same truncation generation.
	End           int64
	TruncationGen uint64
	// Duplicate: the batch was appended before; Base and Last are the original's.
	Duplicate bool
}

// Append appends one batch as leader. b is exactly one batch that record.Validator accepted, and h its header; b is
// borrowed for the call, and base offset, leader epoch and, with LogAppendTime, timestamps are stamped into it. An epoch
// newer than the log's is assigned at its end first.
//
// Nothing was appended if an error is returned: ErrFenced, *BatchTooLargeError, *SequenceError, ErrUnknownProducer,
// ErrProducerFenced, ErrTooManyProducers, ErrReadOnly (with ErrNoSpace, ErrReadOnlyFS or ErrIO), ErrFailed, ErrQuarantined, ErrClosed.
func (l *Log) Append(b []byte, h record.Header, leaderEpoch int32, now time.Time) (Appended, error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	cfg := l.cfg.Load()
	if err := l.readable(); err != nil {
		return Appended{}, err
	}
	if latest := l.LatestEpoch(); leaderEpoch < latest {
		return Appended{}, fencedError(leaderEpoch, latest)
	}
	if h.Size() != len(b) {
		return Appended{}, fmt.Errorf("append: %d bytes given, the header says %d: %w", len(b), h.Size(), record.ErrInvalid)
	}
	if limit := min(int64(cfg.MaxBatchBytes), segment.MaxSize); int64(len(b)) > limit {
		return Appended{}, &BatchTooLargeError{Size: len(b), Limit: int(limit)}
	}
	if dup, ok, err := l.w.producers.check(h); err != nil {
		return Appended{}, err
	} else if ok {
		return l.duplicate(dup, cfg), nil
	}
	l.w.producers.limit = cfg.MaxProducers
	if err := l.w.producers.admit(h, l.hw.Load(), now); err != nil {
		return Appended{}, err
	}
	if err := l.writableAt(now); err != nil {
		return Appended{}, err
	}
	if err := l.assignEpochLocked(leaderEpoch); err != nil {
		return Appended{}, err
	}
	base := l.end.Load()
	record.Stamp(b, base, leaderEpoch)
	at := int64(-1)
	if cfg.TimestampType == LogAppendTime {
		at = now.UnixMilli()
		record.StampLogAppendTime(b, at)
		h.MaxTimestamp = at
	}
	h.BaseOffset, h.LeaderEpoch = base, leaderEpoch
	if err := l.write(b, h, now); err != nil {
		return Appended{}, err
	}
	if l.observer != nil {
		l.observer.ObserveAppend(l, b, h)
	}
	return Appended{Base: base, Last: h.LastOffset(), AppendTimeMS: at, End: h.NextOffset(), TruncationGen: l.truncations.Load()}, nil
}

func (l *Log) duplicate(d pastBatch, cfg *Config) Appended {
	last := d.base + int64(d.delta())
	a := Appended{Base: d.base, Last: last, AppendTimeMS: -1, End: last + 1, TruncationGen: l.truncations.Load(), Duplicate: true}
	if cfg.TimestampType == LogAppendTime {
		a.AppendTimeMS = d.maxTimestamp
	}
	return a
}

// write appends one stamped batch. Needs appendMu.
func (l *Log) write(b []byte, h record.Header, now time.Time) error {
	if err := l.prepareWrite(h, now); err != nil {
		return err
	}
	return l.writeRun(b, h, h.NextOffset(), now)
}

// prepareWrite makes the active segment one that the batch of h may go to. Needs appendMu.
func (l *Log) prepareWrite(h record.Header, now time.Time) error {
	if err := l.dropClean(); err != nil {
		return l.writeFailed(err, now)
	}
	if err := l.boundEpochs(h.BaseOffset); err != nil {
		return l.writeFailed(err, now)
	}
	if err := l.rollIfDue(h.Size(), h.LastOffset(), now); err != nil {
		return l.writeFailed(err, now)
	}
	return nil
}

// writeRun appends a run of stamped batches to the active segment: h is the header of the first, next the offset behind the last.
// Needs appendMu, and prepareWrite.
//
// Crash windows: before the write, nothing happened. A write that did not reach the disk, or did in part, fails its
// checksum or its length and is cut by recovery; nobody was told of it, for Flushed is below it. The same holds for a
// write that failed: what it left is cut off here, or before the next append.
func (l *Log) writeRun(b []byte, h record.Header, next int64, now time.Time) error {
	s := l.active()
	ref, err := s.AcquireWritable()
	if err != nil {
		return l.writeFailed(err, now)
	}
	if l.w.tailDirty {
		if err := s.CutTail(ref); err != nil {
			_ = ref.Release()
			return l.writeFailed(err, now)
		}
		l.w.tailDirty = false
	}
	if err := s.Append(ref, b, h); err != nil {
		l.w.tailDirty = s.CutTail(ref) != nil
		_ = ref.Release()
		return l.writeFailed(err, now)
	}
	l.publish(ref, next)
	l.noteBatches(b, h, now.UnixMilli())
	if l.w.firstAt.IsZero() {
		l.w.firstAt = now
	}
	l.setState(Online, nil)
	l.snapshotIfDue(s)
	l.markDirty()
	return nil
}

// noteBatches takes the batches of a run into the producer state, and counts them. Needs appendMu.
func (l *Log) noteBatches(b []byte, h record.Header, nowMS int64) {
	l.bytesIn.Add(uint64(len(b)))
	l.w.producers.add(h, nowMS)
	records := int64(h.Count)
	for b = b[h.Size():]; len(b) > 0; b = b[h.Size():] {
		h, _ = record.ParseHeader(b) // it was parsed before
		l.w.producers.add(h, nowMS)
		records += int64(h.Count)
	}
	l.recordsIn.Add(uint64(max(0, records))) // #nosec G115 -- not negative
}

// publish makes the bytes up to end visible and remembers that ref's file needs a sync. Both happen under mu: a
// PrepareSync that captures end also takes the file.
func (l *Log) publish(ref segment.Ref, end int64) {
	l.mu.Lock()
	known := false
	for _, r := range l.mu.refs {
		known = known || r.Same(ref)
	}
	if !known {
		l.mu.refs = append(l.mu.refs, ref)
	}
	l.end.Store(end)
	l.mu.Unlock()
	if known {
		_ = ref.Release() // not the last reference: the dirty list holds one
	}
}

// writeFailed makes the log read-only and returns the typed error; a log that a sync has failed stays so. Needs appendMu.
func (l *Log) writeFailed(err error, now time.Time) error {
	if errors.Is(err, ErrFailed) {
		return err
	}
	err = fmt.Errorf("%w: %w", ErrReadOnly, diskError(err))
	l.w.retryAt = now.Add(retryDisk)
	l.setState(ReadOnly, err)
	l.host.Failed(l, err)
	return err
}

// writableAt is writable, except that a read-only log may try the disk again from time to time. Needs appendMu.
func (l *Log) writableAt(now time.Time) error {
	if s := l.state.Load(); s.Health == ReadOnly && !now.Before(l.w.retryAt) {
		return nil
	}
	return l.writable()
}

// writable returns the error that appends get, if any.
func (l *Log) writable() error {
	if s := l.state.Load(); s.Health != Online {
		return s.Err
	}
	return nil
}

// TryResume tests whether a read-only log can be written to again, and if so makes it Online. The Host calls it when
// it has reason to believe so; appends try by themselves once a second.
func (l *Log) TryResume() error {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.state.Load().Health != ReadOnly {
		return l.writable()
	}
	now := l.clk.Now()
	s := l.active()
	ref, err := s.AcquireWritable()
	if err != nil {
		return l.stillReadOnly(err, now)
	}
	defer func() { _ = ref.Release() }()
	if err := s.Probe(ref); err != nil {
		l.w.tailDirty = true
		return l.stillReadOnly(err, now)
	}
	l.w.tailDirty = false
	l.setState(Online, nil)
	return nil
}

func (l *Log) stillReadOnly(err error, now time.Time) error {
	err = fmt.Errorf("%w: %w", ErrReadOnly, diskError(err))
	l.w.retryAt = now.Add(retryDisk)
	l.setState(ReadOnly, err)
	return err
}

// SetReadOnly makes an online log refuse appends because of err, until TryResume: for a Host that watches its reserve.
func (l *Log) SetReadOnly(err error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.state.Load().Health == Online {
		l.w.retryAt = l.clk.Now().Add(24 * 365 * time.Hour)
		l.setState(ReadOnly, fmt.Errorf("%w: %w", ErrReadOnly, err))
	}
}

func fencedError(epoch, latest int32) error {
	return fmt.Errorf("%w: epoch %d, the log knows %d", ErrFenced, epoch, latest)
}
