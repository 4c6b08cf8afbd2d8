package storage

import (
	"errors"
	"fmt"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// TestARoundWhileRecovering: a round between the journal's record of the copy and the end of the recovery does not journal the
// damaged log again; and what became of that log since the store was opened counts.
func TestARoundWhileRecovering(t *testing.T) {
	disk := memfs.New()
	fsys := errorfs.Wrap(disk, nil)
	s := newStore(t, fsys, smallSegments)
	l, start, _ := deletedFrom(t, s)
	mustAppend(t, l, "one more round, whose result is not journaled")
	s.round()
	bases, err := segmentBases(disk, l.Dir())
	if err != nil {
		t.Fatal(err)
	}
	flip(t, disk, fmt.Sprintf("%s/%020d.log", l.Dir(), bases[len(bases)-1]), 200, 3)
	if _, err := readTexts(l); !errors.Is(err, log.ErrCorrupt) || l.State().Health != log.Quarantined {
		t.Fatalf("%v, %v", err, l.State())
	}
	rounds := 0
	fsys.SetInjector(func(op errorfs.Op) error {
		st, _ := s.State(testTopic, 0)
		if st.Health != log.Quarantined {
			t.Errorf("%v: the partition is %v", op, st.Health)
		}
		if op.Kind == errorfs.Open && op.Name == l.Dir()+"/"+log.MetaFile {
			if st, _ := s.journal.lookup(testKeyOf(0)); st.logID != l.LogID() {
				rounds++
				if _, err := s.syncer.journalResults(); err != nil {
					t.Error(err)
				}
				if again, _ := s.journal.lookup(testKeyOf(0)); again.logID != st.logID {
					t.Error("a round has journaled the damaged log over its copy")
				}
			}
		}
		return nil
	})
	plan, err := s.Recover(t.Context(), testTopic, 0, true)
	fsys.SetInjector(nil)
	if err != nil || rounds == 0 {
		t.Fatalf("%d rounds, %v", rounds, err)
	}
	if plan.KeepFrom != start || plan.LostTo != 41 {
		t.Errorf("kept from %d, want %d; lost up to %d, want 41", plan.KeepFrom, start, plan.LostTo)
	}
	s, l = reopened(t, s, disk)
	if l.LogStart() != start || l.End() != plan.KeepTo {
		t.Errorf("after a crash the log holds %d up to %d, want %d up to %d", l.LogStart(), l.End(), start, plan.KeepTo)
	}
}

// TestARecoveryThatFailsCanBeTriedAgain: the disk refuses the rename; the partition stays quarantined, and can be recovered or deleted.
func TestARecoveryThatFailsCanBeTriedAgain(t *testing.T) {
	for _, remove := range []bool{false, true} {
		t.Run(fmt.Sprint("delete ", remove), func(t *testing.T) {
			disk := memfs.New()
			fsys := errorfs.Wrap(disk, nil)
			s := newStore(t, fsys, smallSegments)
			l, start, _ := deletedFrom(t, s)
			flip(t, disk, fmt.Sprintf("%s/%020d.log", l.Dir(), l.Segments()[1].Base), 200, 3)
			if _, err := readTexts(l); err == nil {
				t.Fatal("the damage is not found")
			}
			refused := errors.New("refused")
			fsys.SetInjector(func(op errorfs.Op) error {
				if op.Kind == errorfs.Rename && op.Name == l.Dir() {
					return refused
				}
				return nil
			})
			if _, err := s.Recover(t.Context(), testTopic, 0, true); !errors.Is(err, refused) {
				t.Fatalf("recover: %v", err)
			}
			fsys.SetInjector(nil)
			if st, ok := s.State(testTopic, 0); !ok || st.Health != log.Quarantined {
				t.Fatalf("state: %v, %v", ok, st)
			}
			if remove {
				if err := s.DeleteLog(Tombstone{testTopic, 0}); err != nil {
					t.Fatal(err)
				}
				if st, ok := s.journal.lookup(testKeyOf(0)); ok {
					t.Errorf("the journal knows a deleted log: %+v", st)
				}
				return
			}
			if plan, err := s.Recover(t.Context(), testTopic, 0, true); err != nil || plan.KeepFrom != start || s.mustLog(0).LogStart() != start {
				t.Errorf("%+v, %v", plan, err)
			}
		})
	}
}
