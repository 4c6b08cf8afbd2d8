package segment

import (
	"errors"
	"fmt"
	"io"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record"
)

const scanBuffer = 1 << 20

// Scan reads batches of f from position pos up to size and calls visit with each one's header, bytes and position, as
// long as they are whole, their checksums hold, and each begins where the last one ended (the first at offset want, or
// anywhere if want < 0). It ends
//
//   - with (pos, offset, nil) at size,
//   - with a *CorruptError at the first bytes that are not such a batch; zeros, the usual sight behind a torn tail, are
//     said to be so,
//   - with the error of visit, or of reading.
//
// pos and offset are the position and the offset behind the last good batch in every case. The bytes are valid during
// the call only.
func Scan(f vfs.File, base, pos, size, want int64, visit func(h record.Header, b []byte, pos int64) error) (int64, int64, error) {
	sc := scanner{f: f, base: base, size: size}
	for {
		if pos == size {
			return pos, want, nil
		}
		h, b, err := sc.batch(pos, want)
		if err == nil {
			err = visit(h, b, pos)
		}
		if err != nil {
			return pos, want, err
		}
		pos, want = pos+int64(len(b)), h.NextOffset()
	}
}

type scanner struct {
	f          vfs.File
	base, size int64
	buf        []byte
	start      int64 // position of buf[0]
}

// at returns n bytes at pos, which lie below size.
func (sc *scanner) at(pos int64, n int) ([]byte, error) {
	if pos >= sc.start && pos+int64(n) <= sc.start+int64(len(sc.buf)) {
		return sc.buf[pos-sc.start:][:n], nil
	}
	want := min(int64(max(n, scanBuffer)), sc.size-pos)
	if int64(cap(sc.buf)) < want {
		sc.buf = make([]byte, want)
	}
	sc.buf, sc.start = sc.buf[:want], pos
	got, err := sc.f.ReadAt(sc.buf, pos)
	if int64(got) == want {
		return sc.buf[:n], nil
	}
	sc.buf = sc.buf[:0]
	if err == nil || errors.Is(err, io.EOF) {
		err = ErrShort
	}
	return nil, fmt.Errorf("scan %s at %d: %w", sc.f.Name(), pos, err)
}

func (sc *scanner) batch(pos, want int64) (record.Header, []byte, error) {
	left := sc.size - pos
	if left < record.HeaderSize {
		return record.Header{}, nil, sc.corrupt(pos, want, nil, "%d bytes are too few for a batch header", left)
	}
	b, err := sc.at(pos, record.HeaderSize)
	if err != nil {
		return record.Header{}, nil, err
	}
	h, err := record.ParseHeader(b)
	if err != nil {
		if isZero(b) {
			return h, nil, sc.corrupt(pos, want, nil, "zeros where a batch should begin")
		}
		return h, nil, sc.corrupt(pos, want, err, "no batch header")
	}
	if want >= 0 && h.BaseOffset != want {
		return h, nil, sc.corrupt(pos, want, nil, "batch has base offset %d", h.BaseOffset)
	}
	if int64(h.Size()) > left {
		return h, nil, sc.corrupt(pos, want, nil, "batch of %d bytes, only %d are left", h.Size(), left)
	}
	if h.BaseOffset < sc.base || h.LastOffsetDelta < 0 {
		return h, nil, sc.corrupt(pos, want, nil, "base offset %d, last offset delta %d", h.BaseOffset, h.LastOffsetDelta)
	}
	if b, err = sc.at(pos, h.Size()); err != nil {
		return h, nil, err
	}
	if err := record.VerifyCRC(b); err != nil {
		return h, nil, sc.corrupt(pos, want, err, "batch of %d bytes", h.Size())
	}
	return h, b, nil
}

func (sc *scanner) corrupt(pos, want int64, cause error, format string, args ...any) error {
	return &CorruptError{
		File: sc.f.Name(), Segment: sc.base, Offset: max(want, sc.base), Position: pos,
		Detail: fmt.Sprintf(format, args...), Err: cause,
	}
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
