package storage

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// smallSegments lets a few records fill a segment.
func smallSegments(c *Config) {
	c.LogConfig = func([]byte) (log.Config, error) {
		lc := log.DefaultConfig()
		lc.SegmentBytes, lc.IndexInterval = 1024, 100
		return lc, nil
	}
}

// flip changes one bit of a file.
func flip(t testing.TB, fsys *memfs.Mem, path string, at int64, bit byte) {
	t.Helper()
	f, err := fsys.OpenRW(path)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << bit
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// filled makes a data directory with a partition of many segments and epochs, closed cleanly, and returns what is in it.
func filled(t testing.TB, records int) (disk *memfs.Mem, dir string, want []string) {
	t.Helper()
	disk = memfs.New()
	s := newStore(t, disk, smallSegments)
	l := s.create(0)
	for i := range records {
		text := fmt.Sprint("record ", i, " ", strings.Repeat("x", 60))
		if _, err := appendOne(l, int32(i/10), text); err != nil {
			t.Fatal(err)
		}
		want = append(want, text)
		if i%7 == 0 {
			s.round()
		}
	}
	s.round()
	l.SetHighWatermark(l.End())
	s.mustClose()
	return disk, l.Dir(), want
}

// damaged flips a bit in the middle of the last segment's file, takes the marks of the clean stop away, and returns the disk.
func damaged(t testing.TB) (disk *memfs.Mem, dir string, want []string) {
	t.Helper()
	disk, dir, want = filled(t, 40)
	bases, err := segmentBases(disk, dir)
	if err != nil {
		t.Fatal(err)
	}
	last := fmt.Sprintf("%s/%020d.log", dir, bases[len(bases)-1])
	flip(t, disk, last, 200, 3) // in its second record
	for _, path := range []string{dir + "/clean", testDir + "/clean"} {
		if err := disk.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	disk.SyncAll()
	return disk, dir, want
}

func TestRecoverKeepsWhatIsIntactAndSetsTheRestAside(t *testing.T) {
	disk, dir, want := damaged(t)
	before := listing(t, disk, dir)
	s := newStore(t, disk, smallSegments)
	st, _ := s.State(testTopic, 0)
	var corrupt *log.CorruptError
	if st.Health != log.Quarantined || !errors.As(st.Err, &corrupt) || len(s.Report().Quarantined) != 1 {
		t.Fatalf("state: %v %v", st.Health, st.Err)
	}
	plan, err := s.Recover(t.Context(), testTopic, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Applied || plan.KeepFrom != 0 || plan.KeepTo < 30 || plan.KeepTo >= 40 || plan.LostTo != 40 || plan.TopicName != "orders" ||
		plan.KeepTo != corrupt.Offset || !errors.Is(plan.Damage, log.ErrQuarantined) {
		t.Errorf("plan: %+v", plan)
	}
	for name, content := range listing(t, disk, dir) {
		if before[name] != content {
			t.Fatalf("planning changed %s", name)
		}
	}
	done, err := s.Recover(t.Context(), testTopic, 0, true)
	if err != nil {
		t.Fatal(err)
	}
	if !done.Applied || done.KeepTo != plan.KeepTo {
		t.Errorf("carried out: %+v", done)
	}
	l := s.mustLog(0)
	if l.LogID() == plan.logID {
		t.Error("a rebuilt log keeps its identity")
	}
	if got := texts(t, l); !slices.Equal(got, want[:plan.KeepTo]) {
		t.Errorf("the log holds %d records, want %d", len(got), plan.KeepTo)
	}
	for name, content := range before {
		if got, err := readWhole(disk, plan.SetAside+"/"+name, 1<<20); err != nil || string(got) != content {
			t.Errorf("%s was not set aside as it was: %v", name, err)
		}
	}
	end := mustAppend(t, l, "goes on")
	s.round()
	if l.Flushed() != end {
		t.Errorf("flushed up to %d of %d", l.Flushed(), end)
	}
	if _, err := s.Recover(t.Context(), testTopic, 0, true); !errors.Is(err, ErrNotDamaged) {
		t.Errorf("recovering a healthy partition: %v", err)
	}
	if _, err := s.Recover(t.Context(), testTopic, 9, true); !errors.Is(err, ErrLogNotFound) {
		t.Errorf("recovering what is not there: %v", err)
	}
	clone := disk.StrictCrashClone()
	again := newStore(t, clone, smallSegments)
	if got := texts(t, again.mustLog(0)); !slices.Equal(got, append(slices.Clone(want[:plan.KeepTo]), "goes on")) {
		t.Errorf("after a crash the log holds %d records", len(got))
	}
	if r := again.Report(); len(r.SetAside) != 1 || len(r.Foreign) > 0 {
		t.Errorf("report: %+v", r)
	}
}

func TestCrashAtEveryChangeOfRecover(t *testing.T) {
	source, _, want := damaged(t)
	for name, clone := range cloners() {
		t.Run(name, func(t *testing.T) {
			for k := int64(1); ; k++ {
				disk := source.StrictCrashClone()
				fsys := errorfs.Wrap(disk, nil)
				s := newStore(t, fsys, smallSegments)
				fsys.CrashAt(fsys.Mutations() + k)
				plan, err := s.Recover(t.Context(), testTopic, 0, true)
				hit := fsys.Crashed()
				if !hit && err != nil {
					t.Fatal(err)
				}
				fsys.Crash()
				_ = s.Close()
				after := clone(disk)
				for pass := range 2 {
					s := newStore(t, after, smallSegments)
					st, known := s.State(testTopic, 0)
					switch {
					case !known:
						t.Fatalf("change %d, pass %d: the partition is gone", k, pass)
					case err == nil && st.Health != log.Online:
						t.Fatalf("change %d: the recovery is undone: %v", k, st.Err)
					case st.Health == log.Quarantined:
						if p, err := s.Recover(t.Context(), testTopic, 0, true); err != nil || p.KeepTo != plan.KeepTo {
							t.Fatalf("change %d: the next try: %+v, %v", k, p, err)
						}
					}
					if got := texts(t, s.mustLog(0)); !slices.Equal(got, want[:plan.KeepTo]) {
						t.Fatalf("change %d, pass %d: %d records, want %d", k, pass, len(got), plan.KeepTo)
					}
					if r := s.Report(); len(r.Foreign) > 0 {
						t.Fatalf("change %d: foreign files %q", k, r.Foreign)
					}
					s.mustClose()
					entries, err := after.ReadDir(topicDir(testDir, testTopic))
					if err != nil || len(entries) != 2 {
						t.Fatalf("change %d, pass %d: %v, %v", k, pass, entries, err)
					}
				}
				if !hit {
					return
				}
			}
		})
	}
}

func TestRecoverAMissingPartition(t *testing.T) {
	disk, dir, _ := filled(t, 20)
	if err := disk.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, disk, smallSegments)
	plan, err := s.Recover(t.Context(), testTopic, 0, true)
	if err != nil || plan.KeepFrom != 20 || plan.KeepTo != 20 || plan.LostTo != 20 || plan.SetAside != "" {
		t.Fatalf("plan: %+v, %v", plan, err)
	}
	if end := mustAppend(t, s.mustLog(0), "offset 20"); end != 21 {
		t.Errorf("the first new record has offset %d", end-1)
	}
}

func TestRecoverWithoutPartitionMeta(t *testing.T) {
	disk, dir, want := filled(t, 20)
	flip(t, disk, dir+"/"+log.MetaFile, 20, 0)
	s := newStore(t, disk, smallSegments)
	if st, _ := s.State(testTopic, 0); st.Health != log.Quarantined {
		t.Fatalf("state: %v, %v", st.Health, st.Err)
	}
	if _, ok := s.Log(testTopic, 0); ok {
		t.Error("a directory without identity has a log")
	}
	plan, err := s.Recover(t.Context(), testTopic, 0, true)
	if err != nil || plan.KeepTo != 20 {
		t.Fatalf("plan: %+v, %v", plan, err)
	}
	if got := texts(t, s.mustLog(0)); !slices.Equal(got, want) {
		t.Errorf("the log holds %d records", len(got))
	}
	if err := s.UpdateConfig(testTopic, TopicInfo{Name: "orders"}); err != nil || s.mustLog(0).Meta().TopicName != "orders" {
		t.Errorf("the name does not come back: %v", err)
	}
}

// verify collects what VerifyDir finds.
func verify(t testing.TB, fsys vfs.FS) (damages, notes []Finding, sum Summary) {
	t.Helper()
	sum, err := VerifyDir(t.Context(), fsys, testDir, func(f Finding) {
		if f.Severity == Damage {
			damages = append(damages, f)
		} else {
			notes = append(notes, f)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if int(sum.Damages) != len(damages) || int(sum.Notes) != len(notes) {
		t.Errorf("summary %+v of %d and %d findings", sum, len(damages), len(notes))
	}
	return damages, notes, sum
}

func TestVerifyAGoodDirectory(t *testing.T) {
	disk, _, want := filled(t, 40)
	damages, notes, sum := verify(t, disk)
	if len(damages)+len(notes) > 0 {
		t.Errorf("findings in a good directory: %v %v", damages, notes)
	}
	if sum.Partitions != 1 || sum.Records != int64(len(want)) || sum.Batches != 40 || sum.Segments < 4 || sum.Bytes == 0 {
		t.Errorf("summary: %+v", sum)
	}
	if _, err := VerifyDir(t.Context(), disk, "/", nil); err == nil {
		t.Error("a directory that is not a data directory verifies")
	}
}

// TestVerifyFindsEveryFlippedByte flips each byte of a stopped broker's directory: it is found, in the right file.
func TestVerifyFindsEveryFlippedByte(t *testing.T) {
	disk, _, _ := filled(t, 16)
	if err := recordStop(disk, testDir, testStart); err != nil {
		t.Fatal(err)
	}
	for name, content := range listing(t, disk, testDir) {
		for at := range content {
			clone := disk.StrictCrashClone()
			flip(t, clone, testDir+"/"+name, int64(at), byte(at%8))
			damages, _, _ := verify(t, clone)
			if len(damages) == 0 {
				t.Fatalf("%s, byte %d: not found", name, at)
			}
			if !slices.ContainsFunc(damages, func(f Finding) bool { return f.File == testDir+"/"+name }) {
				t.Fatalf("%s, byte %d: found in %v", name, at, damages)
			}
			if strings.HasSuffix(name, ".log") && (damages[0].Segment < 0 || damages[0].Offset < damages[0].Segment || damages[0].Position > int64(at)) {
				t.Fatalf("%s, byte %d: %v", name, at, damages[0])
			}
		}
	}
}

// TestOpenAfterEveryFlippedByte opens the directory instead: what was acknowledged is there, or what is wrong is said.
func TestOpenAfterEveryFlippedByte(t *testing.T) {
	disk, dir, want := filled(t, 12)
	for name, content := range listing(t, disk, testDir) {
		for at := range content {
			clone := disk.StrictCrashClone()
			flip(t, clone, testDir+"/"+name, int64(at), byte(at%8))
			cfg := testConfig()
			smallSegments(&cfg)
			s, err := openStore(clone, cfg)
			if name == metaName {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatalf("%s, byte %d: open: %v", name, at, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("%s, byte %d: open: %v", name, at, err)
			}
			e := &storeEnv{t: t, fs: clone, Store: s}
			told := len(s.Report().Damage)+len(s.Report().Quarantined) > 0
			if l, ok := s.Log(testTopic, 0); ok && l.State().Health == log.Online {
				got, err := readTexts(l)
				if err == nil && !slices.Equal(got, want) {
					t.Fatalf("%s, byte %d: the log holds %q", name, at, got)
				}
				told = told || err != nil
			}
			if !told && (name == journalName || name == cleanName) {
				t.Fatalf("%s, byte %d: nobody was told", name, at)
			}
			abandon(t, e)
		}
	}
	_ = dir
}

func TestVerifyBesideARunningBroker(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, smallSegments)
	l := s.create(0)
	stop := s.start()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			if _, err := appendOne(l, int32(i/50), strings.Repeat("y", 50)); err != nil {
				t.Error(err)
			}
			l.SetHighWatermark(l.Flushed())
			if i%50 == 49 {
				if _, err := l.DeleteRecords(t.Context(), -1); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if damages, _, _ := verify(t, disk); len(damages) > 0 {
			t.Errorf("damage beside a running broker: %v", damages)
			break
		}
	}
	<-done
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
