package storage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

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
					s.fsys.(*memfs.Mem).SyncAll()
					abandon(t, s)
				}
				if !hit {
					return
				}
			}
		})
	}
}

// cloners are the ways in which a disk may look after a power failure.
func cloners() map[string]func(*memfs.Mem) *memfs.Mem {
	rng := rand.New(rand.NewPCG(3, 4))
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
			end, err := appendOne(l, int32(step/4), fmt.Sprint(n, "-", ends[n], " ", pad))
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
		if _, err := e.syncer.flush(); err != nil {
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
					l, err := e.CreateLog(t.Context(), testTopic, 0, TopicInfo{Name: "orders"}, log.StartState{})
					if err != nil {
						return err
					}
					created = true
					if _, err := appendOne(l, 0, "kept until the tombstone"); err != nil {
						return err
					}
					if _, err := e.syncer.flush(); err != nil {
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

// TestCrashAtEveryChangeOfARestart crashes while a store opens after a crash, and while it closes. What was acknowledged before is
// there, however often that happens.
func TestCrashAtEveryChangeOfARestart(t *testing.T) {
	var acked [2]int64
	source := memfs.New()
	s := newStore(t, source)
	if err := workload(s, &acked); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, s.mustLog(1), "never acknowledged")
	source = source.CrashClone(rand.New(rand.NewPCG(5, 6)))
	for name, clone := range cloners() {
		t.Run(name, func(t *testing.T) {
			for k := int64(1); ; k++ {
				disk := source.StrictCrashClone()
				fsys := errorfs.Wrap(disk, nil)
				fsys.CrashAt(k)
				s, err := openStore(fsys, testConfig())
				if err == nil {
					err = s.Close()
				}
				hit := fsys.Crashed()
				if !hit && err != nil {
					t.Fatal(err)
				}
				after := newStore(t, clone(disk))
				if r := after.Report(); len(r.Damage)+len(r.Quarantined) > 0 || !hit && !r.Clean {
					t.Fatalf("change %d: report %+v", k, r)
				}
				for n := range int32(2) {
					if got := int64(len(texts(t, after.mustLog(n)))); got < acked[n] {
						t.Fatalf("change %d: partition %d holds %d records, %d were acknowledged", k, n, got, acked[n])
					}
				}
				after.mustClose()
				if !hit {
					return
				}
			}
		})
	}
}
