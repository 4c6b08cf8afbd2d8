package log

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// threeSegments has records 0-1, 2-3 and 4-5 in a segment each, all flushed and committed.
func threeSegments(t *testing.T) *env {
	t.Helper()
	e := newEnv(t, testConfig())
	for i := range 3 {
		if i > 0 {
			must(t, e.l.Roll())
		}
		e.mustAppend(2, fmt.Sprint("segment ", i))
	}
	e.flushAll()
	return e
}

func (e *env) wantStarts(when string, published, journaled int64) {
	e.t.Helper()
	if e.l.LogStart() != published || e.l.JournaledLogStart() != journaled {
		e.t.Fatalf("%s: log start %d, journaled %d, want %d, %d", when, e.l.LogStart(), e.l.JournaledLogStart(), published, journaled)
	}
}

// TestAJournaledLogStartIsSeenByNobody: neither by readers, nor by files, nor after a restart; but the replica keeps its word.
func TestAJournaledLogStartIsSeenByNobody(t *testing.T) {
	e := threeSegments(t)
	must(t, e.l.JournalLogStart(t.Context(), 4))
	e.wantStarts("journaled", 0, 4)
	check := func(e *env) {
		t.Helper()
		if got, err := readAll(e.l, 0, 6); err != nil || len(got) == 0 || len(e.l.Segments()) != 3 {
			t.Fatalf("%d bytes in %d segments: %v", len(got), len(e.l.Segments()), err)
		}
	}
	check(e)
	crashed := openOn(t, e.fs.(*memfs.Mem).StrictCrashClone(), testConfig(), e.clk)
	crashed.wantStarts("after a crash", 0, 4)
	check(crashed)
	must(t, crashed.l.PublishLogStart(t.Context(), 4))
	crashed.wantStarts("published after a crash", 4, 4)
	crashed.closeAll()

	e.closeAll()
	must(t, e.reopen())
	e.wantStarts("after a clean stop", 0, 4)
	check(e)
	must(t, e.l.JournalLogStart(t.Context(), 3)) // an older wish
	e.wantStarts("after an older wish", 0, 4)
	e.closeAll()
}

// TestAPublishedLogStartNeverGoesBack: not even if it is below what was journaled, and whatever became of the files.
func TestAPublishedLogStartNeverGoesBack(t *testing.T) {
	e := threeSegments(t)
	must(t, e.l.JournalLogStart(t.Context(), 5))
	must(t, e.l.PublishLogStart(t.Context(), 3))
	e.wantStarts("published in part", 3, 5)
	if len(e.l.Segments()) != 2 {
		t.Fatalf("%+v", e.l.Segments())
	}
	must(t, e.l.PublishLogStart(t.Context(), 2)) // late
	for name, disk := range map[string]*memfs.Mem{"synced": e.fs.(*memfs.Mem).StrictCrashClone(), "all": e.fs.(*memfs.Mem)} {
		c := openOn(t, disk, testConfig(), e.clk)
		c.wantStarts(name, 3, 5)
		if _, err := c.l.ReadRange(2, 100, 6); !errors.Is(err, ErrOffsetOutOfRange) {
			t.Fatalf("%s: %v", name, err)
		}
		c.closeAll()
	}
}

// TestPublishingJournalsFirst: a start that was never journaled is, with one entry, before readers see it.
func TestPublishingJournalsFirst(t *testing.T) {
	e := threeSegments(t)
	var entries []JournalEntry
	e.host.mu.onNow = func(j JournalEntry) error {
		if e.l.LogStart() != 0 {
			t.Error("published before it was journaled")
		}
		entries = append(entries, j)
		return nil
	}
	must(t, e.l.PublishLogStart(t.Context(), 4))
	if len(entries) != 1 || entries[0].LogStart != 4 || entries[0].WantedStart != 4 {
		t.Fatalf("%+v", entries)
	}
	e.wantStarts("published", 4, 4)
	refuse := errors.New("the journal is not writable")
	e.host.mu.onNow = func(JournalEntry) error { return refuse }
	if err := e.l.PublishLogStart(t.Context(), 5); !errors.Is(err, refuse) {
		t.Fatal(err)
	}
	if err := e.l.JournalLogStart(t.Context(), 5); !errors.Is(err, refuse) {
		t.Fatal(err)
	}
	e.wantStarts("refused", 4, 4)
}

func TestALogStartIsBounded(t *testing.T) {
	e := newEnv(t, testConfig())
	e.mustAppend(4, "a")
	must(t, e.host.round(e.l))
	e.mustAppend(4, "not flushed")
	var r *OutOfRangeError
	e.l.SetHighWatermark(2)
	if err := e.l.JournalLogStart(t.Context(), 3); !errors.As(err, &r) || r.Asked != 3 || r.Latest != 2 {
		t.Fatalf("above the high watermark: %v", err)
	}
	if err := e.l.PublishLogStart(t.Context(), 3); !errors.As(err, &r) || r.Latest != 2 {
		t.Fatalf("published above the high watermark: %v", err)
	}
	e.l.SetHighWatermark(8)
	if err := e.l.JournalLogStart(t.Context(), 5); !errors.As(err, &r) || r.Latest != 4 {
		t.Fatalf("above the flushed offset: %v", err)
	}
	must(t, e.l.JournalLogStart(t.Context(), 4))
	must(t, e.l.Close())
	if err := e.l.PublishLogStart(t.Context(), 4); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if err := e.l.JournalLogStart(t.Context(), 4); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

// TestPublishingSealsASegmentThatEndsThere: the leader rolled its expired segment, this replica did not.
func TestPublishingSealsASegmentThatEndsThere(t *testing.T) {
	e := newEnv(t, testConfig())
	e.mustAppend(4, "a")
	e.flushAll()
	must(t, e.l.PublishLogStart(t.Context(), 4))
	if segs := e.l.Segments(); len(segs) != 1 || segs[0].Base != 4 || e.l.TakeRetired() != 1 || e.l.TakeRetired() != 0 {
		t.Fatalf("%+v", segs)
	}
	c := openOn(t, e.fs.(*memfs.Mem).StrictCrashClone(), testConfig(), e.clk)
	c.wantStarts("after a crash", 4, 4)
	if a, _ := c.mustAppend(1, "next"); a.Base != 4 {
		t.Fatalf("%+v", a)
	}
	c.closeAll()
}

func TestRetentionTargetDeletesNothing(t *testing.T) {
	e := threeSegments(t)
	cfg := e.cfg
	cfg.RetentionBytes = 1
	must(t, e.l.SetConfig(cfg))
	for range 2 {
		if to, err := e.l.RetentionTarget(e.clk.Now()); err != nil || to != 4 {
			t.Fatalf("%d, %v", to, err)
		}
	}
	e.wantStarts("asked only", 0, 0)
	if len(e.l.Segments()) != 3 {
		t.Fatalf("%+v", e.l.Segments())
	}
	cfg.RetentionBytes, cfg.RetentionTime = -1, time.Hour
	must(t, e.l.SetConfig(cfg))
	if to, err := e.l.RetentionTarget(e.clk.Now()); err != nil || to != 0 {
		t.Fatalf("nothing has expired: %d, %v", to, err)
	}
}

// TestCrashAtEveryChangeOfALogStart: after a crash the log begins where readers were told last, or where they were about to be told;
// what was agreed to is known; and every record from the log start on is there.
func TestCrashAtEveryChangeOfALogStart(t *testing.T) {
	for name, clone := range diskClones() {
		t.Run(name, func(t *testing.T) {
			for k := int64(1); ; k++ {
				disk := newDisk(t)
				fsys := errorfs.Wrap(disk, nil)
				e := newEnvOn(t, fsys, testConfig(), StartState{})
				for i := range 3 {
					if i > 0 {
						must(t, e.l.Roll())
					}
					e.mustAppend(2, fmt.Sprint("segment ", i))
				}
				must(t, e.host.round(e.l))
				e.l.SetHighWatermark(6)
				fsys.CrashAt(fsys.Mutations() + k)
				var journaled, published, begunJournal, begunPublish int64
				step := func(to int64, f func() error, begun, done *int64) bool {
					*begun = to
					if f() != nil {
						return false
					}
					*done = to
					return true
				}
				for _, at := range []int64{2, 3, 5, 6} {
					if !step(at, func() error { return e.l.JournalLogStart(t.Context(), at) }, &begunJournal, &journaled) ||
						at != 5 && !step(at-at%2, func() error { return e.l.PublishLogStart(t.Context(), at-at%2) }, &begunPublish, &published) {
						break
					}
				}
				hit := fsys.Crashed()
				fsys.Crash()
				after := clone(disk)
				for pass := range 2 {
					c := openOn(t, after, testConfig(), e.clk)
					start, agreed := c.l.LogStart(), c.l.JournaledLogStart()
					if start < published || start > begunPublish || agreed < journaled || agreed > begunJournal || c.rep.Quarantined != nil {
						t.Fatalf("change %d, pass %d: log start %d (published %d to %d), journaled %d (%d to %d), %v",
							k, pass, start, published, begunPublish, agreed, journaled, begunJournal, c.rep.Quarantined)
					}
					if _, err := readAll(c.l, start, 6); err != nil || c.l.End() != 6 {
						t.Fatalf("change %d, pass %d: %v, end %d", k, pass, err, c.l.End())
					}
					c.host.close()
					_ = c.l.Close()
				}
				if !hit {
					return
				}
			}
		})
	}
}

// diskClones are the ways in which a disk may look after a power failure.
func diskClones() map[string]func(*memfs.Mem) *memfs.Mem {
	rng := rand.New(rand.NewPCG(7, 8))
	return map[string]func(*memfs.Mem) *memfs.Mem{
		"only what was synced": func(m *memfs.Mem) *memfs.Mem { return m.StrictCrashClone() },
		"some of the rest":     func(m *memfs.Mem) *memfs.Mem { return m.CrashClone(rng) },
	}
}
