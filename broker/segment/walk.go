package segment

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"runnel.dev/runnel/record"
)

// window is how much a walk over headers reads at once: what lies between two index entries, and a header.
const window = 4096 + record.HeaderSize

var windows = sync.Pool{New: func() any { return new([window]byte) }}

// walker steps over the headers of consecutive batches in the first limit bytes of a segment.
type walker struct {
	s     *Segment
	h     *handle
	buf   *[window]byte
	start int64 // position of buf[0]
	have  int   // valid bytes in buf
	pos   int64 // of the next header
	limit int64
	want  int64 // base offset that the next header must have, -1 = any
}

func (s *Segment) walk(h *handle, pos, want, limit int64) walker {
	return walker{s: s, h: h, buf: windows.Get().(*[window]byte), pos: pos, limit: limit, want: want}
}

func (w *walker) done() { windows.Put(w.buf) }

// jump continues at another position; any base offset is accepted there.
func (w *walker) jump(pos int64) { w.pos, w.want = pos, -1 }

// next parses the header at pos and moves behind its batch. io.EOF at the limit. A header that makes no sense, or
// whose batch does not fit, is a *CorruptError; a file that ends early is ErrShort.
func (w *walker) next() (record.Header, int64, error) {
	pos := w.pos
	if pos == w.limit {
		return record.Header{}, pos, io.EOF
	}
	if pos+record.HeaderSize > w.limit {
		return record.Header{}, pos, w.corrupt("%d bytes are too few for a batch header", w.limit-pos)
	}
	if pos < w.start || pos+record.HeaderSize > w.start+int64(w.have) {
		n := min(int64(window), w.limit-pos)
		got, err := w.h.f.ReadAt(w.buf[:n], pos)
		if int64(got) < n {
			if err == nil || errors.Is(err, io.EOF) {
				return record.Header{}, pos, ErrShort
			}
			return record.Header{}, pos, fmt.Errorf("read %s at %d: %w", w.s.Path(), pos, err)
		}
		w.start, w.have = pos, got
	}
	h, err := record.ParseHeader(w.buf[pos-w.start : pos-w.start+record.HeaderSize])
	if err != nil {
		e := w.corrupt("no batch header")
		e.Err = err
		return record.Header{}, pos, e
	}
	if w.want >= 0 && h.BaseOffset != w.want {
		return h, pos, w.corrupt("batch has base offset %d", h.BaseOffset)
	}
	if h.LastOffsetDelta < 0 || h.BaseOffset < w.s.base || pos+int64(h.Size()) > w.limit {
		return h, pos, w.corrupt("batch of %d bytes, %d offsets from %d does not fit", h.Size(), int64(h.LastOffsetDelta)+1, h.BaseOffset)
	}
	// A batch is published as a whole: one that begins below the end lies below it.
	if end := w.s.End(); h.BaseOffset < end && h.NextOffset() > end {
		return h, pos, w.corrupt("batch from %d to %d reaches beyond the end %d", h.BaseOffset, h.LastOffset(), end)
	}
	w.pos, w.want = pos+int64(h.Size()), h.NextOffset()
	return h, pos, nil
}

func (w *walker) corrupt(format string, args ...any) *CorruptError {
	return &CorruptError{File: w.s.Path(), Segment: w.s.base, Offset: max(w.want, w.s.base), Position: w.pos, Detail: fmt.Sprintf(format, args...)}
}

// Walk calls f with the header and position of every batch from the one that holds offset from (at or above Base) up
// to the end, without reading the records. An error of f ends the walk.
func (s *Segment) Walk(from int64, f func(h record.Header, pos int64) error) error {
	if from >= s.End() {
		return nil
	}
	h, err := s.acquire(false)
	if err != nil {
		return err
	}
	defer func() { _ = h.release() }()
	w, first, pos, err := s.seek(h, from, s.Size())
	if err != nil {
		return err
	}
	defer w.done()
	for {
		if err := f(first, pos); err != nil {
			return err
		}
		first, pos, err = w.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
