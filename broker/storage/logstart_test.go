package storage

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// deletedFrom fills a partition with 40 records in small segments and deletes those below the middle of the last segment but one.
func deletedFrom(t testing.TB, s *storeEnv) (l *log.Log, start int64, want []string) {
	t.Helper()
	l = s.create(0)
	for i := range 40 {
		want = append(want, fmt.Sprint("record ", i, " ", strings.Repeat("x", 60)))
		if _, err := appendOne(l, int32(i/10), want[i]); err != nil {
			t.Fatal(err)
		}
	}
	s.round()
	l.SetHighWatermark(l.End())
	segs := l.Segments()
	start = segs[len(segs)-2].Base + 2
	if _, err := l.DeleteRecords(t.Context(), start); err != nil {
		t.Fatal(err)
	}
	if base := l.Segments()[0].Base; base >= start {
		t.Fatalf("the first segment begins at %d, the log at %d", base, start)
	}
	return l, start, want[start:]
}

// loseRecords makes the journal one that misses a frame before those that are left.
func loseRecords(t testing.TB, disk *memfs.Mem) {
	t.Helper()
	path := testDir + "/" + journalName
	b, err := readWhole(disk, path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	id, first, err := decodeJournalHeader(path, b)
	if err != nil {
		t.Fatal(err)
	}
	r, err := replayBytes(path, b, id)
	if err != nil {
		t.Fatal(err)
	}
	content, _ := appendFrames(encodeJournalHeader(id, first), first+1, r.state.records())
	put(t, disk, path, content)
}

// TestTheLogStartOutlivesALostJournal: what was deleted stays deleted as long as any record of the journal says so, whether the log
// was closed or not.
func TestTheLogStartOutlivesALostJournal(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, smallSegments)
	_, start, want := deletedFrom(t, s)
	crashed := disk.StrictCrashClone()
	s.mustClose()
	for name, disk := range map[string]*memfs.Mem{"crash": crashed, "clean stop": disk} {
		t.Run(name, func(t *testing.T) {
			loseRecords(t, disk)
			for pass := range 2 {
				s := newStore(t, disk, smallSegments)
				if r := s.Report(); r.JournalLost != (pass == 0) || len(r.Quarantined) > 0 {
					t.Fatalf("pass %d: %+v", pass, r)
				}
				l := s.mustLog(0)
				if l.LogStart() != start || l.HighWatermark() < start {
					t.Errorf("pass %d: the log starts at %d, want %d; high watermark %d", pass, l.LogStart(), start, l.HighWatermark())
				}
				if got := texts(t, l); !slices.Equal(got, want) {
					t.Errorf("pass %d: %d records, want %d", pass, len(got), len(want))
				}
				s.mustClose()
			}
		})
	}
}

// TestALostJournalAndAShortLog: the log start lies behind all that a crash has left of a log that the journal no longer bounds.
func TestALostJournalAndAShortLog(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk, smallSegments)
	l := s.create(0)
	mustAppend(t, l, "synced")
	s.round()
	mustAppend(t, l, "not synced")
	l.SetHighWatermark(2)
	if _, err := l.DeleteRecords(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	disk = disk.StrictCrashClone()
	abandon(t, s)
	loseRecords(t, disk)
	l = newStore(t, disk, smallSegments).mustLog(0)
	if l.LogStart() != 2 || l.End() != 2 {
		t.Errorf("the log holds %d up to %d", l.LogStart(), l.End())
	}
}

// TestCrashWhileRecoveringDoesNotMoveTheLogStart: the copy knows its log start from the journal or from that of the original.
func TestCrashWhileRecoveringDoesNotMoveTheLogStart(t *testing.T) {
	source := memfs.New()
	s := newStore(t, source, smallSegments)
	l, start, want := deletedFrom(t, s)
	s.mustClose()
	bases, err := segmentBases(source, l.Dir())
	if err != nil {
		t.Fatal(err)
	}
	flip(t, source, fmt.Sprintf("%s/%020d.log", l.Dir(), bases[len(bases)-1]), 200, 3)
	for _, path := range []string{l.Dir() + "/clean", testDir + "/clean"} {
		if err := source.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	source.SyncAll()
	for k, hit := int64(1), true; hit; k++ {
		disk := source.StrictCrashClone()
		fsys := errorfs.Wrap(disk, nil)
		s := newStore(t, fsys, smallSegments)
		fsys.CrashAt(fsys.Mutations() + k)
		plan, err := s.Recover(t.Context(), testTopic, 0, true)
		if hit = fsys.Crashed(); !hit && err != nil {
			t.Fatal(err)
		}
		fsys.Crash()
		_ = s.Close()
		after := disk.StrictCrashClone()
		for pass := range 2 {
			s := newStore(t, after, smallSegments)
			if st, _ := s.State(testTopic, 0); st.Health == log.Quarantined {
				if _, err := s.Recover(t.Context(), testTopic, 0, true); err != nil {
					t.Fatalf("change %d: the next try: %v", k, err)
				}
			}
			l := s.mustLog(0)
			if got := texts(t, l); l.LogStart() != start || !slices.Equal(got, want[:plan.KeepTo-start]) {
				t.Fatalf("change %d, pass %d: the log holds %d up to %d, want %d up to %d", k, pass, l.LogStart(), l.End(), start, plan.KeepTo)
			}
			s.mustClose()
		}
	}
}
