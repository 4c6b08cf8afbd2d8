package log

import (
	"context"
	"errors"
	"fmt"

	"runnel.dev/runnel/broker/segment"
)

// The log start moves in two steps, because replicas have to agree before anybody loses bytes:
//
//	JournalLogStart   this replica agrees: durable, and seen by nobody. Bytes and readers are as before.
//	PublishLogStart   readers are told, durably, and what lies below is unlinked.
//
// The leader publishes once every replica that counts has journaled; the others publish when they hear of it. So whoever leads next
// has journaled at least what was ever published.
//
// Crash windows: journaled and not published, a restart begins with the published start and every byte above it, and JournaledLogStart
// still says what was agreed to. Publishing is journaled before readers see it, so a restart never goes back behind what they saw;
// the unlinking that a crash kept away is done by Open.

// JournaledLogStart returns the largest log start that this replica has durably agreed to, at or above LogStart. Takes no lock.
func (l *Log) JournaledLogStart() int64 { return max(l.wantedStart.Load(), l.logStart.Load()) }

// JournalLogStart makes the log start to durable without publishing it. Nothing happens if it lies at or below JournaledLogStart.
// *OutOfRangeError if it lies above the high watermark or the flushed offset. Blocks for the journal, not for appends.
func (l *Log) JournalLogStart(ctx context.Context, to int64) error {
	l.startMu.Lock()
	defer l.startMu.Unlock()
	if err := l.startMovable(); err != nil {
		return err
	}
	if to <= l.JournaledLogStart() {
		return nil
	}
	if limit := min(l.hw.Load(), l.flushed.Load()); to > limit {
		return &OutOfRangeError{Asked: to, Earliest: l.logStart.Load(), Latest: limit}
	}
	e := l.JournalEntry()
	e.WantedStart = to
	if err := l.journal(ctx, e); err != nil {
		return fmt.Errorf("journal log start %d: %w", to, err)
	}
	l.wantedStart.Store(to)
	return nil
}

// PublishLogStart raises the log start to to, journals it first, and unlinks the segments below. Nothing happens if it lies at or below
// the log start. *OutOfRangeError if it lies above the high watermark. Blocks for the journal, not for appends.
func (l *Log) PublishLogStart(ctx context.Context, to int64) error {
	l.startMu.Lock()
	defer l.startMu.Unlock()
	_, err := l.publishLocked(ctx, to)
	return err
}

// publishLocked returns how many segments were removed. Needs startMu.
func (l *Log) publishLocked(ctx context.Context, to int64) (removed int, err error) {
	if err := l.startMovable(); err != nil {
		return 0, err
	}
	start, hw := l.logStart.Load(), l.hw.Load()
	if to <= start {
		return 0, nil
	}
	if to > hw {
		return 0, &OutOfRangeError{Asked: to, Earliest: start, Latest: hw}
	}
	return l.moveStart(ctx, to)
}

// startMovable returns why the log start cannot move now, if so. On a full disk it can.
func (l *Log) startMovable() error {
	if err := l.readable(); err != nil {
		return err
	}
	if s := l.state.Load(); s.Health == Failed {
		return s.Err
	}
	return nil
}

// DeleteRecords moves the log start up to offset before (-1: the high watermark) and deletes the segments that lie
// below it, for a replica that nobody has to agree with. *OutOfRangeError if before lies above the high watermark; nothing happens if
// it lies below the log start. Returns the log start. Blocks for the journal, not for appends.
func (l *Log) DeleteRecords(ctx context.Context, before int64) (newStart int64, err error) {
	l.startMu.Lock()
	defer l.startMu.Unlock()
	start, hw := l.logStart.Load(), l.hw.Load()
	if before == -1 {
		before = hw
	}
	if before < 0 && l.startMovable() == nil {
		return start, &OutOfRangeError{Asked: before, Earliest: start, Latest: hw}
	}
	_, err = l.publishLocked(ctx, before)
	return l.logStart.Load(), err
}

// moveStart raises the log start. Needs startMu.
//
// Crash windows: first the segment that becomes the first one, and its producer snapshot, are made durable. Until the
// journal has the new start, durably, nothing else has changed. From then on a restart begins at the new start and
// removes the segments below it. Files are unlinked last, when no reader can be told of them any more; readers that pin
// one keep it.
func (l *Log) moveStart(ctx context.Context, start int64) (removed int, err error) {
	if err := l.rollBelow(start); err != nil {
		return 0, err
	}
	if s := find(l.segments(), start); s != nil && s != l.segments()[0] {
		if err := l.keepSnapshot(s.Base()); err != nil {
			return 0, fmt.Errorf("producer snapshot at %d: %w", s.Base(), diskError(err))
		}
	}
	replicaStart := l.findReplicaStart(start)
	e := l.JournalEntry()
	e.LogStart, e.WantedStart = start, max(e.WantedStart, start)
	if err := l.journal(ctx, e); err != nil {
		return 0, fmt.Errorf("journal log start %d: %w", start, err)
	}
	l.mu.Lock()
	segs := l.segments()
	n := 0
	for n < len(segs)-1 && segs[n].End() <= start {
		n++
	}
	kept := append([]*segment.Segment(nil), segs[n:]...)
	g := (*l.epochs.Load()).from(kept[0].Base())
	l.wantedStart.Store(e.WantedStart)
	l.logStart.Store(start)
	l.replicaStart.Store(replicaStart)
	l.epochs.Store(&g)
	l.segs.Store(&kept)
	l.mu.Unlock()
	for _, s := range segs[:n] {
		s.Retire()
		l.garbage = append(l.garbage, s.Base())
	}
	l.retired.Add(uint64(n)) // #nosec G115 -- not negative
	l.collectGarbage()
	return n, nil
}

// rollBelow seals the active segment if all of it lies below start, so that it can go: where segments begin and end is each replica's
// own affair, and the leader may have rolled where this one did not. What cannot be sealed now stays until the next move.
func (l *Log) rollBelow(start int64) error {
	s := l.active()
	if s.Size() == 0 || s.End() > start {
		return nil
	}
	err := l.rollExpired(s)
	switch {
	case err == nil || errors.Is(err, errNotExpired):
		return nil
	case errors.Is(err, ErrFailed):
		return err
	}
	l.lg.Warn("segment below the log start cannot be sealed", "dir", l.dir, "segment", s.Base(), "error", err)
	return nil
}

// TakeRetired returns how many segments log-start moves have removed since the last call. For one caller, who counts.
func (l *Log) TakeRetired() uint64 { return l.retired.Swap(0) }

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
