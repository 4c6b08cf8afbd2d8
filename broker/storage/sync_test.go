package storage

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// counter counts operations by kind, and may hold up one of them.
type counter struct {
	mu    sync.Mutex
	count map[errorfs.Kind]int
	hold  func(op errorfs.Op) // called without the lock
}

func (c *counter) inject(op errorfs.Op) error {
	c.mu.Lock()
	if c.count == nil {
		c.count = map[errorfs.Kind]int{}
	}
	c.count[op.Kind]++
	hold := c.hold
	c.mu.Unlock()
	if hold != nil {
		hold(op)
	}
	return nil
}

// take returns the counts and begins anew.
func (c *counter) take() map[errorfs.Kind]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.count
	c.count = map[errorfs.Kind]int{}
	return out
}

func (c *counter) setHold(f func(op errorfs.Op)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hold = f
}

// valueOf reads a counter.
func valueOf(t testing.TB, c prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// flushedTo returns a channel that is closed once l is flushed up to offset.
func flushedTo(l *log.Log, offset int64) <-chan struct{} {
	ch := make(chan struct{})
	var once sync.Once
	done := func(flushed int64) {
		if flushed >= offset {
			once.Do(func() { close(ch) })
		}
	}
	l.OnFlushed(done)
	done(l.Flushed())
	return ch
}

func TestManyDirtyLogsAreOneSyncfs(t *testing.T) {
	c := &counter{}
	s := newStore(t, errorfs.Wrap(memfs.New(), c.inject))
	const logs = 300
	for n := range int32(logs) {
		s.create(n)
	}
	s.round()
	for _, l := range s.Logs() {
		mustAppend(t, l, "x")
	}
	c.take()
	s.round()
	got := c.take()
	if got[errorfs.VolumeSync] != 1 || got[errorfs.Sync] != 1 || got[errorfs.SyncDir] != 0 {
		t.Errorf("%d logs: %d syncfs, %d fdatasync (the journal's), %d of directories", logs,
			got[errorfs.VolumeSync], got[errorfs.Sync], got[errorfs.SyncDir])
	}
	for _, l := range s.Logs() {
		if l.Flushed() != 1 {
			t.Fatalf("partition %d is flushed up to %d", l.Partition(), l.Flushed())
		}
	}
	for n := range int32(s.cfg.SyncfsThreshold) { // at the threshold, not above it
		mustAppend(t, s.mustLog(n), "y")
	}
	c.take()
	s.round()
	if got := c.take(); got[errorfs.VolumeSync] != 0 || got[errorfs.Sync] != s.cfg.SyncfsThreshold+1 {
		t.Errorf("%d logs: %d syncfs, %d fdatasync", s.cfg.SyncfsThreshold, got[errorfs.VolumeSync], got[errorfs.Sync])
	}
	if r := valueOf(t, s.metrics.rounds.WithLabelValues(methodSyncfs)); r != 2 {
		t.Errorf("the metric counts %v rounds with syncfs", r)
	}
}

func TestWithoutSyncfsEveryLogIsSynced(t *testing.T) {
	c := &counter{}
	s := newStore(t, errorfs.Wrap(memfs.NewWith(memfs.Options{NoVolume: true}), c.inject), func(c *Config) { c.SyncWorkers = 4 })
	for n := range int32(50) {
		s.create(n)
	}
	s.round()
	for _, l := range s.Logs() {
		mustAppend(t, l, "x")
	}
	var now, most atomic.Int32
	c.setHold(func(op errorfs.Op) {
		if op.Kind != errorfs.Sync || strings.HasSuffix(op.Name, journalName) {
			return
		}
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		now.Add(-1)
	})
	c.take()
	s.round()
	if got := c.take(); got[errorfs.VolumeSync] != 0 || got[errorfs.Sync] != 51 {
		t.Errorf("%d syncfs, %d fdatasync", got[errorfs.VolumeSync], got[errorfs.Sync])
	}
	if most.Load() > 4 {
		t.Errorf("%d fdatasyncs at the same time, the bound is 4", most.Load())
	}
}

// TestOneRoundCoversWhatWasAppendedDuringTheLast holds a sync up, appends, and lets it go: one more round covers all of it.
func TestOneRoundCoversWhatWasAppendedDuringTheLast(t *testing.T) {
	c := &counter{}
	s := newStore(t, errorfs.Wrap(memfs.New(), c.inject))
	l := s.create(0)
	s.round()
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.setHold(func(op errorfs.Op) {
		if op.Kind == errorfs.Sync && strings.HasSuffix(op.Name, ".log") {
			once.Do(func() {
				close(held)
				<-release
			})
		}
	})
	before := valueOf(t, s.metrics.rounds.WithLabelValues(methodFdatasync))
	stop := s.start()
	mustAppend(t, l, "first")
	<-held
	for i := range 99 {
		mustAppend(t, l, fmt.Sprint(i))
	}
	if l.Flushed() != 0 {
		t.Errorf("flushed up to %d while the sync runs", l.Flushed())
	}
	if s.SyncAge() < 0 || s.syncer.syncingSince.Load() == 0 {
		t.Error("the age of the sync is not known")
	}
	all := flushedTo(l, 100)
	close(release)
	<-all
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if rounds := valueOf(t, s.metrics.rounds.WithLabelValues(methodFdatasync)) - before; rounds != 2 {
		t.Errorf("%v rounds, want 2", rounds)
	}
}

// TestJournalNowDoesNotWaitForADataSync: a truncation or a move of the log start has to get its entry written while a slow data
// sync runs.
func TestJournalNowDoesNotWaitForADataSync(t *testing.T) {
	c := &counter{}
	s := newStore(t, errorfs.Wrap(memfs.New(), c.inject))
	slow, other := s.create(0), s.create(1)
	for range 5 {
		mustAppend(t, other, "x")
	}
	s.round()
	other.SetHighWatermark(5)
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.setHold(func(op errorfs.Op) {
		if op.Kind == errorfs.Sync && strings.HasPrefix(op.Name, slow.Dir()+"/") {
			once.Do(func() {
				close(held)
				<-release
			})
		}
	})
	s.start()
	mustAppend(t, slow, "y")
	<-held
	if start, err := other.DeleteRecords(context.Background(), 3); err != nil || start != 3 {
		t.Errorf("delete records during a sync: %d, %v", start, err)
	}
	if err := other.Truncate(context.Background(), 4); err != nil {
		t.Errorf("truncate during a sync: %v", err)
	}
	if st, ok := s.journal.lookup(testKeyOf(1)); !ok || st.flushed != 4 || st.logStart != 3 {
		t.Errorf("the journal says %+v", st)
	}
	done := flushedTo(slow, 1)
	close(release)
	<-done
}

func testKeyOf(n int32) partitionKey { return partitionKey{testTopic, n} }

// TestATruncationDuringASyncVoidsIt: the captured end must not be published, nor journaled above the truncation's bound.
func TestATruncationDuringASyncVoidsIt(t *testing.T) {
	c := &counter{}
	disk := memfs.New()
	s := newStore(t, errorfs.Wrap(disk, c.inject))
	l := s.create(0)
	for range 10 {
		mustAppend(t, l, "x")
	}
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.setHold(func(op errorfs.Op) {
		if op.Kind == errorfs.Sync && strings.HasSuffix(op.Name, ".log") {
			once.Do(func() {
				close(held)
				<-release
			})
		}
	})
	done := make(chan error, 1)
	go func() {
		_, err := s.syncer.flush(context.Background())
		done <- err
	}()
	<-held
	truncated := make(chan error, 1)
	go func() { truncated <- l.Truncate(context.Background(), 4) }()
	for l.TruncationGen() == 0 {
		runtime.Gosched()
	}
	close(release)
	if err := errors.Join(<-done, <-truncated); err != nil {
		t.Fatal(err)
	}
	if l.Flushed() > 4 {
		t.Fatalf("flushed is %d after a truncation to 4", l.Flushed())
	}
	mustAppend(t, l, "new")
	s.round()
	if _, err := s.syncer.journalResults(); err != nil {
		t.Fatal(err)
	}
	again := newStore(t, disk.StrictCrashClone())
	if got := texts(t, again.mustLog(0)); len(got) != 5 || got[4] != "new" {
		t.Errorf("after a crash the log holds %q", got)
	}
}

func TestResultsAreJournaledWhenIdle(t *testing.T) {
	s := newStore(t, memfs.New())
	l := s.create(0)
	stop := s.start()
	end := mustAppend(t, l, "x")
	<-flushedTo(l, end)
	for {
		// The timer is set after the round has published; until then time must not pass unseen.
		s.clk.Advance(s.cfg.JournalIdle)
		if st, _ := s.journal.lookup(testKeyOf(0)); st.flushed == end {
			break
		}
		runtime.Gosched()
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

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
						if err := l.AssignEpoch(int32(i) + 1); err != nil { //nolint:gosec // small
							t.Fatal(err)
						}
						mustAppend(t, l, "never acknowledged")
					}
				}
				err := s.Run(context.Background())
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
				if _, err := s.syncer.flush(context.Background()); !errors.As(err, &stopped) {
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
	go func() { done <- s.Run(context.Background()) }()
	if err := l.Truncate(context.Background(), 1); !errors.Is(err, syscall.EIO) {
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
	if err := l.Truncate(context.Background(), 1); err == nil {
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

func TestConcurrentUse(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, func(c *Config) { c.JournalBytes = 8 << 10 })
	const logs, appends = 8, 60
	for n := range int32(logs) {
		s.create(n)
	}
	stop := s.start()
	var group sync.WaitGroup
	for n := range int32(logs) {
		l := s.mustLog(n)
		group.Go(func() {
			for i := range appends {
				end, err := appendOne(l, int32(i/20), fmt.Sprint(n, "-", i)) //nolint:gosec // small
				if err != nil {
					t.Error(err)
					return
				}
				<-flushedTo(l, end)
				l.SetHighWatermark(end)
				if i == 30 {
					if _, err := l.DeleteRecords(context.Background(), 10); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for n := range int32(4) {
		group.Go(func() {
			for range 10 {
				l, err := s.CreateLog(context.Background(), testTopic, 100+n, TopicInfo{Name: "orders"}, log.StartState{})
				if err != nil {
					t.Error(err)
					return
				}
				end, err := appendOne(l, 0, "short-lived")
				if err != nil {
					t.Error(err)
				}
				<-flushedTo(l, end)
				if err := l.Truncate(context.Background(), 0); err != nil {
					t.Error(err)
				}
				if err := s.DeleteLog(Tombstone{testTopic, 100 + n}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Go(func() {
		for range 50 {
			s.clk.Advance(time.Second)
			s.DiskUsage()
			s.Partitions()
			_ = s.CheckProduce()
		}
	})
	group.Wait()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	crashed := disk.StrictCrashClone()
	s.mustClose()
	again := newStore(t, crashed)
	if r := again.Report(); len(r.Damage)+len(r.Quarantined) > 0 || r.Partitions != logs {
		t.Fatalf("report: %+v", r)
	}
	for n := range int32(logs) {
		l := again.mustLog(n)
		if l.LogStart() != 10 || l.End() != appends {
			t.Errorf("partition %d holds %d to %d", n, l.LogStart(), l.End())
		}
	}
}
