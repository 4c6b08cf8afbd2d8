package controller

import (
	"errors"
	"slices"
	"testing"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

func partitionsOf(blockers []Blocker) []int32 {
	var out []int32
	for _, b := range blockers {
		out = append(out, b.Partition.Partition)
	}
	return out
}

func TestSafeToStop(t *testing.T) {
	c := wide(4, 3, part(0, 1, 2, 3), inSync(part(1, 1, 2, 3), 1, 2), part(2, 4), inSync(part(3, 2, 3, 4), 2, 3))
	c.Controller = &metadata.ControllerInfo{BrokerID: 1, BrokerEpoch: 10, Epoch: 77}
	for name, tc := range map[string]struct {
		id       int32
		in       Input
		blocking []int32
		single   int
		leaders  int
	}{
		"two of three in sync at the minimum": {1, Input{}, []int32{1}, 0, 2},
		"in two such partitions":              {2, Input{}, []int32{1, 3}, 0, 1},
		"single replicas do not block":        {4, Input{}, nil, 1, 1},
		"a suspect does not count as left":    {3, suspects(2), []int32{0, 3}, 0, 0},
		"nor does one that stops":             {3, Input{Health: Health{Stopping: set(1)}}, []int32{0, 3}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := SafeToStop(metadata.NewState(c), nil, tc.in, tc.id)
			if err != nil || !slices.Equal(partitionsOf(got.Blocking), tc.blocking) || got.Single != tc.single || got.Leaders != tc.leaders ||
				got.Safe() != (len(tc.blocking) == 0) || got.Controller != (tc.id == 1) {
				t.Errorf("%+v, %v", got, err)
			}
			for _, b := range got.Blocking {
				if b.MinInSync != 2 || b.InSync >= 2 || b.Topic != "t" || b.Reason == "" {
					t.Errorf("%+v", b)
				}
			}
		})
	}
	if _, err := SafeToStop(metadata.NewState(c), nil, Input{}, 9); !errors.Is(err, ErrUnknownBroker) {
		t.Error(err)
	}
}

func TestStorageStates(t *testing.T) {
	type states = metadata.StorageState
	const active, draining, gone, fenced = metadata.StorageActive, metadata.StorageDraining, metadata.StorageDecommissioned, metadata.StorageFenced
	plans := map[string]func(*metadata.State) (*metadata.Storage, error){
		"drain": func(s *metadata.State) (*metadata.Storage, error) { return change(s, 2, draining, active) },
		"undrain": func(s *metadata.State) (*metadata.Storage, error) {
			return change(s, 2, active, draining, gone)
		},
		"decommission": func(s *metadata.State) (*metadata.Storage, error) { return planDecommission(s, 2, disk2) },
		"fence": func(s *metadata.State) (*metadata.Storage, error) {
			next, _, err := planFence(s, nil, 2, disk2, false)
			return next, err
		},
		"unfence": func(s *metadata.State) (*metadata.Storage, error) { return planUnfence(s, 2, disk2) },
	}
	for name, want := range map[string]map[states]states{ // 0: refused; the same: nothing to do
		"drain":        {active: draining, draining: draining, gone: 0, fenced: 0},
		"undrain":      {active: active, draining: active, gone: active, fenced: 0},
		"decommission": {active: gone, draining: gone, gone: gone, fenced: gone},
		"fence":        {active: fenced, draining: fenced, gone: 0, fenced: fenced},
		"unfence":      {active: active, draining: 0, gone: 0, fenced: active},
	} {
		for from, to := range want {
			s := metadata.NewState(inState(without(cluster(3), 2), 2, from))
			next, err := plans[name](s)
			switch {
			case to == 0:
				if !errors.Is(err, ErrWrongState) {
					t.Errorf("%s in state %s: %v, %v", name, stateName(from), next, err)
				}
			case to == from:
				if next != nil || err != nil {
					t.Errorf("%s in state %s: %v, %v", name, stateName(from), next, err)
				}
			case err != nil || next.State != to || next.StorageID != disk2:
				t.Errorf("%s in state %s: %v, %v", name, stateName(from), next, err)
			}
		}
		s := metadata.NewState(metadata.Contents{Brokers: cluster(1).Brokers, Storages: cluster(1).Storages})
		if _, err := plans[name](s); !errors.Is(err, ErrUnknownBroker) {
			t.Errorf("%s of an unknown broker: %v", name, err)
		}
	}
	other := ids.NewStorageID()
	s := metadata.NewState(cluster(3))
	_, decommission := planDecommission(s, 2, other)
	_, _, fence := planFence(s, nil, 2, other, true)
	_, unfence := planUnfence(s, 2, other)
	for _, err := range []error{decommission, fence, unfence} {
		if !errors.Is(err, ErrOtherStorage) {
			t.Errorf("another storage: %v", err)
		}
	}
	if _, err := planDecommission(s, 2, disk2); !errors.Is(err, ErrBrokerLive) {
		t.Errorf("a live broker: %v", err)
	}
}

// TestFenceRefusesToLoseTheLastReplica: unless somebody accepts that.
func TestFenceRefusesToLoseTheLastReplica(t *testing.T) {
	s := metadata.NewState(wide(3, 3, part(0, 1, 2, 3), inSync(part(1, 1, 2, 3), 1, 2), inSync(part(2, 2, 1, 3), 2)))
	_, affected, err := planFence(s, nil, 2, disk2, false)
	var unsafe *UnsafeError
	if !errors.As(err, &unsafe) || !slices.Equal(partitionsOf(unsafe.Affected), []int32{2}) || !slices.Equal(partitionsOf(affected), []int32{1, 2}) {
		t.Errorf("%v, affected %v", err, affected)
	}
	next, affected, err := planFence(s, nil, 2, disk2, true)
	if err != nil || next.State != metadata.StorageFenced || len(affected) != 2 {
		t.Errorf("%+v, %v, %v", next, affected, err)
	}
}

// TestFencedStorageComesBack: only when it is unfenced, and then it is declared eligible anew; another disk under the same id is not
// fenced.
func TestFencedStorageComesBack(t *testing.T) {
	c := inState(wide(3, 3, inSync(part(0, 1, 2, 3), 1, 3)), 2, metadata.StorageFenced)
	if plan := Decide(metadata.NewState(c), nil, Input{}); !plan.Empty() {
		t.Errorf("%+v", plan)
	}
	next, err := planUnfence(metadata.NewState(c), 2, disk2)
	if err != nil {
		t.Fatal(err)
	}
	unfenced := c
	unfenced.Storages = []*metadata.Storage{c.Storages[0], next, c.Storages[2]}
	if s := metadata.NewState(unfenced); s.Eligible(2) {
		t.Error("eligible before the controller has looked")
	}
	plan := Decide(metadata.NewState(unfenced), nil, Input{})
	if len(plan.Eligible) != 1 || plan.Eligible[0].EligibleEpoch != 20 {
		t.Errorf("%+v", plan)
	}
	for _, state := range []metadata.StorageState{metadata.StorageFenced, metadata.StorageDecommissioned} {
		replaced := inState(without(c, 2), 2, state)
		replaced.Brokers = append(replaced.Brokers, alive(2, 25, disks[4]))
		plan = Decide(metadata.NewState(replaced), nil, Input{})
		if len(plan.Eligible) != 1 || plan.Eligible[0].State != metadata.StorageActive || plan.Eligible[0].StorageID != disks[4] || plan.Eligible[0].EligibleEpoch != 25 {
			t.Errorf("%s: %+v", stateName(state), plan)
		}
	}
}

func TestDrainingPlacesNothingNew(t *testing.T) {
	c := inState(cluster(4), 2, metadata.StorageDraining)
	c.Topics = []*metadata.Topic{topic(metadata.TopicCreating, 9, 0)}
	c.Topics[0].Replicas = 3
	plan := Decide(metadata.NewState(c), nil, Input{})
	if len(plan.Create) != 1 {
		t.Fatalf("%+v", plan)
	}
	for _, p := range plan.Create[0].Partitions {
		if p.HasReplica(2) {
			t.Errorf("replicas %v", p.Replicas)
		}
	}
	if plan = Decide(metadata.NewState(c), nil, suspects(3)); len(plan.Create) != 0 {
		t.Errorf("two brokers are well, three are needed: %+v", plan.Create)
	}
}
