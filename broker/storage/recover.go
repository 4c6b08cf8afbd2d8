package storage

import (
	"context"
	"errors"
	"fmt"

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
// then the copy takes its name, then the journal gets its bounds. Before the first rename is durable the next Open removes the copy;
// between the two it finishes. Until the journal has the copy the next Open knows it by the original that was set aside, keeps all of
// it, and takes the log start from what the journal says of the original.
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
	s.lg.Warn("Recovering a damaged partition", "topic_id", k.TopicID.String(), "partition", k.Partition,
		"keep_from", plan.KeepFrom, "keep_to", plan.KeepTo, "lost_to", plan.LostTo, "set_aside", plan.SetAside)
	m := log.Meta{TopicID: k.TopicID, Partition: k.Partition, LogID: ids.NewLogID(), TopicName: plan.TopicName, TopicConfig: plan.config}
	l, err := s.rebuild(ctx, k, p, plan, m)
	if err != nil {
		return plan, s.diskFault(err)
	}
	s.set(k, &partition{log: l})
	s.syncer.markDirty(l)
	plan.Applied = true
	return plan, nil
}

// planRecovery reads the whole partition and changes nothing.
func (s *Store) planRecovery(ctx context.Context, k partitionKey, p *partition, damage error) (RecoverPlan, error) {
	known := s.knownNow(k, p)
	plan := RecoverPlan{
		TopicID: k.TopicID, Partition: k.Partition, Dir: partitionDir(s.cfg.DataDir, k), Damage: damage,
		KeepFrom: known.logStart, KeepTo: known.flushed, LostTo: known.flushed,
		known: known, logID: known.logID, epochs: known.epochs, missing: errors.Is(damage, errMissing),
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
