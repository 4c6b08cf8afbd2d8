package log

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/broker/segment"
)

// StartState is what a new log begins with: the zero value for a new partition, and the state at Offset of another
// replica or of the tier for a log that does not begin at 0.
type StartState struct {
	// Offset is the first offset: log start, high watermark and end of the new log.
	Offset int64
	// Epochs are the epochs of the offsets below, so that diverging epochs can be found. Starts lie at or below Offset.
	Epochs []EpochStart
	// Producers is the producer state at Offset.
	Producers []ProducerState
}

// validate checks what could not be read back: another replica sent it.
func (st StartState) validate() error {
	for _, e := range st.Epochs {
		if e.Epoch < 0 || e.Start < 0 {
			return fmt.Errorf("%w: epoch %d begins at %d", ErrStartState, e.Epoch, e.Start)
		}
	}
	for _, p := range st.Producers {
		if p.ProducerID < 0 || p.Epoch < 0 || len(p.Batches) > rememberedBatches {
			return fmt.Errorf("%w: producer %d, epoch %d, %d batches (at most %d)", ErrStartState, p.ProducerID, p.Epoch, len(p.Batches), rememberedBatches)
		}
		for _, b := range p.Batches {
			if b.FirstSequence < 0 || b.LastSequence < 0 || b.Base < 0 || b.Base >= st.Offset {
				return fmt.Errorf("%w: producer %d has sequences %d to %d at %d, the log begins at %d",
					ErrStartState, p.ProducerID, b.FirstSequence, b.LastSequence, b.Base, st.Offset)
			}
		}
	}
	return nil
}

// Create makes a new log in oc.Dir, which must not hold one, and opens it. Everything is durable when it returns.
// fs.ErrExist if the directory holds a log, ErrStartState if st contradicts itself (epochs that begin above Offset are left out). Blocks on the disk.
//
// Crash windows: partition.meta is written last; a directory without it holds no log, and a later Create of the same
// partition replaces what is in it. The directory's own entry and that of its parent are synced before Create returns.
func Create(_ context.Context, oc OpenConfig, m Meta, st StartState) (*Log, error) {
	if err := oc.validate(); err != nil {
		return nil, err
	}
	if st.Offset < 0 || m.Partition < 0 || m.TopicID.IsZero() || m.LogID.IsZero() || len(m.TopicName) > maxName {
		return nil, fmt.Errorf("create log: offset %d, partition %d, topic %q (%s), log ID %s: must be set and not negative",
			st.Offset, m.Partition, m.TopicName, m.TopicID, m.LogID)
	}
	if err := st.validate(); err != nil {
		return nil, fmt.Errorf("create log in %s: %w", oc.Dir, err)
	}
	l := newLog(oc, m)
	if err := l.create(st); err != nil {
		return nil, fmt.Errorf("create log in %s: %w", oc.Dir, diskError(err))
	}
	l.markDirty()
	return l, nil
}

func (l *Log) create(st StartState) error {
	if err := l.fs.MkdirAll(l.dir); err != nil {
		return err
	}
	if _, err := l.fs.Stat(filepath.Join(l.dir, MetaFile)); err == nil {
		return fmt.Errorf("%s: %w", MetaFile, fs.ErrExist)
	} else if !isMissing(err) {
		return err
	}
	if err := l.clearUnfinished(); err != nil {
		return err
	}
	s, err := segment.Create(l.opts, st.Offset)
	if err != nil {
		return err
	}
	segs := []*segment.Segment{s}
	l.segs.Store(&segs)
	for _, v := range []func(int64){l.logStart.Store, l.replicaStart.Store, l.hw.Store, l.flushed.Store, l.end.Store} {
		v(st.Offset)
	}
	g := merge(st.Epochs).upTo(st.Offset)
	l.epochs.Store(&g)
	l.w.producers = importProducers(st.Producers, l.cfg.Load().MaxProducers)
	if len(st.Producers) > 0 {
		f, err := l.writeSnapshot(st.Offset)
		if err != nil {
			return err
		}
		err = f.Sync()
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	if len(g) > 0 {
		if err := l.checkpointEpochs(true); err != nil {
			return err
		}
	}
	if err := replaceFile(l.fs, filepath.Join(l.dir, MetaFile), encodeMeta(*l.meta.Load())); err != nil {
		return err
	}
	topicDir := filepath.Dir(l.dir)
	if err := l.fs.SyncDir(topicDir); err != nil {
		return err
	}
	return l.fs.SyncDir(filepath.Dir(topicDir))
}

// clearUnfinished removes what a Create that did not finish has left. Files that are not ours stay.
func (l *Log) clearUnfinished() error {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		base, ext, ours := segment.ParseFileName(e.Name)
		if ours && ext == segment.ExtLog && e.Size > 0 {
			return &CorruptError{File: segment.Path(l.dir, base, ext), Segment: base, Offset: base, Detail: "batches without a partition.meta"}
		}
		if ours || e.Name == epochsName || e.Name == epochsName+tmpSuffix || e.Name == MetaFile+tmpSuffix {
			if err := removeIfThere(l.fs, filepath.Join(l.dir, e.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}
