package segment

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newOptions(t testing.TB, cache *Cache) Options {
	t.Helper()
	m := memfs.New()
	must(t, m.MkdirAll("/p"))
	return Options{FS: m, Dir: "/p", Cache: cache, IndexInterval: 100}
}

// fill appends n batches of two records, one per second, and returns their bytes.
func fill(t testing.TB, s *Segment, n int) []byte {
	t.Helper()
	w, err := s.AcquireWritable()
	must(t, err)
	defer func() { _ = w.Release() }()
	var all []byte
	bld := record.NewBuilder(record.CodecNone)
	for range n {
		bld.Reset()
		base := s.End()
		bld.Append(1000*base, nil, fmt.Appendf(nil, "value %d", base), nil)
		bld.Append(1000*base+1, nil, nil, nil)
		b, err := bld.Build(nil)
		must(t, err)
		record.Stamp(b, base, 0)
		h, err := record.ParseHeader(b)
		must(t, err)
		must(t, s.Append(w, b, h))
		all = append(all, b...)
	}
	return all
}

func TestFileNames(t *testing.T) {
	for _, ext := range []string{ExtLog, ExtIndex, ExtTimeIndex, ExtSnapshot} {
		base, got, ok := ParseFileName(FileName(4711, ext))
		if base != 4711 || got != ext || !ok {
			t.Errorf("%s: %d %s %t", ext, base, got, ok)
		}
	}
	for _, name := range []string{
		"", "1.log", "0000000000000000000a.log", "00000000000000000001.log.bak", "00000000000000000001", "00000000000000000001.LOG",
		"99999999999999999999.log", "-0000000000000000001.log", "+0000000000000000001.log", "000000000000000000001.log",
	} {
		if _, _, ok := ParseFileName(name); ok {
			t.Errorf("%q was accepted", name)
		}
	}
}

// TestLocateAtEveryOffset covers entries in memory, in files, and both, before and after the segment was sealed, and
// after it was opened again.
func TestLocateAtEveryOffset(t *testing.T) {
	const batches = 1500 // more entries than wait in memory
	o := newOptions(t, NewCache(0, 0))
	s, err := Create(o, 0)
	must(t, err)
	all := fill(t, s, batches)
	if tail := s.tail.Load(); tail.fileOffsets == 0 || tail.offsets() == 0 {
		t.Fatalf("%d entries in the file, %d in memory", tail.fileOffsets, tail.offsets())
	}
	check := func(s *Segment) {
		t.Helper()
		for off := int64(0); off < s.End(); off += 7 {
			for _, upTo := range []int64{s.End(), min(s.End(), (off/2+20)*2)} {
				r, err := s.Locate(off, 1000, upTo)
				must(t, err)
				b := make([]byte, r.Len)
				must(t, r.ReadAt(b))
				if r.First != off/2*2 || r.Next > upTo || !bytes.Equal(b, all[r.Position:r.Position+int64(r.Len)]) {
					t.Fatalf("offset %d: %+v", off, r)
				}
				if r.Next < upTo && r.Len < 900 {
					t.Fatalf("offset %d: only %d bytes", off, r.Len)
				}
				must(t, r.Release())
			}
			rg, h, ok, err := s.FirstSince(1000*(off/2*2), 0, s.End())
			if err != nil || !ok || h.BaseOffset != off/2*2 {
				t.Fatalf("time of offset %d: %+v %t %v", off, h, ok, err)
			}
			must(t, rg.Release())
		}
		if ms, ok, err := s.MaxTimestamp(); err != nil || !ok || ms != 1000*(2*batches-2)+1 {
			t.Fatalf("largest timestamp %d %t %v", ms, ok, err)
		}
	}
	check(s)
	files, err := s.Seal()
	must(t, err)
	for _, f := range files {
		must(t, f.Close())
	}
	check(s)
	offsets, times, whole, err := IndexFileSizes(o.FS, o.Dir, 0)
	if err != nil || !whole || offsets < 500 || times < 500 {
		t.Fatalf("%d %d %t %v", offsets, times, whole, err)
	}
	again := Open(o, State{Base: 0, End: s.End(), Size: s.Size(), OffsetEntries: offsets, TimeEntries: times})
	again.MarkSealed()
	check(again)
	s.Close()
	again.Close()
}

func TestCacheBoundsOpenFiles(t *testing.T) {
	c := NewCache(3, 0)
	o := newOptions(t, c)
	segs := make([]*Segment, 0, 10)
	for i := range 10 {
		s, err := Create(o, int64(1000*i))
		must(t, err)
		fill(t, s, 2)
		segs = append(segs, s)
		if n := c.OpenFiles(); n > 3 {
			t.Fatalf("%d files open", n)
		}
	}
	pins := make([]Ref, 0, 6)
	for _, s := range segs[:6] { // pinned files are not closed
		r, err := s.Acquire()
		must(t, err)
		pins = append(pins, r)
	}
	for _, r := range pins {
		must(t, r.Sync())
		must(t, r.Release())
	}
	for _, s := range segs {
		r, err := s.Locate(s.Base(), 100, s.End())
		must(t, err)
		must(t, r.Release())
	}
	if n := c.OpenFiles(); n > 3 {
		t.Fatalf("%d files open", n)
	}
	for _, s := range segs {
		s.Close()
	}
	if n := c.OpenFiles(); n != 0 {
		t.Fatalf("%d files open", n)
	}
}

func TestRetiredSegment(t *testing.T) {
	o := newOptions(t, NewCache(0, 0))
	s, err := Create(o, 0)
	must(t, err)
	want := fill(t, s, 3)
	r, err := s.Locate(0, 1<<20, s.End())
	must(t, err)
	s.Retire()
	must(t, s.RemoveFiles())
	got := make([]byte, r.Len)
	if err := r.ReadAt(got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("a pinned file: %v", err)
	}
	must(t, r.Release())
	if _, err := s.Acquire(); !errors.Is(err, ErrRetired) {
		t.Fatalf("%v", err)
	}
	must(t, s.RemoveFiles()) // again
}

func TestTruncateSegment(t *testing.T) {
	o := newOptions(t, NewCache(0, 0))
	s, err := Create(o, 100)
	must(t, err)
	fill(t, s, 600)
	w, err := s.AcquireWritable()
	must(t, err)
	for _, to := range []int64{1251, 801, 500, 100} {
		end, err := s.Truncate(w, to)
		if err != nil || end != to/2*2 || s.End() != end {
			t.Fatalf("truncate to %d: %d %v", to, end, err)
		}
		if end > 100 {
			if ms, _, err := s.MaxTimestamp(); err != nil || ms != 1000*(end-2)+1 {
				t.Fatalf("largest timestamp %d, %v", ms, err)
			}
			r, err := s.Locate(end-1, 1, end)
			must(t, err)
			if r.Next != end {
				t.Fatalf("%+v", r)
			}
			must(t, r.Release())
		}
		if size, err := s.FileSize(w); err != nil || size != s.Size() {
			t.Fatalf("file of %d bytes, segment of %d", size, s.Size())
		}
	}
	must(t, w.Release())
	fill(t, s, 1)
	s.Close()
}

// TestIndexOfARetiredSegment: a reader that loads an index while its segment is removed must not count against the cache for ever.
func TestIndexOfARetiredSegment(t *testing.T) {
	cache := NewCache(0, 0)
	s, err := Create(newOptions(t, cache), 0)
	must(t, err)
	fill(t, s, 100)
	must(t, s.FlushIndex())
	h, err := s.acquire(false)
	must(t, err)
	s.Retire()
	li, err := s.load(h, s.tail.Load())
	must(t, err)
	if li.offsets.Len() == 0 {
		t.Fatal("nothing was loaded")
	}
	must(t, h.release())
	if cache.mu.indexBytes != 0 {
		t.Errorf("%d bytes of indexes are counted with no file open", cache.mu.indexBytes)
	}
}
