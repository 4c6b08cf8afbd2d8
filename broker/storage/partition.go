package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// TopicInfo is the copy of a topic's record that each partition directory carries.
type TopicInfo struct {
	// Name is the topic's name, 1 to 249 bytes.
	Name string
	// Config is the topic's configuration as metadata encodes it. Config.LogConfig decodes it.
	Config []byte
}

// Tombstone names what DeleteLog deletes. Only metadata that says "deleted" makes one; a topic that is merely absent never does.
type Tombstone struct {
	TopicID   ids.TopicID
	Partition int32
}

// CreateLog makes a partition that begins as start says, and opens it. It is durable when CreateLog returns: directory, files and
// journal. ErrLogExists if it is there already, *log.QuarantinedError if it was there and is lost: a lost partition is never
// silently replaced by an empty one.
//
// Crash windows: the file that names the partition is written last, so a directory without it was never finished, and the next Open
// removes it. Once that file is durable the partition exists, whether the journal knows it or not, since it holds nothing yet that
// the journal could bound.
func (s *Store) CreateLog(ctx context.Context, topic ids.TopicID, n int32, info TopicInfo, start log.StartState) (*log.Log, error) {
	k := partitionKey{topic, n}
	l, err := s.createLog(ctx, k, info, start)
	if err != nil {
		return nil, &PartitionError{Op: "create", TopicID: topic, Partition: n, Err: err}
	}
	return l, nil
}

func (s *Store) createLog(ctx context.Context, k partitionKey, info TopicInfo, start log.StartState) (*log.Log, error) {
	if k.TopicID.IsZero() || k.Partition < 0 {
		return nil, fmt.Errorf("%w: a partition has a topic ID and a number from 0", ids.ErrInvalid)
	}
	release, err := s.claim(k)
	if err != nil {
		return nil, err
	}
	defer release()
	if p, ok := s.get(k); ok {
		if st := p.state(); st.Health == log.Quarantined {
			return nil, st.Err
		}
		return nil, ErrLogExists
	}
	m := log.Meta{TopicID: k.TopicID, Partition: k.Partition, LogID: ids.NewLogID(), TopicName: info.Name, TopicConfig: info.Config}
	if _, err := s.logConfig(m); err != nil {
		return nil, err
	}
	l, err := s.makeLog(ctx, m, start)
	if err != nil {
		return nil, s.diskFault(err)
	}
	if err := s.commit(newState(l)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s.set(k, &partition{log: l})
	s.syncer.markDirty(l) // a round that met the log before it was registered has skipped it
	return l, nil
}

// makeLog makes and opens the directory of a partition. One that is there already comes from a create of this process that failed
// at its last step, so that nothing was ever appended to it, and is taken.
func (s *Store) makeLog(ctx context.Context, m log.Meta, start log.StartState) (*log.Log, error) {
	place := partitionDir(s.cfg.DataDir, partitionKey{m.TopicID, m.Partition})
	s.dirMu.Lock()
	err := s.fsys.MkdirAll(place)
	s.dirMu.Unlock()
	if err != nil {
		return nil, err
	}
	oc, err := s.openConfig(place, m)
	if err != nil {
		return nil, err
	}
	l, err := log.Create(ctx, oc, m, start)
	if errors.Is(err, fs.ErrExist) {
		l, _, err = log.Open(ctx, oc)
	}
	return l, err
}

func (s *Store) openConfig(dir string, m log.Meta) (log.OpenConfig, error) {
	cfg, err := s.logConfig(m)
	oc := log.OpenConfig{
		FS: s.fsys, Dir: dir, Config: cfg, Host: host{s}, Clock: s.clk, Cache: s.cache,
		Logger: s.lg.With("topic", m.TopicName, "topic_id", m.TopicID.String(), "partition", m.Partition),
	}
	if s.cfg.KeyObserver != nil {
		oc.Observer = observer{s.cfg.KeyObserver}
	}
	return oc, err
}

// diskFault stops the store when the device itself failed. What was to be made durable was not acknowledged.
func (s *Store) diskFault(err error) error {
	if vfs.IsIO(err) {
		return s.syncer.fail("a partition directory", err)
	}
	return err
}

// DeleteLog removes a partition and its directory. Nothing but a tombstone that names the topic ID does. It is idempotent: without
// such a partition it returns nil. Readers that hold a range of the log finish.
//
// Crash windows: the directory is renamed to NAME.deleted.LOGID and that is synced; then the files in it go; then the journal
// forgets the log, durably; then the directory goes. A crash before the rename is durable leaves the partition, whole; afterwards the
// next Open finishes, told by the directory. A full disk delays the journal, not the files: deleting has to make room.
func (s *Store) DeleteLog(t Tombstone) error {
	if err := s.deleteLog(partitionKey(t)); err != nil {
		return &PartitionError{Op: "delete", TopicID: t.TopicID, Partition: t.Partition, Err: err}
	}
	return nil
}

func (s *Store) deleteLog(k partitionKey) error {
	release, err := s.claim(k)
	if err != nil {
		return err
	}
	defer release()
	p, ok := s.get(k)
	if !ok {
		return nil
	}
	logID := p.known.logID
	if p.log != nil {
		logID = p.log.LogID()
	}
	// From here on no round and no journal entry knows the log. If a later step fails the partition stays, closed, and the
	// deletion can be tried again.
	s.unset(k)
	s.set(k, &partition{broken: &log.State{Health: log.Offline, Err: log.ErrClosed}, known: logState{logID: logID}})
	if p.log != nil {
		if err := p.log.Close(); err != nil {
			s.lg.Warn("Closing a deleted partition failed", "topic_id", k.TopicID.String(), "partition", k.Partition, "error", err)
		}
	}
	place := partitionDir(s.cfg.DataDir, k)
	// What a recovery or replacement that failed has made must not take the place of what is deleted.
	if _, err := s.fsys.Stat(place + recoveringSuffix); err == nil {
		if err := s.fsys.RemoveAll(place + recoveringSuffix); err != nil {
			return err
		}
		if err := s.fsys.SyncDir(filepath.Dir(place)); err != nil {
			return s.diskFault(err)
		}
	}
	gone := place + deletedInfix + logID.String()
	if err := s.fsys.Rename(place, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.fsys.SyncDir(filepath.Dir(place)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s.diskFault(err)
	}
	if err := removeContents(s.fsys, gone); err != nil {
		return err
	}
	if err := s.commit(journalRecord{key: k, logID: logID, kind: kindRemoved}); err != nil {
		return err
	}
	if err := s.fsys.RemoveAll(gone); err != nil {
		return err
	}
	s.unset(k)
	s.removeTopicDir(k.TopicID)
	return nil
}

// removeContents empties a directory, which may be gone.
func removeContents(fsys vfs.FS, dir string) error {
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := fsys.RemoveAll(filepath.Join(dir, e.Name)); err != nil {
			return err
		}
	}
	return nil
}

// removeTopicDir removes the directory of a topic without partitions. What is not empty, or does not go, is left to the next Open.
func (s *Store) removeTopicDir(topic ids.TopicID) {
	s.dirMu.Lock()
	defer s.dirMu.Unlock()
	dir := topicDir(s.cfg.DataDir, topic)
	entries, err := s.fsys.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		return
	}
	if err := s.fsys.Remove(dir); err != nil {
		s.lg.Warn("An empty directory could not be removed", "dir", dir, "error", err)
	}
}

// UpdateConfig gives all partitions of a topic another configuration, in memory and in their directories. Every partition is
// tried; the errors are joined.
func (s *Store) UpdateConfig(topic ids.TopicID, info TopicInfo) error {
	var errs []error
	for _, l := range s.Logs() {
		if l.TopicID() != topic {
			continue
		}
		m := l.Meta()
		if m.TopicName == info.Name && bytes.Equal(m.TopicConfig, info.Config) {
			continue // after a start, all of them: no reason to write thousands of files
		}
		m.TopicName, m.TopicConfig = info.Name, info.Config
		cfg, err := s.logConfig(m)
		if err == nil {
			err = l.SetConfig(cfg)
		}
		if err == nil {
			err = l.UpdateTopic(info.Name, info.Config)
		}
		if err != nil {
			errs = append(errs, &PartitionError{Op: "configure", TopicID: topic, Partition: m.Partition, Err: err})
		}
	}
	return errors.Join(errs...)
}

// logConfig decodes and checks the configuration of a topic.
func (s *Store) logConfig(m log.Meta) (log.Config, error) {
	cfg := log.DefaultConfig()
	if s.cfg.LogConfig != nil {
		var err error
		if cfg, err = s.cfg.LogConfig(m.TopicConfig); err != nil {
			return cfg, fmt.Errorf("configuration of topic %q: %w", m.TopicName, err)
		}
	}
	return cfg, cfg.Validate()
}
