package log

import (
	"slices"
	"testing"

	"runnel.dev/runnel/internal/vfs/memfs"
)

func TestAdoptedEpochIsDurableWithTheNextRound(t *testing.T) {
	e := newEnv(t, testConfig())
	var calls []int64
	e.l.OnFlushed(func(flushed int64) { calls = append(calls, flushed) })
	if e.l.Adopted() != 0 || e.l.AdoptedDurable() != 0 || e.host.isDirty(e.l) {
		t.Fatalf("a new log adopted %d, %d durable", e.l.Adopted(), e.l.AdoptedDurable())
	}
	e.l.AdoptEpoch(5)
	if e.l.Adopted() != 5 || e.l.AdoptedDurable() != 0 || !e.host.isDirty(e.l) {
		t.Fatalf("adopted %d, durable %d, dirty %v", e.l.Adopted(), e.l.AdoptedDurable(), e.host.isDirty(e.l))
	}
	must(t, e.host.round(e.l))
	if e.l.AdoptedDurable() != 5 || !slices.Equal(calls, []int64{0}) {
		t.Fatalf("durable %d, callbacks %v", e.l.AdoptedDurable(), calls)
	}
	must(t, e.host.round(e.l)) // nothing moved: nobody is told
	e.l.AdoptEpoch(4)
	e.l.AdoptEpoch(5)
	if e.l.Adopted() != 5 || e.host.isDirty(e.l) || len(calls) != 1 {
		t.Fatalf("an older epoch: adopted %d, dirty %v, callbacks %v", e.l.Adopted(), e.host.isDirty(e.l), calls)
	}
}

func TestFlushedCallbacksEnd(t *testing.T) {
	e := newEnv(t, testConfig())
	var calls []string
	first := e.l.OnFlushed(func(int64) { calls = append(calls, "first") })
	e.l.OnFlushed(func(int64) { calls = append(calls, "second") })
	e.l.AdoptEpoch(1)
	must(t, e.host.round(e.l))
	first()
	first()
	e.l.AdoptEpoch(2)
	must(t, e.host.round(e.l))
	if !slices.Equal(calls, []string{"first", "second", "second"}) || len(*e.l.callbacks.Load()) != 1 {
		t.Fatalf("%v", calls)
	}
}

// TestAdoptedDuringARoundWaitsForTheNext: the round captured what it journals before.
func TestAdoptedDuringARoundWaitsForTheNext(t *testing.T) {
	e := newEnv(t, testConfig())
	e.l.AdoptEpoch(1)
	e.host.during = func() { e.l.AdoptEpoch(2) }
	must(t, e.host.round(e.l))
	if e.l.AdoptedDurable() != 1 || !e.host.isDirty(e.l) {
		t.Fatalf("durable %d, dirty %v", e.l.AdoptedDurable(), e.host.isDirty(e.l))
	}
	e.host.during = nil
	must(t, e.host.round(e.l))
	if e.l.AdoptedDurable() != 2 {
		t.Fatalf("durable %d", e.l.AdoptedDurable())
	}
}

func TestAFailedRoundAdoptsNothing(t *testing.T) {
	e := newEnv(t, testConfig())
	e.l.AdoptEpoch(3)
	e.l.CompleteSync(e.l.PrepareSync(), memfs.New().SyncDir("/none"))
	if e.l.AdoptedDurable() != 0 || e.l.State().Health != Failed {
		t.Fatalf("durable %d, %v", e.l.AdoptedDurable(), e.l.State())
	}
}

// TestAnAbandonedRoundAdoptsLater: what a round that left the log out had captured is captured again.
func TestAnAbandonedRoundAdoptsLater(t *testing.T) {
	e := newEnv(t, testConfig())
	e.l.AdoptEpoch(3)
	e.l.AbandonSync(e.l.PrepareSync())
	if e.l.AdoptedDurable() != 0 {
		t.Fatal("durable without a round")
	}
	must(t, e.host.round(e.l))
	if e.l.AdoptedDurable() != 3 {
		t.Fatalf("durable %d", e.l.AdoptedDurable())
	}
}

// TestTruncationDoesNotLowerTheAdoptedEpoch: not in memory, not in a round that it makes void, not after a crash or a clean stop.
func TestTruncationDoesNotLowerTheAdoptedEpoch(t *testing.T) {
	e := newEnv(t, testConfig())
	e.mustAppend(3, "a")
	e.mustAppend(3, "b")
	must(t, e.host.round(e.l))
	e.l.AdoptEpoch(7)
	e.host.behind = func() { must(t, e.l.Truncate(t.Context(), 3)) }
	must(t, e.host.round(e.l))
	e.host.behind = nil
	if e.l.End() != 3 || e.l.AdoptedDurable() != 7 {
		t.Fatalf("end %d, durable %d", e.l.End(), e.l.AdoptedDurable())
	}
	crashed := openOn(t, e.fs.(*memfs.Mem).StrictCrashClone(), testConfig(), e.clk)
	if crashed.l.Adopted() != 7 || crashed.l.AdoptedDurable() != 7 || crashed.rep.Clean {
		t.Fatalf("after a crash: %d, %d", crashed.l.Adopted(), crashed.l.AdoptedDurable())
	}
	crashed.closeAll()
	e.closeAll()
	must(t, e.reopen())
	if e.l.Adopted() != 7 || e.l.AdoptedDurable() != 7 || !e.rep.Clean {
		t.Fatalf("after a clean stop: %d, %d, %+v", e.l.Adopted(), e.l.AdoptedDurable(), e.rep)
	}
}

func TestAnEpochThatNoRoundCoveredIsNotAdoptedAfterACrash(t *testing.T) {
	e := newEnv(t, testConfig())
	e.l.AdoptEpoch(7)
	c := openOn(t, e.fs.(*memfs.Mem).StrictCrashClone(), testConfig(), e.clk)
	if c.l.Adopted() != 0 || c.l.AdoptedDurable() != 0 {
		t.Fatalf("%d, %d", c.l.Adopted(), c.l.AdoptedDurable())
	}
	c.closeAll()
	e.closeAll()
}
