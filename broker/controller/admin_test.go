package controller

import (
	"errors"
	"slices"
	"testing"

	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// TestRequestsElsewhere: every request names the controller when it is made of another broker.
func TestRequestsElsewhere(t *testing.T) {
	one := startNode(t, 1, ids.NewStorageID())
	one.wait("a controller", func(s *metadata.State) bool { return s.Controller() != nil && s.Eligible(1) })
	two := startNode(t, 2, ids.NewStorageID())
	two.wait("two brokers", func(s *metadata.State) bool { return s.Eligible(1) && s.Eligible(2) })
	ctx, c := t.Context(), two.ctl
	for name, call := range map[string]func() error{
		"Reassign":        func() error { _, err := c.Reassign(ctx, []ReassignRequest{{}}); return err },
		"CancelReassign":  func() error { _, err := c.CancelReassign(ctx, nil); return err },
		"Reassignments":   func() error { _, err := c.Reassignments(); return err },
		"PreviewReassign": func() error { _, err := c.PreviewReassign(nil, nil); return err },
		"ElectLeaders":    func() error { _, err := c.ElectLeaders(ctx, nil, false); return err },
		"AllowUnclean":    func() error { return c.AllowUnclean(metadata.PartitionRef{}, 1, "me") },
		"Drain":           func() error { _, err := c.Drain(ctx, 1, false); return err },
		"Drain, dry":      func() error { _, err := c.Drain(ctx, 1, true); return err },
		"Undrain":         func() error { return c.Undrain(ctx, 1) },
		"Decommission":    func() error { return c.Decommission(ctx, 1, one.storage, false) },
		"Fence":           func() error { _, err := c.Fence(ctx, 1, one.storage, true, false); return err },
		"Unfence":         func() error { return c.Unfence(ctx, 1, one.storage) },
		"SafeToStop":      func() error { _, err := c.SafeToStop(1); return err },
		"Operations":      func() error { _, err := c.Operations(); return err },
	} {
		var elsewhere *NotControllerError
		if err := call(); !errors.As(err, &elsewhere) || elsewhere.Controller != 1 || !errors.Is(err, metadata.ErrNotController) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMoveDrainAndDecommission is the life of a broker that has to go.
func TestMoveDrainAndDecommission(t *testing.T) {
	one, two, tri := three(t)
	four := startNode(t, 4, ids.NewStorageID())
	nodes := []*node{one, two, tri, four}
	ctx, ctl := t.Context(), one.ctl
	one.wait("four brokers", func(s *metadata.State) bool { return s.Eligible(4) })
	topic := one.create("orders", 8, 3)
	s := one.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })

	p := s.Partitions(topic.ID)[0]
	var other int32
	for id := int32(1); id <= 4; id++ {
		if !p.HasReplica(id) {
			other = id
		}
	}
	target := []int32{other, p.Replicas[1], p.Replicas[2]}
	request := []ReassignRequest{{p.PartitionRef, target}, {metadata.PartitionRef{TopicID: topic.ID, Partition: 99}, target}}
	got, err := ctl.Reassign(ctx, request)
	if err != nil || got[0].Err != nil || !slices.Equal(got[0].Adding, []int32{other}) || !errors.Is(got[1].Err, ErrUnknownPartition) {
		t.Fatalf("%+v, %v", got, err)
	}
	if list, err := ctl.Reassignments(); err != nil || len(list) != 1 || list[0].Waiting == "" || !slices.Equal(list[0].Target, target) {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := ctl.Reassign(ctx, []ReassignRequest{request[0], request[0]}); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("one partition twice: %v", err)
	}
	ops, err := ctl.Operations()
	if err != nil || !slices.ContainsFunc(ops, func(op Operation) bool { return op.Kind == OperationReassignment && op.Total == 1 && op.Done == 0 }) {
		t.Errorf("%+v, %v", ops, err)
	}
	if got, err = ctl.CancelReassign(ctx, nil); err != nil || len(got) != 1 || got[0].Err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = ctl.CancelReassign(ctx, []metadata.PartitionRef{p.PartitionRef}); err != nil || !errors.Is(got[0].Err, ErrNoReassignment) {
		t.Errorf("%+v, %v", got, err)
	}

	for _, n := range nodes {
		n.grow.Store(true)
		n.sees(liveness.View{Beating: []int32{1, 2, 3, 4}, Hears: 3})
	}
	if got, err = ctl.Reassign(ctx, request[:1]); err != nil || got[0].Err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
	one.wait("moved", func(s *metadata.State) bool {
		now, _ := s.Partition(topic.ID, 0)
		return !Moving(now) && slices.Equal(now.Replicas, target) && now.HasReplica(now.Leader)
	})

	status, err := ctl.Drain(ctx, 4, false)
	if err != nil || status.State != metadata.StorageDraining || status.Replicas == 0 || len(status.Blocked) > 0 {
		t.Fatalf("%+v, %v", status, err)
	}
	var left *NotEmptyError
	if err := ctl.Decommission(ctx, 4, four.storage, false); !errors.As(err, &left) || len(left.Left) == 0 {
		t.Errorf("decommissioning a broker that holds something: %v", err)
	}
	one.wait("empty", func(s *metadata.State) bool {
		return !slices.ContainsFunc(s.Partitions(topic.ID), func(p *metadata.Partition) bool { return p.HasReplica(4) || Moving(p) })
	})
	if err := ctl.Decommission(ctx, 4, four.storage, false); !errors.Is(err, ErrBrokerLive) {
		t.Errorf("decommissioning a live broker: %v", err)
	}
	four.stop()
	one.wait("stopped", func(s *metadata.State) bool { _, alive := s.Broker(4); return !alive })
	if err := ctl.Decommission(ctx, 4, four.storage, false); err != nil {
		t.Errorf("Decommission: %v", err)
	}
	if _, err := ctl.Drain(ctx, 4, false); !errors.Is(err, ErrWrongState) {
		t.Errorf("draining a decommissioned broker: %v", err)
	}
	if err := ctl.Undrain(ctx, 4); err != nil {
		t.Errorf("Undrain: %v", err)
	}
}

func TestElectFenceAndSafety(t *testing.T) {
	one, _, tri := three(t)
	ctx, ctl := t.Context(), one.ctl
	topic := one.create("orders", 3, 3)
	one.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	if safety, err := ctl.SafeToStop(2); err != nil || !safety.Safe() || safety.Leaders != 1 || safety.Controller {
		t.Errorf("%+v, %v", safety, err)
	}
	one.sees(liveness.View{Confirmed: []int32{3}, Suspects: []int32{3}, Beating: []int32{1, 2}, Hears: 1})
	one.wait("moved", func(s *metadata.State) bool { return nobodyLeadsOn(s, topic.ID, 3) })
	if safety, err := ctl.SafeToStop(2); err != nil || len(safety.Blocking) != 3 {
		t.Errorf("%+v, %v", safety, err)
	}
	one.sees(liveness.View{Beating: []int32{1, 2, 3}, Hears: 2})
	led := one.cache.Snapshot().Partitions(topic.ID)
	at := slices.IndexFunc(led, func(p *metadata.Partition) bool { return p.Replicas[0] == 3 })
	if got, err := ctl.ElectLeaders(ctx, []metadata.PartitionRef{led[at].PartitionRef}, false); err != nil || !errors.Is(got[0].Err, ErrNotInSync) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, n := range []*node{one, tri} {
		n.grow.Store(true)
	}
	tri.sees(liveness.View{})
	if _, err := ctl.Drain(ctx, 2, false); err != nil { // wakes everybody, and empties broker 2 of leaderships
		t.Fatal(err)
	}
	one.wait("in sync again", func(s *metadata.State) bool {
		return nobodyLeadsOn(s, topic.ID, 2) && !slices.ContainsFunc(s.Partitions(topic.ID), func(p *metadata.Partition) bool { return len(p.ISR) < 3 })
	})
	if err := ctl.Undrain(ctx, 2); err != nil {
		t.Fatal(err)
	}
	dry, err := ctl.ElectLeaders(ctx, nil, true)
	if err != nil || len(dry) == 0 {
		t.Fatalf("%+v, %v", dry, err)
	}
	got, err := ctl.ElectLeaders(ctx, nil, false)
	if err != nil || len(got) != len(dry) || got[0].Err != nil || got[0].After == got[0].Before || got[0] != dry[0] {
		t.Errorf("%+v after %+v, %v", got, dry, err)
	}
	for _, p := range one.cache.Snapshot().Partitions(topic.ID) {
		if p.Leader != p.Replicas[0] {
			t.Errorf("partition %d is led by %d, replicas %v", p.Partition, p.Leader, p.Replicas)
		}
	}

	if err := ctl.AllowUnclean(led[0].PartitionRef, 1, "me"); !errors.Is(err, ErrWrongState) {
		t.Errorf("AllowUnclean = %v: there is a leader", err)
	}
	for _, n := range []*node{one, tri} {
		n.grow.Store(false)
	}
	affected, err := ctl.Fence(ctx, 3, tri.storage, false, true)
	if err != nil || len(affected) != 0 {
		t.Errorf("%+v, %v: two of three are left everywhere", affected, err)
	}
	if _, err := ctl.Fence(ctx, 3, tri.storage, false, false); err != nil {
		t.Fatal(err)
	}
	one.wait("out of every ISR", func(s *metadata.State) bool {
		return nobodyLeadsOn(s, topic.ID, 3) && !slices.ContainsFunc(s.Partitions(topic.ID), func(p *metadata.Partition) bool { return len(p.ISR) != 2 })
	})
	if err := ctl.Unfence(ctx, 3, tri.storage); err != nil {
		t.Fatal(err)
	}
	one.wait("eligible again", func(s *metadata.State) bool { return s.Eligible(3) })
}

// TestLoadReports count when every live broker has sent one, and only from who leads.
func TestLoadReports(t *testing.T) {
	one := startNode(t, 1, ids.NewStorageID())
	s := metadata.NewState(wide(2, 2, part(0, 1, 2), part(1, 2, 1)))
	one.ctl.ReportLoad(LoadReport{Broker: 1, Partitions: map[metadata.PartitionRef]PartitionLoad{refOf(0): {BytesIn: 1}, refOf(1): {BytesIn: 2}}})
	now := one.ctl.clk.Now()
	if got := one.ctl.loads(s, now); got != nil {
		t.Errorf("%v: broker 2 has not reported", got)
	}
	one.ctl.ReportLoad(LoadReport{Broker: 2, Partitions: map[metadata.PartitionRef]PartitionLoad{refOf(1): {BytesIn: 3}}})
	if got := one.ctl.loads(s, now); len(got) != 2 || got[refOf(0)].BytesIn != 1 || got[refOf(1)].BytesIn != 3 {
		t.Errorf("%v", got)
	}
	if got := one.ctl.loads(s, now.Add(2*loadsFor)); got != nil {
		t.Errorf("%v: the reports are old", got)
	}
}
