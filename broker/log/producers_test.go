package log

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/record"
)

func TestProducerSequences(t *testing.T) {
	tag := func(epoch int16, seq int32) producerTag { return producerTag{id: 9, epoch: epoch, seq: seq} }
	type step struct {
		p    producerTag
		n    int
		base int64 // of the answer; -1 = error
		dup  bool
		err  error
	}
	steps := []step{
		{p: tag(0, 5), n: 1, base: -1, err: ErrUnknownProducer},
		{p: tag(0, 0), n: 2, base: 0},
		{p: tag(0, 0), n: 2, base: 0, dup: true},
		{p: tag(0, 0), n: 1, base: -1, err: ErrOutOfOrderSequence}, // the same begin, another length
		{p: tag(0, 3), n: 1, base: -1, err: ErrOutOfOrderSequence}, // a gap
		{p: tag(0, 2), n: 1, base: 2},
		{p: tag(0, 3), n: 1, base: 3},
		{p: tag(0, 4), n: 1, base: 4},
		{p: tag(0, 5), n: 1, base: 5},
		{p: tag(0, 0), n: 2, base: 0, dup: true}, // the fifth last
		{p: tag(0, 6), n: 1, base: 6},
		{p: tag(0, 0), n: 2, base: -1, err: ErrOutOfOrderSequence}, // forgotten
		{p: tag(0, 2), n: 1, base: 2, dup: true},
		{p: tag(1, 7), n: 1, base: -1, err: ErrOutOfOrderSequence}, // a new epoch begins at 0
		{p: tag(1, 0), n: 1, base: 7},
		{p: tag(0, 7), n: 1, base: -1, err: ErrProducerFenced},
		{p: tag(1, 0), n: 1, base: 7, dup: true},
	}
	e := newEnv(t, testConfig())
	run := func(i int, s step) {
		a, err := e.append(batch(t, s.n, 1, s.p, "v"), 0)
		if s.base < 0 {
			if !errors.Is(err, s.err) {
				t.Fatalf("step %d: %v, want %v", i, err, s.err)
			}
			return
		}
		if err != nil || a.Base != s.base || a.Duplicate != s.dup || a.Last != s.base+int64(s.n)-1 || a.End != a.Last+1 {
			t.Fatalf("step %d: %+v, %v", i, a, err)
		}
	}
	for i, s := range steps {
		run(i, s)
	}
	var seq *SequenceError
	_, err := e.append(batch(t, 1, 1, tag(1, 8), "v"), 0)
	if !errors.As(err, &seq) || *seq != (SequenceError{ProducerID: 9, Epoch: 1, Expected: 1, Got: 8}) {
		t.Fatalf("%+v", seq)
	}
	if e.l.End() != 8 {
		t.Fatalf("refused batches left a trace: end %d", e.l.End())
	}
}

func TestSequenceWrapsAround(t *testing.T) {
	ps := newProducers(10)
	h := record.Header{ProducerID: 1, BaseSequence: math.MaxInt32 - 1, LastOffsetDelta: 3, BaseOffset: 40}
	ps.add(h, 1)
	if b := ps.byID[1].at(0); b.delta() != 3 || b.last != 1 {
		t.Fatalf("%+v", b)
	}
	if dup, ok, err := ps.check(h); err != nil || !ok || dup.base != 40 {
		t.Fatalf("%+v %t %v", dup, ok, err)
	}
	h.BaseSequence = 2
	if _, ok, err := ps.check(h); ok || err != nil {
		t.Fatalf("%t %v", ok, err)
	}
	ps.add(record.Header{ProducerID: 1, BaseSequence: math.MaxInt32, BaseOffset: 44}, 1)
	if got := ps.byID[1].expected(); got != 0 {
		t.Fatalf("expected %d", got)
	}
}

func TestIdleProducersExpire(t *testing.T) {
	cfg := testConfig()
	cfg.ProducerIDExpiry = time.Hour
	e := newEnv(t, cfg)
	old := batch(t, 1, 1, producerTag{id: 1}, "written now, with a timestamp of 1970")
	_, err := e.append(old, 0)
	must(t, err)
	e.clk.Advance(40 * time.Minute)
	_, err = e.append(batch(t, 1, 1, producerTag{id: 2}, "v"), 0)
	must(t, err)
	_, err = e.l.ApplyRetention(t.Context(), e.clk.Now())
	must(t, err)
	if states, end := e.l.ProducerStates(); len(states) != 2 || end != 2 {
		t.Fatalf("%+v", states)
	}
	e.clk.Advance(40 * time.Minute)
	_, err = e.l.ApplyRetention(t.Context(), e.clk.Now())
	must(t, err)
	if states, _ := e.l.ProducerStates(); len(states) != 1 || states[0].ProducerID != 2 {
		t.Fatalf("%+v", states)
	}
}

// TestProducerStateSurvives compares the state before and after each way to come back.
func TestProducerStateSurvives(t *testing.T) {
	fill := func(e *env) {
		for i := range 40 {
			_, err := e.append(batch(t, 1, 1, producerTag{id: int64(i % 3), seq: int32(i / 3)}, "value"), 0)
			must(t, err)
		}
		must(t, e.host.round(e.l))
	}
	strip := func(l *Log) string {
		states, _ := l.ProducerStates()
		for i := range states {
			states[i].LastActiveMS = 0
		}
		return fmt.Sprint(states)
	}
	ways := map[string]func(e *env){
		"clean": func(e *env) { e.closeAll() },
		"crash": func(e *env) { e.host.close() },
		"clean without its snapshot": func(e *env) {
			e.closeAll()
			must(t, e.fs.Remove(testDir+"/"+fmt.Sprintf("%020d.snapshot", 40)))
		},
		"crash without any snapshot": func(e *env) {
			e.host.close()
			entries, err := e.fs.ReadDir(testDir)
			must(t, err)
			for _, f := range entries {
				if len(f.Name) > 9 && f.Name[len(f.Name)-9:] == ".snapshot" {
					must(t, e.fs.Remove(testDir+"/"+f.Name))
				}
			}
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, testConfig())
			fill(e)
			want := strip(e.l)
			way(e)
			must(t, e.reopen())
			if got := strip(e.l); got != want {
				t.Fatalf("got %s\nwant %s", got, want)
			}
			a, err := e.append(batch(t, 1, 1, producerTag{id: 0, seq: 13}, "value"), 0)
			if err != nil || !a.Duplicate || a.Base != 39 {
				t.Fatalf("%+v %v", a, err)
			}
			_ = e.l.Close()
			e.host.close()
		})
	}
}

// snapshots lists the producer snapshots in a log's directory.
func snapshots(t *testing.T, e *env) (offsets []int64) {
	t.Helper()
	entries, err := e.fs.ReadDir(testDir)
	must(t, err)
	for _, f := range entries {
		if at, ext, ok := segment.ParseFileName(f.Name); ok && ext == segment.ExtSnapshot {
			offsets = append(offsets, at)
		}
	}
	return offsets
}

// TestSnapshotsDoNotPileUp: of the snapshots within segments, which restarts and crashes leave, one at most stays.
func TestSnapshotsDoNotPileUp(t *testing.T) {
	cfg := testConfig()
	cfg.SnapshotInterval = 1
	disk := newDisk(t)
	e := newEnvOn(t, disk, cfg, StartState{})
	for range 8 {
		for range 3 {
			e.mustAppend(1, "x")
		}
		must(t, e.host.round(e.l))
		must(t, e.host.idle(e.l))
		e.host.close()
		disk = disk.StrictCrashClone()
		e.fs = disk
		must(t, e.reopen())
	}
	if got := snapshots(t, e); len(got) > 1+len(e.l.Segments()) {
		t.Errorf("snapshots at %v with %d segments", got, len(e.l.Segments()))
	}
	e.l.SetHighWatermark(e.l.End())
	must(t, e.l.Roll())
	must(t, e.host.round(e.l))
	_, err := e.l.DeleteRecords(t.Context(), -1)
	must(t, err)
	if got := snapshots(t, e); len(got) != 1 {
		t.Errorf("snapshots at %v of an empty log that begins at %d", got, e.l.LogStart())
	}
	e.closeAll()
}

// TestAFutureSnapshotIsRefused: an older release must not go on without producers that a newer one knew.
func TestAFutureSnapshotIsRefused(t *testing.T) {
	e := newEnv(t, testConfig())
	b := batch(t, 1, 1, producerTag{1, 0, 0}, "x")
	_, err := e.append(b, 0)
	must(t, err)
	must(t, e.host.round(e.l))
	must(t, e.host.idle(e.l))
	e.closeAll()
	must(t, replaceFile(e.fs, segment.Path(testDir, 1, segment.ExtSnapshot), seal(format{snapshotFormat.magic, 2}, nil)))
	if err := e.reopen(); !errors.Is(err, ErrVersion) {
		t.Errorf("open: %v", err)
	}
	e.host.close()
}
