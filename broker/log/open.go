package log

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"path/filepath"
	"strings"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record/index"
)

// OpenConfig is what Create and Open need. All fields but Observer and Recovered are required.
type OpenConfig struct {
	FS     vfs.FS
	Dir    string // the partition directory
	Config Config
	Host   Host
	Clock  clock.Clock
	Logger *slog.Logger
	// Cache bounds the open files of all logs of a broker.
	Cache *segment.Cache
	// Observer, if not nil, sees what is appended as leader.
	Observer Observer
	// Recovered is what the journal held of this log. For Open only.
	Recovered Recovered
}

func (oc OpenConfig) validate() error {
	if oc.FS == nil || oc.Dir == "" || oc.Host == nil || oc.Clock == nil || oc.Logger == nil || oc.Cache == nil {
		return errors.New("log: FS, Dir, Host, Clock, Logger and Cache are required")
	}
	return oc.Config.Validate()
}

func newLog(oc OpenConfig, m Meta) *Log {
	l := &Log{
		fs: oc.FS, dir: oc.Dir, host: oc.Host, clk: oc.Clock, lg: oc.Logger, observer: oc.Observer,
		opts: segment.Options{FS: oc.FS, Dir: oc.Dir, Cache: oc.Cache, IndexInterval: oc.Config.IndexInterval},
	}
	l.mu.cutting = math.MaxInt64
	l.cfg.Store(&oc.Config)
	l.meta.Store(&m)
	l.state.Store(&State{})
	l.segs.Store(&[]*segment.Segment{})
	l.epochs.Store(&lineage{})
	l.w.producers = newProducers(oc.Config.MaxProducers)
	return l
}

// Report says what Open found and did.
type Report struct {
	// Clean: the log was closed cleanly, nothing was scanned.
	Clean bool
	// Unknown: the journal knew nothing of the log; every valid batch was kept.
	Unknown bool
	// ScannedBytes is how much a recovery read and checked.
	ScannedBytes int64
	// CutBytes and CutSegments are what was removed behind the last valid batch, and CutReason why it was the last.
	CutBytes    int64
	CutSegments int
	CutReason   error
	// RebuiltIndexes counts segments whose indexes were absent or short.
	RebuiltIndexes int
	// Foreign are names in the directory that are not ours; they are never touched.
	Foreign []string
	// Quarantined is why the log is quarantined, nil if it is not.
	Quarantined error
}

type segmentFile struct {
	base, size                 int64
	offsetEntries, timeEntries int
	indexWhole                 bool // both index files exist and hold whole entries
}

type dirFiles struct {
	segments []segmentFile // by base
	// Files of ours that belong to no segment, except snapshots: temporary files, indexes without a log.
	stray   []string
	foreign []string
}

func listDir(fsys vfs.FS, dir string) (dirFiles, error) {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return dirFiles{}, err
	}
	var d dirFiles
	at := map[int64]int{}
	for _, e := range entries { // sorted by name, so .log comes behind .index
		if base, ext, ok := segment.ParseFileName(e.Name); ok && ext == segment.ExtLog && !e.IsDir {
			at[base] = len(d.segments)
			d.segments = append(d.segments, segmentFile{base: base, size: e.Size})
		}
	}
	found := make([]int, len(d.segments))
	for _, e := range entries {
		base, ext, ok := segment.ParseFileName(e.Name)
		switch i, has := at[base]; {
		case e.IsDir:
			d.foreign = append(d.foreign, e.Name)
		case ok && (ext == segment.ExtLog || ext == segment.ExtSnapshot):
		case ok && !has:
			d.stray = append(d.stray, e.Name)
		case ok && ext == segment.ExtIndex:
			d.segments[i].offsetEntries = int(e.Size / index.OffsetEntrySize)
			found[i] += 1 + int(e.Size%index.OffsetEntrySize)*2
		case ok:
			d.segments[i].timeEntries = int(e.Size / index.TimeEntrySize)
			found[i] += 1 + int(e.Size%index.TimeEntrySize)*2
		case e.Name == MetaFile || e.Name == epochsName || e.Name == cleanName:
		case e.Name == MetaFile+tmpSuffix || e.Name == epochsName+tmpSuffix || isSnapshotTmp(e.Name):
			d.stray = append(d.stray, e.Name)
		default:
			d.foreign = append(d.foreign, e.Name)
		}
	}
	for i := range d.segments {
		d.segments[i].indexWhole = found[i] == 2
	}
	return d, nil
}

// Open opens the log in oc.Dir and recovers it if it was not closed cleanly. A log with damage below the recovered
// flushed offset is returned quarantined, its files untouched. An error means that the directory cannot be used at
// all: unreadable, of a newer format, or without a valid partition.meta. Blocks on the disk.
func Open(ctx context.Context, oc OpenConfig) (*Log, Report, error) {
	var rep Report
	if err := oc.validate(); err != nil {
		return nil, rep, err
	}
	m, err := ReadMeta(oc.FS, oc.Dir)
	if err != nil {
		return nil, rep, err
	}
	l := newLog(oc, m)
	d, err := listDir(oc.FS, oc.Dir)
	if err != nil {
		return nil, rep, fmt.Errorf("open log in %s: %w", oc.Dir, diskError(err))
	}
	l.wantedStart.Store(oc.Recovered.WantedStart)
	l.adopted.Store(oc.Recovered.AdoptedEpoch)
	l.adoptedDurable.Store(oc.Recovered.AdoptedEpoch)
	rep.Foreign, rep.Unknown = d.foreign, !oc.Recovered.Known
	checkpoint, err := readEpochs(oc.FS, oc.Dir)
	if err == nil {
		err = l.openFiles(ctx, d, oc.Recovered, checkpoint, &rep)
	}
	if c, ok := errors.AsType[*CorruptError](err); ok {
		rep.Quarantined = &QuarantinedError{Dir: oc.Dir, Err: c}
		l.segs.Store(&[]*segment.Segment{})
		l.setState(Quarantined, rep.Quarantined)
		return l, rep, nil
	}
	if err != nil {
		return nil, rep, fmt.Errorf("open log in %s: %w", oc.Dir, diskError(err))
	}
	return l, rep, nil
}

func (l *Log) openFiles(ctx context.Context, d dirFiles, rec Recovered, checkpoint []EpochStart, rep *Report) error {
	g := merge(checkpoint, rec.Epochs)
	c, ok := readClean(l.fs, l.dir)
	if ok && c.matches(d, rec) {
		rep.Clean = true
		if err := l.openClean(c, d, rec, g, checkpoint); err != nil {
			return err
		}
	} else if err := l.recover(ctx, d, rec, g, rep); err != nil {
		return err
	}
	if err := l.completeIndexes(d, rep); err != nil {
		return err
	}
	l.replicaStart.Store(l.findReplicaStart(l.logStart.Load()))
	return l.tidySnapshots()
}

// openSegments makes segments of the files without reading them; end is the end of the last one.
func (l *Log) openSegments(files []segmentFile, end int64) []*segment.Segment {
	segs := make([]*segment.Segment, 0, len(files))
	for i, f := range files {
		st := segment.State{Base: f.base, End: end, Size: f.size, OffsetEntries: f.offsetEntries, TimeEntries: f.timeEntries}
		if i < len(files)-1 {
			st.End = files[i+1].base
		}
		s := segment.Open(l.opts, st)
		if i < len(files)-1 {
			s.MarkSealed()
		}
		segs = append(segs, s)
	}
	return segs
}

// completeIndexes rebuilds the indexes of sealed segments whose files are obviously not whole. Less obvious damage is
// found when an entry is used.
func (l *Log) completeIndexes(d dirFiles, rep *Report) error {
	whole := map[int64]bool{}
	for _, f := range d.segments {
		whole[f.base] = f.indexWhole && (f.offsetEntries > 0 || f.size <= int64(l.cfg.Load().IndexInterval))
	}
	for _, s := range l.segments() {
		if ok, known := whole[s.Base()]; !known || ok || !s.Sealed() {
			continue
		}
		if err := s.Rebuild(); err != nil {
			return err
		}
		rep.RebuiltIndexes++
	}
	return nil
}

// isSnapshotTmp recognises the temporary form of a snapshot.
func isSnapshotTmp(name string) bool {
	name, tmp := strings.CutSuffix(name, tmpSuffix)
	_, ext, ok := segment.ParseFileName(name)
	return tmp && ok && ext == segment.ExtSnapshot
}

// isMissing tells whether err says that a file does not exist.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// removeStray removes files that a crash left and that mean nothing. Needs a later SyncDir.
func (l *Log) removeStray(names []string) error {
	for _, n := range names {
		if strings.ContainsRune(n, filepath.Separator) {
			continue
		}
		if err := removeIfThere(l.fs, filepath.Join(l.dir, n)); err != nil {
			return err
		}
	}
	return nil
}
