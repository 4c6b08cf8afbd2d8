package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/broker/segment"
)

// ApplyRetention deletes segments that are too old, or that exceed the size bound, and forgets idle producers. It
// never deletes an offset at or above the high watermark or the flushed offset. A segment's age is that of its largest
// timestamp. It returns how many segments were deleted. Blocks for the journal, not for appends.
func (l *Log) ApplyRetention(ctx context.Context, now time.Time) (deleted int, err error) {
	l.expireProducers(now)
	if err := l.readable(); err != nil {
		return 0, err
	}
	if l.state.Load().Health == Failed {
		return 0, l.state.Load().Err
	}
	l.startMu.Lock()
	defer l.startMu.Unlock()
	l.collectGarbage()
	start, err := l.retentionStart(now)
	if err != nil {
		return 0, l.readFailed(err)
	}
	if start <= l.logStart.Load() {
		return 0, nil
	}
	before := len(l.segments())
	if err := l.moveStart(ctx, start); err != nil {
		return 0, err
	}
	return before - len(l.segments()), nil
}

func (l *Log) expireProducers(now time.Time) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.w.producers.expire(now.Add(-l.cfg.Load().ProducerIDExpiry).UnixMilli())
}

// retentionStart returns where the log should begin. Needs startMu.
func (l *Log) retentionStart(now time.Time) (int64, error) {
	cfg := l.cfg.Load()
	safe := min(l.hw.Load(), l.flushed.Load())
	start, total := l.logStart.Load(), l.Size()
	for _, s := range l.segments() {
		if s.Size() == 0 || s.End() > safe {
			return start, nil
		}
		expired := false
		if cfg.RetentionTime >= 0 {
			at, err := l.newestRecord(s, now, cfg)
			if err != nil {
				return start, err
			}
			expired = now.Sub(at) > cfg.RetentionTime
		}
		if !expired && !(cfg.RetentionBytes >= 0 && s.Sealed() && total-s.Size() >= cfg.RetentionBytes) {
			return start, nil
		}
		if !s.Sealed() {
			// The last segment has expired as a whole: the log goes on in an empty one.
			if err := l.rollExpired(s); err != nil {
				if errors.Is(err, ErrFailed) {
					return start, err
				}
				if !errors.Is(err, errNotExpired) {
					l.lg.Warn("expired segment cannot be sealed", "dir", l.dir, "segment", s.Base(), "error", err)
				}
				return start, nil
			}
		}
		start, total = s.End(), total-s.Size()
	}
	return start, nil
}

// newestRecord returns the time of the segment's newest record: its largest timestamp, or, when there is none or it
// lies in a future that the topic does not allow, the time at which the file was last written.
func (l *Log) newestRecord(s *segment.Segment, now time.Time, cfg *Config) (time.Time, error) {
	ms, ok, err := s.MaxTimestamp()
	if err != nil {
		return time.Time{}, err
	}
	if at := time.UnixMilli(ms); ok && !at.After(now.Add(cfg.MaxTimestampAhead)) {
		return at, nil
	}
	st, err := l.fs.Stat(s.Path())
	if err != nil {
		return time.Time{}, fmt.Errorf("age of segment: %w", err)
	}
	return st.ModTime, nil
}

// rollExpired seals s if it is still the active segment and still as it was judged.
func (l *Log) rollExpired(s *segment.Segment) error {
	end := s.End()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	if l.active() != s || s.End() != end {
		return errNotExpired
	}
	return l.rollLocked()
}

var errNotExpired = errors.New("segment was appended to")

// DeleteRecords moves the log start up to offset before (-1: the high watermark) and deletes the segments that lie
// below it. *OutOfRangeError if before lies above the high watermark; nothing happens if it lies below the log start.
// Returns the log start. Blocks for the journal, not for appends.
func (l *Log) DeleteRecords(ctx context.Context, before int64) (newStart int64, err error) {
	l.startMu.Lock()
	defer l.startMu.Unlock()
	if err := l.readable(); err != nil {
		return 0, err
	}
	if l.state.Load().Health == Failed {
		return 0, l.state.Load().Err
	}
	start, hw := l.logStart.Load(), l.hw.Load()
	if before == -1 {
		before = hw
	}
	if before > hw || before < 0 {
		return start, &OutOfRangeError{Asked: before, Earliest: start, Latest: hw}
	}
	if before <= start {
		return start, nil
	}
	if err := l.moveStart(ctx, before); err != nil {
		return l.logStart.Load(), err
	}
	return before, nil
}

// moveStart raises the log start. Needs startMu.
//
// Crash windows: first the segment that becomes the first one, and its producer snapshot, are made durable. Until the
// journal has the new start, durably, nothing else has changed. From then on a restart begins at the new start and
// removes the segments below it. Files are unlinked last, when no reader can be told of them any more; readers that pin
// one keep it.
func (l *Log) moveStart(ctx context.Context, start int64) error {
	if s := find(l.segments(), start); s != nil && s != l.segments()[0] {
		if err := l.keepSnapshot(s.Base()); err != nil {
			return fmt.Errorf("producer snapshot at %d: %w", s.Base(), diskError(err))
		}
	}
	e := l.JournalEntry()
	e.LogStart = start
	if err := l.journal(ctx, e); err != nil {
		return fmt.Errorf("journal log start %d: %w", start, err)
	}
	l.mu.Lock()
	segs := l.segments()
	n := 0
	for n < len(segs)-1 && segs[n].End() <= start {
		n++
	}
	kept := append([]*segment.Segment(nil), segs[n:]...)
	g := (*l.epochs.Load()).from(kept[0].Base())
	l.logStart.Store(start)
	l.epochs.Store(&g)
	l.segs.Store(&kept)
	l.mu.Unlock()
	for _, s := range segs[:n] {
		s.Retire()
		l.garbage = append(l.garbage, s.Base())
	}
	l.collectGarbage()
	return nil
}

// collectGarbage unlinks the files of removed segments; what cannot be unlinked now is tried again at the next pass,
// and by Open. Needs startMu.
func (l *Log) collectGarbage() {
	var left []int64
	for _, base := range l.garbage {
		err := segment.RemoveFiles(l.fs, l.dir, base)
		if err == nil {
			err = removeIfThere(l.fs, segment.Path(l.dir, base, segment.ExtSnapshot))
		}
		if err != nil {
			l.lg.Warn("files of a deleted segment stay for now", "dir", l.dir, "segment", base, "error", err)
			left = append(left, base)
		}
	}
	l.garbage = left
}
