package storage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// round runs one sync round here and now.
func (e *storeEnv) round() {
	e.t.Helper()
	if _, err := e.syncer.flush(); err != nil {
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
		_, err := s.CreateLog(t.Context(), topic, n, TopicInfo{Name: "orders", Config: []byte(config)}, log.StartState{})
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
	_, err := s.CreateLog(t.Context(), testTopic, 0, TopicInfo{Name: "orders"}, log.StartState{})
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
				if _, err := appendOne(l, int32(i), fmt.Sprint(i)); err != nil {
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
