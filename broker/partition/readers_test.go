package partition_test

import (
	"errors"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/partition/partitiontest"
)

// TestChangingOneOfManyWakersCopiesNone: a client that subscribed to one partition many times once made each change cost a copy.
func TestChangingOneOfManyWakersCopiesNone(t *testing.T) {
	f := setup(t)
	wakers := make([]counter, 1000)
	for i := range wakers {
		f.p.AddWaker(&wakers[i])
	}
	if n := testing.AllocsPerRun(100, func() {
		f.p.RemoveWaker(&wakers[0])
		f.p.AddWaker(&wakers[0])
	}); n > 0 {
		t.Errorf("%v allocations per change", n)
	}
	f.follow(2)
	for i := range wakers {
		if n := wakers[i].n.Load(); n != 1 {
			t.Fatalf("waker %d was woken %d times", i, n)
		}
	}
}

func TestWakers(t *testing.T) {
	f := setup(t)
	var a, b counter
	f.p.AddWaker(&a)
	f.p.AddWaker(&b)
	f.produce("x")
	if a.n.Load() != 0 {
		t.Fatal("woken before there is anything to read")
	}
	f.host.Sync()
	if a.n.Load() != 1 || b.n.Load() != 1 {
		t.Fatalf("woken %d and %d times", a.n.Load(), b.n.Load())
	}
	f.p.RemoveWaker(&b)
	f.p.RemoveWaker(&b)
	if _, err := f.p.DeleteRecords(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
	f.follow(2)
	if a.n.Load() != 3 || b.n.Load() != 1 {
		t.Fatalf("woken %d and %d times", a.n.Load(), b.n.Load())
	}
}

func TestReadAndLookUps(t *testing.T) {
	f := setup(t)
	at := func(ms int64) func(*partition.Produce) {
		return func(p *partition.Produce) { p.Batch, p.Header = partitiontest.Batch(f, ms, "v") }
	}
	f.produce("a", at(100))
	f.produce("b", at(200))
	f.host.Sync()
	f.produce("c", at(300))
	r, lim, err := f.p.Read(1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, r.Len)
	if err := r.ReadInto(buf); err != nil {
		t.Fatal(err)
	}
	r.Release()
	if r.First != 1 || r.Next != 2 || lim.HighWatermark != 2 {
		t.Fatalf("%+v %+v", r, lim)
	}
	for _, off := range []int64{2, 3} { // at the high watermark, and beyond it within the log
		r, _, err := f.p.Read(off, 100)
		if err != nil || r.Len != 0 {
			t.Fatalf("offset %d: %d bytes, %v", off, r.Len, err)
		}
	}
	var oor *log.OutOfRangeError
	if _, _, err := f.p.Read(4, 100); !errors.As(err, &oor) || oor.Asked != 4 {
		t.Fatalf("%v", err)
	}
	off, ts, found, err := f.p.OffsetForTime(-1, 150)
	if err != nil || !found || off != 1 || ts != 200 {
		t.Fatalf("%d %d %v %v", off, ts, found, err)
	}
	if _, _, found, err := f.p.OffsetForTime(-1, 250); err != nil || found {
		t.Fatalf("found a record that is not committed: %v", err)
	}
	s := f.p.Status()
	if s.Offsets.End != 3 || s.Offsets.HighWatermark != 2 || s.Segments != 1 || s.Size == 0 || s.State.Health != log.Online || f.p.Waiting() != 1 {
		t.Fatalf("%+v", s)
	}
}
