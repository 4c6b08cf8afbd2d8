package storage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// freshStart is a state of another replica at offset 50.
func freshStart() log.StartState {
	return log.StartState{
		Offset: 50, Epochs: []log.EpochStart{{Epoch: 2, Start: 10}, {Epoch: 7, Start: 40}},
		Producers: []log.ProducerState{{ProducerID: 8, Epoch: 1, Batches: []log.ProducerBatch{{FirstSequence: 3, LastSequence: 3, Base: 49}}}},
	}
}

var ordersInfo = TopicInfo{Name: "orders", Config: []byte("config")}

// wantFresh checks that l is what freshStart says, and nothing else.
func wantFresh(t testing.TB, when string, l *log.Log) {
	t.Helper()
	o := l.Offsets()
	if o.LogStart != 50 || o.HighWatermark != 50 || o.Flushed != 50 || o.End != 50 || l.JournaledLogStart() != 50 || l.Adopted() != 0 {
		t.Fatalf("%s: %+v, journaled start %d, adopted %d", when, o, l.JournaledLogStart(), l.Adopted())
	}
	if !slices.Equal(l.Epochs(), freshStart().Epochs) {
		t.Fatalf("%s: epochs %v", when, l.Epochs())
	}
	if states, _ := l.ProducerStates(); len(states) != 1 || states[0].ProducerID != 8 || states[0].Batches[0].Base != 49 {
		t.Fatalf("%s: producers %+v", when, states)
	}
	if l.State().Health != log.Online || l.Meta().TopicName != "orders" {
		t.Fatalf("%s: %v, %+v", when, l.State(), l.Meta())
	}
}

// wantTidy checks that only the partition's directory is there, and with kept that of a damaged log.
func wantTidy(t testing.TB, when string, disk *memfs.Mem, kept bool) {
	t.Helper()
	entries, err := disk.ReadDir(testDir + "/" + testTopic.String())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name != "0" && !(kept && strings.HasPrefix(e.Name, "0"+damagedInfix)) {
			t.Fatalf("%s: %s is left", when, e.Name)
		}
	}
}

func TestReplaceAHealthyLog(t *testing.T) {
	disk, _, _ := filled(t, 40)
	s := newStore(t, disk, smallSegments)
	old := s.mustLog(0)
	old.AdoptEpoch(9)
	s.round()
	r, err := old.ReadRange(0, 1<<20, 40)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, freshStart())
	if err != nil {
		t.Fatal(err)
	}
	wantFresh(t, "replaced", l)
	if s.mustLog(0) != l || l.LogID() == old.LogID() {
		t.Fatal("the old log is in its place, or its identity is")
	}
	if _, err := appendOne(old, 9, "x"); !errors.Is(err, log.ErrClosed) {
		t.Errorf("append to the old log: %v", err)
	}
	if err := r.ReadInto(make([]byte, r.Len)); err != nil {
		t.Errorf("a reader of the old log: %v", err)
	}
	r.Release()
	wantTidy(t, "replaced", disk, false)
	wantFresh(t, "after a crash", newStore(t, disk.StrictCrashClone(), smallSegments).mustLog(0))

	if _, err := appendOne(l, 7, "new"); err != nil {
		t.Fatal(err)
	}
	s.round()
	if l.Flushed() != 51 {
		t.Fatalf("flushed up to %d", l.Flushed())
	}
	crashed := newStore(t, disk.StrictCrashClone(), smallSegments)
	if got := texts(t, crashed.mustLog(0)); len(got) != 1 || got[0] != "new" || crashed.mustLog(0).LogID() != l.LogID() {
		t.Fatalf("after a crash: %q", got)
	}
	s.mustClose()
	again := newStore(t, disk, smallSegments)
	if got := texts(t, again.mustLog(0)); len(got) != 1 || !again.Report().Clean || len(again.Report().Damage) > 0 {
		t.Fatalf("after a clean stop: %q, %+v", got, again.Report())
	}
}

func TestReplaceADamagedLogKeepsItsFiles(t *testing.T) {
	disk, dir, _ := damaged(t)
	before := listing(t, disk, dir)
	s := newStore(t, disk, smallSegments)
	m, err := log.ReadMeta(disk, dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, freshStart())
	if err != nil {
		t.Fatal(err)
	}
	wantFresh(t, "replaced", l)
	after := listing(t, disk, dir+damagedInfix+m.LogID.String())
	for name, content := range before {
		if after[name] != content {
			t.Errorf("%s was not kept", name)
		}
	}
	s.mustClose()
	again := newStore(t, disk, smallSegments)
	wantFresh(t, "after a restart", again.mustLog(0))
	if r := again.Report(); len(r.SetAside) != 1 || len(r.Quarantined) > 0 {
		t.Errorf("%+v", r)
	}
}

func TestReplaceAMissingLog(t *testing.T) {
	disk, dir, _ := filled(t, 3)
	if err := disk.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, disk, smallSegments)
	if st, _ := s.State(testTopic, 0); st.Health != log.Quarantined {
		t.Fatal(st)
	}
	l, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, freshStart())
	if err != nil {
		t.Fatal(err)
	}
	wantFresh(t, "replaced", l)
	wantFresh(t, "after a crash", newStore(t, disk.StrictCrashClone(), smallSegments).mustLog(0))
	wantTidy(t, "replaced", disk, false)
}

func TestReplaceRefusals(t *testing.T) {
	s := newStore(t, memfs.New())
	if _, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, log.StartState{}); !errors.Is(err, ErrLogNotFound) {
		t.Errorf("of a partition that is not here: %v", err)
	}
	l := s.create(0)
	mustAppend(t, l, "x")
	if _, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, log.StartState{Offset: -1}); err == nil || l.State().Health != log.Online {
		t.Errorf("with a bad start: %v, %v", err, l.State())
	}
	release, err := s.claim(partitionKey{testTopic, 0})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, log.StartState{}); !errors.Is(err, ErrBusy) {
		t.Errorf("while it is changed: %v", err)
	}
	release()
}

// TestCrashAtEveryChangeOfReplace: afterwards there is the old log, whole, or the new one, and the call can be made again.
func TestCrashAtEveryChangeOfReplace(t *testing.T) {
	for _, kind := range []string{"healthy", "damaged"} {
		source, _, want := filled(t, 40)
		if kind == "damaged" {
			source, _, want = damaged(t)
		}
		probe := newStore(t, source.StrictCrashClone(), smallSegments)
		oldID := ids.LogID{}
		if l, ok := probe.Log(testTopic, 0); ok {
			oldID = l.LogID()
		}
		for name, clone := range cloners() {
			t.Run(kind+", "+name, func(t *testing.T) {
				replaced := 0
				for k, hit := int64(1), true; hit; k++ {
					disk := source.StrictCrashClone()
					fsys := errorfs.Wrap(disk, nil)
					s := newStore(t, fsys, smallSegments)
					fsys.CrashAt(fsys.Mutations() + k)
					_, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, freshStart())
					if hit = fsys.Crashed(); !hit && err != nil {
						t.Fatal(err)
					}
					done := err == nil
					fsys.Crash()
					_ = s.Close()
					after := clone(disk)
					for pass := range 2 {
						when := fmt.Sprintf("change %d, pass %d", k, pass)
						s := newStore(t, after, smallSegments)
						st, known := s.State(testTopic, 0)
						l, _ := s.Log(testTopic, 0)
						switch {
						case !known || l == nil:
							t.Fatalf("%s: known %v, %v", when, known, st)
						case l.LogID() != oldID:
							wantFresh(t, when, l)
							replaced++
						case done:
							t.Fatalf("%s: the old log is back", when)
						case kind == "damaged" && st.Health != log.Quarantined:
							t.Fatalf("%s: %v", when, st)
						case kind == "healthy" && !slices.Equal(texts(t, l), want):
							t.Fatalf("%s: the old log holds %d records of %d", when, len(texts(t, l)), len(want))
						}
						wantTidy(t, when, after, kind == "damaged")
						s.mustClose()
					}
					s = newStore(t, after, smallSegments)
					l, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, freshStart())
					if err != nil {
						t.Fatalf("change %d: the next try: %v", k, err)
					}
					wantFresh(t, "the next try", l)
					s.mustClose()
				}
				if replaced == 0 {
					t.Fatal("no crash came after the replacement")
				}
			})
		}
	}
}

// TestReplaceFailsAtEveryChange: a disk that is full at any step, and then is not.
func TestReplaceFailsAtEveryChange(t *testing.T) {
	source, _, _ := filled(t, 40)
	for k := 1; ; k++ {
		disk := source.StrictCrashClone()
		fsys := errorfs.Wrap(disk, nil)
		s := newStore(t, fsys, smallSegments)
		n, failed := 0, false
		fsys.SetInjector(func(op errorfs.Op) error {
			switch op.Kind {
			case errorfs.Write, errorfs.Create, errorfs.MkdirAll, errorfs.Rename:
				if n++; n == k {
					failed = true
					return syscall.ENOSPC
				}
			default:
			}
			return nil
		})
		_, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, freshStart())
		fsys.SetInjector(nil)
		if err != nil && !failed {
			t.Fatal(err)
		}
		if k%2 == 0 && err != nil { // the topic is deleted instead
			if err := s.DeleteLog(Tombstone{testTopic, 0}); err != nil {
				t.Fatal(err)
			}
			s.mustClose()
			if _, known := newStore(t, disk.StrictCrashClone(), smallSegments).State(testTopic, 0); known {
				t.Fatalf("step %d: a deleted partition is back", k)
			}
			continue
		}
		l, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, freshStart())
		if err != nil {
			t.Fatalf("step %d: the next try: %v", k, err)
		}
		wantFresh(t, fmt.Sprint("step ", k), l)
		wantTidy(t, fmt.Sprint("step ", k), disk, false)
		wantFresh(t, fmt.Sprint("step ", k, ", after a crash"), newStore(t, disk.StrictCrashClone(), smallSegments).mustLog(0))
		s.mustClose()
		if !failed {
			return
		}
	}
}

// TestReplaceLeavesOutEpochsThatHaveNotBegun: the journal must not hold them either, or a recovery would believe it.
func TestReplaceLeavesOutEpochsThatHaveNotBegun(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk)
	s.create(0)
	start := freshStart()
	start.Epochs = append(start.Epochs, log.EpochStart{Epoch: 99, Start: 51})
	l, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, start)
	if err != nil {
		t.Fatal(err)
	}
	wantFresh(t, "replaced", l)
	for _, text := range []string{"a", "b", "c"} {
		if _, err := appendOne(l, 7, text); err != nil {
			t.Fatal(err)
		}
	}
	s.round()
	again := newStore(t, disk.StrictCrashClone())
	if got := texts(t, again.mustLog(0)); len(got) != 3 {
		t.Fatalf("after a crash: %q, %v", got, again.mustLog(0).State())
	}
	if _, err := s.ReplaceLog(t.Context(), testTopic, 0, ordersInfo, log.StartState{Epochs: []log.EpochStart{{Epoch: -1}}}); !errors.Is(err, log.ErrStartState) {
		t.Fatal(err)
	}
	if l, ok := s.Log(testTopic, 0); !ok || l.State().Health != log.Online || l.End() != 53 {
		t.Fatal("a refused replacement took the log away")
	}
}
