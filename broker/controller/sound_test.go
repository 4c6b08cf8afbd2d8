package controller

import (
	"errors"
	"slices"
	"testing"

	"runnel.dev/runnel/broker/metadata"
)

// TestDamagedMembersDoNotCountAsCopies: a member whose log is marked is on its way out of the in-sync set. Until it is out, nobody may be
// let go because of it.
func TestDamagedMembersDoNotCountAsCopies(t *testing.T) {
	t.Run("a reassignment does not end on a damaged copy", func(t *testing.T) {
		p := catchUp(Retarget(part(0, 2, 1), []int32{2, 3}), 3)
		if next := Next(metadata.NewState(damaged(wide(3, 2, p), 3)), p, 2, Input{}); next != nil && !Moving(next) {
			t.Errorf("%+v", next)
		}
		p = Retarget(part(0, 2, 1), []int32{2})
		if next := Next(metadata.NewState(damaged(wide(2, 1, p), 2)), p, 1, Input{}); next != nil && !Moving(next) {
			t.Errorf("the one good copy goes: %+v", next)
		}
	})
	t.Run("the dead stay for as long as they are needed", func(t *testing.T) {
		p := part(0, 1, 2, 3)
		if next := Next(metadata.NewState(damaged(wide(3, 3, p), 3)), p, 2, suspects(2)); next != nil {
			t.Errorf("%v", brokersOf(next.ISR))
		}
	})
	t.Run("they do not make a stop safe", func(t *testing.T) {
		s := metadata.NewState(damaged(wide(3, 3, part(0, 1, 2, 3)), 3))
		if got, err := SafeToStop(s, nil, Input{}, 2); err != nil || got.Safe() {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("they do not make a fencing safe", func(t *testing.T) {
		s := metadata.NewState(damaged(wide(3, 3, inSync(part(0, 2, 3, 1), 2, 3)), 3))
		if _, _, err := planFence(s, nil, 2, disk2, false); !errors.Is(err, ErrUnsafe) {
			t.Error(err)
		}
	})
}

// TestFencingTwoAfterEachOther: the first one's replicas have not left the in-sync sets yet when the second is fenced.
func TestFencingTwoAfterEachOther(t *testing.T) {
	c := inState(wide(3, 3, inSync(part(0, 2, 3, 1), 2, 3)), 3, metadata.StorageFenced)
	_, affected, err := planFence(metadata.NewState(c), nil, 2, disk2, false)
	var unsafe *UnsafeError
	if !errors.As(err, &unsafe) || len(unsafe.Affected) != 1 || len(affected) != 1 || affected[0].InSync != 0 {
		t.Errorf("%v, affected %+v", err, affected)
	}
}

// TestFencedReplicasAreMadeAnew: what is lost does not come back, so its replicas move to whoever has room, and it can be decommissioned
// then. Also when it was drained before.
func TestFencedReplicasAreMadeAnew(t *testing.T) {
	c := without(inState(wide(4, 3, part(0, 2, 1, 3), inSync(part(1, 1, 2, 3), 1, 3)), 2, metadata.StorageFenced), 2)
	if _, err := planDecommission(metadata.NewState(c), 2, disk2); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("it is not empty: %v", err)
	}
	c, _ = settle(t, c, Input{})
	for _, p := range c.Partitions {
		if got := slices.Sorted(slices.Values(p.Replicas)); !slices.Equal(got, []int32{1, 3, 4}) || Moving(p) {
			t.Errorf("%+v", p)
		}
	}
	if next, err := planDecommission(metadata.NewState(c), 2, disk2); err != nil || next.State != metadata.StorageDecommissioned {
		t.Errorf("%+v, %v", next, err)
	}
	// A move to a broker that is lost on the way turns elsewhere.
	c = without(inState(wide(5, 3, Retarget(part(0, 1, 2, 3), []int32{1, 2, 4})), 4, metadata.StorageFenced), 4)
	c, _ = settle(t, c, Input{})
	if p := c.Partitions[0]; Moving(p) || p.HasReplica(4) || len(p.Replicas) != 3 {
		t.Errorf("%+v", p)
	}
}

// TestGoneIsNotSpared: a suspect that keeps coming back is left in for a while, one whose registration has ended is not.
func TestGoneIsNotSpared(t *testing.T) {
	p := part(0, 1, 2, 3)
	in := Input{Spared: set(3)}
	if next := Next(metadata.NewState(without(cluster(3), 3)), p, 2, in); next == nil || !slices.Equal(brokersOf(next.ISR), []int32{1, 2}) {
		t.Errorf("%+v", next)
	}
}

// TestEligibilityWaitsForTheRecords: a State can show a registration before the records that were written before it, which may name what
// that broker had before.
func TestEligibilityWaitsForTheRecords(t *testing.T) {
	c := wide(3, 3, inSync(part(0, 1, 2, 3), 1, 3))
	c = without(c, 2)
	c.Brokers = append(c.Brokers, alive(2, 100, disks[4]))
	c.Position.Revision = 99
	if plan := Decide(metadata.NewState(c), nil, Input{}); len(plan.Eligible) != 0 {
		t.Errorf("%+v", plan.Eligible)
	}
	c.Position.Revision = 100
	if plan := Decide(metadata.NewState(c), nil, Input{}); len(plan.Eligible) != 1 {
		t.Errorf("%+v", plan)
	}
}

// TestDeletionDoesNotWaitForWhatIsLost: a fenced storage that nobody has attached removes nothing any more. One that is attached still does.
func TestDeletionDoesNotWaitForWhatIsLost(t *testing.T) {
	p := part(0, 1, 2)
	p.Purged = []int32{1}
	c := inState(wide(2, 2, p), 2, metadata.StorageFenced)
	if gone(metadata.NewState(c), p) {
		t.Error("broker 2 is there, and purges")
	}
	if !gone(metadata.NewState(without(c, 2)), p) {
		t.Error("broker 2 is fenced and away")
	}
	if gone(metadata.NewState(without(inState(c, 2, metadata.StorageDraining), 2)), p) {
		t.Error("broker 2 is away, and comes back")
	}
}

// TestDrainNamesAMoveThatIsStuck: a drain cannot begin to move what is moving elsewhere, and says so when that waits for somebody.
func TestDrainNamesAMoveThatIsStuck(t *testing.T) {
	c := inState(wide(5, 3, Retarget(part(0, 1, 2, 3), []int32{1, 2, 4})), 2, metadata.StorageDraining)
	if got, err := DrainProgress(metadata.NewState(c), Input{}, 2); err != nil || len(got.Blocked) != 0 {
		t.Errorf("it waits for bytes: %+v, %v", got, err)
	}
	if got, err := DrainProgress(metadata.NewState(without(c, 4)), Input{}, 2); err != nil || len(got.Blocked) != 1 {
		t.Errorf("broker 4 is not there: %+v, %v", got, err)
	}
}
