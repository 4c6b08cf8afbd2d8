package log

import (
	"errors"
	"fmt"
	"slices"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs"
)

// SyncPoint is what one sync round covers of one log. It is used by one goroutine at a time and ends with CompleteSync.
type SyncPoint struct {
	l      *Log
	end    int64
	gen    uint64
	refs   []segment.Ref
	files  []vfs.File
	dir    bool
	epochs []EpochStart
	// adopted is the adopted epoch to be journaled, 0 if the journal has it.
	adopted int32
}

// PrepareSync captures, before the sync begins, what a successful one will have made durable: the log end and the
// truncation generation, the files with unsynced bytes, and the epoch starts to be journaled in the same round. Never
// blocks on the disk.
func (l *Log) PrepareSync() SyncPoint {
	// The mark goes first: an append after this line marks the log again, one before it is captured below.
	l.dirty.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	p := SyncPoint{l: l, end: l.end.Load(), gen: l.truncations.Load(), refs: l.mu.refs, files: l.mu.files, dir: l.mu.dirDirty}
	l.mu.refs, l.mu.spareRefs = l.mu.spareRefs[:0], nil
	l.mu.files, l.mu.dirDirty = nil, false
	if a := l.adopted.Load(); a > l.adoptedDurable.Load() {
		p.adopted = a
	}
	for _, e := range l.mu.unjournaled {
		if e.Start < p.end {
			p.epochs = append(p.epochs, e)
		}
	}
	return p
}

// Log returns the log.
func (p SyncPoint) Log() *Log { return p.l }

// End returns the captured log end.
func (p SyncPoint) End() int64 { return p.end }

// NewEpochs returns the epoch starts that must be in the journal, durably, before CompleteSync reports success.
func (p SyncPoint) NewEpochs() []EpochStart { return p.epochs }

// NewAdopted returns the adopted epoch that must be in the journal, durably, before CompleteSync reports success; 0 if none.
func (p SyncPoint) NewAdopted() int32 { return p.adopted }

// SyncFiles makes the captured files durable, and the directory if its entries changed. A round that uses syncfs skips
// it. Blocks on the disk.
func (p SyncPoint) SyncFiles() error {
	for _, r := range p.refs {
		if err := r.Sync(); err != nil {
			return fmt.Errorf("sync log in %s: %w", p.l.dir, err)
		}
	}
	for _, f := range p.files {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("sync %s: %w", f.Name(), err)
		}
	}
	if p.dir {
		if err := p.l.fs.SyncDir(p.l.dir); err != nil {
			return fmt.Errorf("sync directory %s: %w", p.l.dir, err)
		}
	}
	return nil
}

// CompleteSync ends the round. With err == nil the flushed offset moves to the captured end, unless the log was
// truncated meanwhile, AdoptedDurable to the captured epoch, and the OnFlushed functions are called if either moved. Otherwise the log has failed: pages that could not be
// written are marked clean, so no later sync proves anything about them.
func (l *Log) CompleteSync(p SyncPoint, err error) {
	l.mu.Lock()
	l.releaseLocked(p.refs, p.files)
	if l.mu.spareRefs == nil {
		l.mu.spareRefs = p.refs[:0]
	}
	moved, void := false, p.gen != l.truncations.Load() || p.gen%2 == 1
	if err == nil && !void {
		l.mu.unjournaled = without(l.mu.unjournaled, p.epochs)
		if p.end > l.flushed.Load() {
			l.flushed.Store(p.end)
			moved = true
		}
	}
	// What was adopted does not depend on what the log holds: no truncation makes it void.
	if err == nil && p.adopted > l.adoptedDurable.Load() {
		l.adoptedDurable.Store(p.adopted)
		moved = true
	}
	flushed := l.flushed.Load()
	l.mu.Unlock()
	if err != nil {
		_ = l.syncFailed(err) // the Host knows
		return
	}
	if void && l.end.Load() > l.flushed.Load() {
		l.markDirty() // what is left of the log still needs a round of its own
	}
	if fs := l.callbacks.Load(); moved && fs != nil {
		for _, f := range *fs {
			(*f)(flushed)
		}
	}
}

// syncFailed makes the log Failed and tells the Host.
func (l *Log) syncFailed(err error) error {
	failed := fmt.Errorf("%w: %w", ErrFailed, diskError(err))
	l.setState(Failed, failed)
	l.host.Failed(l, failed)
	return failed
}

// AbandonSync ends a round that will not sync the log: what it captured waits for the next one. The Host sees to it that
// there is one, as if MarkDirty had been called.
func (l *Log) AbandonSync(p SyncPoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state.Load().Health == Offline { // Close has released the others
		l.releaseLocked(p.refs, p.files)
		return
	}
	for i, r := range p.refs {
		if slices.ContainsFunc(l.mu.refs, r.Same) {
			_ = r.Release() // not the last reference
		} else {
			l.mu.refs = append(l.mu.refs, r)
		}
		p.refs[i] = segment.Ref{}
	}
	if l.mu.spareRefs == nil {
		l.mu.spareRefs = p.refs[:0]
	}
	l.mu.files = append(l.mu.files, p.files...)
	l.mu.dirDirty = l.mu.dirDirty || p.dir
}

// releaseLocked unpins the files of a round. They are synced, or given up; a close error says nothing more.
func (l *Log) releaseLocked(refs []segment.Ref, files []vfs.File) {
	for i, r := range refs {
		_ = r.Release()
		refs[i] = segment.Ref{}
	}
	for _, f := range files {
		_ = f.Close()
	}
}

func without(all, gone []EpochStart) []EpochStart {
	if len(gone) == 0 {
		return all
	}
	var kept []EpochStart
	for _, e := range all {
		found := false
		for _, g := range gone {
			found = found || e == g
		}
		if !found {
			kept = append(kept, e)
		}
	}
	return kept
}

// SyncNow runs a round for this log alone: for tools and tests without a scheduler. Epochs, new and
// adopted, go to the journal by journal.
func (l *Log) SyncNow(journal func(JournalEntry) error) error {
	p := l.PrepareSync()
	err := p.SyncFiles()
	if err == nil && (len(p.epochs) > 0 || p.adopted > 0) {
		e := l.JournalEntry()
		e.NewEpochs = p.epochs
		err = journal(e)
	}
	l.CompleteSync(p, err)
	if err == nil {
		return nil
	}
	return errors.Join(ErrFailed, err)
}
