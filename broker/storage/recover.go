package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record"
)

// RecoverPlan says what the recovery of a damaged partition keeps and loses.
type RecoverPlan struct {
	TopicID   ids.TopicID
	Partition int32
	TopicName string // as far as the directory says it
	Dir       string
	// Damage is why the partition is quarantined.
	Damage error
	// Offsets KeepFrom up to, not including, KeepTo are intact and stay. LostTo is the end of what was surely acknowledged:
	// offsets KeepTo up to LostTo are lost. There may be more behind LostTo that was acknowledged just before a crash.
	KeepFrom, KeepTo, LostTo int64
	KeepBytes                int64
	// SetAside is where all files of today go; nothing is deleted. Empty when the directory is missing.
	SetAside string
	// Applied tells whether the plan was carried out.
	Applied bool

	missing bool
	known   logState
	logID   ids.LogID // of the damaged log
	config  []byte
	epochs  []log.EpochStart
	keep    []keptSegment
}

// keptSegment is the intact beginning of one segment file.
type keptSegment struct {
	base int64
	size int64 // bytes
}

// Recover brings a quarantined partition back with what is intact before the first damage. Without acceptLoss it only returns the
// plan. With it the partition's files are set aside, whole, a new directory is built from a copy, and the partition is open when
// Recover returns. ErrNotDamaged for a partition that is not quarantined, ErrLogNotFound for one that is not here.
//
// A partition whose directory is missing comes back empty, at the end that the journal remembers, so that no offset that was
// surely acknowledged is given to another record.
//
// The copy gets a new log ID: to the cluster it is another replica, which has to catch up before it counts.
//
// Crash windows: the copy is built and synced as NAME.recovering, then the original is renamed to NAME.damaged.LOGID and synced,
// then the copy takes its name. Before the first rename is durable the next Open removes the copy; between the two it finishes.
func (s *Store) Recover(ctx context.Context, topic ids.TopicID, n int32, acceptLoss bool) (RecoverPlan, error) {
	k := partitionKey{topic, n}
	plan, err := s.recover(ctx, k, acceptLoss)
	if err != nil {
		return plan, &PartitionError{Op: "recover", TopicID: topic, Partition: n, Err: err}
	}
	return plan, nil
}

func (s *Store) recover(ctx context.Context, k partitionKey, acceptLoss bool) (RecoverPlan, error) {
	release, err := s.claim(k)
	if err != nil {
		return RecoverPlan{}, err
	}
	defer release()
	p, ok := s.get(k)
	if !ok {
		return RecoverPlan{}, ErrLogNotFound
	}
	st := p.state()
	if st.Health != log.Quarantined {
		return RecoverPlan{}, fmt.Errorf("%w: it is %s", ErrNotDamaged, st.Health)
	}
	plan, err := s.planRecovery(ctx, k, p, st.Err)
	if err != nil || !acceptLoss {
		return plan, err
	}
	s.lg.Warn("Recovering a damaged partition", "topicID", k.TopicID.String(), "partition", k.Partition,
		"keepFrom", plan.KeepFrom, "keepTo", plan.KeepTo, "lostTo", plan.LostTo, "setAside", plan.SetAside)
	m := log.Meta{TopicID: k.TopicID, Partition: k.Partition, LogID: ids.NewLogID(), TopicName: plan.TopicName, TopicConfig: plan.config}
	l, err := s.rebuild(ctx, k, p, plan, m)
	if err != nil {
		return plan, s.diskFault(err)
	}
	s.unset(k)
	s.set(k, &partition{log: l})
	s.syncer.markDirty(l)
	plan.Applied = true
	return plan, nil
}

// planRecovery reads the whole partition and changes nothing.
func (s *Store) planRecovery(ctx context.Context, k partitionKey, p *partition, damage error) (RecoverPlan, error) {
	plan := RecoverPlan{
		TopicID: k.TopicID, Partition: k.Partition, Dir: partitionDir(s.cfg.DataDir, k), Damage: damage,
		KeepFrom: p.known.logStart, KeepTo: p.known.flushed, LostTo: p.known.flushed,
		known: p.known, logID: p.known.logID, epochs: p.known.epochs, missing: errors.Is(damage, errMissing),
	}
	if plan.missing {
		plan.KeepFrom = plan.KeepTo
		return plan, nil
	}
	if m, err := log.ReadMeta(s.fsys, plan.Dir); err == nil {
		plan.TopicName, plan.config, plan.logID = m.TopicName, m.TopicConfig, m.LogID
	}
	plan.SetAside = plan.Dir + damagedInfix + plan.logID.String()
	bases, err := segmentBases(s.fsys, plan.Dir)
	if err != nil {
		return plan, err
	}
	plan.epochs, plan.KeepTo = nil, max(plan.known.logStart, 0)
	for i, base := range bases {
		if err := ctx.Err(); err != nil {
			return plan, err
		}
		if i == 0 {
			plan.KeepFrom, plan.KeepTo = max(plan.known.logStart, base), base
		}
		whole := base == plan.KeepTo
		if whole {
			if whole, err = plan.scan(s.fsys, base); err != nil {
				return plan, err
			}
		}
		if !whole {
			break
		}
	}
	if plan.KeepTo < plan.KeepFrom { // the damage lies below the log start: nothing that may be read is left
		plan.keep, plan.epochs, plan.KeepTo, plan.KeepBytes = nil, nil, plan.KeepFrom, 0
	}
	plan.LostTo = max(plan.LostTo, plan.KeepTo)
	return plan, nil
}

// scan adds the intact batches of a segment, and tells whether that is all of it.
func (plan *RecoverPlan) scan(fsys vfs.FS, base int64) (whole bool, err error) {
	f, err := fsys.Open(segment.Path(plan.Dir, base, segment.ExtLog))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return false, err
	}
	pos, end, err := segment.Scan(f, base, 0, size, base, func(h record.Header, _ []byte, _ int64) error {
		n := len(plan.epochs)
		if n > 0 && h.LeaderEpoch < plan.epochs[n-1].Epoch {
			return fmt.Errorf("%w: epoch %d follows %d", segment.ErrCorrupt, h.LeaderEpoch, plan.epochs[n-1].Epoch)
		}
		if n == 0 || h.LeaderEpoch > plan.epochs[n-1].Epoch {
			plan.epochs = append(plan.epochs, log.EpochStart{Epoch: h.LeaderEpoch, Start: h.BaseOffset})
		}
		return nil
	})
	if err != nil && !errors.Is(err, segment.ErrCorrupt) {
		return false, err
	}
	plan.KeepTo = end
	plan.KeepBytes += pos
	plan.keep = append(plan.keep, keptSegment{base: base, size: pos})
	return err == nil, nil
}

// segmentBases lists the base offsets of the segments in dir, ascending.
func segmentBases(fsys vfs.FS, dir string) ([]int64, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var bases []int64
	for _, e := range entries {
		if base, ext, ok := segment.ParseFileName(e.Name); ok && ext == segment.ExtLog && !e.IsDir {
			bases = append(bases, base)
		}
	}
	return bases, nil
}

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
	if p.log != nil {
		if err := p.log.Close(); err != nil {
			return nil, err
		}
	}
	parent := topicDir(s.cfg.DataDir, k.TopicID)
	for _, rename := range [][2]string{{plan.Dir, plan.SetAside}, {temporary, plan.Dir}} {
		if err := s.fsys.Rename(rename[0], rename[1]); err != nil {
			return nil, err
		}
		if err := s.fsys.SyncDir(parent); err != nil {
			return nil, err
		}
	}
	return s.openRebuilt(ctx, k, plan, m)
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

// openRebuilt journals what the rebuilt log is, and opens it.
func (s *Store) openRebuilt(ctx context.Context, k partitionKey, plan RecoverPlan, m log.Meta) (*log.Log, error) {
	r := journalRecord{
		key: k, logID: m.LogID, kind: kindState,
		flushed: plan.KeepTo, highWatermark: min(max(plan.known.highWatermark, plan.KeepFrom), plan.KeepTo), logStart: plan.KeepFrom,
		epochs: plan.epochs[max(0, len(plan.epochs)-maxJournalEpochs):],
	}
	if err := s.commit(r); err != nil {
		return nil, err
	}
	oc, err := s.openConfig(plan.Dir, m)
	if err != nil {
		return nil, err
	}
	oc.Recovered = log.Recovered{
		Flushed: r.flushed, HighWatermark: r.highWatermark, LogStart: r.logStart, Epochs: plan.epochs, Known: true,
	}
	l, _, err := log.Open(ctx, oc)
	return l, err
}
