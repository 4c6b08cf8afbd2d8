package log

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs"
)

// The clean marker, version 1: the frame of envelope.go with magic "RNLC" around the 8-byte fields of cleanState in
// order. It says that everything below end was flushed when the log was closed, and which files that was. It is not
// synced itself: it was written after the data was durable, so it may be lost but never lie. The first change to the
// log removes it; if a crash brings it back, the active segment has grown, the sizes differ, and it is ignored. It is
// also ignored if the journal knows of a later flushed offset.
const (
	cleanName = "clean"
)

type cleanState struct {
	end, highWatermark, logStart                int64
	segments, totalBytes                        int64
	activeBase, activeSize                      int64
	offsetEntries, timeEntries                  int64 // of the active segment's index files
	maxTimestamp, maxTimestampOffset, indexedTS int64
	firstAtMS                                   int64 // first append to the active segment; 0 = none
}

var cleanFormat = format{magic: "RNLC", version: 1}

func (c *cleanState) fields() []*int64 {
	return []*int64{
		&c.end, &c.highWatermark, &c.logStart, &c.segments, &c.totalBytes, &c.activeBase, &c.activeSize,
		&c.offsetEntries, &c.timeEntries, &c.maxTimestamp, &c.maxTimestampOffset, &c.indexedTS, &c.firstAtMS,
	}
}

func encodeClean(c cleanState) []byte {
	var b []byte
	for _, f := range c.fields() {
		b = binary.BigEndian.AppendUint64(b, uint64(*f)) // #nosec G115 -- bits kept
	}
	return seal(cleanFormat, b)
}

func decodeClean(name string, file []byte) (cleanState, error) {
	var c cleanState
	b, err := unseal(name, cleanFormat, file)
	if err != nil {
		return c, err
	}
	d := decoder{name: name, b: b}
	for _, f := range c.fields() {
		*f = d.int64()
	}
	if d.err == nil && len(d.b) > 0 {
		d.fail("%d bytes at the end", len(d.b))
	}
	return c, d.err
}

// writeClean writes the rest of the indexes, the producer snapshot at the end, the epoch checkpoint and the marker.
// Nothing of it when something is unflushed. Needs startMu and appendMu.
func (l *Log) writeClean() error {
	if l.flushed.Load() != l.end.Load() {
		return nil
	}
	s := l.active()
	if err := s.FlushIndex(); err != nil {
		return err
	}
	if err := l.snapshotAtClose(s); err != nil {
		return err
	}
	if err := l.saveEpochs(); err != nil {
		return err
	}
	st := s.State()
	c := cleanState{
		end: l.end.Load(), highWatermark: l.hw.Load(), logStart: l.logStart.Load(),
		segments: int64(len(l.segments())), totalBytes: l.Size(), activeBase: s.Base(), activeSize: s.Size(),
		offsetEntries: int64(st.OffsetEntries), timeEntries: int64(st.TimeEntries),
		maxTimestamp: st.MaxTimestamp, maxTimestampOffset: st.MaxTimestampOffset, indexedTS: st.IndexedMaxTime,
	}
	if !l.w.firstAt.IsZero() {
		c.firstAtMS = l.w.firstAt.UnixMilli()
	}
	m, err := createTruncated(l.fs, filepath.Join(l.dir, cleanName))
	if err != nil {
		return err
	}
	_, err = m.WriteAt(encodeClean(c), 0)
	return errors.Join(err, m.Close())
}

// snapshotAtClose writes the producer state at the end. An empty active segment has a snapshot at its base already; it
// is durable, and may be all that is left of producers whose segments were deleted, so it must not be written over
// without a sync.
func (l *Log) snapshotAtClose(active *segment.Segment) error {
	if active.Size() == 0 {
		if _, err := readSnapshot(l.fs, l.dir, active.Base()); err == nil {
			return nil
		}
	}
	f, err := l.writeSnapshot(l.end.Load())
	if err != nil {
		return err
	}
	return f.Close()
}

// dropClean removes the marker before the first change. Needs appendMu.
func (l *Log) dropClean() error {
	if !l.w.cleanMarker {
		return nil
	}
	if err := removeIfThere(l.fs, filepath.Join(l.dir, cleanName)); err != nil {
		return err
	}
	l.w.cleanMarker = false
	l.mu.Lock()
	l.mu.dirDirty = true
	l.mu.Unlock()
	return nil
}

func readClean(fsys vfs.FS, dir string) (cleanState, bool) {
	name := filepath.Join(dir, cleanName)
	b, err := readFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return cleanState{}, false
	}
	c, derr := decodeClean(name, b)
	return c, err == nil && derr == nil
}

// matches tells whether the marker describes exactly these files.
func (c cleanState) matches(d dirFiles, rec Recovered) bool {
	n := len(d.segments)
	if n == 0 || int64(n) != c.segments || rec.LogStart > c.end || rec.Known && rec.Flushed > c.end {
		return false
	}
	var total int64
	for _, s := range d.segments {
		total += s.size
	}
	last := d.segments[n-1]
	return total == c.totalBytes && last.base == c.activeBase && last.size == c.activeSize &&
		last.offsetEntries == int(c.offsetEntries) && last.timeEntries == int(c.timeEntries) && c.end >= last.base
}

// openClean opens the log by its marker, without a scan.
func (l *Log) openClean(c cleanState, d dirFiles, rec Recovered, g lineage, checkpoint []EpochStart) error {
	segs := l.openSegments(d.segments, c.end)
	last := segs[len(segs)-1]
	segs[len(segs)-1] = segment.Open(l.opts, segment.State{
		Base: last.Base(), End: c.end, Size: c.activeSize, OffsetEntries: int(c.offsetEntries), TimeEntries: int(c.timeEntries),
		TimesKnown: true, MaxTimestamp: c.maxTimestamp, MaxTimestampOffset: c.maxTimestampOffset, IndexedMaxTime: c.indexedTS,
	})
	l.segs.Store(&segs)
	g = g.upTo(c.end)
	l.epochs.Store(&g)
	l.logStart.Store(max(c.logStart, rec.LogStart, segs[0].Base()))
	l.end.Store(c.end)
	l.flushed.Store(c.end)
	l.hw.Store(max(l.logStart.Load(), min(max(c.highWatermark, rec.HighWatermark), c.end)))
	l.w.cleanMarker = true
	l.mu.uncheckpointed = without(g, checkpoint)
	l.w.snapshotSize = c.activeSize
	if c.firstAtMS > 0 {
		l.w.firstAt = time.UnixMilli(c.firstAtMS)
	}
	if states, err := readSnapshot(l.fs, l.dir, c.end); err == nil {
		l.w.producers = importProducers(states, l.cfg.Load().MaxProducers)
		if c.end != last.Base() {
			l.w.midSnapshot = c.end
		}
		return nil
	}
	return l.rebuildProducers()
}
