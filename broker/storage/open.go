package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// opening is an Open in progress.
type opening struct {
	*Store
	found contents
	state journalState // what the journal says
	lost  bool
}

// Open locks and checks the data directory (or formats it), replays the journal, finishes what a crash interrupted, and opens all
// partitions in parallel. It starts nothing: Run does. A partition that is damaged or cannot be opened does not fail Open; Report
// and State tell.
//
// Refusals, none of which changes anything: ErrLocked, *NetworkStorageError, *ForeignClusterError, *FutureFormatError,
// *UnformattedError, *CorruptFileError (meta or stops), *StoppedTooOftenError. reg may be nil.
func Open(ctx context.Context, cfg Config, fsys vfs.FS, clk clock.Clock, lg *slog.Logger, reg prometheus.Registerer) (_ *Store, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	start := clk.Now()
	dir, err := openDataDir(cfg, fsys, clk)
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, fsys: fsys, clk: clk, lg: lg, reg: reg, dir: dir, refused: make(chan struct{}, 1)}
	s.mu.partitions, s.mu.busy = map[partitionKey]*partition{}, map[partitionKey]struct{}{}
	s.disk.configured = cfg.ReserveBytes
	s.cache = segment.NewCache(cfg.OpenFiles, cfg.IndexCacheBytes)
	s.metrics, err = newMetrics(reg, s.gauges())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("registering metrics: %w", err), dir.close())
	}
	o := &opening{Store: s}
	if err := o.run(ctx); err != nil {
		err = fmt.Errorf("opening data directory %s: %w", cfg.DataDir, err)
		return nil, errors.Join(err, o.abandon())
	}
	s.report.Took = clk.Since(start)
	s.report.Partitions = len(o.found.partitions)
	s.logReport()
	return s, nil
}

func (s *Store) gauges() gauges {
	return gauges{
		journalSize: func() float64 { return float64(s.journal.length.Load()) },
		dirtyLogs:   func() float64 { return float64(s.syncer.dirtyCount()) },
		logs:        func() float64 { return s.count(func(p *partition) bool { return p.log != nil }) },
		quarantined: func() float64 {
			return s.count(func(p *partition) bool { return p.state().Health == log.Quarantined })
		},
		usage: s.disk.usage,
	}
}

// abandon releases what a failed Open holds, without marks of a clean stop.
func (o *opening) abandon() error {
	var errs []error
	for _, l := range o.Logs() {
		errs = append(errs, l.Close())
	}
	if o.journal != nil {
		errs = append(errs, o.journal.close())
	}
	return errors.Join(append(errs, o.closeDir())...)
}

func (o *opening) run(ctx context.Context) (err error) {
	o.lookAtDisk()
	if o.found, err = scanDataDir(o.fsys, o.cfg.DataDir); err != nil {
		return err
	}
	o.report.Foreign = o.found.foreign
	for _, d := range o.found.damaged {
		o.report.SetAside = append(o.report.SetAside, d.path)
	}
	sequence, err := o.replay()
	if err != nil {
		return err
	}
	// Before the directories go: a crash in between must not leave a journal that misses them.
	for _, d := range o.found.deleted {
		o.state.apply(journalRecord{key: d.key, logID: d.logID, kind: kindRemoved})
	}
	if o.journal, err = newJournal(o.fsys, o.cfg.DataDir, o.StorageID(), o.cfg.JournalBytes, sequence, o.state); err != nil {
		return err
	}
	o.syncer = newSyncer(o.cfg, o.dir.volume, o.journal, o.cache, o.clk, o.metrics, o.registered)
	if err := o.finishInterrupted(); err != nil {
		return err
	}
	if err := o.openPartitions(ctx); err != nil {
		return err
	}
	o.findMissing()
	return o.journalUnknown()
}

// replay reads the marker of a clean stop and the journal, and takes the marker away.
func (o *opening) replay() (sequence uint64, err error) {
	damage := func(err error) { o.report.Damage = append(o.report.Damage, err) }
	seal, err := readClean(o.fsys, o.cfg.DataDir)
	if errors.Is(err, ErrCorrupt) {
		damage(err)
	} else if err != nil {
		return 0, err
	}
	path := filepath.Join(o.cfg.DataDir, journalName)
	r, err := replayJournal(o.fsys, path, o.StorageID())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		damage(&CorruptFileError{File: path, Detail: "the journal is missing"})
		r, o.lost = replayed{state: journalState{}}, true
	case err != nil:
		return 0, err
	}
	for _, d := range r.damage {
		damage(d)
	}
	o.lost = o.lost || r.lost
	if seal != nil && !o.lost {
		differs, err := checkSeal(o.fsys, o.cfg.DataDir, *seal)
		if err != nil {
			return 0, err
		}
		if differs != nil && len(r.damage) == 0 {
			damage(differs)
		}
	}
	o.report.Clean, o.report.JournalLost, o.state = seal != nil, o.lost, r.state
	return r.sequence, removeClean(o.fsys, o.cfg.DataDir)
}

// finishInterrupted completes what a crash cut short. Each step may be interrupted again.
func (o *opening) finishInterrupted() error {
	for _, l := range o.found.deleted {
		if err := o.fsys.RemoveAll(l.path); err != nil {
			return fmt.Errorf("removing %s: %w", l.path, err)
		}
	}
	for k, dir := range o.found.partitions {
		if _, known := o.state[k]; known {
			continue
		}
		unfinished, err := isUnfinished(o.fsys, dir)
		if err != nil {
			return err
		}
		if unfinished {
			if err := o.fsys.RemoveAll(dir); err != nil {
				return fmt.Errorf("removing %s: %w", dir, err)
			}
			delete(o.found.partitions, k)
		}
	}
	for _, l := range o.found.recovering {
		// The original goes aside only when the rebuilt copy is complete and durable.
		if _, inPlace := o.found.partitions[l.key]; inPlace {
			if err := o.fsys.RemoveAll(l.path); err != nil {
				return fmt.Errorf("removing %s: %w", l.path, err)
			}
			continue
		}
		place := partitionDir(o.cfg.DataDir, l.key)
		if err := o.fsys.Rename(l.path, place); err != nil {
			return fmt.Errorf("finishing the recovery of partition %v: %w", l.key, err)
		}
		if err := o.fsys.SyncDir(filepath.Dir(place)); err != nil {
			return err
		}
		o.found.partitions[l.key] = place
	}
	for _, dir := range o.found.empty {
		if err := o.fsys.Remove(dir); err != nil {
			return err
		}
	}
	return nil
}

// isUnfinished tells whether dir is what a create left that did not get to its last step: no partition.meta, no batches, nothing
// foreign.
func isUnfinished(fsys vfs.FS, dir string) (bool, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		_, ext, inSegment := segment.ParseFileName(e.Name)
		if e.Name == log.MetaFile || ext == segment.ExtLog && e.Size > 0 || !inSegment && !log.IsFile(e.Name) {
			return false, nil
		}
	}
	return true, nil
}

// openPartitions opens every partition directory, a bounded number at a time.
func (o *opening) openPartitions(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(o.cfg.OpenParallelism)
	for k, dir := range o.found.partitions {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			p, rep := o.openPartition(ctx, k, dir)
			if err := ctx.Err(); err != nil && p.log == nil {
				return err
			}
			o.set(k, p)
			o.note(k, dir, rep)
			return nil
		})
	}
	return group.Wait()
}

// openPartition opens one directory. What is wrong with it becomes the partition's state.
func (o *opening) openPartition(ctx context.Context, k partitionKey, dir string) (*partition, log.Report) {
	known, isKnown := o.state[k]
	broken := func(h log.Health, err error) (*partition, log.Report) {
		return &partition{broken: &log.State{Health: h, Err: err}, known: known}, log.Report{}
	}
	m, err := log.ReadMeta(o.fsys, dir)
	if err == nil && (m.TopicID != k.TopicID || m.Partition != k.Partition) {
		err = fmt.Errorf("%w: the directory says that it is partition %s/%d", log.ErrCorrupt, m.TopicID, m.Partition)
	}
	switch {
	case errors.Is(err, log.ErrCorrupt) || errors.Is(err, fs.ErrNotExist):
		return broken(log.Quarantined, &log.QuarantinedError{Dir: dir, Err: err})
	case err != nil:
		return broken(log.Offline, err)
	}
	oc, err := o.openConfig(dir, m)
	if err != nil {
		return broken(log.Offline, err)
	}
	// Without all records of the journal its bounds and epochs may be too low, and may not be used to cut anything. The log start
	// never moves back, so the one that is left is a floor: what was deleted below it stays deleted.
	//
	// The same holds for a copy that Recover made. A log without batches that took a damaged one's place has nothing to hide, and
	// begins where it was made to begin.
	floor := isKnown && known.logID == m.LogID
	if isKnown && !floor && o.rebuiltFrom(k, known.logID) {
		if floor, err = holdsBatches(o.fsys, dir); err != nil {
			return broken(log.Offline, err)
		}
	}
	if floor {
		oc.Recovered.LogStart = known.logStart
	}
	if isKnown && known.logID == m.LogID {
		oc.Recovered.WantedStart, oc.Recovered.AdoptedEpoch = known.wantedStart, known.adopted
	}
	if isKnown && !o.lost && known.logID == m.LogID {
		oc.Recovered = log.Recovered{
			Flushed: known.flushed, HighWatermark: known.highWatermark, LogStart: known.logStart, Epochs: known.epochs,
			WantedStart: known.wantedStart, AdoptedEpoch: known.adopted, Known: true,
		}
	}
	l, rep, err := log.Open(ctx, oc)
	if err != nil {
		return broken(log.Offline, err)
	}
	return &partition{log: l, known: known}, rep
}

// rebuiltFrom tells whether the directory of k is a copy that Recover made of the log with this log ID, and that a crash kept out of
// the journal: the original was set aside.
func (o *opening) rebuiltFrom(k partitionKey, logID ids.LogID) bool {
	return slices.ContainsFunc(o.found.damaged, func(l leftover) bool { return l.key == k && l.logID == logID })
}

// findMissing quarantines the partitions that the journal knows and that have no directory.
func (o *opening) findMissing() {
	for k, st := range o.state {
		if _, ok := o.get(k); !ok {
			err := &log.QuarantinedError{Dir: partitionDir(o.cfg.DataDir, k), Err: errMissing}
			o.set(k, &partition{broken: &log.State{Health: log.Quarantined, Err: err}, known: st})
			o.report.Missing = append(o.report.Missing, k.ref())
		}
	}
	for _, ref := range o.Partitions() {
		if p, _ := o.get(partitionKey(ref)); p.state().Health == log.Quarantined {
			o.report.Quarantined = append(o.report.Quarantined, ref)
		}
	}
}

var errMissing = errors.New("the directory is missing")

// journalUnknown writes down what the journal did not know of the logs that were opened, or knows wrongly: an epoch that was
// journaled beside batches which a crash then took. The log may go on with batches of an older epoch at those offsets, and the next
// recovery would believe the journal.
func (o *opening) journalUnknown() error {
	var records []journalRecord
	for _, l := range o.Logs() {
		e := l.JournalEntry()
		known, ok := o.state[partitionKey{e.TopicID, e.Partition}]
		if l.State().Health != log.Quarantined && (!ok || o.lost || known.logID != e.LogID || !slices.Equal(known.epochs, newestEpochs(l.Epochs()))) {
			records = append(records, newState(l))
		}
	}
	return o.commit(records...)
}

// newState is the record of a log that the journal does not know.
func newState(l *log.Log) journalRecord {
	r := newProgress(l.JournalEntry())
	r.kind, r.epochs = kindState, newestEpochs(l.Epochs())
	return r
}
