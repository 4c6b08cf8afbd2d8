package log

import (
	"context"
	"errors"
	"testing"
)

// mustAppendIn appends one record in an epoch.
func (e *env) mustAppendIn(epoch int32, text string) {
	e.t.Helper()
	if _, err := e.append(batch(e.t, 1, testStart.UnixMilli(), noProducer, text), epoch); err != nil {
		e.t.Fatal(err)
	}
}

// TestALogStartMoveMeetsANewEpoch: while the new log start waits for the journal, a round journals a new epoch. The entry that was
// made before must not make it void.
func TestALogStartMoveMeetsANewEpoch(t *testing.T) {
	e := newEnv(t, testConfig())
	e.mustAppendIn(1, "a")
	must(t, e.host.round(e.l))
	e.l.SetHighWatermark(1)
	host := e.l.host
	e.l.host = hostFunc{host, func(ctx context.Context, j JournalEntry) error {
		e.mustAppendIn(2, "b")
		must(t, e.host.round(e.l))
		if len(j.NewEpochs) > 0 {
			t.Errorf("an entry of before names epochs %v; the journal knows %v", j.NewEpochs, e.host.recovered().Epochs)
		}
		return host.JournalNow(ctx, j)
	}}
	if _, err := e.l.DeleteRecords(t.Context(), -1); err != nil {
		t.Fatal(err)
	}
}

// hostFunc is a Host with another JournalNow.
type hostFunc struct {
	Host
	journalNow func(context.Context, JournalEntry) error
}

func (h hostFunc) JournalNow(ctx context.Context, j JournalEntry) error { return h.journalNow(ctx, j) }

// TestATruncationThatTheJournalRefuses: nothing has changed, and what a later round acknowledges survives a crash.
func TestATruncationThatTheJournalRefuses(t *testing.T) {
	disk := newDisk(t)
	e := newEnvOn(t, disk, testConfig(), StartState{})
	e.mustAppendIn(1, "a")
	e.mustAppendIn(1, "b")
	must(t, e.host.round(e.l))
	e.l.SetHighWatermark(2)
	e.mustAppendIn(2, "c")
	before := e.l.Offsets()
	refused := errors.New("refused")
	e.host.mu.onNow = func(JournalEntry) error { return refused }
	if err := e.l.Truncate(t.Context(), 1); !errors.Is(err, refused) {
		t.Fatalf("truncate: %v", err)
	}
	e.host.mu.onNow = nil
	if after := e.l.Offsets(); after != before {
		t.Errorf("offsets are %+v, were %+v", after, before)
	}
	must(t, e.host.round(e.l))
	if e.l.Flushed() != 3 {
		t.Fatalf("flushed up to %d", e.l.Flushed())
	}
	must(t, e.host.idle(e.l))
	again := openOn(t, disk.StrictCrashClone(), testConfig(), e.clk)
	if again.rep.Quarantined != nil || again.l.End() != 3 {
		t.Errorf("after a crash: end %d, quarantined %v, cut %v", again.l.End(), again.rep.Quarantined, again.rep.CutReason)
	}
	again.closeAll()
}

// TestTruncateDropsAnEpochWithoutBatches: a leader that was replaced before it wrote follows one whose batches are of an older
// epoch than its own.
func TestTruncateDropsAnEpochWithoutBatches(t *testing.T) {
	disk := newDisk(t)
	e := newEnvOn(t, disk, testConfig(), StartState{})
	e.mustAppendIn(1, "a")
	must(t, e.host.round(e.l))
	must(t, e.l.AssignEpoch(3))
	must(t, e.l.Truncate(t.Context(), 1))
	e.mustAppendIn(2, "b")
	must(t, e.host.round(e.l))
	must(t, e.host.idle(e.l))
	again := openOn(t, disk.StrictCrashClone(), testConfig(), e.clk)
	if got := again.l.Epochs(); len(got) != 2 || got[1] != (EpochStart{2, 1}) || again.l.End() != 2 {
		t.Errorf("epochs %v, end %d", got, again.l.End())
	}
	again.closeAll()
}
