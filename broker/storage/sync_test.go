package storage

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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
	if start, err := other.DeleteRecords(t.Context(), 3); err != nil || start != 3 {
		t.Errorf("delete records during a sync: %d, %v", start, err)
	}
	if err := other.Truncate(t.Context(), 4); err != nil {
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
		_, err := s.syncer.flush()
		done <- err
	}()
	<-held
	truncated := make(chan error, 1)
	go func() { truncated <- l.Truncate(t.Context(), 4) }()
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
				end, err := appendOne(l, int32(i/20), fmt.Sprint(n, "-", i))
				if err != nil {
					t.Error(err)
					return
				}
				<-flushedTo(l, end)
				l.SetHighWatermark(end)
				if i == 30 {
					if _, err := l.DeleteRecords(t.Context(), 10); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for n := range int32(4) {
		group.Go(func() {
			for range 10 {
				l, err := s.CreateLog(t.Context(), testTopic, 100+n, TopicInfo{Name: "orders"}, log.StartState{})
				if err != nil {
					t.Error(err)
					return
				}
				end, err := appendOne(l, 0, "short-lived")
				if err != nil {
					t.Error(err)
				}
				<-flushedTo(l, end)
				if err := l.Truncate(t.Context(), 0); err != nil {
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
