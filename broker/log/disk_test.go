package log

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// faulty returns a log on a disk with faults, with three flushed batches.
func faulty(t *testing.T) (*env, *errorfs.FS, *memfs.Mem) {
	t.Helper()
	disk := newDisk(t)
	fsys := errorfs.Wrap(disk, nil)
	e := newEnvOn(t, fsys, testConfig(), StartState{})
	for range 3 {
		e.mustAppend(2, "before")
	}
	must(t, e.host.round(e.l))
	return e, fsys, disk
}

func TestWriteFaultsLeaveNoTrace(t *testing.T) {
	cases := []struct {
		name  string
		err   error
		class error
	}{
		{"disk full", syscall.ENOSPC, ErrNoSpace},
		{"disk full after half a batch", errorfs.ShortWrite(40, syscall.ENOSPC), ErrNoSpace},
		{"read-only", syscall.EROFS, ErrReadOnlyFS},
		{"device error", syscall.EIO, ErrIO},
		{"device error after a whole header", errorfs.ShortWrite(70, syscall.EIO), ErrIO},
		{"answer lost", errorfs.After(syscall.EIO), ErrIO},
	}
	for _, c := range cases {
		for _, cut := range []bool{true, false} { // whether the tail can be cut off at once
			name := c.name
			if !cut {
				name += ", tail stays"
			}
			t.Run(name, func(t *testing.T) {
				e, fsys, disk := faulty(t)
				before, err := readAll(e.l, 0, 6)
				must(t, err)
				fsys.SetInjector(func(op errorfs.Op) error {
					if op.Kind == errorfs.Write && strings.HasSuffix(op.Name, ".log") {
						return c.err
					}
					if op.Kind == errorfs.Truncate && !cut {
						return syscall.EIO
					}
					return nil
				})
				b := batch(t, 30, 1, noProducer, "refused")
				_, err = e.append(b, 0)
				if !errors.Is(err, c.class) || !errors.Is(err, ErrReadOnly) {
					t.Fatalf("append: %v", err)
				}
				if st := e.l.State(); st.Health != ReadOnly || st.Detail() == "" || len(e.host.mu.failed) != 1 {
					t.Fatalf("state %+v, host told %v", st, e.host.mu.failed)
				}
				if got, err := readAll(e.l, 0, e.l.End()); err != nil || !bytes.Equal(got, before) {
					t.Fatalf("reads do not go on: %v", err)
				}
				crashed := openOn(t, disk.CrashClone(rand.New(rand.NewPCG(1, 1))), testConfig(), clock.NewFake(testStart))
				if got, err := readAll(crashed.l, 0, 6); err != nil || !bytes.Equal(got, before) {
					t.Fatalf("after a crash: %v", err)
				}
				crashed.closeAll()
				// Within a second the disk is left alone, and TryResume tells that nothing has changed.
				writes := 0
				fsys.SetInjector(func(op errorfs.Op) error {
					if op.Kind == errorfs.Write {
						writes++
						return syscall.ENOSPC
					}
					return nil
				})
				if _, err := e.append(batch(t, 1, 1, noProducer, "x"), 0); !errors.Is(err, ErrReadOnly) || writes != 0 {
					t.Fatalf("%d writes, %v", writes, err)
				}
				if err := e.l.TryResume(); !errors.Is(err, ErrNoSpace) || writes == 0 || e.l.State().Health != ReadOnly {
					t.Fatalf("probe: %v, %d writes", err, writes)
				}
				fsys.SetInjector(nil)
				e.clk.Advance(retryDisk)
				e.mustAppend(1, "resumed")
				if e.l.State().Health != Online {
					t.Fatalf("state %+v", e.l.State())
				}
				must(t, e.host.round(e.l))
				if got, err := readAll(e.l, 0, 6); err != nil || !bytes.Equal(got, before) {
					t.Fatalf("%v", err)
				}
				again := openOn(t, disk.StrictCrashClone(), testConfig(), clock.NewFake(testStart))
				if again.l.End() != 7 || again.rep.CutBytes != 0 {
					t.Fatalf("end %d, %+v", again.l.End(), again.rep)
				}
				again.closeAll()
			})
		}
	}
}

func TestTryResumeWithoutAppend(t *testing.T) {
	e, fsys, _ := faulty(t)
	fsys.SetInjector(errorfs.FailAll(syscall.ENOSPC, errorfs.Write))
	_, err := e.append(batch(t, 1, 1, noProducer, "x"), 0)
	if !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	fsys.SetInjector(nil)
	must(t, e.l.TryResume())
	e.mustAppend(1, "no wait needed")
	e.l.SetReadOnly(ErrNoSpace)
	e.clk.Advance(time.Hour)
	if _, err := e.append(batch(t, 1, 1, noProducer, "x"), 0); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("the host's word holds until TryResume: %v", err)
	}
	// A leader that is elected meanwhile can be read from.
	must(t, e.l.AssignEpoch(7))
	must(t, e.l.TryResume())
	e.mustAppend(1, "again")
}

func TestRollFaultsKeepTheOldSegment(t *testing.T) {
	for _, ext := range []string{".index", ".timeindex", ".snapshot", ".log"} {
		t.Run(ext, func(t *testing.T) {
			e, fsys, disk := faulty(t)
			fsys.SetInjector(func(op errorfs.Op) error {
				if (op.Kind == errorfs.Create || op.Kind == errorfs.Write) && strings.HasSuffix(strings.TrimSuffix(op.Name, tmpSuffix), ext) {
					return syscall.ENOSPC
				}
				return nil
			})
			if err := e.l.Roll(); !errors.Is(err, ErrNoSpace) {
				t.Fatal(err)
			}
			if n := len(e.l.Segments()); n != 1 {
				t.Fatalf("%d segments", n)
			}
			fsys.SetInjector(nil)
			e.clk.Advance(retryDisk)
			e.mustAppend(1, "after")
			must(t, e.l.Roll())
			e.mustAppend(1, "in the next segment")
			must(t, e.host.round(e.l))
			again := openOn(t, disk.StrictCrashClone(), testConfig(), clock.NewFake(testStart))
			if again.l.End() != 8 || len(again.l.Segments()) != 2 {
				t.Fatalf("end %d, segments %+v", again.l.End(), again.l.Segments())
			}
			again.closeAll()
		})
	}
}

func TestFailedSyncFailsTheLog(t *testing.T) {
	e, fsys, disk := faulty(t)
	e.mustAppend(2, "never durable")
	fsys.SetInjector(errorfs.FailNth(errorfs.Sync, 1, errorfs.LosePages(syscall.EIO)))
	if err := e.host.round(e.l); !errors.Is(err, syscall.EIO) {
		t.Fatalf("round: %v", err)
	}
	if o := e.l.Offsets(); o.Flushed != 6 || o.End != 8 {
		t.Fatalf("%+v", o)
	}
	st := e.l.State()
	if st.Health != Failed || !errors.Is(st.Err, ErrFailed) || !errors.Is(st.Err, ErrIO) {
		t.Fatalf("%+v", st)
	}
	if _, err := e.append(batch(t, 1, 1, noProducer, "x"), 0); !errors.Is(err, ErrFailed) {
		t.Fatalf("append: %v", err)
	}
	if err := e.l.Truncate(t.Context(), 2); !errors.Is(err, ErrFailed) {
		t.Fatalf("truncate: %v", err)
	}
	if _, err := readAll(e.l, 0, 8); err != nil {
		t.Fatalf("reads go on: %v", err)
	}
	// The process restarts over the same page cache, in which the lost pages look fine. Recovery keeps them, and has to
	// write and sync them anew: only then may a power failure happen.
	_ = e.l.Close()
	fsys.SetInjector(nil)
	restarted := openOn(t, fsys, testConfig(), clock.NewFake(testStart))
	end := restarted.l.Flushed()
	if end != 8 {
		t.Fatalf("recovered flushed %d", end)
	}
	powered := openOn(t, disk.StrictCrashClone(), testConfig(), clock.NewFake(testStart))
	if powered.l.End() != end {
		t.Fatalf("after the power failure the log ends at %d, it was said to be flushed up to %d", powered.l.End(), end)
	}
	powered.closeAll()
	restarted.closeAll()
}

// A disk without any room refuses a truncation; a later one does what the first was to do. Epochs that go with it need their checkpoint.
func TestTruncationOnAFullDiskChangesNothing(t *testing.T) {
	e, fsys, disk := faulty(t)
	must(t, e.l.AssignEpoch(7))
	if _, err := e.append(batch(t, 5, 1, noProducer, "of a later epoch"), 7); err != nil {
		t.Fatal(err)
	}
	must(t, e.host.round(e.l))
	end, flushed := e.l.End(), e.l.Flushed()
	before, err := readAll(e.l, 0, end)
	must(t, err)
	fsys.SetInjector(errorfs.FailAll(syscall.ENOSPC, errorfs.Write, errorfs.Create))
	if err := e.l.Truncate(t.Context(), 4); !errors.Is(err, ErrNoSpace) || errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	if st := e.l.State(); st.Health != Online || e.l.End() != end || e.l.Flushed() != flushed {
		t.Fatalf("%+v, end %d, flushed %d", st, e.l.End(), e.l.Flushed())
	}
	crashed := openOn(t, disk.StrictCrashClone(), testConfig(), clock.NewFake(testStart))
	if got, err := readAll(crashed.l, 0, end); err != nil || !bytes.Equal(got, before) {
		t.Fatalf("after a crash: %v", err)
	}
	crashed.closeAll()
	fsys.SetInjector(nil)
	must(t, e.l.Truncate(t.Context(), 4))
	if got := e.l.Epochs(); e.l.End() != 4 || len(got) != 1 {
		t.Fatalf("end %d, epochs %v", e.l.End(), got)
	}
	again := openOn(t, disk.StrictCrashClone(), testConfig(), clock.NewFake(testStart))
	if got := again.l.Epochs(); again.l.End() != 4 || len(got) != 1 {
		t.Fatalf("after the truncation and a crash: end %d, epochs %v", again.l.End(), got)
	}
	again.closeAll()
}

// Nothing behind the journal's entry takes space.
func TestTruncationTakesNoSpaceOnceItHasBegun(t *testing.T) {
	e, fsys, _ := faulty(t)
	prepared := false
	fsys.SetInjector(func(op errorfs.Op) error {
		switch {
		case !strings.HasPrefix(op.Name, testDir): // the journal
		case op.Kind == errorfs.Sync && strings.HasSuffix(op.Name, epochsName+tmpSuffix):
			prepared = true
		case (op.Kind == errorfs.Write || op.Kind == errorfs.Create) && prepared:
			return syscall.ENOSPC
		}
		return nil
	})
	if err := e.l.Truncate(t.Context(), 3); err != nil || e.l.End() != 2 || !prepared {
		t.Fatalf("%v, end %d", err, e.l.End())
	}
}

func TestTruncationFaultFailsTheLog(t *testing.T) {
	e, fsys, disk := faulty(t)
	before, err := readAll(e.l, 0, 4)
	must(t, err)
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.Truncate && strings.HasSuffix(op.Name, ".log") {
			return syscall.EIO
		}
		return nil
	})
	if err := e.l.Truncate(t.Context(), 4); !errors.Is(err, ErrFailed) || !errors.Is(err, ErrIO) {
		t.Fatal(err)
	}
	if _, err := e.append(batch(t, 1, 1, noProducer, "x"), 5); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	again := openOn(t, disk.StrictCrashClone(), testConfig(), clock.NewFake(testStart))
	if got, err := readAll(again.l, 0, 4); err != nil || !bytes.Equal(got, before) {
		t.Fatalf("%v", err)
	}
	again.closeAll()
}

func TestReadsGoOnOnAReadOnlyFileSystem(t *testing.T) {
	e, fsys, _ := faulty(t)
	e.closeAll()
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpenRW && strings.HasSuffix(op.Name, ".log") {
			return syscall.EROFS
		}
		return nil
	})
	must(t, e.reopen())
	if _, err := readAll(e.l, 0, 6); err != nil {
		t.Fatal(err)
	}
	if _, err := e.append(batch(t, 1, 1, noProducer, "x"), 0); !errors.Is(err, ErrReadOnlyFS) {
		t.Fatal(err)
	}
	fsys.SetInjector(nil)
	e.clk.Advance(retryDisk)
	e.mustAppend(1, "writable again")
	_ = e.l.Close()
	e.host.close()
}

// TestASnapshotThatCannotBeSynced: retention must not go on after the one sync that would have told. A second try would succeed
// and prove nothing.
func TestASnapshotThatCannotBeSynced(t *testing.T) {
	disk := newDisk(t)
	fsys := errorfs.Wrap(disk, nil)
	cfg := testConfig()
	cfg.RetentionTime = time.Minute
	e := newEnvOn(t, fsys, cfg, StartState{})
	b := batch(t, 1, testStart.UnixMilli(), producerTag{1, 0, 0}, "x")
	_, err := e.append(b, 0)
	must(t, err)
	must(t, e.host.round(e.l))
	e.l.SetHighWatermark(1)
	failed := false
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.Sync && strings.HasSuffix(op.Name, segment.ExtSnapshot) && !failed {
			failed = true
			return errorfs.LosePages(syscall.EIO)
		}
		return nil
	})
	later := e.clk.Now().Add(time.Hour)
	if _, err := e.l.ApplyRetention(t.Context(), later); err == nil || !failed {
		t.Fatalf("retention: %v", err)
	}
	if n, err := e.l.ApplyRetention(t.Context(), later); !errors.Is(err, ErrFailed) || n > 0 || e.l.LogStart() > 0 {
		t.Errorf("retention goes on: %d segments, %v, log start %d", n, err, e.l.LogStart())
	}
	if len(e.host.mu.failed) == 0 || !errors.Is(e.host.mu.failed[0], ErrFailed) {
		t.Errorf("the host was told %v", e.host.mu.failed)
	}
	e.closeAll()
}
