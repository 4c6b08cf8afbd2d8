package log

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"runnel.dev/runnel/internal/vfs/errorfs"
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

// unsavedEpochs appends one batch in each of n epochs, which only the journal has afterwards.
func (e *env) unsavedEpochs(n int) {
	e.t.Helper()
	for i := range int32(n) {
		e.mustAppendIn(i, "x")
	}
}

// TestANewEpochOnAFullDisk: a leader is elected while the disk is full and as many epochs as the journal may hold alone are unsaved.
// It can be read from, and nothing is written before its first batch.
func TestANewEpochOnAFullDisk(t *testing.T) {
	fsys := errorfs.Wrap(newDisk(t), nil)
	e := newEnvOn(t, fsys, testConfig(), StartState{})
	must(t, e.l.SetConfig(DefaultConfig())) // one segment: no roll saves an epoch
	e.unsavedEpochs(maxUncheckpointed)
	writes := 0
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind.Mutates() {
			writes++
			return syscall.ENOSPC
		}
		return nil
	})
	e.l.SetReadOnly(ErrNoSpace)
	for epoch := int32(maxUncheckpointed); epoch < maxUncheckpointed+5; epoch++ {
		if err := e.l.AssignEpoch(epoch); err != nil || writes > 0 {
			t.Fatalf("epoch %d: %v, %d writes", epoch, err, writes)
		}
	}
	fsys.SetInjector(nil)
	must(t, e.l.TryResume())
	e.mustAppendIn(maxUncheckpointed+4, "y")
	if saved, err := readEpochs(e.fs, testDir); err != nil || len(saved) != maxUncheckpointed+1 {
		t.Errorf("the first batch of the epoch found %d epochs saved, %v", len(saved), err)
	}
}

// TestEpochsThatCannotBeSynced: one sync error is all there is to learn from. It fails the log and is told to the host, whether a roll
// or too many epochs were the reason to save them.
func TestEpochsThatCannotBeSynced(t *testing.T) {
	reasons := map[string]func(e *env) error{
		"roll": func(e *env) error { return e.l.Roll() },
		"append that rolls": func(e *env) error {
			e.clk.Advance(48 * time.Hour)
			_, err := e.append(batch(t, 1, 1, noProducer, "x"), 0)
			return err
		},
		"many epochs": func(e *env) error {
			for epoch := int32(1); ; epoch++ {
				if _, err := e.append(batch(t, 1, 1, noProducer, "x"), epoch); err != nil || epoch > 2*maxUncheckpointed {
					return err
				}
			}
		},
		"close": func(e *env) error {
			must(t, e.host.round(e.l))
			return e.l.Close()
		},
	}
	for name, save := range reasons {
		for _, kind := range []errorfs.Kind{errorfs.Sync, errorfs.SyncDir} {
			t.Run(fmt.Sprint(name, ", ", kind), func(t *testing.T) {
				fsys := errorfs.Wrap(newDisk(t), nil)
				e := newEnvOn(t, fsys, testConfig(), StartState{})
				must(t, e.l.SetConfig(DefaultConfig()))
				e.mustAppendIn(0, "x")
				named := false
				fsys.SetInjector(func(op errorfs.Op) error {
					named = named || op.Kind == errorfs.Rename && strings.HasSuffix(op.NewName, epochsName)
					if op.Kind == kind && (kind == errorfs.SyncDir && named || op.Name == testDir+"/"+epochsName+tmpSuffix) {
						return errorfs.LosePages(syscall.EIO)
					}
					return nil
				})
				if err := save(e); !errors.Is(err, ErrFailed) || !errors.Is(err, ErrIO) || errors.Is(err, ErrReadOnly) {
					t.Errorf("the caller gets %v", err)
				}
				if len(e.host.mu.failed) == 0 || !errors.Is(e.host.mu.failed[0], ErrFailed) {
					t.Errorf("the host was told %v", e.host.mu.failed)
				}
				fsys.SetInjector(nil)
				e.clk.Advance(time.Hour)
				if _, err := e.append(batch(t, 1, 1, noProducer, "x"), 100); err == nil {
					t.Error("the log goes on")
				}
				_ = e.l.Close()
			})
		}
	}
}

// TestEpochsThatFindNoSpace: a roll on a full disk keeps them in the journal, and goes on.
func TestEpochsThatFindNoSpace(t *testing.T) {
	fsys := errorfs.Wrap(newDisk(t), nil)
	e := newEnvOn(t, fsys, testConfig(), StartState{})
	e.mustAppendIn(0, "x")
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.Write && op.Name == testDir+"/"+epochsName+tmpSuffix {
			return syscall.ENOSPC
		}
		return nil
	})
	must(t, e.l.Roll())
	e.mustAppendIn(0, "y")
	if st := e.l.State(); st.Health != Online || len(e.host.mu.failed) > 0 {
		t.Errorf("%v, the host was told %v", st.Health, e.host.mu.failed)
	}
}
