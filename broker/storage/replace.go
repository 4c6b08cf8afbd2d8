package storage

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// ReplaceLog puts a new log in the place of one that is of no use any more, as start says, with a new log ID: to the cluster it is
// another replica. The files of a damaged one (quarantined, or one that cannot be opened) are kept as NAME.damaged.LOGID; those of one
// that is merely to begin anew are deleted. The old *log.Log is closed: its readers finish, everybody else gets log.ErrClosed.
// ErrLogNotFound for a partition that is not here. If it fails, the partition serves nothing and may be replaced again; the old log is
// gone unless the old *log.Log still works. Blocks on the disk; must not be called from an OnFlushed callback.
//
// The caller has made sure that nobody counts on the old log: it is in no in-sync set.
//
// Crash windows: the new directory is made, durably, as NAME.recovering; then the old one is renamed, and that is synced; then the new
// one takes its name, and that is synced; then the journal gets the new log, and last the files of the old one go. Before the first
// rename is durable the next Open finds the old log, whole, and removes the new one; between the renames it finishes. After the
// second, and until the journal has the new log, Open takes it as it is: it holds nothing yet that the journal could bound.
func (s *Store) ReplaceLog(ctx context.Context, topic ids.TopicID, n int32, info TopicInfo, start log.StartState) (*log.Log, error) {
	k := partitionKey{topic, n}
	l, err := s.replaceLog(ctx, k, info, start)
	if err != nil {
		return nil, &PartitionError{Op: "replace", TopicID: topic, Partition: n, Err: err}
	}
	return l, nil
}

func (s *Store) replaceLog(ctx context.Context, k partitionKey, info TopicInfo, start log.StartState) (*log.Log, error) {
	release, err := s.claim(k)
	if err != nil {
		return nil, err
	}
	defer release()
	p, ok := s.get(k)
	if !ok {
		return nil, ErrLogNotFound
	}
	m := log.Meta{TopicID: k.TopicID, Partition: k.Partition, LogID: ids.NewLogID(), TopicName: info.Name, TopicConfig: info.Config}
	place := partitionDir(s.cfg.DataDir, k)
	temporary := place + recoveringSuffix
	epochs, err := s.makeEmpty(ctx, m, start, temporary)
	if err != nil {
		return nil, s.diskFault(err)
	}
	aside, err := s.asideName(k, p, place)
	if err != nil {
		return nil, s.diskFault(err)
	}
	s.lg.Warn("Replacing a log by a new one", "topic_id", k.TopicID.String(), "partition", k.Partition,
		"health", p.state().Health.String(), "begins_at", start.Offset, "old_files", aside)
	s.endLog(k, p)
	if err := s.swapDirs(k, place, aside, temporary); err != nil {
		return nil, s.diskFault(err)
	}
	r := journalRecord{
		key: k, logID: m.LogID, kind: kindState,
		flushed: start.Offset, highWatermark: start.Offset, logStart: start.Offset, wantedStart: start.Offset, epochs: newestEpochs(epochs),
	}
	l, err := s.openJournaled(ctx, place, m, r, epochs)
	if err != nil {
		return nil, s.diskFault(err)
	}
	s.set(k, &partition{log: l})
	s.syncer.markDirty(l)
	s.sweepDeleted(k)
	return l, nil
}

// sweepDeleted removes the directories of replaced logs of k, those of earlier tries too. What does not go is left to the next Open.
func (s *Store) sweepDeleted(k partitionKey) {
	place := partitionDir(s.cfg.DataDir, k)
	entries, err := s.fsys.ReadDir(filepath.Dir(place))
	for _, e := range entries {
		if e.IsDir && strings.HasPrefix(e.Name, filepath.Base(place)+deletedInfix) {
			err = errors.Join(err, s.fsys.RemoveAll(filepath.Join(filepath.Dir(place), e.Name)))
		}
	}
	if err != nil {
		s.lg.Warn("Files of a replaced log stay for now", "topic_id", k.TopicID.String(), "partition", k.Partition, "error", err)
	}
}

// makeEmpty makes a log without batches in dir, durably, and returns its lineage: what start says of it, as far as it makes sense.
func (s *Store) makeEmpty(ctx context.Context, m log.Meta, start log.StartState, dir string) ([]log.EpochStart, error) {
	if err := s.fsys.RemoveAll(dir); err != nil {
		return nil, err
	}
	oc, err := s.openConfig(dir, m)
	if err != nil {
		return nil, err
	}
	oc.Host = noHost{}
	l, err := log.Create(ctx, oc, m, start)
	if err != nil {
		return nil, err
	}
	return l.Epochs(), l.Close()
}

// asideName decides what becomes of the directory in place: it is kept, or deleted under this name. One that an earlier try has made,
// and could not open, is not worth keeping.
func (s *Store) asideName(k partitionKey, p *partition, place string) (string, error) {
	known := s.knownNow(k, p).logID
	st := p.state()
	keep := st.Health == log.Quarantined || p.log == nil && !errors.Is(st.Err, log.ErrClosed)
	found := known
	switch m, err := log.ReadMeta(s.fsys, place); {
	case err == nil:
		found = m.LogID
		keep = keep && (known.IsZero() || found == known)
	case vfs.IsIO(err) && !errors.Is(err, fs.ErrNotExist) && known.IsZero():
		return "", err
	}
	if keep {
		return place + damagedInfix + found.String(), nil
	}
	return place + deletedInfix + found.String(), nil
}

// endLog closes the log of p and takes it out of the sync rounds. The partition stays, and serves nothing.
func (s *Store) endLog(k partitionKey, p *partition) {
	if p.log == nil {
		return
	}
	st := p.log.State()
	if st.Health != log.Quarantined {
		st = log.State{Health: log.Offline, Err: log.ErrClosed}
	}
	s.set(k, &partition{broken: &st, known: s.knownNow(k, p)})
	s.syncer.detach(p.log)
	if err := p.log.Close(); err != nil {
		s.lg.Warn("Closing a replaced partition failed", "topic_id", k.TopicID.String(), "partition", k.Partition, "error", err)
	}
}

// swapDirs gives the directory in place another name, and its own to the one beside it. The one in place may be missing.
func (s *Store) swapDirs(k partitionKey, place, aside, temporary string) error {
	parent := topicDir(s.cfg.DataDir, k.TopicID)
	if err := s.fsys.Rename(place, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.fsys.SyncDir(parent); err != nil {
		return err
	}
	if err := s.fsys.Rename(temporary, place); err != nil {
		return err
	}
	return s.fsys.SyncDir(parent)
}

// openJournaled journals what the log in dir is, and opens it.
func (s *Store) openJournaled(ctx context.Context, dir string, m log.Meta, r journalRecord, epochs []log.EpochStart) (*log.Log, error) {
	if err := s.commit(r); err != nil {
		return nil, err
	}
	oc, err := s.openConfig(dir, m)
	if err != nil {
		return nil, err
	}
	oc.Recovered = log.Recovered{
		Flushed: r.flushed, HighWatermark: r.highWatermark, LogStart: r.logStart, WantedStart: r.wantedStart, Epochs: epochs, Known: true,
	}
	l, _, err := log.Open(ctx, oc)
	return l, err
}

// holdsBatches tells whether the log in dir has any.
func holdsBatches(fsys vfs.FS, dir string) (bool, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if _, ext, ok := segment.ParseFileName(e.Name); ok && ext == segment.ExtLog && e.Size > 0 {
			return true, nil
		}
	}
	return false, nil
}
