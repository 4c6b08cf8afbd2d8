package segment

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"runnel.dev/runnel/record"
	"runnel.dev/runnel/record/index"
)

// Range is a run of whole batches in one segment, which its Ref pins.
type Range struct {
	Ref
	Position    int64
	Len         int
	First, Next int64 // base offset of the first batch, offset behind the last one
}

// Locate finds the run of whole batches that begins with the one that holds offset and lies below upTo: as many as fit
// maxBytes, and at least one. A batch that reaches beyond upTo is not returned; the Range is then empty, with First
// and Next = offset, and pins nothing. offset must lie in [Base, End). Allocates nothing.
func (s *Segment) Locate(offset int64, maxBytes int, upTo int64) (Range, error) {
	h, err := s.acquire(false)
	if err != nil {
		return Range{}, err
	}
	r, err := s.locate(h, offset, maxBytes, upTo)
	if err != nil || r.Len == 0 {
		_ = h.release()
		return r, err
	}
	r.Ref = Ref{h}
	return r, nil
}

func (s *Segment) locate(h *handle, offset int64, maxBytes int, upTo int64) (Range, error) {
	limit := s.Size()
	w, hd, pos, err := s.seek(h, offset, limit)
	if err != nil {
		return Range{}, err
	}
	defer w.done()
	if hd.NextOffset() > upTo {
		// Offsets to read up to are ends of batches, so this is a batch that is not complete yet, or a damaged header.
		return Range{First: offset, Next: offset}, s.check(h, hd, pos)
	}
	r := Range{Position: pos, Len: hd.Size(), First: hd.BaseOffset, Next: hd.NextOffset()}
	target := pos + int64(maxBytes)
	if e, ok := s.entryBelow(h, target, upTo); ok && int64(e.Position) > w.pos {
		w.jump(int64(e.Position))
		jumped, at, err := w.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, ErrCorrupt), err == nil && (jumped.LastOffset() != s.base+int64(e.RelativeOffset) || jumped.BaseOffset < r.Next):
			// The entry lies, or the batch is damaged: a walk without the jump tells.
			w.jump(pos + int64(r.Len))
			if err := s.rebuild(h); err != nil {
				return Range{}, err
			}
		case err != nil:
			return Range{}, err
		default:
			r.Len, r.Next = int(at-pos), jumped.BaseOffset
			if end := at + int64(jumped.Size()); end <= target && jumped.NextOffset() <= upTo {
				r.Len, r.Next = int(end-pos), jumped.NextOffset()
			}
		}
	}
	for r.Next < upTo && pos+int64(r.Len) == w.pos {
		hd, at, err := w.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Range{}, err
		}
		if at+int64(hd.Size()) > target || hd.NextOffset() > upTo {
			break
		}
		r.Len, r.Next = int(w.pos-pos), hd.NextOffset()
	}
	return r, nil
}

// seek returns the header and position of the batch that holds offset, and a walker that stands behind it. An index
// entry that contradicts the batches is found here: the index is rebuilt and the search repeated without it.
func (s *Segment) seek(h *handle, offset, limit int64) (walker, record.Header, int64, error) {
	e, found, err := s.lookup(h, offset)
	if err != nil {
		return walker{}, record.Header{}, 0, err
	}
	if found {
		w, hd, pos, err := s.seekFrom(h, e, offset, limit)
		if err == nil || !errors.Is(err, errIndexLies) {
			return w, hd, pos, err
		}
		if err := s.rebuild(h); err != nil {
			return walker{}, record.Header{}, 0, err
		}
	}
	w := s.walk(h, 0, s.base, limit)
	hd, pos, err := w.until(offset)
	if err != nil {
		w.done()
	}
	return w, hd, pos, err
}

// check verifies the checksum of one batch.
func (s *Segment) check(h *handle, hd record.Header, pos int64) error {
	if hd.BaseOffset >= s.End() {
		return nil
	}
	_, _, err := Scan(h.f, s.base, pos, pos+int64(hd.Size()), hd.BaseOffset, func(record.Header, []byte, int64) error { return nil })
	return err
}

var errIndexLies = errors.New("index entry contradicts the batch at its position")

func (s *Segment) seekFrom(h *handle, e index.OffsetEntry, offset, limit int64) (walker, record.Header, int64, error) {
	if int64(e.Position) >= limit {
		return walker{}, record.Header{}, 0, errIndexLies
	}
	w := s.walk(h, int64(e.Position), -1, limit)
	hd, pos, err := w.next()
	switch {
	case errors.Is(err, ErrCorrupt), err == nil && hd.LastOffset() != s.base+int64(e.RelativeOffset):
		err = errIndexLies
	case err == nil && hd.LastOffset() < offset:
		hd, pos, err = w.until(offset)
	}
	if err != nil {
		w.done()
	}
	return w, hd, pos, err
}

// until moves on to the batch that holds offset.
func (w *walker) until(offset int64) (record.Header, int64, error) {
	for {
		hd, pos, err := w.next()
		if errors.Is(err, io.EOF) {
			return hd, pos, w.corrupt("offset %d is not in the segment, which should end at %d", offset, w.s.End())
		}
		if err != nil || hd.LastOffset() >= offset {
			return hd, pos, err
		}
	}
}

// lookup returns the last index entry at or below offset.
func (s *Segment) lookup(h *handle, offset int64) (index.OffsetEntry, bool, error) {
	rel := uint32(min(max(offset-s.base, 0), index.MaxRelativeOffset)) // #nosec G115 -- clamped
	t := s.tail.Load()
	if o := t.offsetEntries(); o.Len() > 0 && o.At(0).RelativeOffset <= rel {
		e, ok := o.Lookup(rel)
		return e, ok, nil
	}
	if t.fileOffsets == 0 {
		return index.OffsetEntry{}, false, nil
	}
	li, err := s.load(h, t)
	if err != nil {
		return index.OffsetEntry{}, false, err
	}
	e, ok := li.offsets.Lookup(rel)
	return e, ok, nil
}

// entryBelow returns the last entry whose batch begins at or before pos and ends at or below the offset upTo, if one
// is known cheaply.
func (s *Segment) entryBelow(h *handle, pos, upTo int64) (index.OffsetEntry, bool) {
	t := s.tail.Load()
	if e, ok := lastBelow(t.offsetEntries(), s.base, pos, upTo); ok {
		return e, true
	}
	if t.fileOffsets == 0 {
		return index.OffsetEntry{}, false
	}
	li, err := s.load(h, t)
	if err != nil {
		return index.OffsetEntry{}, false
	}
	return lastBelow(li.offsets, s.base, pos, upTo)
}

func lastBelow(o index.Offsets, base, pos, upTo int64) (index.OffsetEntry, bool) {
	i := sort.Search(o.Len(), func(i int) bool {
		e := o.At(i)
		return int64(e.Position) > pos || base+int64(e.RelativeOffset) >= upTo
	})
	if i == 0 {
		return index.OffsetEntry{}, false
	}
	return o.At(i - 1), true
}

// ReadAt reads len(dst) bytes of the range from its start. ErrShort if the file has become shorter.
func (r Range) ReadAt(dst []byte) error {
	n, err := r.h.f.ReadAt(dst, r.Position)
	if n == len(dst) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return ErrShort
	}
	return fmt.Errorf("read %d bytes at %d of %s: %w", len(dst), r.Position, r.h.f.Name(), err)
}
