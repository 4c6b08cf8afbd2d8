package log

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record"
)

// TestReadersWhileSegmentsRollAndExpire runs readers at the tail and at the beginning, time look-ups, sync rounds,
// retention and one writer at once, over a file cache that is far too small. Readers see only what was written, in
// order, and fall out of range only when the log start passed them.
func TestReadersWhileSegmentsRollAndExpire(t *testing.T) {
	const batches, perBatch = 2000, 3
	const edge = 3 // the reader that stays at the edge of what is deleted
	cfg := testConfig()
	cfg.RetentionBytes = 6000
	e := &env{t: t, fs: newDisk(t), clk: clock.NewFake(testStart), cfg: cfg}
	var err error
	e.host, err = openHost(e.fs)
	must(t, err)
	oc := e.openConfig()
	oc.Cache = segment.NewCache(2, 1000)
	e.l, err = Create(t.Context(), oc, testMeta(), StartState{})
	must(t, err)

	var done atomic.Bool
	var read atomic.Int64
	var wg sync.WaitGroup
	fail := func(format string, args ...any) {
		t.Errorf(format, args...)
		done.Store(true)
	}
	wg.Go(func() { // writer, which lets the others keep up, or a busy machine would have it write alone
		defer done.Store(true)
		seen := int64(0)
		for i := range batches {
			for i%100 == 99 && !done.Load() && (read.Load() == seen || e.l.End() > 5000 && e.l.LogStart() == 0) {
				runtime.Gosched()
			}
			seen = read.Load()
			b := batch(t, perBatch, e.clk.Now().UnixMilli()+int64(i), noProducer, fmt.Sprint("batch-", i))
			a, err := e.l.Append(b, header(t, b), int32(i/700), e.clk.Now())
			if err != nil || a.Base != int64(i*perBatch) {
				fail("append %d: %+v %v", i, a, err)
				return
			}
		}
	})
	wg.Go(func() { // sync rounds and retention
		for !done.Load() {
			if err := e.host.round(e.l); err != nil {
				fail("round: %v", err)
			}
			e.l.SetHighWatermark(e.l.Flushed())
			if _, err := e.l.ApplyRetention(t.Context(), e.clk.Now()); err != nil {
				fail("retention: %v", err)
			}
			runtime.Gosched()
		}
	})
	for r := range 4 {
		wg.Go(func() {
			var next int64
			for buf := make([]byte, 1500); !done.Load() || r != edge && next < e.l.HighWatermark(); {
				upTo := e.l.HighWatermark()
				rg, err := e.l.ReadRange(next, len(buf), upTo)
				var gone *OutOfRangeError
				if errors.As(err, &gone) && gone.Earliest > next {
					next = gone.Earliest
					continue
				}
				if err != nil {
					fail("reader %d at %d: %v", r, next, err)
					return
				}
				if rg.Len == 0 {
					rg.Release()
					runtime.Gosched()
					continue
				}
				if err := rg.ReadInto(buf); err != nil || rg.First != next {
					fail("reader %d at %d: range from %d, %v", r, next, rg.First, err)
					return
				}
				if want := fmt.Sprint("batch-", next/perBatch, "-0"); !bytes.Contains(buf[:rg.Len], []byte(want)) {
					fail("reader %d at %d: no %q", r, next, want)
					return
				}
				read.Add(rg.Next - rg.First)
				next = rg.Next
				rg.Release()
				if r == edge {
					next = e.l.LogStart()
				}
			}
		})
	}
	wg.Go(func() { // look-ups by time
		for i := int64(0); !done.Load(); i += 97 {
			runtime.Gosched()
			ms := e.clk.Now().UnixMilli() + i%batches
			off, ts, ok, err := e.l.OffsetForTime(ms)
			if err != nil || ok && ts < ms {
				fail("time %d: %d %d %v", ms, off, ts, err)
			}
			o := e.l.Offsets()
			if o.LogStart > o.HighWatermark && o.HighWatermark > 0 || o.HighWatermark > o.Flushed || o.Flushed > o.End {
				fail("%+v", o)
			}
		}
	})
	wg.Wait()
	if read.Load() == 0 || e.l.LogStart() == 0 {
		t.Fatalf("%d records read, log start %d", read.Load(), e.l.LogStart())
	}
	e.closeAll()
	if n := oc.Cache.OpenFiles(); n != 0 {
		t.Fatalf("%d files stay open", n)
	}
}

// TestReadersWhileTheLogIsTruncated: readers of the end get what they asked for, or ErrTruncated, or out of range.
func TestReadersWhileTheLogIsTruncated(t *testing.T) {
	e := newEnv(t, testConfig())
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer done.Store(true)
		for i := range 60 {
			for range 12 {
				b := batch(t, 2, 1, noProducer, fmt.Sprint("round-", i))
				if _, err := e.l.Append(b, header(t, b), int32(i), e.clk.Now()); err != nil {
					t.Errorf("append: %v", err)
					return
				}
			}
			if err := e.l.Truncate(t.Context(), e.l.End()-15); err != nil {
				t.Errorf("truncate: %v", err)
				return
			}
		}
	})
	wg.Go(func() {
		for !done.Load() {
			if err := e.host.round(e.l); err != nil {
				t.Errorf("round: %v", err)
				return
			}
		}
	})
	for range 3 {
		wg.Go(func() {
			buf := make([]byte, 4096)
			for !done.Load() {
				runtime.Gosched() // the writer, which waits for the journal, shall not have to wait for a time slice each time
				end := e.l.End()
				_, _, err := e.l.Read(max(0, end-8), len(buf), end, buf)
				if err != nil && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrOffsetOutOfRange) {
					t.Errorf("read below %d: %v", end, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if st := e.l.State(); st.Health != Online {
		t.Fatalf("%+v", st)
	}
	must(t, e.host.round(e.l))
	if o := e.l.Offsets(); o.Flushed != o.End {
		t.Fatalf("%+v", o)
	}
}

// TestVoidedRoundIsRepeated: a truncation that comes between PrepareSync and CompleteSync voids the round, and what is
// left below the new end still gets flushed.
func TestVoidedRoundIsRepeated(t *testing.T) {
	e := newEnv(t, testConfig())
	e.mustAppend(4, "a")
	e.mustAppend(4, "b")
	e.host.behind = func() { must(t, e.l.Truncate(t.Context(), 4)) }
	must(t, e.host.round(e.l))
	e.host.behind = nil
	if o := e.l.Offsets(); o.Flushed != 0 || o.End != 4 {
		t.Fatalf("%+v", o)
	}
	if !e.host.isDirty(e.l) {
		t.Fatal("nobody would ever flush the rest")
	}
	must(t, e.host.round(e.l))
	if o := e.l.Offsets(); o.Flushed != 4 {
		t.Fatalf("%+v", o)
	}
}

func TestPinnedRangeOutlivesItsSegment(t *testing.T) {
	e := newEnv(t, testConfig())
	_, want := e.mustAppend(2, "pinned")
	must(t, e.l.Roll())
	e.mustAppend(2, "b")
	e.flushAll()
	r, err := e.l.ReadRange(0, 100, 2)
	must(t, err)
	_, err = e.l.DeleteRecords(t.Context(), 2)
	must(t, err)
	got := make([]byte, r.Len)
	must(t, r.ReadInto(got))
	if !bytes.Equal(got, want) {
		t.Fatal("other bytes")
	}
	r.Release()
	r.Release()
}

// countObserver counts what it sees.
type countObserver struct{ records int64 }

func (c *countObserver) ObserveAppend(_ *Log, _ []byte, h record.Header) { c.records += int64(h.Count) }

func TestAllocations(t *testing.T) {
	dir := t.TempDir()
	fsys := vfs.OS()
	e := &env{t: t, fs: rooted{fsys, dir}, clk: clock.NewFake(testStart), cfg: DefaultConfig()}
	must(t, e.fs.MkdirAll(dataDir))
	var err error
	e.host, err = openHost(e.fs)
	must(t, err)
	e.l, err = Create(t.Context(), e.openConfig(), testMeta(), StartState{})
	must(t, err)
	var seen countObserver
	e.l.observer = &seen
	b := batch(t, 100, 1, noProducer, "value")
	h := header(t, b)
	appendOne := func() {
		if _, err := e.l.Append(b, h, 0, testStart); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 {
		appendOne()
	}
	if n := testing.AllocsPerRun(500, appendOne); n > 1 {
		t.Errorf("append: %.1f allocations per batch", n)
	}
	must(t, e.host.round(e.l))
	end := e.l.End()
	if seen.records != end {
		t.Errorf("the observer saw %d records of %d", seen.records, end)
	}
	buf := make([]byte, 64<<10)
	off := int64(0)
	readOne := func() {
		r, err := e.l.ReadRange(off, len(buf), end)
		if err == nil {
			err = r.ReadInto(buf)
		}
		if err != nil {
			t.Fatal(err)
		}
		if off = r.Next; off >= end {
			off = 0
		}
		r.Release()
	}
	for range 200 {
		readOne()
	}
	if n := testing.AllocsPerRun(500, readOne); n > 0 {
		t.Errorf("read: %.1f allocations per range", n)
	}
	e.closeAll()
}

// rooted puts the fixed paths of the tests below a directory of the operating system.
type rooted struct {
	vfs.FS
	root string
}

func (r rooted) Create(n string) (vfs.File, error)        { return r.FS.Create(r.root + n) }
func (r rooted) OpenRW(n string) (vfs.File, error)        { return r.FS.OpenRW(r.root + n) }
func (r rooted) Open(n string) (vfs.File, error)          { return r.FS.Open(r.root + n) }
func (r rooted) Remove(n string) error                    { return r.FS.Remove(r.root + n) }
func (r rooted) Rename(a, b string) error                 { return r.FS.Rename(r.root+a, r.root+b) }
func (r rooted) MkdirAll(n string) error                  { return r.FS.MkdirAll(r.root + n) }
func (r rooted) ReadDir(n string) ([]vfs.DirEntry, error) { return r.FS.ReadDir(r.root + n) }
func (r rooted) Stat(n string) (vfs.FileInfo, error)      { return r.FS.Stat(r.root + n) }
func (r rooted) SyncDir(n string) error                   { return r.FS.SyncDir(r.root + n) }

func BenchmarkAppend(b *testing.B) {
	e := &env{t: b, fs: rooted{vfs.OS(), b.TempDir()}, clk: clock.NewFake(testStart), cfg: DefaultConfig()}
	must(b, e.fs.MkdirAll(dataDir))
	var err error
	e.host, err = openHost(e.fs)
	must(b, err)
	e.l, err = Create(b.Context(), e.openConfig(), testMeta(), StartState{})
	must(b, err)
	data := batch(b, 1000, 1, noProducer, "value of about a hundred bytes, which is what the small-record target of the design has in mind for it")
	h, err := record.ParseHeader(data)
	must(b, err)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.l.Append(data, h, 0, testStart); err != nil {
			b.Fatal(err)
		}
	}
	e.closeAll()
}

func BenchmarkRead(b *testing.B) {
	e := &env{t: b, fs: rooted{vfs.OS(), b.TempDir()}, clk: clock.NewFake(testStart), cfg: DefaultConfig()}
	must(b, e.fs.MkdirAll(dataDir))
	var err error
	e.host, err = openHost(e.fs)
	must(b, err)
	e.l, err = Create(b.Context(), e.openConfig(), testMeta(), StartState{})
	must(b, err)
	data := batch(b, 100, 1, noProducer, "value of about a hundred bytes, which is what the small-record target of the design has in mind for it")
	h, err := record.ParseHeader(data)
	must(b, err)
	for range 5000 {
		_, err := e.l.Append(data, h, 0, testStart)
		must(b, err)
	}
	must(b, e.host.round(e.l))
	end, off := e.l.End(), int64(0)
	buf := make([]byte, 1<<20)
	b.ReportAllocs()
	var total int64
	for b.Loop() {
		n, next, err := e.l.Read(off, len(buf), end, buf)
		must(b, err)
		total += int64(n)
		if off = next; off >= end {
			off = 0
		}
	}
	b.SetBytes(total / int64(b.N))
	e.closeAll()
}
