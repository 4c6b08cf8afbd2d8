package storage

import (
	"fmt"
	"slices"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// reopened returns partition 0 after a power failure that kept only what was synced.
func reopened(t *testing.T, s *storeEnv, disk *memfs.Mem) (*storeEnv, *log.Log) {
	t.Helper()
	after := newStore(t, disk.StrictCrashClone())
	abandon(t, s)
	if r := after.Report(); len(r.Damage)+len(r.Quarantined) > 0 || r.JournalLost {
		t.Fatalf("after a crash: %+v", r)
	}
	return after, after.mustLog(0)
}

// TestManyEpochsInOneSegment: more leader epochs than a journal record holds, in one round or in many, and no roll that would have
// written the checkpoint.
func TestManyEpochsInOneSegment(t *testing.T) {
	for _, perRound := range []int{1, 40, 150} {
		t.Run(fmt.Sprint(perRound, " epochs per round"), func(t *testing.T) {
			disk := memfs.New()
			s := newStore(t, disk)
			l := s.create(0)
			const epochs = 300
			for e := range int32(epochs) {
				if _, err := appendOne(l, e, fmt.Sprint(e)); err != nil {
					t.Fatal(err)
				}
				if int(e+1)%perRound == 0 {
					s.round()
				}
			}
			s.round()
			if _, err := s.syncer.journalResults(); err != nil {
				t.Fatal(err)
			}
			_, l = reopened(t, s, disk)
			if got := l.Epochs(); len(got) != epochs || len(texts(t, l)) != epochs {
				t.Errorf("%d epochs and %d records are left of %d", len(got), len(texts(t, l)), epochs)
			}
		})
	}
}

// TestAnEpochWhoseBatchesWereLost: the journal was synced with a round's epochs and the crash took their batches. When the log then
// goes on with batches of an older epoch, as a follower's may, they are acknowledged and stay.
func TestAnEpochWhoseBatchesWereLost(t *testing.T) {
	disk := memfs.New()
	s := newStore(t, disk)
	l := s.create(0)
	mustAppend(t, l, "0")
	s.round()
	for epoch := range int32(2) {
		if _, err := appendOne(l, 3*epoch, "lost"); err != nil {
			t.Fatal(err)
		}
	}
	p := l.PrepareSync()
	r := newProgress(l.JournalEntry())
	r.epochs = p.NewEpochs()
	if len(r.epochs) != 1 || r.epochs[0] != (log.EpochStart{Epoch: 3, Start: 2}) {
		t.Fatalf("epochs to journal: %v", r.epochs)
	}
	if err := s.commit(r); err != nil {
		t.Fatal(err)
	}
	s, l = reopened(t, s, disk)
	disk = s.fs.(*memfs.Mem)
	for i := 1; i < 4; i++ {
		if _, err := appendOne(l, 0, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	s.round()
	if l.Flushed() != 4 {
		t.Fatalf("flushed up to %d", l.Flushed())
	}
	_, l = reopened(t, s, disk)
	if got := texts(t, l); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("the log holds %q", got)
	}
}
