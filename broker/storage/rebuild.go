package storage

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs"
)

// rebuild puts a directory with the intact part in the place of the damaged one, and opens it.
func (s *Store) rebuild(ctx context.Context, k partitionKey, p *partition, plan RecoverPlan, m log.Meta) (*log.Log, error) {
	if plan.missing {
		l, err := s.makeLog(ctx, m, log.StartState{Offset: plan.KeepTo, Epochs: plan.epochs})
		if err != nil {
			return nil, err
		}
		if err := s.commit(newState(l)); err != nil {
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	}
	temporary := plan.Dir + recoveringSuffix
	if err := s.makeCopy(ctx, plan, m, temporary); err != nil {
		return nil, err
	}
	if err := s.retire(k, p); err != nil {
		return nil, err
	}
	if err := s.swapDirs(k, plan.Dir, plan.SetAside, temporary); err != nil {
		return nil, err
	}
	return s.openJournaled(ctx, plan.Dir, m, journalRecord{
		key: k, logID: m.LogID, kind: kindState,
		flushed: plan.KeepTo, highWatermark: min(max(plan.known.highWatermark, plan.KeepFrom), plan.KeepTo), logStart: plan.KeepFrom,
		epochs: newestEpochs(plan.epochs),
	}, plan.epochs)
}

// retire closes a damaged log and takes it out of the sync rounds: no round may journal its log ID over that of the copy. The
// partition stays quarantined, with what is known of it, so that a recovery that fails from here on can be tried again.
func (s *Store) retire(k partitionKey, p *partition) error {
	if p.log == nil {
		return nil
	}
	st := p.log.State()
	s.set(k, &partition{broken: &st, known: s.knownNow(k, p)})
	s.syncer.detach(p.log)
	return p.log.Close()
}

// knownNow returns what is known of a damaged partition: what the journal said when it was opened, and what has become of it since.
func (s *Store) knownNow(k partitionKey, p *partition) logState {
	if p.log == nil {
		return p.known
	}
	known, ok := s.journal.lookup(k)
	if e := p.log.JournalEntry(); !ok || known.logID != e.LogID {
		known = logState{logID: e.LogID, flushed: e.Flushed, highWatermark: e.HighWatermark, logStart: e.LogStart, wantedStart: e.WantedStart, adopted: e.AdoptedEpoch, epochs: newestEpochs(p.log.Epochs())}
	} else {
		// A log that was damaged when it was opened says 0 everywhere.
		known.flushed, known.highWatermark = max(known.flushed, e.Flushed), max(known.highWatermark, e.HighWatermark)
		known.logStart = max(known.logStart, e.LogStart)
		known.wantedStart = max(known.wantedStart, e.WantedStart)
		known.adopted = max(known.adopted, e.AdoptedEpoch)
	}
	return known
}

// makeCopy builds the directory that takes the damaged one's place, durably.
func (s *Store) makeCopy(ctx context.Context, plan RecoverPlan, m log.Meta, to string) error {
	start := log.StartState{Offset: plan.KeepTo, Epochs: plan.epochs}
	if len(plan.keep) > 0 {
		start.Offset = plan.keep[0].base
	}
	if err := s.fsys.RemoveAll(to); err != nil {
		return err
	}
	oc, err := s.openConfig(to, m)
	if err != nil {
		return err
	}
	oc.Host = noHost{}
	l, err := log.Create(ctx, oc, m, start)
	if err != nil {
		return err
	}
	if err := l.Close(); err != nil {
		return err
	}
	// What Close wrote describes an empty log.
	entries, err := s.fsys.ReadDir(to)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if log.IsFile(e.Name) && e.Name != log.MetaFile && e.Name != "epochs" {
			if err := s.fsys.Remove(filepath.Join(to, e.Name)); err != nil {
				return err
			}
		}
	}
	return s.copyKept(ctx, plan, to)
}

// noHost is the host of a log that is made and closed at once.
type noHost struct{}

func (noHost) MarkDirty(*log.Log)                                 {}
func (noHost) JournalNow(context.Context, log.JournalEntry) error { return ErrClosed }
func (noHost) Failed(*log.Log, error)                             {}

// copyKept copies the intact batches and the producer snapshots among them, durably. Indexes are rebuilt when the log is opened.
func (s *Store) copyKept(ctx context.Context, plan RecoverPlan, to string) error {
	for _, seg := range plan.keep {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := segment.FileName(seg.base, segment.ExtLog)
		if err := copyFile(s.fsys, filepath.Join(plan.Dir, name), filepath.Join(to, name), seg.size); err != nil {
			return err
		}
	}
	entries, err := s.fsys.ReadDir(plan.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		at, ext, ok := segment.ParseFileName(e.Name)
		if !ok || ext != segment.ExtSnapshot || at > plan.KeepTo || len(plan.keep) == 0 {
			continue
		}
		if err := copyFile(s.fsys, filepath.Join(plan.Dir, e.Name), filepath.Join(to, e.Name), e.Size); err != nil {
			return err
		}
	}
	return s.fsys.SyncDir(to)
}

// copyFile copies the first n bytes of a file, and syncs the copy.
func copyFile(fsys vfs.FS, from, to string, n int64) (err error) {
	src, err := fsys.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	if err := removeIfExists(fsys, to); err != nil {
		return err
	}
	dst, err := fsys.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	buf := make([]byte, min(n, 1<<20))
	for pos := int64(0); pos < n; {
		chunk := buf[:min(int64(len(buf)), n-pos)]
		if _, err := src.ReadAt(chunk, pos); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if _, err := dst.WriteAt(chunk, pos); err != nil {
			return err
		}
		pos += int64(len(chunk))
	}
	return dst.Sync()
}
