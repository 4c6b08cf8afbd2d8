package segment

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record/index"
)

// loadedIndex is the content of the index files in memory, as long as the segment's file stays in the cache.
type loadedIndex struct {
	offsets index.Offsets
	times   index.Times
	// fileOffsets is the tail's count when this was loaded; a tail that has written more since makes it stale.
	fileOffsets int
}

func (li *loadedIndex) bytes() int64 { return int64(len(li.offsets) + len(li.times)) }

// load returns the entries that are in the files, t.fileOffsets of them or more. Files that are absent, short or not
// ascending are rebuilt from the batches.
func (s *Segment) load(h *handle, t *tail) (*loadedIndex, error) {
	if li := h.index.Load(); li != nil && li.fileOffsets >= t.fileOffsets {
		return li, nil
	}
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	t = s.tail.Load()
	if li := h.index.Load(); li != nil && li.fileOffsets >= t.fileOffsets {
		return li, nil
	}
	li, err := s.readIndex(t)
	if err != nil {
		return s.rebuildLocked(h)
	}
	s.cache.setIndex(s, h, li)
	return li, nil
}

func (s *Segment) readIndex(t *tail) (*loadedIndex, error) {
	o, err := readSome(s.fs, s.path(ExtIndex), t.fileOffsets*index.OffsetEntrySize)
	if err != nil {
		return nil, err
	}
	m, err := readSome(s.fs, s.path(ExtTimeIndex), t.fileTimes*index.TimeEntrySize)
	if err != nil {
		return nil, err
	}
	li := &loadedIndex{offsets: o, times: m, fileOffsets: t.fileOffsets}
	return li, errors.Join(li.offsets.Validate(), li.times.Validate())
}

// readSome reads exactly the first n bytes of a file.
func readSome(fsys vfs.FS, name string, n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	b := make([]byte, n)
	got, err := f.ReadAt(b, 0)
	if got < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b, nil
}

// Rebuild makes both indexes anew from the batches, for an index that turned out to contradict them.
func (s *Segment) Rebuild() error {
	h, err := s.acquire(false)
	if err != nil {
		return err
	}
	defer func() { _ = h.release() }()
	return s.rebuild(h)
}

func (s *Segment) rebuild(h *handle) error {
	s.loadMu.Lock()
	defer s.loadMu.Unlock()
	_, err := s.rebuildLocked(h)
	return err
}

// rebuildLocked needs loadMu. The files of a sealed segment are replaced as well, unless the disk refuses; those of
// the segment that is written to belong to the writer, so there the result stays in memory, and covers what the tail
// does not.
func (s *Segment) rebuildLocked(h *handle) (*loadedIndex, error) {
	t := s.tail.Load()
	b := index.NewBuilder(s.base, s.interval)
	w := s.walk(h, 0, s.base, s.Size())
	defer w.done()
	limit := s.End()
	if o := t.offsetEntries(); o.Len() > 0 {
		limit = s.base + int64(o.At(0).RelativeOffset) + 1
	}
	for w.want < limit {
		hd, pos, err := w.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = b.Add(hd, pos)
		}
		if err != nil {
			return nil, err
		}
	}
	sealed := s.sealed.Load()
	if sealed {
		b.Seal()
	}
	o, m := b.Take()
	li := &loadedIndex{offsets: o, times: m, fileOffsets: t.fileOffsets}
	if sealed {
		s.tail.Store(newTail(o.Len(), m.Len(), 0))
		li.fileOffsets = o.Len()
		_ = s.replaceIndex(o, m) // an index is a hint: the next reader rebuilds it again
	}
	s.cache.setIndex(s, h, li)
	return li, nil
}

func (s *Segment) replaceIndex(o index.Offsets, m index.Times) error {
	if s.retired.Load() {
		return nil
	}
	if err := writeIndex(s.fs, s.path(ExtIndex), o, 0, nil); err != nil {
		return err
	}
	return writeIndex(s.fs, s.path(ExtTimeIndex), m, 0, nil)
}

// IndexFileSizes returns the number of whole entries in the index files, and whether both files exist and hold whole
// entries only.
func IndexFileSizes(fsys vfs.FS, dir string, base int64) (offsets, times int, ok bool, err error) {
	sizes := [2]int64{}
	ok = true
	for i, ext := range []string{ExtIndex, ExtTimeIndex} {
		st, err := fsys.Stat(Path(dir, base, ext))
		if errors.Is(err, fs.ErrNotExist) {
			ok = false
			continue
		}
		if err != nil {
			return 0, 0, false, fmt.Errorf("size of index: %w", err)
		}
		sizes[i] = st.Size
	}
	if sizes[0]%index.OffsetEntrySize != 0 || sizes[1]%index.TimeEntrySize != 0 {
		ok = false
	}
	return int(sizes[0] / index.OffsetEntrySize), int(sizes[1] / index.TimeEntrySize), ok, nil
}
