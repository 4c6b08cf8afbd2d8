package segment

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"runnel.dev/runnel/internal/invariant"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record"
	"runnel.dev/runnel/record/index"
)

// MaxSize is the largest size of a .log file in bytes: positions have to fit the index.
const MaxSize = math.MaxInt32

// MaxIndexEntries bounds the offset index of a segment; a segment that reaches it is full. It is what Kafka's
// default of 10 MiB per index holds.
const MaxIndexEntries = 10 << 20 / index.OffsetEntrySize

// Options are what all segments of a log share.
type Options struct {
	FS    vfs.FS
	Dir   string
	Cache *Cache
	// IndexInterval is the number of log bytes between two index entries; 0 = 4 KiB.
	IndexInterval int
}

// Segment is one segment. See the package comment for what is safe to call concurrently.
type Segment struct {
	fs       vfs.FS
	dir      string
	cache    *Cache
	base     int64
	interval int

	// Stored by the writer after the bytes are in the file, size before end: a reader that loads end first finds all
	// batches below it within the size.
	// Invariant: batches [base, end) occupy exactly the first size bytes of the file.
	size, end atomic.Int64
	// Largest timestamp of the batches and the last offset of the first batch that has it; unknownTS before it was
	// loaded, noTS when there is none.
	maxTS, maxTSOffset atomic.Int64

	tail    atomic.Pointer[tail]
	handle  atomic.Pointer[handle]
	openMu  sync.Mutex // serialises opening the file; taken before Cache.mu
	loadMu  sync.Mutex // serialises loading the index files; taken before Cache.mu
	retired atomic.Bool
	cached  bool // guarded by Cache.mu
	sealed  atomic.Bool

	// Writer only.
	sinceEntry int64 // log bytes since the last offset entry
	indexedTS  int64 // timestamp of the last time entry
}

const (
	noTS      = -1
	unknownTS = -2
)

// Create makes the segment's empty .log file. The directory entry is volatile until the caller syncs the directory.
func Create(o Options, base int64) (*Segment, error) {
	s := newSegment(o, base)
	f, err := s.fs.Create(s.path(ExtLog))
	if err != nil {
		return nil, fmt.Errorf("create segment: %w", err)
	}
	s.tail.Store(newTail(0, 0, 0))
	s.setMaxTS(noTS, base)
	h := &handle{f: f, writable: true}
	s.adopt(h)
	_ = h.release()
	s.cache.evict()
	return s, nil
}

// State is what the opener of an existing segment knows without reading it.
type State struct {
	Base, End int64
	Size      int64
	// Entries that the index files hold, judged by their sizes or by a clean-shutdown marker.
	OffsetEntries, TimeEntries int
	// MaxTimestamp, its offset and the last time entry's timestamp, when TimesKnown.
	TimesKnown                                       bool
	MaxTimestamp, MaxTimestampOffset, IndexedMaxTime int64
}

// Open returns a segment over existing files. It opens and reads none of them.
func Open(o Options, st State) *Segment {
	s := newSegment(o, st.Base)
	s.size.Store(st.Size)
	s.end.Store(st.End)
	s.tail.Store(newTail(st.OffsetEntries, st.TimeEntries, 0))
	s.sinceEntry = int64(s.interval) + 1 // the next batch gets an entry, wherever the last one is
	s.setMaxTS(unknownTS, st.Base)
	if st.TimesKnown {
		s.setMaxTS(st.MaxTimestamp, st.MaxTimestampOffset)
		s.indexedTS = st.IndexedMaxTime
	}
	return s
}

func newSegment(o Options, base int64) *Segment {
	s := &Segment{fs: o.FS, dir: o.Dir, cache: o.Cache, base: base, interval: o.IndexInterval, indexedTS: noTS}
	if s.interval <= 0 {
		s.interval = index.DefaultInterval
	}
	s.end.Store(base)
	return s
}

func (s *Segment) path(ext string) string { return Path(s.dir, s.base, ext) }

// Path returns the path of the .log file.
func (s *Segment) Path() string { return s.path(ExtLog) }

// Base returns the offset of the first record that the segment may hold.
func (s *Segment) Base() int64 { return s.base }

// End returns the offset behind the last record.
func (s *Segment) End() int64 { return s.end.Load() }

// Size returns the bytes of all batches.
func (s *Segment) Size() int64 { return s.size.Load() }

// Sealed tells whether the segment takes no more appends.
func (s *Segment) Sealed() bool { return s.sealed.Load() }

// MarkSealed says that the segment is not the last one of its log. For segments that were opened; Seal does it too.
func (s *Segment) MarkSealed() { s.sealed.Store(true) }

func (s *Segment) setMaxTS(ms, offset int64) {
	s.maxTSOffset.Store(offset)
	s.maxTS.Store(ms)
}

// Room tells whether batches of n bytes whose last offset is last still fit by the limits of the format: position,
// 31-bit offset delta, and index entries.
func (s *Segment) Room(n int, last int64) bool {
	t := s.tail.Load()
	entries := int64(t.fileOffsets) + int64(t.offsets()) + int64(n)/int64(s.interval)
	return s.Size()+int64(n) <= MaxSize && last-s.base <= index.MaxRelativeOffset && entries < MaxIndexEntries
}

// Append writes stamped batches, one or several that follow each other, behind the last one, with a single write, through w (from
// AcquireWritable). On an
// error the segment is unchanged as far as readers can tell, but bytes may lie behind Size: the caller cuts them off
// (CutTail) before it appends again. h is the header of the first batch as stamped.
func (s *Segment) Append(w Ref, b []byte, h record.Header) error {
	pos := s.size.Load()
	if h.BaseOffset != s.end.Load() { // so that the arguments are boxed only when it matters
		invariant.Check(false, "append at %d to a segment that ends at %d", h.BaseOffset, s.end.Load())
	}
	if n, err := w.h.f.WriteAt(b, pos); err != nil {
		return fmt.Errorf("write %d bytes at position %d of %s (%d written): %w", len(b), pos, s.Path(), n, err)
	}
	s.noteBatch(h, pos)
	size := pos + int64(len(b))
	for b = b[h.Size():]; len(b) > 0; b = b[h.Size():] {
		pos += int64(h.Size())
		h, _ = record.ParseHeader(b) // the caller has parsed it
		s.noteBatch(h, pos)
	}
	s.size.Store(size)
	s.end.Store(h.NextOffset())
	return nil
}

// noteBatch updates times and indexes for the batch at pos. As in Kafka, entries are decided before the batch's own
// size counts.
func (s *Segment) noteBatch(h record.Header, pos int64) {
	if h.MaxTimestamp > s.maxTS.Load() {
		s.setMaxTS(h.MaxTimestamp, h.LastOffset())
	}
	if s.sinceEntry > int64(s.interval) {
		s.addOffsetEntry(index.OffsetEntry{
			RelativeOffset: uint32(h.LastOffset() - s.base), // #nosec G115 -- Room
			Position:       uint32(pos),                     // #nosec G115 -- Room
		})
		s.addTimeEntry()
		s.sinceEntry = 0
	}
	s.sinceEntry += int64(h.Size())
}

// CutTail removes what a failed Append may have left behind Size.
func (s *Segment) CutTail(w Ref) error {
	if err := w.h.f.Truncate(s.size.Load()); err != nil {
		return fmt.Errorf("cut the tail of %s to %d: %w", s.Path(), s.size.Load(), err)
	}
	return nil
}

// Probe tests whether the file can grow: it writes zeros behind the tail and cuts them off again. A crash in between
// leaves zeros, which end a recovery scan.
func (s *Segment) Probe(w Ref) error {
	var zeros [512]byte
	_, err := w.h.f.WriteAt(zeros[:], s.size.Load())
	if cut := s.CutTail(w); err == nil {
		err = cut
	}
	return err
}

// Retire closes the cached file for good and stops new ones from being opened; pinned ones stay readable. The owner
// calls it after it has taken the segment off the published list and before it removes the files.
func (s *Segment) Retire() {
	s.retired.Store(true)
	s.openMu.Lock()
	s.closeHandle()
	s.openMu.Unlock()
	s.cache.forget(s)
}

// Close closes the cached file. The segment must not be used afterwards.
func (s *Segment) Close() { s.Retire() }

// RemoveFiles unlinks the .log and index files (not the snapshot). Missing ones are fine. The .log goes last: as long
// as it exists the others are reproducible.
func (s *Segment) RemoveFiles() error { return RemoveFiles(s.fs, s.dir, s.base) }
