package storage

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

func wantAdopted(t testing.TB, when string, l *log.Log, adopted, durable int32) {
	t.Helper()
	if l.Adopted() != adopted || l.AdoptedDurable() != durable {
		t.Fatalf("%s: adopted %d (durable %d), want %d (%d)", when, l.Adopted(), l.AdoptedDurable(), adopted, durable)
	}
}

// TestTheAdoptedEpochOutlivesEverything: a crash, a truncation, a clean stop, a compacted journal, one that lost records.
func TestTheAdoptedEpochOutlivesEverything(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk)
	l := s.create(0)
	told := 0
	l.OnFlushed(func(int64) { told++ })
	l.AdoptEpoch(3)
	wantAdopted(t, "before the round", l, 3, 0)
	s.round()
	wantAdopted(t, "after the round", l, 3, 3)
	if told != 1 {
		t.Fatalf("OnFlushed was called %d times", told)
	}
	s = newStore(t, disk.StrictCrashClone())
	wantAdopted(t, "after a crash", s.mustLog(0), 3, 3)

	l = s.mustLog(0)
	for range 4 {
		mustAppend(t, l, "x")
	}
	l.AdoptEpoch(9)
	s.round()
	if err := l.Truncate(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	wantAdopted(t, "after a truncation", l, 9, 9)
	for range 3 { // of the journal
		s.journal.mu.Lock()
		s.journal.mu.rotateAt = 0
		s.journal.mu.Unlock()
		mustAppend(t, l, "y")
		s.round()
	}
	disk = s.fs.(*memfs.Mem).StrictCrashClone()
	wantAdopted(t, "after truncation, compaction and a crash", newStore(t, disk).mustLog(0), 9, 9)

	s.mustClose()
	disk = s.fs.(*memfs.Mem)
	s = newStore(t, disk)
	wantAdopted(t, "after a clean stop", s.mustLog(0), 9, 9)
	s.mustClose()
	loseRecords(t, disk)
	for pass := range 2 {
		s = newStore(t, disk)
		if s.Report().JournalLost != (pass == 0) {
			t.Fatalf("pass %d: %+v", pass, s.Report())
		}
		wantAdopted(t, "after records of the journal were lost", s.mustLog(0), 9, 9)
		s.mustClose()
	}
}

// TestARebuiltLogHasAdoptedNothing: it lost what it had acknowledged, and must not pass for one that holds it.
func TestARebuiltLogHasAdoptedNothing(t *testing.T) {
	disk, dir, _ := filled(t, 40)
	s := newStore(t, disk, smallSegments)
	s.mustLog(0).AdoptEpoch(12)
	s.round()
	s.mustClose()
	bases, err := segmentBases(disk, dir)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, disk, fmt.Sprintf("%s/%020d.log", dir, bases[len(bases)-1]), 200, 3)
	for _, path := range []string{dir + "/clean", testDir + "/clean"} {
		if err := disk.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	s = newStore(t, disk, smallSegments)
	if _, err := s.Recover(t.Context(), testTopic, 0, true); err != nil {
		t.Fatal(err)
	}
	wantAdopted(t, "rebuilt", s.mustLog(0), 0, 0)
	s.mustClose()
	wantAdopted(t, "rebuilt, and restarted", newStore(t, disk, smallSegments).mustLog(0), 0, 0)
}

// TestCrashAtEveryChangeOfAnAdoption: what AdoptedDurable said is there after a crash, and nothing that was never adopted.
func TestCrashAtEveryChangeOfAnAdoption(t *testing.T) {
	small := func(c *Config) { c.JournalBytes = 4 << 10 }
	for name, clone := range cloners() {
		t.Run(name, func(t *testing.T) {
			for k, hit := int64(1), true; hit; k++ {
				var durable, adopted int32
				var disk *memfs.Mem
				disk, hit = crashed(t, k, small, func(e *storeEnv) error {
					l, err := e.CreateLog(t.Context(), testTopic, 0, TopicInfo{Name: "orders"}, log.StartState{})
					if err != nil {
						return err
					}
					l.OnFlushed(func(int64) { durable = l.AdoptedDurable() })
					for epoch := int32(1); epoch <= 6; epoch++ {
						adopted = epoch
						l.AdoptEpoch(epoch)
						if epoch%3 == 0 {
							if _, err := appendOne(l, epoch, "x"); err != nil {
								return err
							}
						}
						if _, err := e.syncer.flush(); err != nil {
							return err
						}
						if epoch == 4 {
							if err := l.Truncate(t.Context(), 0); err != nil {
								return err
							}
						}
					}
					return nil
				})
				s := newStore(t, clone(disk), small)
				if l, ok := s.Log(testTopic, 0); ok && (l.Adopted() < durable || l.Adopted() > adopted) || !ok && durable > 0 {
					t.Fatalf("change %d: open %v, adopted %d, want %d to %d", k, ok, l.Adopted(), durable, adopted)
				}
				s.mustClose()
			}
		})
	}
}

// TestAFullJournalHoldsUpAdoptions: nothing counts as adopted before the journal says so, and it does as soon as there is space.
func TestAFullJournalHoldsUpAdoptions(t *testing.T) {
	full := true
	s := newStore(t, errorfs.Wrap(memfs.New(), nil))
	l := s.create(0)
	s.round()
	s.fs.(*errorfs.FS).SetInjector(func(op errorfs.Op) error {
		if full && op.Kind == errorfs.Write && strings.Contains(op.Name, "/"+journalName) {
			return syscall.ENOSPC
		}
		return nil
	})
	l.AdoptEpoch(2)
	s.round()
	wantAdopted(t, "on a full disk", l, 2, 0)
	full = false
	s.syncer.unblock(true)
	s.round()
	wantAdopted(t, "with space again", l, 2, 2)
}
