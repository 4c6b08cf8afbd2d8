package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record/index"
)

// Entries that wait in memory before they are written to the files: 512 of each kind are at most 10 KiB, and stand
// for 2 MiB of log.
const (
	minTailEntries = 16
	maxTailEntries = 512
)

// tail is the part of the indexes that is in memory only. The writer appends to the arrays and then stores the
// lengths; a reader sees an immutable prefix. When an array is full the writer publishes another tail.
type tail struct {
	// Entries before these, which the files hold (or held: a reader that finds less rebuilds them).
	fileOffsets, fileTimes int
	off, tim               []byte // allocated in full
	nOff, nTim             atomic.Int32
}

func newTail(fileOffsets, fileTimes, capEntries int) *tail {
	return &tail{
		fileOffsets: fileOffsets, fileTimes: fileTimes,
		off: make([]byte, capEntries*index.OffsetEntrySize), tim: make([]byte, capEntries*index.TimeEntrySize),
	}
}

func (t *tail) offsets() int { return int(t.nOff.Load()) }
func (t *tail) times() int   { return int(t.nTim.Load()) }

func (t *tail) offsetEntries() index.Offsets {
	return index.Offsets(t.off[:t.offsets()*index.OffsetEntrySize])
}

func (t *tail) timeEntries() index.Times { return index.Times(t.tim[:t.times()*index.TimeEntrySize]) }

// grown returns a tail with the same entries and room for more.
func (t *tail) grown() *tail {
	n := max(minTailEntries, 2*t.offsets(), 2*t.times())
	g := newTail(t.fileOffsets, t.fileTimes, n)
	copy(g.off, t.offsetEntries())
	copy(g.tim, t.timeEntries())
	g.nOff.Store(t.nOff.Load())
	g.nTim.Store(t.nTim.Load())
	return g
}

func (s *Segment) addOffsetEntry(e index.OffsetEntry) {
	t := s.roomyTail()
	n := t.offsets()
	index.AppendOffset(t.off[:n*index.OffsetEntrySize], e)
	t.nOff.Store(int32(n + 1)) // #nosec G115 -- bounded by MaxIndexEntries
}

// addTimeEntry adds an entry for the largest timestamp unless the last entry already is it.
func (s *Segment) addTimeEntry() {
	ms := s.maxTS.Load()
	if ms < 0 || ms <= s.indexedTS {
		return
	}
	t := s.roomyTail()
	n := t.times()
	index.AppendTime(t.tim[:n*index.TimeEntrySize], index.TimeEntry{
		Timestamp:      ms,
		RelativeOffset: uint32(s.maxTSOffset.Load() - s.base), // #nosec G115 -- an offset of this segment
	})
	t.nTim.Store(int32(n + 1)) // #nosec G115 -- at most one per offset entry, plus one
	s.indexedTS = ms
}

// roomyTail returns the current tail with room for one entry of each kind. A tail that is full is written to the
// files; if that fails the memory keeps growing until a later attempt succeeds, since appends must not fail for the
// sake of an index.
func (s *Segment) roomyTail() *tail {
	t := s.tail.Load()
	if (t.offsets()+1)*index.OffsetEntrySize <= len(t.off) && (t.times()+1)*index.TimeEntrySize <= len(t.tim) {
		return t
	}
	if max(t.offsets(), t.times()) >= maxTailEntries && s.FlushIndex() == nil {
		t = s.tail.Load()
		if len(t.off) > 0 {
			return t
		}
	}
	t = t.grown()
	s.tail.Store(t)
	return t
}

// FlushIndex writes the entries in memory to the index files, without a sync. Readers find every entry before, during
// and after: the new tail is published once the bytes are in the files.
func (s *Segment) FlushIndex() error {
	t := s.tail.Load()
	if t.offsets() == 0 && t.times() == 0 {
		return nil
	}
	if err := writeIndex(s.fs, s.path(ExtIndex), t.offsetEntries(), int64(t.fileOffsets)*index.OffsetEntrySize, nil); err != nil {
		return err
	}
	if err := writeIndex(s.fs, s.path(ExtTimeIndex), t.timeEntries(), int64(t.fileTimes)*index.TimeEntrySize, nil); err != nil {
		return err
	}
	n := 0
	if !s.sealed.Load() {
		n = min(maxTailEntries, len(t.off)/index.OffsetEntrySize)
	}
	s.tail.Store(newTail(t.fileOffsets+t.offsets(), t.fileTimes+t.times(), n))
	return nil
}

// TrimIndex cuts the index files behind the entries that still count, after a rebuild that kept only the first ones.
func (s *Segment) TrimIndex() error {
	t := s.tail.Load()
	if err := writeIndex(s.fs, s.path(ExtIndex), nil, int64(t.fileOffsets)*index.OffsetEntrySize, nil); err != nil {
		return err
	}
	return writeIndex(s.fs, s.path(ExtTimeIndex), nil, int64(t.fileTimes)*index.TimeEntrySize, nil)
}

// writeIndex writes b at pos of the file, which it creates if need be, and cuts off whatever lies behind. If keep is
// not nil the open file is appended to it instead of being closed, so that it can be synced.
func writeIndex(fsys vfs.FS, name string, b []byte, pos int64, keep *[]vfs.File) error {
	f, err := fsys.OpenRW(name)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = fsys.Create(name)
	}
	if err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	if len(b) > 0 {
		_, err = f.WriteAt(b, pos)
	}
	if err == nil {
		err = f.Truncate(pos + int64(len(b)))
	}
	if err == nil && keep != nil {
		*keep = append(*keep, f)
		return nil
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write index %s: %w", name, err)
	}
	return nil
}

// Seal ends the appends: it adds the final time entry and writes the rest of both indexes. The open index files are
// returned for the next sync round to sync and close; sealed segments whose end was flushed then have whole indexes.
func (s *Segment) Seal() ([]vfs.File, error) {
	s.addTimeEntry()
	t := s.tail.Load()
	var files []vfs.File
	err := writeIndex(s.fs, s.path(ExtIndex), t.offsetEntries(), int64(t.fileOffsets)*index.OffsetEntrySize, &files)
	if err == nil {
		err = writeIndex(s.fs, s.path(ExtTimeIndex), t.timeEntries(), int64(t.fileTimes)*index.TimeEntrySize, &files)
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, err
	}
	s.sealed.Store(true)
	s.tail.Store(newTail(t.fileOffsets+t.offsets(), t.fileTimes+t.times(), 0))
	return files, nil
}

// Unseal makes the segment the last one of its log again, after a truncation or when its successor could not be made.
func (s *Segment) Unseal() { s.sealed.Store(false) }

// RemoveFiles unlinks the .log and index files of the segment at base in dir.
func RemoveFiles(fsys vfs.FS, dir string, base int64) error {
	var all error
	for _, ext := range []string{ExtTimeIndex, ExtIndex, ExtLog} {
		if err := fsys.Remove(Path(dir, base, ext)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}
