package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// round runs one sync round here and now.
func (e *storeEnv) round() {
	e.t.Helper()
	if _, err := e.syncer.flush(context.Background()); err != nil {
		e.t.Fatal(err)
	}
}

func (e *storeEnv) mustClose() {
	e.t.Helper()
	if err := e.Close(); err != nil {
		e.t.Fatal(err)
	}
}

func (e *storeEnv) mustLog(n int32) *log.Log {
	e.t.Helper()
	l, ok := e.Log(testTopic, n)
	if !ok {
		st, known := e.State(testTopic, n)
		e.t.Fatalf("partition %d is not open: known %v, %v %v", n, known, st.Health, st.Err)
	}
	return l
}

func TestStoreKeepsEverythingOverACleanStop(t *testing.T) {
	fsys := memfs.New()
	s := newStore(t, fsys)
	id := s.StorageID()
	stop := s.start()
	var want [3][]string
	for n := range int32(3) {
		l := s.create(n)
		for i := range 10 {
			text := fmt.Sprint("record ", n, "/", i)
			mustAppend(t, l, text)
			want[n] = append(want[n], text)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for n := range int32(3) {
		if l := s.mustLog(n); l.Flushed() != 10 {
			t.Errorf("partition %d is flushed up to %d after the stop", n, l.Flushed())
		}
	}
	s.mustClose()
	if err := s.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}

	again := newStore(t, fsys.StrictCrashClone()) // a clean stop has to survive the power
	if r := again.Report(); !r.Clean || len(r.Damage)+len(r.Quarantined)+len(r.Foreign) > 0 || r.Partitions != 3 {
		t.Errorf("report after a clean stop: %+v", r)
	}
	if again.StorageID() != id || again.ClusterID() != "c1" {
		t.Errorf("identity is %s, %s", again.StorageID(), again.ClusterID())
	}
	for n := range int32(3) {
		if got := texts(t, again.mustLog(n)); !slices.Equal(got, want[n]) {
			t.Errorf("partition %d holds %q, want %q", n, got, want[n])
		}
		if m := again.mustLog(n).Meta(); m.TopicName != "orders" || string(m.TopicConfig) != "config" {
			t.Errorf("meta is %+v", m)
		}
	}
}

func TestStoreRefusesASecondOpen(t *testing.T) {
	fsys := memfs.New()
	s := newStore(t, fsys)
	if _, err := openStore(fsys, testConfig()); !errors.Is(err, ErrLocked) {
		t.Errorf("second store on one directory: %v", err)
	}
	s.mustClose()
	cfg := testConfig()
	cfg.ClusterID = "c2"
	var foreign *ForeignClusterError
	if _, err := openStore(fsys, cfg); !errors.As(err, &foreign) {
		t.Errorf("store of another cluster: %v", err)
	}
	newStore(t, fsys).mustClose()
}

// crashed runs f on a store whose disk crashes at its k-th change after opening, and returns the disk, and whether it crashed.
func crashed(t *testing.T, k int64, change func(*Config), f func(e *storeEnv) error) (disk *memfs.Mem, hit bool) {
	t.Helper()
	disk = memfs.New()
	fsys := errorfs.Wrap(disk, nil)
	s := newStore(t, fsys, change)
	fsys.CrashAt(fsys.Mutations() + k)
	err := f(s)
	if !fsys.Crashed() && err != nil {
		t.Fatalf("crash at change %d: %v", k, err)
	}
	hit = fsys.Crashed()
	fsys.Crash() // nothing of the close reaches the disk
	_ = s.Close()
	return disk, hit
}

func noChange(*Config) {}

// TestCrashAtEveryChange appends, syncs, rolls the journal over, truncates, and crashes at each change of the disk. What was
// flushed is there afterwards, in order, and opening twice gives the same.
func TestCrashAtEveryChange(t *testing.T) {
	small := func(c *Config) { c.JournalBytes = 4 << 10 }
	for name, clone := range cloners() {
		t.Run(name, func(t *testing.T) {
			for k := int64(1); ; k++ {
				var acked [2]int64
				disk, hit := crashed(t, k, small, func(e *storeEnv) error { return workload(e, &acked) })
				after := clone(disk)
				var first []string
				for pass := range 2 {
					s := newStore(t, after, small)
					if r := s.Report(); len(r.Damage)+len(r.Quarantined) > 0 {
						t.Fatalf("change %d, pass %d: report %+v", k, pass, r)
					}
					var got []string
					for n := range int32(2) {
						l, ok := s.Log(testTopic, n)
						if !ok {
							if acked[n] > 0 {
								t.Fatalf("change %d: partition %d is gone", k, n)
							}
							continue
						}
						have := texts(t, l)
						if int64(len(have)) < acked[n] {
							t.Fatalf("change %d, pass %d: partition %d holds %d records, %d were acknowledged", k, pass, n, len(have), acked[n])
						}
						for i, text := range have[:acked[n]] {
							if want := fmt.Sprint(n, "-", i); !strings.HasPrefix(text, want+" ") {
								t.Fatalf("change %d: partition %d, offset %d is %q, want %q", k, n, i, text, want)
							}
						}
						got = append(got, have...)
					}
					if pass == 1 && !slices.Equal(first, got) {
						t.Fatalf("change %d: opened again: %q, first %q", k, got, first)
					}
					first = got
					if pass == 1 { // and it goes on
						for _, l := range s.Logs() {
							end := mustAppend(t, l, "more")
							s.round()
							if l.Flushed() != end {
								t.Fatalf("change %d: flushed %d of %d", k, l.Flushed(), end)
							}
						}
					}
					s.fsys.(*memfs.Mem).SyncAll() //nolint:errcheck // it is one
					abandon(t, s)
				}
				if !hit {
					return
				}
			}
		})
	}
}

// abandon ends a store as a crash does, except that the page cache survives: kill -9.
func abandon(t testing.TB, s *storeEnv) {
	t.Helper()
	s.mu.Lock()
	s.mu.closed = true
	s.mu.Unlock()
	for _, l := range s.Logs() {
		_ = l.Close()
	}
	if err := errors.Join(s.journal.close(), s.closeDir()); err != nil {
		t.Fatal(err)
	}
}

// cloners are the ways in which a disk may look after a power failure.
func cloners() map[string]func(*memfs.Mem) *memfs.Mem {
	rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // a reproducible test
	return map[string]func(*memfs.Mem) *memfs.Mem{
		"only what was synced": func(m *memfs.Mem) *memfs.Mem { return m.StrictCrashClone() },
		"some of the rest":     func(m *memfs.Mem) *memfs.Mem { return m.CrashClone(rng) },
	}
}

// workload appends to two partitions with new epochs, rounds and a truncation, and keeps acked up to date.
func workload(e *storeEnv, acked *[2]int64) error {
	var ends [2]int64
	for n := range int32(2) {
		l, err := e.CreateLog(context.Background(), testTopic, n, TopicInfo{Name: "orders"}, log.StartState{})
		if err != nil {
			return err
		}
		l.OnFlushed(func(flushed int64) { acked[n] = flushed })
	}
	pad := strings.Repeat("x", 100)
	for step := range 12 {
		for n := range int32(2) {
			if n == 1 && step%2 == 1 {
				continue
			}
			l, _ := e.Log(testTopic, n)
			end, err := appendOne(l, int32(step/4), fmt.Sprint(n, "-", ends[n], " ", pad)) //nolint:gosec // small
			if err != nil {
				return err
			}
			ends[n] = end
		}
		if step == 7 {
			l, _ := e.Log(testTopic, 0)
			// What is cut off is no longer acknowledged from the moment at which the truncation begins.
			acked[0] = min(acked[0], 3)
			if err := l.Truncate(context.Background(), 3); err != nil {
				return err
			}
			ends[0] = 3
		}
		if _, err := e.syncer.flush(context.Background()); err != nil {
			return err
		}
		if step%5 == 4 {
			if _, err := e.syncer.journalResults(); err != nil {
				return err
			}
		}
		if step == 9 {
			e.journal.mu.Lock()
			e.journal.mu.rotateAt = 0 // the next frame rotates
			e.journal.mu.Unlock()
		}
	}
	return nil
}

func TestCrashAtEveryChangeOfCreateAndDelete(t *testing.T) {
	for name, clone := range cloners() {
		t.Run(name, func(t *testing.T) {
			for k := int64(1); ; k++ {
				var created, deleted, doomed bool
				disk, hit := crashed(t, k, noChange, func(e *storeEnv) error {
					l, err := e.CreateLog(context.Background(), testTopic, 0, TopicInfo{Name: "orders"}, log.StartState{})
					if err != nil {
						return err
					}
					created = true
					if _, err := appendOne(l, 0, "kept until the tombstone"); err != nil {
						return err
					}
					if _, err := e.syncer.flush(context.Background()); err != nil {
						return err
					}
					doomed = true
					if err := e.DeleteLog(Tombstone{testTopic, 0}); err != nil {
						return err
					}
					deleted = true
					return nil
				})
				after := clone(disk)
				for pass := range 2 {
					s := newStore(t, after)
					_, known := s.State(testTopic, 0)
					l, open := s.Log(testTopic, 0)
					switch {
					case known != open:
						t.Fatalf("change %d, pass %d: known %v, open %v: %+v", k, pass, known, open, s.Report())
					case created && !doomed && !open:
						t.Fatalf("change %d: a created partition is gone", k)
					case deleted && open:
						t.Fatalf("change %d: a deleted partition is back", k)
					case doomed && open && len(texts(t, l)) != 1:
						t.Fatalf("change %d: a partition that was not deleted has lost its record", k)
					}
					if !open {
						for name := range listing(t, after, testDir) {
							if strings.Contains(name, "/") {
								t.Fatalf("change %d: %s is left of a partition that is not there", k, name)
							}
						}
						s.create(0)
						if err := s.DeleteLog(Tombstone{testTopic, 0}); err != nil {
							t.Fatal(err)
						}
					}
					s.mustClose()
				}
				if !hit {
					return
				}
			}
		})
	}
}

func TestDeleteNeedsItsTopicID(t *testing.T) {
	s := newStore(t, memfs.New())
	l := s.create(0)
	mustAppend(t, l, "x")
	if err := s.DeleteLog(Tombstone{ids.NewTopicID(), 0}); err != nil {
		t.Errorf("deleting what is not there: %v", err)
	}
	if got := texts(t, s.mustLog(0)); len(got) != 1 {
		t.Errorf("a tombstone of another topic deleted %q", got)
	}
	if err := s.DeleteLog(Tombstone{testTopic, 0}); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.State(testTopic, 0); ok {
		t.Error("a deleted partition is still known")
	}
	if _, err := appendOne(l, 0, "y"); !errors.Is(err, log.ErrClosed) {
		t.Errorf("append to a deleted partition: %v", err)
	}
	s.create(0) // the same topic ID again is another log
	if n := s.mustLog(0).End(); n != 0 {
		t.Errorf("a new partition begins with %d records", n)
	}
}

func TestCreateRefusals(t *testing.T) {
	s := newStore(t, memfs.New(), func(c *Config) {
		c.LogConfig = func(b []byte) (log.Config, error) {
			if string(b) == "bad" {
				return log.Config{}, errors.New("no such setting")
			}
			return log.DefaultConfig(), nil
		}
	})
	s.create(0)
	create := func(topic ids.TopicID, n int32, config string) error {
		_, err := s.CreateLog(context.Background(), topic, n, TopicInfo{Name: "orders", Config: []byte(config)}, log.StartState{})
		return err
	}
	var of *PartitionError
	if err := create(testTopic, 0, ""); !errors.Is(err, ErrLogExists) || !errors.As(err, &of) || of.TopicID != testTopic {
		t.Errorf("create twice: %v", err)
	}
	if err := create(testTopic, -1, ""); !errors.Is(err, ids.ErrInvalid) {
		t.Errorf("negative partition: %v", err)
	}
	if err := create(ids.TopicID{}, 0, ""); !errors.Is(err, ids.ErrInvalid) {
		t.Errorf("no topic ID: %v", err)
	}
	if err := create(testTopic, 1, "bad"); err == nil || !strings.Contains(err.Error(), "no such setting") {
		t.Errorf("bad configuration: %v", err)
	}
	if _, ok := s.State(testTopic, 1); ok {
		t.Error("a refused partition is known")
	}
	s.mustClose()
	if err := create(testTopic, 5, ""); !errors.Is(err, ErrClosed) {
		t.Errorf("create after close: %v", err)
	}
}

func TestForeignFilesAreReportedAndLeftAlone(t *testing.T) {
	fsys := memfs.New()
	s := newStore(t, fsys)
	s.create(0)
	dir := s.mustLog(0).Dir()
	s.mustClose()
	foreign := []string{
		testDir + "/notes.txt", testDir + "/lost+found/x", testDir + "/" + strings.ToUpper(testTopic.String()) + "/0/00.log",
		testDir + "/" + testTopic.String() + "/01/x", testDir + "/" + testTopic.String() + "/-1/x",
		testDir + "/" + testTopic.String() + "/0.bak/x", testDir + "/" + testTopic.String() + "/0.deleted.zzz/x",
		dir + "/core", dir + "/17.log",
	}
	for _, path := range foreign {
		if err := fsys.MkdirAll(path[:strings.LastIndexByte(path, '/')]); err != nil {
			t.Fatal(err)
		}
		put(t, fsys, path, []byte("mine"))
	}
	s = newStore(t, fsys)
	if got := len(s.Report().Foreign); got != len(foreign) {
		t.Errorf("%d foreign files are reported, want %d: %q", got, len(foreign), s.Report().Foreign)
	}
	mustAppend(t, s.mustLog(0), "x")
	s.mustClose()
	for _, path := range foreign {
		if b, err := readWhole(fsys, path, 100); err != nil || string(b) != "mine" {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
}

func TestMissingDirectoryIsQuarantinedAndNeverReplaced(t *testing.T) {
	fsys := memfs.New()
	s := newStore(t, fsys)
	l := s.create(0)
	s.create(1)
	mustAppend(t, l, "x")
	dir := l.Dir()
	s.mustClose()
	if err := fsys.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	s = newStore(t, fsys)
	if r := s.Report(); len(r.Missing) != 1 || r.Missing[0] != (PartitionRef{testTopic, 0}) || len(r.Quarantined) != 1 {
		t.Fatalf("report: %+v", r)
	}
	if _, ok := s.Log(testTopic, 0); ok {
		t.Error("a missing partition has a log")
	}
	if st, ok := s.State(testTopic, 0); !ok || st.Health != log.Quarantined {
		t.Errorf("state: %+v, %v", st, ok)
	}
	_, err := s.CreateLog(context.Background(), testTopic, 0, TopicInfo{Name: "orders"}, log.StartState{})
	if !errors.Is(err, log.ErrQuarantined) {
		t.Errorf("creating over a missing partition: %v", err)
	}
	s.mustLog(1)
}

func TestJournalLossKeepsEveryBatch(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, fsys *memfs.Mem){
		"missing": func(t *testing.T, fsys *memfs.Mem) {
			t.Helper()
			if err := fsys.Remove(testDir + "/journal"); err != nil {
				t.Fatal(err)
			}
		},
		"header only": func(t *testing.T, fsys *memfs.Mem) {
			t.Helper()
			b, err := readWhole(fsys, testDir+"/journal", 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			put(t, fsys, testDir+"/journal", b[:journalHeaderSize])
		},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := memfs.New()
			s := newStore(t, fsys)
			l := s.create(0)
			for i := range 20 {
				if _, err := appendOne(l, int32(i), fmt.Sprint(i)); err != nil { //nolint:gosec // small
					t.Fatal(err)
				}
			}
			s.mustClose()
			damage(t, fsys)
			for range 2 {
				s = newStore(t, fsys)
				if got := texts(t, s.mustLog(0)); len(got) != 20 {
					t.Fatalf("%d of 20 records are left", len(got))
				}
				abandon(t, s)
			}
			s = newStore(t, fsys)
			if r := s.Report(); r.JournalLost || len(r.Damage) > 0 {
				t.Errorf("the journal is not whole again: %+v", r)
			}
		})
	}
}

func TestUpdateConfigReachesMemoryAndDisk(t *testing.T) {
	fsys := memfs.New()
	decode := func(c *Config) {
		c.LogConfig = func(b []byte) (log.Config, error) {
			lc := log.DefaultConfig()
			if string(b) == "small" {
				lc.SegmentBytes = 4096
			}
			if string(b) == "bad" {
				lc.SegmentBytes = 1
			}
			return lc, nil
		}
	}
	s := newStore(t, fsys, decode)
	l := s.create(0)
	if err := s.UpdateConfig(testTopic, TopicInfo{Name: "orders", Config: []byte("bad")}); err == nil || l.Meta().TopicConfig[0] != 'c' {
		t.Errorf("a bad configuration is taken: %v", err)
	}
	if err := s.UpdateConfig(testTopic, TopicInfo{Name: "orders", Config: []byte("small")}); err != nil {
		t.Fatal(err)
	}
	if l.Config().SegmentBytes != 4096 {
		t.Errorf("segmentBytes is %d", l.Config().SegmentBytes)
	}
	s.mustClose()
	s = newStore(t, fsys.StrictCrashClone(), decode)
	if s.mustLog(0).Config().SegmentBytes != 4096 {
		t.Error("the configuration is forgotten")
	}
}

func TestPositionIsDurable(t *testing.T) {
	fsys := memfs.New()
	if p, err := LoadPosition(fsys, testDir); err != nil || p != (Position{}) {
		t.Errorf("position of a new directory: %+v, %v", p, err)
	}
	s := newStore(t, fsys)
	want := Position{ClusterID: "c1", EtcdClusterID: 1 << 63, Era: 2, Revision: 77}
	if err := s.SavePosition(want); err != nil {
		t.Fatal(err)
	}
	clone := fsys.StrictCrashClone()
	if p, err := LoadPosition(clone, testDir); err != nil || p != want {
		t.Errorf("position after a crash: %+v, %v", p, err)
	}
	if len(newStore(t, clone).Report().Foreign) > 0 {
		t.Error("the position is taken for a foreign file")
	}
	put(t, clone, testDir+"/position", []byte("garbage"))
	if _, err := LoadPosition(clone, testDir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("damaged position: %v", err)
	}
}

var _ vfs.FS = (*memfs.Mem)(nil)
