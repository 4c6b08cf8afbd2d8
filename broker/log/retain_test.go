package log

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// clockedEnv has a disk whose modification times follow the log's clock.
func clockedEnv(t *testing.T, cfg Config) *env {
	t.Helper()
	clk := clock.NewFake(testStart)
	m := memfs.NewWith(memfs.Options{Clock: clk})
	must(t, m.MkdirAll(dataDir))
	m.SyncAll()
	e := newEnvOn(t, m, cfg, StartState{})
	e.clk = clk
	e.l.clk = clk
	return e
}

func (e *env) flushAll() {
	e.t.Helper()
	must(e.t, e.host.round(e.l))
	e.l.SetHighWatermark(e.l.Flushed())
}

func (e *env) retain() int {
	e.t.Helper()
	n, err := e.l.ApplyRetention(context.Background(), e.clk.Now())
	must(e.t, err)
	return n
}

func TestRetentionByTime(t *testing.T) {
	cfg := testConfig()
	cfg.RetentionTime = time.Hour
	e := clockedEnv(t, cfg)
	e.mustAppend(2, "old")
	must(t, e.l.Roll())
	e.clk.Advance(30 * time.Minute)
	e.mustAppend(2, "young")
	e.flushAll()
	e.clk.Advance(31 * time.Minute)
	if n := e.retain(); n != 1 || e.l.LogStart() != 2 {
		t.Fatalf("%d deleted, log start %d", n, e.l.LogStart())
	}
	if _, err := e.fs.Stat(testDir + "/" + fmt.Sprintf("%020d.log", 0)); !isMissing(err) {
		t.Fatalf("file of the deleted segment: %v", err)
	}
	// The active segment expires as a whole: the log is empty and goes on.
	e.clk.Advance(time.Hour)
	if n := e.retain(); n != 1 || e.l.LogStart() != 4 || e.l.End() != 4 || len(e.l.Segments()) != 1 {
		t.Fatalf("%d deleted, %+v", n, e.l.Segments())
	}
	e.clk.Advance(48 * time.Hour)
	if n := e.retain(); n != 0 || len(e.l.Segments()) != 1 || e.l.Segments()[0].Base != 4 {
		t.Fatalf("an empty segment rolled: %+v", e.l.Segments())
	}
	a, _ := e.mustAppend(1, "next")
	if a.Base != 4 || len(e.l.Segments()) != 1 {
		t.Fatalf("%+v %+v", a, e.l.Segments())
	}
	e.closeAll()
}

func TestRetentionDoesNotTrustTheFuture(t *testing.T) {
	cfg := testConfig()
	cfg.RetentionTime = time.Hour
	e := clockedEnv(t, cfg)
	ahead := e.clk.Now().Add(1000 * time.Hour).UnixMilli()
	_, err := e.append(batch(t, 1, ahead, noProducer, "from a clock that is wrong"), 0)
	must(t, err)
	must(t, e.l.Roll())
	allowed := e.clk.Now().Add(50 * time.Minute).UnixMilli()
	_, err = e.append(batch(t, 1, allowed, noProducer, "a little ahead"), 0)
	must(t, err)
	must(t, e.l.Roll())
	e.flushAll()
	if n := e.retain(); n != 0 {
		t.Fatalf("%d deleted at once", n)
	}
	e.clk.Advance(61 * time.Minute)
	if n := e.retain(); n != 1 || e.l.LogStart() != 1 {
		t.Fatalf("%d deleted: the wrong clock's segment goes by its file, the other one by its timestamp", n)
	}
	e.clk.Advance(50 * time.Minute)
	if n := e.retain(); n != 1 {
		t.Fatalf("%d deleted", n)
	}
}

func TestRetentionWaitsForTheHighWatermark(t *testing.T) {
	cfg := testConfig()
	cfg.RetentionBytes = 1
	e := newEnv(t, cfg)
	e.mustAppend(2, "a")
	must(t, e.l.Roll())
	e.mustAppend(2, "b")
	must(t, e.l.Roll())
	e.mustAppend(2, "c")
	if n := e.retain(); n != 0 {
		t.Fatal("deleted what is not flushed")
	}
	must(t, e.host.round(e.l))
	e.l.SetHighWatermark(3)
	if n := e.retain(); n != 1 || e.l.LogStart() != 2 {
		t.Fatalf("%d deleted, log start %d", n, e.l.LogStart())
	}
	e.l.SetHighWatermark(6)
	if n := e.retain(); n != 1 || e.l.LogStart() != 4 {
		t.Fatalf("%d deleted: the active segment stays, whatever the size", n)
	}
}

func TestRetentionBySizeCountsOnce(t *testing.T) {
	cfg := testConfig()
	e := newEnv(t, cfg)
	for range 5 {
		e.mustAppend(5, "xxxxxxxxxx")
		must(t, e.l.Roll())
	}
	e.flushAll()
	one := e.l.Segments()[0].Size
	cfg.RetentionBytes = 3 * one
	must(t, e.l.SetConfig(cfg))
	if n := e.retain(); n != 2 || e.l.Size() != 3*one {
		t.Fatalf("%d deleted, %d bytes left, bound %d", n, e.l.Size(), cfg.RetentionBytes)
	}
	if n := e.retain(); n != 0 {
		t.Fatalf("deleted %d more", n)
	}
}

func TestUnlinkComesAfterTheJournal(t *testing.T) {
	disk := newDisk(t)
	fsys := errorfs.Wrap(disk, nil)
	e := newEnvOn(t, fsys, testConfig(), StartState{})
	e.mustAppend(2, "a")
	must(t, e.l.Roll())
	e.mustAppend(2, "b")
	e.flushAll()
	refuse := errors.New("the journal is not writable")
	e.host.mu.onNow = func(JournalEntry) error { return refuse }
	if _, err := e.l.DeleteRecords(t.Context(), 3); !errors.Is(err, refuse) {
		t.Fatal(err)
	}
	if o := e.l.Offsets(); o.LogStart != 0 || len(e.l.Segments()) != 2 {
		t.Fatalf("%+v", o)
	}
	journaled := false
	e.host.mu.onNow = func(j JournalEntry) error {
		if e.l.LogStart() != 0 || j.LogStart != 3 {
			t.Errorf("journaled %+v at log start %d", j, e.l.LogStart())
		}
		journaled = true
		return nil
	}
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.Remove && strings.HasSuffix(op.Name, ".log") && (!journaled || e.l.LogStart() != 3) {
			t.Errorf("%s removed too early", op.Name)
		}
		return nil
	})
	start, err := e.l.DeleteRecords(t.Context(), 3)
	if err != nil || start != 3 || !journaled || len(e.l.Segments()) != 1 {
		t.Fatalf("%d %v", start, err)
	}
	if o := e.l.Offsets(); o.LocalStart != 3 || o.LogStart != 3 {
		t.Fatalf("%+v", o)
	}
}

func TestDeleteRecordsBounds(t *testing.T) {
	e := newEnv(t, testConfig())
	e.mustAppend(10, "a")
	e.flushAll()
	e.mustAppend(10, "above the high watermark")
	var r *OutOfRangeError
	for _, before := range []int64{11, 20, -2} {
		if _, err := e.l.DeleteRecords(t.Context(), before); !errors.As(err, &r) || r.Asked != before || r.Latest != 10 {
			t.Errorf("before %d: %v", before, err)
		}
	}
	for _, c := range []struct{ before, want int64 }{{4, 4}, {2, 4}, {-1, 10}} {
		if got, err := e.l.DeleteRecords(t.Context(), c.before); err != nil || got != c.want {
			t.Errorf("before %d: %d, %v", c.before, got, err)
		}
	}
	if _, err := e.l.ReadRange(9, 1, 20); !errors.As(err, &r) || r.Earliest != 10 {
		t.Errorf("%v", err)
	}
}

func TestFilesThatCannotBeUnlinkedAreTriedAgain(t *testing.T) {
	disk := newDisk(t)
	fsys := errorfs.Wrap(disk, nil)
	e := newEnvOn(t, fsys, testConfig(), StartState{})
	e.mustAppend(2, "a")
	must(t, e.l.Roll())
	e.mustAppend(2, "b")
	e.flushAll()
	fsys.SetInjector(errorfs.FailAll(errors.New("busy"), errorfs.Remove))
	start, err := e.l.DeleteRecords(t.Context(), 2)
	if err != nil || start != 2 {
		t.Fatalf("%d %v", start, err)
	}
	fsys.SetInjector(nil)
	e.retain()
	if _, err := disk.Stat(testDir + "/" + fmt.Sprintf("%020d.log", 0)); !isMissing(err) {
		t.Fatalf("%v", err)
	}
}
