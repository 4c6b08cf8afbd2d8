package storage

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// TestFailedSyncStopsTheStore: the fsync fails once and the kernel marks the pages clean. Nothing is acknowledged, nothing is
// tried again, and the third stop within ten minutes refuses to start.
func TestFailedSyncStopsTheStore(t *testing.T) {
	for name, kind := range map[string]struct {
		kind errorfs.Kind
		file string
		logs int32
	}{
		"data file":  {errorfs.Sync, ".log", 1},
		"journal":    {errorfs.Sync, journalName, 1},
		"syncfs":     {errorfs.VolumeSync, "", 50},
		"one of few": {errorfs.Sync, "/3/00000000000000000000.log", 5},
	} {
		t.Run(name, func(t *testing.T) {
			disk := memfs.New()
			for i := range maxStops {
				fsys := errorfs.Wrap(disk, nil)
				s := newStore(t, fsys)
				for n := range kind.logs {
					if _, ok := s.Log(testTopic, n); !ok {
						s.create(n)
					}
				}
				s.round()
				var acks atomic.Int32
				for _, l := range s.Logs() {
					l.OnFlushed(func(int64) { acks.Add(1) })
				}
				var failed atomic.Bool
				var later atomic.Int32
				fsys.SetInjector(func(op errorfs.Op) error {
					if failed.Load() && (op.Kind == errorfs.Sync || op.Kind == errorfs.VolumeSync) && !strings.HasSuffix(op.Name, ".tmp") {
						later.Add(1)
					}
					if op.Kind == kind.kind && strings.HasSuffix(op.Name, kind.file) && !failed.Swap(true) {
						return errorfs.LosePages(syscall.EIO)
					}
					return nil
				})
				for _, l := range s.Logs() {
					mustAppend(t, l, "never acknowledged")
					if kind.file == journalName { // a new epoch, so that the round has something to journal
						if err := l.AssignEpoch(int32(i) + 1); err != nil {
							t.Fatal(err)
						}
						mustAppend(t, l, "never acknowledged")
					}
				}
				err := s.Run(t.Context())
				var stopped *SyncFailedError
				if !errors.As(err, &stopped) || !errors.Is(err, syscall.EIO) {
					t.Fatalf("run: %v", err)
				}
				if acks.Load() != 0 {
					t.Errorf("%d logs were acknowledged", acks.Load())
				}
				for _, l := range s.Logs() {
					if _, err := appendOne(l, 9, "late"); err == nil && l.State().Health == log.Failed {
						t.Error("a failed log takes appends")
					}
				}
				if _, err := s.syncer.flush(); !errors.As(err, &stopped) {
					t.Errorf("a round after a failed sync: %v", err)
				}
				if err := s.Close(); err == nil {
					t.Error("a close after a failed sync claims to be clean")
				}
				if _, err := disk.Stat(testDir + "/clean"); err == nil {
					t.Error("a failed store leaves the mark of a clean stop")
				}
			}
			disk = disk.StrictCrashClone()
			var often *StoppedTooOftenError
			if _, err := openStore(disk, testConfig()); !errors.As(err, &often) || len(often.Stops) != maxStops {
				t.Fatalf("open after %d stops: %v", maxStops, err)
			}
			if err := ClearStops(disk, testDir); err != nil {
				t.Fatal(err)
			}
			newStore(t, disk).mustClose()
		})
	}
}

func TestAFailedJournalEntryStopsTheStore(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New(), nil)
	s := newStore(t, fsys)
	l := s.create(0)
	for range 3 {
		mustAppend(t, l, "x")
	}
	s.round()
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.Sync && strings.HasSuffix(op.Name, journalName) {
			return errorfs.LosePages(syscall.EIO)
		}
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	if err := l.Truncate(t.Context(), 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("truncate: %v", err)
	}
	var stopped *SyncFailedError
	if err := <-done; !errors.As(err, &stopped) {
		t.Errorf("run: %v", err)
	}
}

// TestFullDiskAndBack: appends are refused with ErrNoSpace, nothing acknowledged is lost, and everything goes on when there is
// space.
func TestFullDiskAndBack(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, func(c *Config) { c.ReserveBytes = 1 << 20 })
	l := s.create(0)
	stop := s.start()
	end := mustAppend(t, l, "before")
	<-flushedTo(l, end)
	disk.SetCapacity(1)
	if _, err := appendOne(l, 0, "refused"); !errors.Is(err, log.ErrNoSpace) || !errors.Is(err, log.ErrReadOnly) {
		t.Errorf("append to a full disk: %v", err)
	}
	s.lookAtDisk()
	var full *DiskFullError
	if err := s.CheckProduce(); !errors.Is(err, ErrDiskFull) || !errors.As(err, &full) || full.Dir != testDir {
		t.Errorf("produce on a full disk: %v", err)
	}
	if got := texts(t, l); len(got) != 1 || got[0] != "before" {
		t.Errorf("reads on a full disk: %q", got)
	}
	disk.SetCapacity(1 << 40)
	s.lookAtDisk()
	if err := s.CheckProduce(); err != nil {
		t.Errorf("produce with space again: %v", err)
	}
	b, err := appendAt(l, "after", testStart.Add(time.Hour)) // the log has tried the disk again by then
	if err != nil {
		t.Fatalf("append with space again: %v", err)
	}
	<-flushedTo(l, b)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s.mustClose()
	if got := texts(t, newStore(t, disk).mustLog(0)); len(got) != 2 || got[1] != "after" {
		t.Errorf("the log holds %q", got)
	}
}

// TestJournalOnAFullDisk: batches of a new epoch wait for their epoch; the results of rounds only wait.
func TestJournalOnAFullDisk(t *testing.T) {
	var full atomic.Bool
	disk := memfs.New()
	fsys := errorfs.Wrap(disk, func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.Write && strings.Contains(op.Name, "/"+journalName) {
			return errorfs.ShortWrite(7, syscall.ENOSPC)
		}
		return nil
	})
	s := newStore(t, fsys)
	l := s.create(0)
	mustAppend(t, l, "x")
	s.round()
	full.Store(true)
	mustAppend(t, l, "y")
	s.round()
	if l.Flushed() != 2 {
		t.Errorf("flushed up to %d: results on a full disk hold up acknowledgements", l.Flushed())
	}
	if left, err := s.syncer.journalResults(); err != nil || !left {
		t.Errorf("journaling results on a full disk: %v, %v", left, err)
	}
	if err := l.Truncate(t.Context(), 1); err == nil {
		t.Error("a truncation without its bound in the journal")
	}
	end, err := appendOne(l, 1, "new epoch")
	if err != nil {
		t.Fatal(err)
	}
	done := flushedTo(l, end)
	stop := s.start()
	s.clk.Advance(time.Minute)
	select {
	case <-done:
		t.Error("acknowledged without its epoch in the journal")
	default:
	}
	full.Store(false)
	for waiting := true; waiting; {
		s.clk.Advance(noSpaceRetry)
		select {
		case <-done:
			waiting = false
		default:
			runtime.Gosched()
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	abandon(t, s)
	again := newStore(t, disk.StrictCrashClone())
	if got := texts(t, again.mustLog(0)); got[len(got)-1] != "new epoch" {
		t.Errorf("the log holds %q", got)
	}
}

// TestStopWhileTheJournalWaitsForSpace: a stop does not wait for space, and acknowledges nothing.
func TestStopWhileTheJournalWaitsForSpace(t *testing.T) {
	fsys := errorfs.Wrap(memfs.New(), nil)
	s := newStore(t, fsys)
	l := s.create(0)
	s.round()
	waiting := make(chan struct{})
	var once sync.Once
	fsys.SetInjector(func(op errorfs.Op) error {
		if op.Kind == errorfs.Write && strings.HasSuffix(op.Name, "/"+journalName) {
			once.Do(func() { close(waiting) })
			return syscall.ENOSPC
		}
		return nil
	})
	stop := s.start()
	mustAppend(t, l, "x")
	<-waiting
	if err := stop(); err != nil {
		t.Fatalf("run: %v", err)
	}
	if l.Flushed() != 0 {
		t.Errorf("flushed up to %d", l.Flushed())
	}
	if stops, err := readStops(fsys, testDir); err != nil || len(stops) > 0 {
		t.Errorf("a full disk counts as a failed sync: %v, %v", stops, err)
	}
}

// TestDeletingMakesRoom: with no space for the journal the files of a deleted partition go all the same, and the deletion is
// finished later.
func TestDeletingMakesRoom(t *testing.T) {
	var full atomic.Bool
	disk := memfs.New()
	s := newStore(t, errorfs.Wrap(disk, func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.Write {
			return syscall.ENOSPC
		}
		return nil
	}))
	l := s.create(0)
	mustAppend(t, l, "x")
	s.round()
	full.Store(true)
	if err := s.DeleteLog(Tombstone{testTopic, 0}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("delete on a full disk: %v", err)
	}
	for name := range listing(t, disk, testDir) {
		if strings.Contains(name, ".log") {
			t.Errorf("%s takes room still", name)
		}
	}
	crashed := newStore(t, disk.StrictCrashClone())
	if r := crashed.Report(); r.Partitions+len(r.Quarantined) > 0 {
		t.Errorf("after a crash: %+v", r)
	}
	full.Store(false)
	if err := s.DeleteLog(Tombstone{testTopic, 0}); err != nil {
		t.Errorf("the next try: %v", err)
	}
	if _, ok := s.State(testTopic, 0); ok {
		t.Error("the partition is still known")
	}
}

// TestAFullJournalHoldsUpOnlyNewEpochs: while a batch waits for space for its epoch, other partitions are acknowledged, and what makes
// room is not kept waiting.
func TestAFullJournalHoldsUpOnlyNewEpochs(t *testing.T) {
	var full atomic.Bool
	refused := make(chan struct{}, 1)
	fsys := errorfs.Wrap(memfs.New(), func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.Write && strings.Contains(op.Name, "/"+journalName) {
			select {
			case refused <- struct{}{}:
			default:
			}
			return syscall.ENOSPC
		}
		return nil
	})
	s := newStore(t, fsys)
	l, other, old := s.create(0), s.create(1), s.create(2)
	for _, l := range s.Logs() {
		mustAppend(t, l, "x")
	}
	s.round()
	full.Store(true)
	end, err := appendOne(l, 1, "new epoch")
	if err != nil {
		t.Fatal(err)
	}
	acked := flushedTo(l, end)
	stop := s.start()
	<-refused
	<-flushedTo(other, mustAppend(t, other, "y"))
	if err := s.DeleteLog(Tombstone{testTopic, 2}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("delete: %v", err)
	}
	if old.State().Health != log.Offline || len(s.Logs()) != 2 {
		t.Error("the partition was not deleted")
	}
	select {
	case <-acked:
		t.Error("acknowledged without its epoch in the journal")
	default:
	}
	full.Store(false)
	for waiting := true; waiting; {
		s.clk.Advance(noSpaceRetry)
		select {
		case <-acked:
			waiting = false
		default:
			runtime.Gosched()
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
