package log

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

func TestConfigReportsAllFaults(t *testing.T) {
	must(t, DefaultConfig().Validate())
	err := Config{
		SegmentBytes: 1, SegmentAge: -1, IndexInterval: 0, RetentionTime: 0, RetentionBytes: -2, MaxBatchBytes: 5,
		TimestampType: 2, MaxTimestampAhead: -1, SnapshotInterval: 0, RecoverVerifyBytes: -1,
	}.Validate()
	for _, name := range []string{
		"segmentBytes", "segmentAge", "indexInterval", "retentionTime", "retentionBytes", "maxBatchBytes", "timestampType",
		"maxTimestampAhead", "producerIDExpiry", "snapshotInterval", "recoverVerifyBytes",
	} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not reported: %v", name, err)
		}
	}
}

func TestLogAppendTime(t *testing.T) {
	cfg := testConfig()
	cfg.TimestampType = LogAppendTime
	e := newEnv(t, cfg)
	now := e.clk.Now().UnixMilli()
	tag := producerTag{id: 5, seq: 0}
	a, err := e.append(batch(t, 3, 12345, tag, "v"), 0)
	must(t, err)
	if a.AppendTimeMS != now {
		t.Fatalf("%+v", a)
	}
	e.clk.Advance(time.Minute)
	dup, err := e.append(batch(t, 3, 12345, tag, "v"), 0)
	if err != nil || !dup.Duplicate || dup.AppendTimeMS != now {
		t.Fatalf("%+v %v", dup, err)
	}
	b, err := readAll(e.l, 0, 3)
	must(t, err)
	var rd record.Reader
	must(t, rd.Reset(b))
	for rec := (record.Record{}); rd.Next(&rec); {
		if rec.Timestamp != now {
			t.Fatalf("record %d has %d", rec.Offset, rec.Timestamp)
		}
	}
	e.flushAll()
	if off, ts, ok, err := e.l.OffsetForTime(now); err != nil || !ok || off != 0 || ts != now {
		t.Fatalf("%d %d %t %v", off, ts, ok, err)
	}
}

func TestRefusedBatches(t *testing.T) {
	cfg := testConfig()
	cfg.MaxBatchBytes = 200
	e := newEnv(t, cfg)
	var large *BatchTooLargeError
	b := batch(t, 50, 1, noProducer, "v")
	if _, err := e.append(b, 0); !errors.As(err, &large) || large.Size != len(b) || large.Limit != 200 || !errors.Is(err, ErrBatchTooLarge) {
		t.Errorf("%v", err)
	}
	b = batch(t, 1, 1, noProducer, "v")
	if _, err := e.l.Append(b[:len(b)-1], header(t, b), 0, e.clk.Now()); !errors.Is(err, record.ErrInvalid) {
		t.Errorf("%v", err)
	}
	must(t, e.l.AssignEpoch(4))
	if _, err := e.append(b, 3); !errors.Is(err, ErrFenced) {
		t.Errorf("%v", err)
	}
	if err := e.l.AssignEpoch(3); !errors.Is(err, ErrFenced) {
		t.Errorf("%v", err)
	}
	if e.l.End() != 0 {
		t.Errorf("end %d", e.l.End())
	}
	e.closeAll()
	if _, err := e.append(b, 4); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if _, err := e.l.ReadRange(0, 1, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestRollByAgeAndOffsets(t *testing.T) {
	cfg := testConfig()
	cfg.SegmentAge = time.Hour
	e := newEnv(t, cfg)
	e.clk.Advance(100 * time.Hour)
	e.mustAppend(1, "an empty segment does not roll, however old")
	e.clk.Advance(59 * time.Minute)
	e.mustAppend(1, "young")
	if n := len(e.l.Segments()); n != 1 {
		t.Fatalf("%d segments", n)
	}
	e.clk.Advance(time.Minute)
	e.mustAppend(1, "old enough")
	if s := e.l.Segments(); len(s) != 2 || s[1].Base != 2 {
		t.Fatalf("%+v", s)
	}
	// A batch whose last offset does not fit 31 bits relative to the base goes to a segment of its own.
	b := batch(t, 1, 1, noProducer, "v")
	h := header(t, b)
	if !e.l.active().Room(len(b), 2+(1<<31-1)) || e.l.active().Room(len(b), 2+1<<31) {
		t.Fatal("room for a 32-bit offset delta")
	}
	must(t, e.l.rollIfDue(len(b), h.LastOffset(), e.clk.Now()))
	must(t, e.l.rollIfDue(len(b), 2+1<<31, e.clk.Now()))
	if n := len(e.l.Segments()); n != 3 {
		t.Fatalf("%d segments", n)
	}
}

func TestFollower(t *testing.T) {
	leader, follower := newEnv(t, testConfig()), newEnv(t, testConfig())
	for i := range 30 {
		_, err := leader.append(batch(t, 3, 1, producerTag{id: 2, seq: int32(3 * i)}, "v"), int32(i/10))
		must(t, err)
	}
	for off := int64(0); off < leader.l.End(); {
		r, err := leader.l.ReadRange(off, 1, leader.l.End())
		must(t, err)
		b := make([]byte, r.Len)
		must(t, r.ReadInto(b))
		_, err = follower.l.AppendAsFollower(b)
		must(t, err)
		if _, err := follower.l.AppendAsFollower(b); !errors.Is(err, ErrNotContiguous) {
			t.Fatalf("twice: %v", err)
		}
		off = r.Next
		r.Release()
	}
	a, _ := readAll(leader.l, 0, leader.l.End())
	b, _ := readAll(follower.l, 0, follower.l.End())
	if !bytes.Equal(a, b) || fmt.Sprint(leader.l.Epochs()) != fmt.Sprint(follower.l.Epochs()) {
		t.Fatal("replicas differ")
	}
	bad := batch(t, 1, 1, noProducer, "v")
	record.Stamp(bad, follower.l.End(), 1)
	if _, err := follower.l.AppendAsFollower(bad); !errors.Is(err, ErrFenced) {
		t.Fatalf("older epoch: %v", err)
	}
	record.Stamp(bad, follower.l.End(), 2)
	bad[len(bad)-1] ^= 1
	if _, err := follower.l.AppendAsFollower(bad); !errors.Is(err, record.ErrCorrupt) {
		t.Fatalf("bad checksum: %v", err)
	}
}

func TestEpochs(t *testing.T) {
	e := newEnv(t, testConfig())
	for i, epoch := range []int32{1, 1, 4, 4, 7} {
		_, err := e.append(batch(t, 10, 1, noProducer, fmt.Sprint(i)), epoch)
		must(t, err)
	}
	must(t, e.l.AssignEpoch(9)) // leads, and has written nothing
	for _, c := range []struct {
		ask, epoch int32
		end        int64
	}{{0, -1, -1}, {1, 1, 20}, {3, 1, 20}, {4, 4, 40}, {6, 4, 40}, {7, 7, 50}, {9, 9, 50}, {12, 9, 50}} {
		if epoch, end := e.l.EndOffsetForEpoch(c.ask); epoch != c.epoch || end != c.end {
			t.Errorf("epoch %d: %d ends at %d, want %d %d", c.ask, epoch, end, c.epoch, c.end)
		}
	}
	must(t, e.l.Truncate(t.Context(), 35))
	if e.l.End() != 30 || e.l.LatestEpoch() != 4 {
		t.Fatalf("end %d epoch %d", e.l.End(), e.l.LatestEpoch())
	}
	_, err := e.append(batch(t, 1, 1, noProducer, "x"), 10)
	must(t, err)
	want := []EpochStart{{1, 0}, {4, 20}, {10, 30}}
	if got := e.l.Epochs(); !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	must(t, e.host.round(e.l))
	must(t, e.l.checkpointEpochs(false))
	e.host.close()
	must(t, e.reopen())
	if got := e.l.Epochs(); !slices.Equal(got, want) {
		t.Fatalf("after a crash: %v", got)
	}
}

func TestMergeOfEpochs(t *testing.T) {
	for _, c := range []struct{ a, b, want []EpochStart }{
		{nil, nil, nil},
		{[]EpochStart{{1, 0}}, []EpochStart{{1, 0}, {2, 5}}, []EpochStart{{1, 0}, {2, 5}}},
		{[]EpochStart{{1, 0}, {3, 20}}, []EpochStart{{4, 15}}, []EpochStart{{1, 0}, {4, 15}}},
		{[]EpochStart{{5, 7}}, []EpochStart{{2, 3}}, []EpochStart{{2, 3}, {5, 7}}},
	} {
		if got := merge(c.a, c.b); !slices.Equal(got, c.want) {
			t.Errorf("%v and %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestCreateAtAnOffset(t *testing.T) {
	disk := newDisk(t)
	st := StartState{
		Offset: 1000, Epochs: []EpochStart{{1, 0}, {3, 700}},
		Producers: []ProducerState{{ProducerID: 8, Epoch: 2, Batches: []ProducerBatch{{FirstSequence: 10, LastSequence: 14, Base: 990}}}},
	}
	e := newEnvOn(t, disk, testConfig(), st)
	if o := e.l.Offsets(); o != (Offsets{LogStart: 1000, LocalStart: 1000, TieredEnd: -1, HighWatermark: 1000, Flushed: 1000, End: 1000}) {
		t.Fatalf("%+v", o)
	}
	again := openOn(t, disk.StrictCrashClone(), testConfig(), clock.NewFake(testStart))
	for _, l := range []*env{e, again} {
		if epoch, end := l.l.EndOffsetForEpoch(2); epoch != 1 || end != 700 {
			t.Fatalf("epoch %d ends at %d", epoch, end)
		}
		a, err := l.append(batch(t, 5, 1, producerTag{id: 8, epoch: 2, seq: 10}, "v"), 3)
		if err != nil || !a.Duplicate || a.Base != 990 || a.Last != 994 {
			t.Fatalf("%+v %v", a, err)
		}
		a, err = l.append(batch(t, 1, 1, producerTag{id: 8, epoch: 2, seq: 15}, "v"), 5)
		if err != nil || a.Base != 1000 {
			t.Fatalf("%+v %v", a, err)
		}
	}
	if _, err := Create(t.Context(), e.openConfig(), testMeta(), st); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("create over a log: %v", err)
	}
	if _, err := Create(t.Context(), e.openConfig(), Meta{TopicID: ids.TopicID{1}}, StartState{Offset: -1}); err == nil {
		t.Fatal("bad input was accepted")
	}
	again.closeAll()
}

// TestCreateRefusesAStateThatCouldNotBeReadBack: it comes from another broker.
func TestCreateRefusesAStateThatCouldNotBeReadBack(t *testing.T) {
	producer := func(change func(p *ProducerState)) StartState {
		p := ProducerState{ProducerID: 8, Batches: []ProducerBatch{{FirstSequence: 1, LastSequence: 2, Base: 9}}}
		change(&p)
		return StartState{Offset: 10, Producers: []ProducerState{p}}
	}
	for name, st := range map[string]StartState{
		"epoch":            {Offset: 10, Epochs: []EpochStart{{-1, 0}}},
		"epoch start":      {Offset: 10, Epochs: []EpochStart{{1, -5}}},
		"producer":         producer(func(p *ProducerState) { p.ProducerID = -1 }),
		"producer epoch":   producer(func(p *ProducerState) { p.Epoch = -1 }),
		"too many batches": producer(func(p *ProducerState) { p.Batches = slices.Repeat(p.Batches, rememberedBatches+1) }),
		"sequence":         producer(func(p *ProducerState) { p.Batches[0].FirstSequence = -1 }),
		"last sequence":    producer(func(p *ProducerState) { p.Batches[0].LastSequence = -1 }),
		"base":             producer(func(p *ProducerState) { p.Batches[0].Base = 10 }),
		"negative base":    producer(func(p *ProducerState) { p.Batches[0].Base = -1 }),
	} {
		disk := newDisk(t)
		e := &env{t: t, fs: disk, clk: clock.NewFake(testStart), cfg: testConfig()}
		var err error
		e.host, err = openHost(disk)
		must(t, err)
		if _, err := Create(t.Context(), e.openConfig(), testMeta(), st); !errors.Is(err, ErrStartState) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := disk.Stat(testDir); err == nil {
			t.Errorf("%s: a directory was made", name)
		}
		if _, err := Create(t.Context(), e.openConfig(), testMeta(), producer(func(*ProducerState) {})); err != nil {
			t.Errorf("a good one: %v", err)
		}
		e.host.close()
	}
}

func TestCleanCloseNeedsNoScan(t *testing.T) {
	e := newEnv(t, testConfig())
	var want bytes.Buffer
	for range 100 {
		_, b := e.mustAppend(2, "v")
		want.Write(b)
	}
	e.flushAll()
	before := e.l.Offsets()
	e.closeAll()
	must(t, e.reopen())
	if !e.rep.Clean || e.rep.ScannedBytes != 0 || e.l.Offsets() != before {
		t.Fatalf("%+v %+v", e.rep, e.l.Offsets())
	}
	if n := e.l.opts.Cache.OpenFiles(); n != 0 {
		t.Fatalf("%d files open", n)
	}
	e.mustAppend(1, "next")
	if _, err := e.fs.Stat(testDir + "/clean"); !isMissing(err) {
		t.Fatalf("the marker outlived a change: %v", err)
	}
	got, err := readAll(e.l, 0, 200)
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Fatalf("%v", err)
	}
	// Unflushed: no marker.
	e.closeAll()
	must(t, e.reopen())
	if e.rep.Clean {
		t.Fatal("closed with unflushed bytes, and yet clean")
	}
	e.closeAll()
}

func TestUnknownToTheJournal(t *testing.T) {
	setup := func() *env {
		e := newEnv(t, testConfig())
		for range 40 {
			e.mustAppend(3, "value")
		}
		must(t, e.host.round(e.l))
		e.host.close()
		must(t, e.fs.Remove(journalPath))
		return e
	}
	e := setup()
	must(t, e.reopen())
	if !e.rep.Unknown || e.l.End() != 120 || e.rep.Quarantined != nil {
		t.Fatalf("%+v, end %d", e.rep, e.l.End())
	}
	// A torn tail is cut.
	e = setup()
	name := e.l.active().Path()
	f, err := e.fs.OpenRW(name)
	must(t, err)
	size, _ := f.Size()
	must(t, f.Truncate(size-5))
	must(t, e.reopen())
	if e.l.End() != 117 || e.rep.CutBytes == 0 || e.rep.CutReason == nil {
		t.Fatalf("%+v, end %d", e.rep, e.l.End())
	}
	// Damage with whole batches behind it, in the same segment or the next, is not.
	for _, at := range []int64{80, size + 0} {
		e = setup()
		name := e.l.Segments()[0].Base
		if at == size {
			name = e.l.active().Base()
			at = 80
		}
		f, err := e.fs.OpenRW(testDir + "/" + fmt.Sprintf("%020d.log", name))
		must(t, err)
		_, err = f.WriteAt([]byte{0xff, 0xfe}, at)
		must(t, err)
		must(t, e.reopen())
		var c *CorruptError
		if !errors.As(e.rep.Quarantined, &c) || c.Segment != name || e.l.State().Health != Quarantined {
			t.Fatalf("%+v", e.rep)
		}
	}
}

func TestIndexFilesAreOnlyHints(t *testing.T) {
	cfg := testConfig()
	cfg.IndexInterval = 100
	damage := map[string]func(e *env, name string){
		"absent": func(e *env, name string) { must(t, e.fs.Remove(name)) },
		"empty":  func(e *env, name string) { resize(t, e, name, 0) },
		"partial entry": func(e *env, name string) {
			st, err := e.fs.Stat(name)
			must(t, err)
			resize(t, e, name, st.Size-3)
		},
		"half": func(e *env, name string) {
			st, err := e.fs.Stat(name)
			must(t, err)
			resize(t, e, name, st.Size/2/24*24)
		},
		"stale": func(e *env, name string) { // entries of another segment
			other := strings.Replace(name, fmt.Sprintf("%020d", 0), fmt.Sprintf("%020d", e.l.Segments()[1].Base), 1)
			b, err := readFile(e.fs, other)
			must(t, err)
			f, err := e.fs.OpenRW(name)
			must(t, err)
			_, err = f.WriteAt(b, 0)
			must(t, err)
		},
		"zeros": func(e *env, name string) {
			st, err := e.fs.Stat(name)
			must(t, err)
			resize(t, e, name, 0)
			resize(t, e, name, st.Size)
		},
	}
	for what, do := range damage {
		for _, ext := range []string{".index", ".timeindex"} {
			for _, clean := range []bool{true, false} {
				t.Run(fmt.Sprint(what, ext, " clean ", clean), func(t *testing.T) {
					e := newEnv(t, cfg)
					for range 60 {
						e.clk.Advance(time.Minute)
						_, err := e.append(batch(t, 2, e.clk.Now().UnixMilli(), noProducer, "some value"), 0)
						must(t, err)
					}
					e.flushAll()
					want, err := readAll(e.l, 0, 120)
					must(t, err)
					if clean {
						must(t, e.l.Close())
					}
					must(t, e.host.idle(e.l))
					do(e, testDir+"/"+fmt.Sprintf("%020d", 0)+ext)
					e.host.close()
					must(t, e.reopen())
					for off := int64(0); off < 120; off += 2 {
						r, err := e.l.ReadRange(off, 100, 120)
						must(t, err)
						b := make([]byte, r.Len)
						must(t, r.ReadInto(b))
						if r.First != off || !bytes.Contains(want, b) {
							t.Fatalf("offset %d: range from %d", off, r.First)
						}
						r.Release()
					}
					must(t, checkTimes(e.l))
				})
			}
		}
	}
}

func resize(t *testing.T, e *env, name string, size int64) {
	t.Helper()
	f, err := e.fs.OpenRW(name)
	must(t, err)
	must(t, f.Truncate(size))
	must(t, f.Close())
}

func TestForeignFilesAreNamedAndLeftAlone(t *testing.T) {
	e := newEnv(t, testConfig())
	e.mustAppend(1, "v")
	must(t, e.host.round(e.l))
	foreign := []string{"0.log", "00000000000000000000.log.bak", "lost+found.txt", "00000000000000000000.LOG", "x"}
	for _, name := range foreign {
		_, err := e.fs.Create(testDir + "/" + name)
		must(t, err)
	}
	e.host.close()
	must(t, e.reopen())
	if len(e.rep.Foreign) != len(foreign) {
		t.Fatalf("%v", e.rep.Foreign)
	}
	for _, name := range foreign {
		if _, err := e.fs.Stat(testDir + "/" + name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDump(t *testing.T) {
	e := newEnv(t, testConfig())
	for i := range 20 {
		_, err := e.append(batch(t, 2, 1_700_000_000_000, producerTag{id: 1, seq: int32(2 * i)}, "\x1b[31mred"), 0)
		must(t, err)
	}
	must(t, e.l.Roll())
	e.flushAll()
	e.closeAll()
	for name, want := range map[string]string{
		fmt.Sprintf("%020d.log", 0):       `record 1 timestamp 1700000000001 key "k" value "\x1b[31mred-1"`,
		fmt.Sprintf("%020d.index", 0):     "entry 0 offset",
		fmt.Sprintf("%020d.timeindex", 0): "2023-11-14T22:13:20",
		fmt.Sprintf("%020d.snapshot", 40): "producer 1 epoch 0",
		"epochs":                          "epoch 0 start 0",
		"partition.meta":                  `topic "orders"`,
		"clean":                           "clean end 40",
	} {
		var out bytes.Buffer
		if err := DumpSegment(e.fs, testDir+"/"+name, &out, DumpOptions{Records: true}); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
		if strings.ContainsRune(out.String(), 0x1b) {
			t.Errorf("%s: control characters reach the terminal", name)
		}
	}
	var out bytes.Buffer
	must(t, DumpSegment(e.fs, testDir+"/"+fmt.Sprintf("%020d.log", 0), &out, DumpOptions{From: 10, Max: 3}))
	if n := strings.Count(out.String(), "\n"); n != 3 || !strings.HasPrefix(out.String(), "batch 10..11 ") {
		t.Errorf("%s", out.String())
	}
	if err := DumpSegment(e.fs, testDir+"/nothing", &out, DumpOptions{}); err == nil {
		t.Error("dumped a file that is not there")
	}
}
