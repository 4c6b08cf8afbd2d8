package segment

import (
	"bytes"
	"encoding/binary"
	"testing"

	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/record"
)

// tailOf returns a segment whose file holds b behind no batch, and a count of the bytes that are read from it.
func tailOf(t *testing.T, b []byte) (s *Segment, w Ref, read *int64) {
	t.Helper()
	o := newOptions(t, NewCache(0, 0))
	read = new(int64)
	o.FS = errorfs.Wrap(o.FS, func(op errorfs.Op) error {
		if op.Kind == errorfs.Read {
			*read += op.Len
		}
		return nil
	})
	s, err := Create(o, 10)
	must(t, err)
	w, err = s.AcquireWritable()
	must(t, err)
	_, err = w.h.f.WriteAt(b, 0)
	must(t, err)
	t.Cleanup(func() { _ = w.Release() })
	return s, w, read
}

// forged returns n bytes in which every 64 a header begins that claims all that is left.
func forged(n int) []byte {
	b := make([]byte, n)
	for pos := 0; pos+record.HeaderSize <= n; pos += 64 {
		binary.BigEndian.PutUint64(b[pos:], 100)
		binary.BigEndian.PutUint32(b[pos+8:], uint32(n-pos-12))
		b[pos+16] = record.Magic
	}
	return b
}

func TestFindBatch(t *testing.T) {
	bld := record.NewBuilder(record.CodecNone)
	bld.Append(1, nil, bytes.Repeat([]byte("v"), 1000), nil)
	whole, err := bld.Build(nil)
	must(t, err)
	record.Stamp(whole, 50, 0)
	broken := bytes.Clone(whole)
	broken[len(broken)-1]++
	zeros := make([]byte, 5000)
	for name, c := range map[string]struct {
		tail   []byte
		offset int64
		want   bool
	}{
		"nothing":                  {nil, 10, false},
		"zeros":                    {zeros, 10, false},
		"a batch behind zeros":     {append(bytes.Clone(zeros), whole...), 10, true},
		"a batch of before":        {whole, 51, false},
		"half a batch":             {whole[:len(whole)/2], 10, false},
		"many broken batches":      {bytes.Repeat(broken, 200), 10, false},
		"one behind many":          {append(bytes.Repeat(broken, 200), whole...), 10, true},
		"forged headers":           {forged(1 << 20), 10, true}, // perhaps
		"a few headers by mistake": {append(forged(130), zeros...), 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, w, read := tailOf(t, c.tail)
			size := int64(len(c.tail))
			got, err := s.FindBatch(w, 0, size, c.offset)
			if err != nil || got != c.want {
				t.Errorf("found %t, %v", got, err)
			}
			if *read > 8*size {
				t.Errorf("%d bytes were read of %d", *read, size)
			}
		})
	}
}
