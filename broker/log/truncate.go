package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record"
)

// Truncate removes everything from offset to on: the end becomes the base offset of the batch that holds to. The
// flushed offset and the high watermark go down with it, and whatever was captured before the call is void
// (TruncationGen). ErrNoSpace, and ErrReadOnlyFS or ErrIO, when nothing has changed. *OutOfRangeError if the new end would lie below the log start, which may be in the middle of a batch:
// such a log has to be created anew. At or above the end, only epochs without batches go. Blocks for the journal and the
// disk; appends and log-start moves wait. If the journal refuses, nothing has changed.
//
// Crash windows, in order:
//  0. the new epoch checkpoint is written beside the old one, where Open removes it: nothing that comes later takes
//     space, so a full disk refuses a truncation and leaves the log as it was;
//  1. the journal gets the lower bound, durably: a crash before leaves the log as it was, a crash after leaves a log
//     that may be recovered from to on, at any point of what follows;
//  2. snapshots and segments above the bound are unlinked, newest first, and the directory is synced: no snapshot of
//     the removed future can come back;
//  3. the last segment is cut and synced: nothing of the removed future can follow a later append;
//  4. the new epoch checkpoint gets its name. Until then it may name epochs that start above the end. They are void in the
//     journal, they describe no bytes, and recovery drops those that lie above the recovered end.
//
// An error of the disk in 2 to 4 fails the log: its memory and its files may differ, until it is opened again.
func (l *Log) Truncate(ctx context.Context, to int64) error {
	l.startMu.Lock()
	defer l.startMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if s := l.state.Load(); s.Health != Online && s.Health != ReadOnly {
		return s.Err
	}
	start, end := l.logStart.Load(), l.end.Load()
	if to < start {
		return &OutOfRangeError{Asked: to, Earliest: start, Latest: end}
	}
	if to >= end {
		// An epoch that begins at the end has no batch. It goes all the same: batches of the epochs below it may follow.
		if g := *l.epochs.Load(); len(g.before(end)) == len(g) {
			return nil
		}
		to = end
	}
	to, err := l.boundary(to)
	if err != nil {
		return l.readFailed(err)
	}
	if to < start {
		return &OutOfRangeError{Asked: to, Earliest: start, Latest: end}
	}
	if err := l.prepareEpochs(to); err != nil {
		return err
	}
	// Odd while readers may meet bytes that disappear; even again when memory and files agree.
	l.truncations.Add(1)
	defer func() {
		l.mu.Lock()
		l.mu.cutting = math.MaxInt64
		l.mu.Unlock()
		l.truncations.Add(1)
		if l.end.Load() > l.flushed.Load() {
			l.markDirty() // a round that this voided has to be repeated
		}
	}()
	if err := l.journalTruncation(ctx, to); err != nil {
		return err
	}
	if err := l.cut(to); err != nil {
		return l.syncFailed(fmt.Errorf("truncate to %d: %w", to, err))
	}
	l.w.tailDirty = false
	return nil
}

// prepareEpochs writes the checkpoint for a log that ends at to, without giving it its name. Needs appendMu.
func (l *Log) prepareEpochs(to int64) error {
	err := prepareFile(l.fs, filepath.Join(l.dir, epochsName), encodeEpochs(l.epochs.Load().before(to)))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errSync):
		return l.syncFailed(fmt.Errorf("truncate to %d: %w", to, err))
	default:
		return fmt.Errorf("truncate to %d: %w", to, diskError(err))
	}
}

// boundary returns the base offset of the batch that holds offset to: the lower bound in the journal must not lie
// within a batch that disappears as a whole.
func (l *Log) boundary(to int64) (int64, error) {
	s := find(l.segments(), to)
	if s == nil || to == s.Base() {
		return to, nil
	}
	err := s.Walk(to, func(h record.Header, _ int64) error {
		to = h.BaseOffset
		return errFound
	})
	if errors.Is(err, errFound) {
		err = nil
	}
	return to, err
}

var errFound = errors.New("found")

// journalTruncation makes the lower bound known to everybody: first to rounds in progress, whose result is void from
// here on, then to the journal.
//
// If that refuses, everything is as before: the epochs of batches that stay still have to be journaled. (Rounds that ran
// meanwhile were void, and appendMu keeps new epochs away.)
func (l *Log) journalTruncation(ctx context.Context, to int64) error {
	l.mu.Lock()
	flushed, hw, unjournaled, uncheckpointed := l.flushed.Load(), l.hw.Load(), l.mu.unjournaled, l.mu.uncheckpointed
	l.mu.cutting = to
	l.flushed.Store(min(l.flushed.Load(), to))
	l.hw.Store(min(l.hw.Load(), to))
	l.mu.unjournaled = lineage(l.mu.unjournaled).before(to)
	l.mu.uncheckpointed = lineage(l.mu.uncheckpointed).before(to)
	l.mu.Unlock()
	e := l.JournalEntry()
	e.Truncated = true
	err := l.journal(ctx, e)
	if err == nil {
		return nil
	}
	l.mu.Lock()
	l.flushed.Store(flushed)
	l.hw.Store(max(hw, l.hw.Load()))
	l.mu.unjournaled, l.mu.uncheckpointed = unjournaled, uncheckpointed
	l.mu.Unlock()
	return fmt.Errorf("journal truncation to %d: %w", to, err)
}

// cut needs appendMu and startMu.
func (l *Log) cut(to int64) error {
	segs := l.segments()
	n := len(segs)
	for n > 1 && segs[n-1].Base() >= to {
		n--
	}
	kept := append([]*segment.Segment(nil), segs[:n]...)
	last := kept[n-1]
	// Readers first: the end goes down before anything disappears.
	l.mu.Lock()
	l.end.Store(min(l.end.Load(), max(to, last.Base())))
	l.segs.Store(&kept)
	l.mu.Unlock()
	for i := len(segs) - 1; i >= n; i-- {
		segs[i].Retire()
		if err := segment.RemoveFiles(l.fs, l.dir, segs[i].Base()); err != nil {
			return err
		}
	}
	if err := l.removeSnapshotsAbove(to); err != nil {
		return err
	}
	if err := l.dropClean(); err != nil {
		return err
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	ref, err := last.AcquireWritable()
	if err != nil {
		return err
	}
	defer func() { _ = ref.Release() }()
	last.Unseal()
	end, err := last.Truncate(ref, to)
	if err != nil {
		return err
	}
	return l.afterCut(end, to, last)
}

// afterCut brings offsets, epochs and producers down to the new end, which may lie below the asked one, for which the epochs are
// prepared.
func (l *Log) afterCut(end, asked int64, last *segment.Segment) error {
	l.mu.Lock()
	g := (*l.epochs.Load()).before(end)
	l.epochs.Store(&g)
	l.end.Store(end)
	l.flushed.Store(min(l.flushed.Load(), end))
	l.hw.Store(min(l.hw.Load(), end))
	l.mu.unjournaled = lineage(l.mu.unjournaled).before(end)
	l.mu.uncheckpointed = lineage(l.mu.uncheckpointed).before(end)
	l.mu.Unlock()
	if last.Size() == 0 {
		l.w.firstAt = time.Time{}
	}
	l.w.midSnapshot, l.w.snapshotSize = 0, last.Size()
	checkpoint := l.commitEpochs
	if end != asked {
		checkpoint = func() error { return l.checkpointEpochs(true) }
	}
	if err := checkpoint(); err != nil {
		return err
	}
	if err := l.rebuildProducers(); err != nil {
		return err
	}
	return l.tidySnapshots()
}

// removeSnapshotsAbove unlinks every snapshot that describes offsets from to on. One at to itself stays.
func (l *Log) removeSnapshotsAbove(to int64) error {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if base, ext, ok := segment.ParseFileName(e.Name); ok && ext == segment.ExtSnapshot && base > to {
			if err := removeIfThere(l.fs, segment.Path(l.dir, base, ext)); err != nil {
				return err
			}
		}
	}
	return nil
}

// rebuildProducers makes the producer state at the end anew. Needs appendMu.
func (l *Log) rebuildProducers() error {
	ps, err := l.producersAt(l.end.Load())
	if err == nil {
		ps.maxID = max(ps.maxID, l.w.producers.maxID)
		l.w.producers = ps
	}
	return err
}

func removeIfThere(fsys vfs.FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
