package log

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

// modelBatch is a batch as the log stamped it.
type modelBatch struct {
	base, next int64
	bytes      []byte
}

// history is what a workload did, as somebody outside knows it.
type history struct {
	batches []modelBatch // that the log should hold, unless the last operation was interrupted
	// Before an interrupted truncation, else nil: a crash may leave it undone, in whole or in part.
	old []modelBatch
	// A batch whose append was interrupted: it may be there or not.
	inFlight *modelBatch
	flushed  int64 // acknowledged as durable
	start    int64 // published log start
	starting int64 // log start that an interrupted operation may have reached
}

// workload runs until the first error.
type workload struct {
	e     *env
	h     history
	epoch int32
	seq   int32
	pid   int64
}

func (w *workload) append(n int) error {
	b := batch(w.e.t, n, w.e.clk.Now().UnixMilli(), producerTag{id: 7 + w.pid, epoch: 0, seq: w.seq}, fmt.Sprintf("value-%d", w.seq))
	hd := header(w.e.t, b)
	end := w.e.l.End()
	stamped := bytes.Clone(b)
	record.Stamp(stamped, end, w.epoch)
	m := modelBatch{base: end, next: end + int64(n), bytes: stamped}
	w.h.inFlight = &m
	a, err := w.e.l.Append(b, hd, w.epoch, w.e.clk.Now())
	if err != nil {
		return err
	}
	if a.Base != m.base || !bytes.Equal(b, stamped) {
		w.e.t.Fatalf("append at %d: %+v", end, a)
	}
	w.h.inFlight = nil
	w.h.batches = append(w.h.batches, m)
	w.seq += int32(n)
	w.e.clk.Advance(time.Second)
	return nil
}

func (w *workload) round() error {
	if err := w.e.host.round(w.e.l); err != nil {
		return err
	}
	w.h.flushed = w.e.l.Flushed()
	w.e.l.SetHighWatermark(w.h.flushed)
	return nil
}

func (w *workload) truncate(to int64) error {
	w.h.old = append([]modelBatch(nil), w.h.batches...)
	for len(w.h.batches) > 0 && w.h.batches[len(w.h.batches)-1].next > to {
		w.h.batches = w.h.batches[:len(w.h.batches)-1]
	}
	w.h.flushed = min(w.h.flushed, to)
	if n := len(w.h.batches); n > 0 {
		w.h.flushed = min(w.h.flushed, w.h.batches[n-1].next)
	}
	if err := w.e.l.Truncate(context.Background(), to); err != nil {
		return err
	}
	w.h.old = nil
	w.epoch++ // what follows a truncation is written by a newer leader
	// The producer starts again with a new state, as far as the log remembers it.
	w.seq = 0
	states, _ := w.e.l.ProducerStates()
	for _, p := range states {
		w.seq = p.Batches[len(p.Batches)-1].LastSequence + 1
	}
	return nil
}

func (w *workload) deleteRecords(before int64) error {
	w.h.starting = before
	start, err := w.e.l.DeleteRecords(context.Background(), before)
	if err != nil {
		return err
	}
	w.h.start = start
	return nil
}

func (w *workload) retain() error {
	w.h.starting = w.h.flushed
	if _, err := w.e.l.ApplyRetention(context.Background(), w.e.clk.Now()); err != nil {
		return err
	}
	w.h.start = w.e.l.LogStart()
	w.h.starting = w.h.start
	return nil
}

func (w *workload) run() error {
	w.seq = 0
	steps := []func() error{
		func() error { return w.append(3) },
		w.round,
		func() error { return w.append(1) },
		func() error { return w.append(5) },
		w.round,
	}
	for range 30 { // over several rolls
		steps = append(steps, func() error { return w.append(4) })
	}
	steps = append(steps, w.round,
		func() error { w.epoch++; return w.e.l.AssignEpoch(w.epoch) },
		func() error { return w.append(4) },
		func() error { return w.append(4) },
		w.round,
		func() error { return w.deleteRecords(10) },
		func() error { return w.append(2) },
		func() error { return w.e.l.Roll() },
		func() error { return w.append(2) },
		w.round,
		func() error { return w.append(6) },
		func() error { return w.truncate(w.e.l.End() - 9) }, // into a batch, above and below the flushed offset
		func() error { return w.append(2) },
		w.round,
		func() error { return w.truncate(w.h.batches[len(w.h.batches)/2].base) }, // over a segment
		func() error { return w.append(3) },
		w.appendMany(12),
		w.round,
		w.truncateAndBack,
		func() error { return w.append(1) },
		w.roundWithAppend,
		w.retain,
		func() error { return w.append(2) },
		w.round,
		func() error { return w.e.l.Close() },
	)
	for i, s := range steps {
		if err := s(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return nil
}

func (w *workload) appendMany(n int) func() error {
	return func() error {
		for range n {
			if err := w.append(2); err != nil {
				return err
			}
		}
		return nil
	}
}

// truncateAndBack truncates in front of snapshots and appends beyond where they were: they must not come back.
func (w *workload) truncateAndBack() error {
	if err := w.truncate(w.h.batches[len(w.h.batches)-9].base); err != nil {
		return err
	}
	w.pid, w.seq = w.pid+1, 0 // batches that differ from those that were there
	if err := w.appendMany(11)(); err != nil {
		return err
	}
	return w.round()
}

// roundWithAppend appends while the round runs: what comes after the sync began is not covered.
func (w *workload) roundWithAppend() error {
	var err error
	w.e.host.behind = func() { err = w.append(3) }
	defer func() { w.e.host.behind = nil }()
	if rerr := w.e.host.round(w.e.l); rerr != nil {
		return rerr
	}
	if err != nil {
		return err
	}
	w.h.flushed = w.e.l.Flushed()
	w.e.l.SetHighWatermark(w.h.flushed)
	return nil
}

func crashConfig() Config {
	c := testConfig()
	c.SegmentBytes = 1200
	c.RetentionBytes = 1500
	c.SnapshotInterval = 700
	return c
}

// runWorkload runs the workload on a fresh disk that crashes at change k, and returns the disk and what is known.
func runWorkload(t *testing.T, k int64) (disk *memfs.Mem, w *workload, crashed bool) {
	t.Helper()
	disk = newDisk(t)
	e := newEnvOn(t, disk, crashConfig(), StartState{})
	must(t, e.l.Close())
	e.host.close()
	disk.SyncAll()
	fsys := errorfs.Wrap(disk, nil)
	e = openOn(t, fsys, crashConfig(), clock.NewFake(testStart))
	fsys.CrashAt(fsys.Mutations() + k)
	w = &workload{e: e}
	err := w.run()
	if err != nil && !errors.Is(err, errorfs.ErrCrashed) {
		t.Fatalf("crash at %d: %v", k, err)
	}
	_ = e.l.Close()
	e.host.close()
	return disk, w, fsys.Crashed()
}

// check compares a reopened log with the history.
func (h history) check(l *Log, rep Report) error {
	if rep.Quarantined != nil {
		return rep.Quarantined
	}
	o := l.Offsets()
	if o.End < h.flushed || o.Flushed != o.End {
		return fmt.Errorf("offsets %+v, acknowledged up to %d", o, h.flushed)
	}
	if o.LogStart < h.start || o.LogStart > max(h.start, h.starting) {
		return fmt.Errorf("log start %d, published %d, on the way to %d", o.LogStart, h.start, h.starting)
	}
	if o.LogStart == o.End {
		return nil
	}
	got, err := readAll(l, o.LogStart, o.End)
	if err != nil {
		return err
	}
	for _, batches := range [][]modelBatch{h.batches, h.old} {
		if h.inFlight != nil {
			batches = append(slices.Clip(batches), *h.inFlight)
		}
		var want []byte
		for _, b := range batches {
			if b.next > o.LogStart && b.next <= o.End {
				want = append(want, b.bytes...)
			}
		}
		if bytes.Equal(got, want) {
			return nil
		}
	}
	return fmt.Errorf("%d bytes from %d to %d are not those that were appended", len(got), o.LogStart, o.End)
}

// reopenTwice opens what a crash left, checks it, opens it again as another crash right behind the recovery would, and
// goes on with it.
func reopenTwice(t *testing.T, disk *memfs.Mem, h history) {
	t.Helper()
	e := openOn(t, disk, crashConfig(), clock.NewFake(testStart))
	if err := h.check(e.l, e.rep); err != nil {
		t.Fatal(err)
	}
	first, firstEpochs := e.l.Offsets(), e.l.Epochs()
	again := disk.StrictCrashClone()
	second := openOn(t, again, crashConfig(), clock.NewFake(testStart))
	if err := h.check(second.l, second.rep); err != nil {
		t.Fatalf("second open: %v", err)
	}
	if o := second.l.Offsets(); o != first || fmt.Sprint(second.l.Epochs()) != fmt.Sprint(firstEpochs) {
		t.Fatalf("second open: %+v %v, first %+v %v", o, second.l.Epochs(), first, firstEpochs)
	}
	if second.rep.CutBytes != 0 || second.rep.CutSegments != 0 {
		t.Fatalf("second open cut again: %+v", second.rep)
	}
	p1, _ := e.l.ProducerStates()
	p2, _ := second.l.ProducerStates()
	checkProducers(t, p1, second, p2)
	goOn(t, second, again)
	_ = e.l.Close()
	e.host.close()
	second.closeAll()
}

// goOn appends beyond whatever a crash could have left, crashes again, and looks whether something of it has come back.
func goOn(t *testing.T, e *env, disk *memfs.Mem) {
	t.Helper()
	for i := range 10 {
		b := batch(t, 2, e.clk.Now().UnixMilli(), producerTag{id: 99, seq: int32(2 * i)}, "after")
		_, err := e.append(b, max(e.l.LatestEpoch(), 0))
		must(t, err)
	}
	must(t, e.host.round(e.l))
	want, err := readAll(e.l, e.l.LogStart(), e.l.End())
	must(t, err)
	states, _ := e.l.ProducerStates()
	third := openOn(t, disk.StrictCrashClone(), crashConfig(), clock.NewFake(testStart))
	got, err := readAll(third.l, third.l.LogStart(), third.l.End())
	must(t, err)
	if !bytes.Equal(got, want) {
		t.Fatal("after recovery, appends and another crash the log holds other bytes")
	}
	again, _ := third.l.ProducerStates()
	checkProducers(t, states, third, again)
	third.closeAll()
}

// checkProducers compares remembered batches with those in the log.
func checkProducers(t *testing.T, first []ProducerState, e *env, second []ProducerState) {
	t.Helper()
	for i := range first {
		first[i].LastActiveMS = 0
	}
	for i := range second {
		second[i].LastActiveMS = 0
		for _, b := range second[i].Batches {
			if b.Base < e.l.LogStart() {
				continue
			}
			r, err := e.l.ReadRange(b.Base, 1, e.l.End())
			must(t, err)
			buf := make([]byte, r.Len)
			must(t, r.ReadInto(buf))
			if h := header(t, buf); h.BaseSequence != b.FirstSequence || h.LastSequence() != b.LastSequence || h.BaseOffset != b.Base {
				t.Fatalf("producer state %+v, the log has %+v", b, h)
			}
			r.Release()
		}
	}
	if fmt.Sprint(first) != fmt.Sprint(second) {
		t.Fatalf("producers after the first open %v, after the second %v", first, second)
	}
}

func TestCrashAtEveryChange(t *testing.T) {
	const clones = 4
	for k := int64(1); ; k++ {
		disk, w, crashed := runWorkload(t, k)
		t.Run(fmt.Sprintf("change %d strict", k), func(t *testing.T) { reopenTwice(t, disk.StrictCrashClone(), w.h) })
		for c := range clones {
			t.Run(fmt.Sprintf("change %d clone %d", k, c), func(t *testing.T) {
				reopenTwice(t, disk.CrashClone(rand.New(rand.NewPCG(uint64(k), uint64(c)))), w.h)
			})
		}
		if t.Failed() {
			return
		}
		if !crashed {
			if k < 100 {
				t.Fatalf("the workload has only %d changes", k)
			}
			return
		}
	}
}

// TestCrashDuringRecovery crashes the recovery itself at each of its changes.
func TestCrashDuringRecovery(t *testing.T) {
	for k := int64(5); ; k += 17 {
		disk, w, crashed := runWorkload(t, k)
		rng := rand.New(rand.NewPCG(uint64(k), 99))
		left := disk.CrashClone(rng)
		for j := int64(1); ; j++ {
			again := left.StrictCrashClone()
			fsys := errorfs.Wrap(again, nil)
			fsys.CrashAt(j)
			e := &env{t: t, fs: fsys, clk: clock.NewFake(testStart), cfg: crashConfig()}
			if err := e.reopen(); err == nil {
				_ = e.l.Close()
			}
			if e.host != nil {
				e.host.close()
			}
			reopenTwice(t, again.CrashClone(rng), w.h)
			reopenTwice(t, again.StrictCrashClone(), w.h)
			if t.Failed() {
				t.Fatalf("crash at %d, recovery at %d", k, j)
			}
			if !fsys.Crashed() {
				break
			}
		}
		if !crashed {
			return
		}
	}
}
