package log

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// TopicID is the identity of a topic's incarnation.
type TopicID = ids.TopicID

// Log is one partition's log. All methods are safe for concurrent use; the package comment says which ones wait for
// each other.
type Log struct {
	fs   vfs.FS
	dir  string
	host Host
	clk  clock.Clock
	lg   *slog.Logger
	opts segment.Options
	// observer may be nil.
	observer Observer

	cfg  atomic.Pointer[Config]
	meta atomic.Pointer[Meta]

	// Invariant: never empty unless the log is quarantined; each segment's base is the end of the one before it; all
	// but the last are sealed. A new list is published before an offset of a new segment can be observed, and before
	// files of a removed one are unlinked.
	segs atomic.Pointer[[]*segment.Segment]
	// Invariant: logStart ≤ hw ≤ end, flushed ≤ end. Only Truncate lowers any of them.
	logStart, hw, flushed, end atomic.Int64
	// wantedStart is the journaled log start. Invariant: never goes down. Guarded for writing by startMu.
	wantedStart atomic.Int64
	// replicaStart is the base of the batch that holds logStart. It is stored after logStart, before segments go.
	replicaStart atomic.Int64
	retired      atomic.Uint64 // segments that log-start moves removed, since they were last asked about
	// Invariant: adoptedDurable ≤ adopted; neither ever goes down.
	adopted, adoptedDurable atomic.Int32
	// truncations goes up when a truncation begins and when it ends: whoever captured an offset before must not act on
	// it afterwards, and what was captured at an odd count was captured in the middle of one.
	truncations atomic.Uint64
	// What Counters returns.
	recordsIn, bytesIn, bytesOut atomic.Uint64
	epochs                       atomic.Pointer[lineage]
	state                        atomic.Pointer[State]
	// dirty is set while the Host has been told and PrepareSync has not been called.
	dirty     atomic.Bool
	callbacks atomic.Pointer[[]*func(int64)]

	startMu sync.Mutex // log-start moves; garbage
	garbage []int64    // bases of segments whose files could not be unlinked yet

	appendMu sync.Mutex // guards w
	w        writer

	mu struct {
		sync.Mutex
		refs      []segment.Ref // pinned files with unsynced bytes
		files     []vfs.File    // other open files with unsynced bytes
		spareRefs []segment.Ref
		dirDirty  bool // entries of the directory changed
		// Epoch starts that no finished round has journaled, and those that the checkpoint file lacks.
		unjournaled, uncheckpointed []EpochStart
		// cutting is the end that a truncation in progress will leave, math.MaxInt64 while there is none.
		cutting int64
	}
}

// writer is the state of the one writer.
type writer struct {
	producers   *producers
	cleanMarker bool      // the marker of the last clean Close is still there
	tailDirty   bool      // bytes of a failed append may lie behind the active segment's size
	retryAt     time.Time // when a read-only log may try the disk again
	firstAt     time.Time // when the active segment got its first batch; zero when empty
	// Where the newest snapshot within the active segment stands (0: none), and the size of the segment then.
	midSnapshot, snapshotSize int64
}

// Offsets are the limits of a log at one moment; see the package comment.
type Offsets struct {
	LogStart, LocalStart        int64
	TieredEnd                   int64 // -1: no tier
	HighWatermark, Flushed, End int64
}

// Offsets returns the limits. Takes no lock; values that grow are read smallest first, so their order holds.
func (l *Log) Offsets() Offsets {
	o := Offsets{LogStart: l.logStart.Load(), TieredEnd: -1}
	o.LocalStart = o.LogStart
	if segs := l.segments(); len(segs) > 0 {
		o.LocalStart = max(o.LogStart, segs[0].Base())
	}
	o.HighWatermark = l.hw.Load()
	o.Flushed = l.flushed.Load()
	o.End = l.end.Load()
	return o
}

// LogStart returns the first offset that may be read.
func (l *Log) LogStart() int64 { return l.logStart.Load() }

// HighWatermark returns the offset up to which consumers may read.
func (l *Log) HighWatermark() int64 { return l.hw.Load() }

// Flushed returns the offset up to which the log is durable.
func (l *Log) Flushed() int64 { return l.flushed.Load() }

// End returns the offset that the next record gets.
func (l *Log) End() int64 { return l.end.Load() }

// TruncationGen changes with every truncation; equal values mean that none came between.
func (l *Log) TruncationGen() uint64 { return l.truncations.Load() }

// SetHighWatermark raises the high watermark to offset, at most to the log end; it never lowers it. During a truncation the end that it
// will have counts. Never blocks on the disk.
func (l *Log) SetHighWatermark(offset int64) {
	if offset <= l.hw.Load() {
		return
	}
	// Under the lock: a truncation lowers end and high watermark in one step, and neither may be compared with the other of before.
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset = min(offset, l.end.Load(), l.mu.cutting); offset > l.hw.Load() {
		l.hw.Store(offset)
	}
}

// Counters returns what went in and out since the log was opened: records and bytes (batches as stored) that were appended, as leader or
// follower, and bytes that consumers read; other replicas' reads do not count. For load; takes no lock.
func (l *Log) Counters() (recordsIn, bytesIn, bytesOut uint64) {
	return l.recordsIn.Load(), l.bytesIn.Load(), l.bytesOut.Load()
}

// OnFlushed registers f to be called with the flushed offset after every sync round that moved it or AdoptedDurable, on the
// goroutine of the sync scheduler, in order, until stop is called; a call that is under way then may still be running. f must not block.
func (l *Log) OnFlushed(f func(flushed int64)) (stop func()) {
	own := &f
	l.changeCallbacks(func(fs []*func(int64)) []*func(int64) { return append(fs, own) })
	return func() {
		l.changeCallbacks(func(fs []*func(int64)) []*func(int64) {
			return slices.DeleteFunc(fs, func(f *func(int64)) bool { return f == own })
		})
	}
}

func (l *Log) changeCallbacks(change func([]*func(int64)) []*func(int64)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var fs []*func(int64)
	if old := l.callbacks.Load(); old != nil {
		fs = slices.Clone(*old)
	}
	fs = change(fs)
	l.callbacks.Store(&fs)
}

// TopicID returns the topic that the log belongs to.
func (l *Log) TopicID() ids.TopicID { return l.meta.Load().TopicID }

// Partition returns the partition number.
func (l *Log) Partition() int32 { return l.meta.Load().Partition }

// LogID returns the identity of this replica's log.
func (l *Log) LogID() ids.LogID { return l.meta.Load().LogID }

// Meta returns what partition.meta says.
func (l *Log) Meta() Meta { return *l.meta.Load() }

// Dir returns the partition directory.
func (l *Log) Dir() string { return l.dir }

// Config returns the configuration in force.
func (l *Log) Config() Config { return *l.cfg.Load() }

// SetConfig replaces the configuration, from the next append or retention pass on.
func (l *Log) SetConfig(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	l.cfg.Store(&c)
	return nil
}

// Size returns the bytes of all segments' batches.
func (l *Log) Size() int64 {
	var n int64
	for _, s := range l.segments() {
		n += s.Size()
	}
	return n
}

// SegmentInfo describes one segment.
type SegmentInfo struct {
	Base, End int64
	Size      int64 // bytes
	Sealed    bool
}

// Segments describes the segments, oldest first.
func (l *Log) Segments() []SegmentInfo {
	segs := l.segments()
	out := make([]SegmentInfo, 0, len(segs))
	for _, s := range segs {
		out = append(out, SegmentInfo{Base: s.Base(), End: s.End(), Size: s.Size(), Sealed: s.Sealed()})
	}
	return out
}

func (l *Log) segments() []*segment.Segment { return *l.segs.Load() }

// active returns the last segment. The caller holds appendMu, or can live with one that is no longer the last.
func (l *Log) active() *segment.Segment {
	segs := l.segments()
	return segs[len(segs)-1]
}

// markDirty tells the Host unless it knows.
func (l *Log) markDirty() {
	if !l.dirty.Swap(true) {
		l.host.MarkDirty(l)
	}
}

// JournalEntry returns what the journal should say of the log now. It names no epochs: those go to the journal with the
// round of their first batch (SyncPoint.NewEpochs). An entry is written some time after it was made, and an epoch that
// comes late would make the newer ones void that a round has journaled meanwhile.
func (l *Log) JournalEntry() JournalEntry {
	m := l.meta.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	flushed := l.flushed.Load()
	return JournalEntry{
		TopicID: m.TopicID, Partition: m.Partition, LogID: m.LogID,
		Flushed: flushed, HighWatermark: min(l.hw.Load(), flushed), LogStart: l.logStart.Load(),
		WantedStart: l.JournaledLogStart(), AdoptedEpoch: l.adopted.Load(),
	}
}

// Close ends the log: further calls fail with ErrClosed, readers that hold a Range finish. If everything is flushed
// and healthy it writes the producer snapshot and the clean marker, so that the next Open needs no scan. The caller
// has run a last sync round before. Blocks for an append or a truncation in progress.
func (l *Log) Close() error {
	l.startMu.Lock()
	defer l.startMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.state.Load().Health == Offline {
		return nil
	}
	var err error
	if l.state.Load().Health == Online && !l.w.tailDirty {
		err = l.writeClean()
	}
	l.setState(Offline, ErrClosed)
	for _, s := range l.segments() {
		s.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.releaseLocked(l.mu.refs, l.mu.files)
	l.mu.refs, l.mu.files = nil, nil
	return err
}

func (l *Log) journal(ctx context.Context, e JournalEntry) error { return l.host.JournalNow(ctx, e) }
