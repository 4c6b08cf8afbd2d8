package log

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs"
)

// rollIfDue starts a new segment if the next batch, of n bytes with last offset last, must not go to the active one.
// An empty segment never rolls. Needs appendMu.
func (l *Log) rollIfDue(n int, last int64, now time.Time) error {
	s, cfg := l.active(), l.cfg.Load()
	if s.Size() == 0 {
		return nil
	}
	full := s.Size()+int64(n) > cfg.SegmentBytes || !s.Room(n, last)
	old := !l.w.firstAt.IsZero() && now.Sub(l.w.firstAt) >= cfg.SegmentAge
	if !full && !old {
		return nil
	}
	return l.rollLocked()
}

// Roll seals the active segment, unless it is empty, and starts another one.
func (l *Log) Roll() error {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	if l.active().Size() == 0 {
		return nil
	}
	if err := l.rollLocked(); err != nil {
		return l.writeFailed(err, l.clk.Now())
	}
	return nil
}

// rollLocked needs appendMu and a non-empty active segment.
//
// Crash windows: nothing here is synced. The next sync round takes the index files, the snapshot, the new file's name
// and everything appended so far together, so as long as Flushed is at or below the roll, recovery may find any subset:
// an index that is short or absent is rebuilt; a snapshot that is torn or absent is skipped, and one that lies behind
// the recovered end is removed; a new segment file whose base is not where the old one ends is removed with what
// follows it. A failed step leaves the old segment in charge, and the roll is tried again by the next append. The epoch
// checkpoint comes last, with a sync of its own: without it the journal has the epochs, but a sync that fails is ErrFailed.
func (l *Log) rollLocked() error {
	s, end := l.active(), l.end.Load()
	if l.w.tailDirty {
		ref, err := s.AcquireWritable()
		if err != nil {
			return err
		}
		err = s.CutTail(ref)
		_ = ref.Release()
		if err != nil {
			return err
		}
		l.w.tailDirty = false
	}
	files, err := s.Seal()
	if err != nil {
		return err
	}
	undo := func() {
		s.Unseal()
		for _, f := range files {
			_ = f.Close() // unsynced index and snapshot files mean nothing
		}
	}
	snap, err := l.writeSnapshot(end)
	if err != nil {
		undo()
		return err
	}
	files = append(files, snap)
	next, err := l.createSegment(end)
	if err != nil {
		undo()
		return err
	}
	l.dropMidSnapshot()
	l.mu.Lock()
	segs := append(append(make([]*segment.Segment, 0, len(l.segments())+1), l.segments()...), next)
	l.segs.Store(&segs)
	l.mu.files = append(l.mu.files, files...)
	l.mu.dirDirty = true
	l.mu.Unlock()
	l.w.firstAt = time.Time{}
	l.w.snapshotSize = 0
	if err := l.saveEpochs(); errors.Is(err, ErrFailed) {
		return err
	} else if err != nil {
		l.lg.Warn("epoch checkpoint was not written, the journal keeps the epochs", "dir", l.dir, "error", err)
	}
	l.markDirty()
	return nil
}

// createSegment replaces a file that an earlier, failed attempt may have left.
func (l *Log) createSegment(base int64) (*segment.Segment, error) {
	s, err := segment.Create(l.opts, base)
	if errors.Is(err, fs.ErrExist) {
		if err := segment.RemoveFiles(l.fs, l.dir, base); err != nil {
			return nil, err
		}
		s, err = segment.Create(l.opts, base)
	}
	return s, err
}

// writeSnapshot writes the producer state at offset and returns the open file, for a later sync. The file gets its name
// when it is whole, so that whoever looks at a running log never finds half of one; after a crash it may be torn.
func (l *Log) writeSnapshot(offset int64) (vfs.File, error) {
	name := segment.Path(l.dir, offset, segment.ExtSnapshot)
	content := encodeSnapshot(offset, l.w.producers.export())
	if err := fits(name, len(content)); err != nil {
		return nil, err
	}
	f, err := createTruncated(l.fs, name+tmpSuffix)
	if err != nil {
		return nil, fmt.Errorf("write producer snapshot: %w", err)
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = l.fs.Rename(name+tmpSuffix, name)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write producer snapshot %s: %w", name, err)
	}
	return f, nil
}

// snapshotIfDue bounds what a recovery has to walk within a large segment. It is an optimisation: errors are ignored,
// and the next attempt comes an interval later. Needs appendMu.
func (l *Log) snapshotIfDue(s *segment.Segment) {
	if s.Size()-l.w.snapshotSize < l.cfg.Load().SnapshotInterval {
		return
	}
	l.w.snapshotSize = s.Size()
	end := l.end.Load()
	f, err := l.writeSnapshot(end)
	if err != nil {
		l.lg.Warn("producer snapshot was not written", "dir", l.dir, "error", err)
		return
	}
	l.dropMidSnapshot()
	l.w.midSnapshot = end
	l.mu.Lock()
	l.mu.files = append(l.mu.files, f)
	l.mu.dirDirty = true
	l.mu.Unlock()
}

// dropMidSnapshot removes the snapshot within the active segment that a newer one replaces.
func (l *Log) dropMidSnapshot() {
	if l.w.midSnapshot == 0 || l.w.midSnapshot == l.end.Load() {
		l.w.midSnapshot = 0
		return
	}
	_ = l.fs.Remove(segment.Path(l.dir, l.w.midSnapshot, segment.ExtSnapshot)) // Open removes what stays
	l.w.midSnapshot = 0
}
