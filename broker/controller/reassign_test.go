package controller

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"runnel.dev/runnel/broker/metadata"
)

// catchUp puts brokers into the ISR.
func catchUp(p *metadata.Partition, ids ...int32) *metadata.Partition {
	next := p.Clone()
	for _, id := range ids {
		if _, in := next.Member(id); !in {
			next.ISR = append(next.ISR, member(id, disks[id-1], log1))
		}
	}
	return next
}

func wantRecord(t *testing.T, p *metadata.Partition, leader int32, replicas, adding, removing, isr []int32) {
	t.Helper()
	if p == nil {
		t.Fatal("no change")
	}
	if p.Leader != leader || !slices.Equal(p.Replicas, replicas) || !slices.Equal(p.Adding, adding) || !slices.Equal(p.Removing, removing) ||
		!slices.Equal(brokersOf(p.ISR), isr) {
		t.Errorf("leader %d replicas %v adding %v removing %v isr %v; want %d %v %v %v %v",
			p.Leader, p.Replicas, p.Adding, p.Removing, brokersOf(p.ISR), leader, replicas, adding, removing, isr)
	}
}

func TestReassignmentFromBeginningToEnd(t *testing.T) {
	s := metadata.NewState(cluster(5))
	p := Retarget(part(0, 1, 2, 3), []int32{4, 2, 5})
	wantRecord(t, p, 1, []int32{4, 2, 5, 1, 3}, []int32{4, 5}, []int32{1, 3}, []int32{1, 2, 3})
	if next := Next(s, p, 2, Input{}); next != nil {
		t.Errorf("nobody has caught up: %+v", next)
	}
	p = catchUp(p, 4)
	if next := Next(s, p, 2, Input{}); next != nil {
		t.Errorf("one of two has caught up: %+v", next)
	}
	p = catchUp(p, 5)
	if next := Next(s, p, 2, suspects(5)); next == nil || !Moving(next) {
		t.Errorf("a suspect completes nothing: %+v", next)
	}
	next := Next(s, p, 2, Input{})
	wantRecord(t, next, 4, []int32{4, 2, 5}, nil, nil, []int32{2, 4, 5})
	if next.LeaderEpoch != 6 {
		t.Errorf("epoch %d", next.LeaderEpoch)
	}
}

func TestReassignmentKeepsALeaderThatStays(t *testing.T) {
	p := catchUp(Retarget(part(0, 1, 2, 3), []int32{4, 1, 2}), 4)
	next := Next(metadata.NewState(cluster(4)), p, 2, Input{})
	wantRecord(t, next, 1, []int32{4, 1, 2}, nil, nil, []int32{1, 2, 4})
	if next.LeaderEpoch != 5 {
		t.Errorf("epoch %d", next.LeaderEpoch)
	}
}

// TestReassignmentWaitsForTheMinimum: what is left has to be enough, and alive.
func TestReassignmentWaitsForTheMinimum(t *testing.T) {
	p := catchUp(Retarget(inSync(part(0, 1, 2, 3), 1, 2), []int32{4, 3, 1}), 4) // 3 is out of sync, 1 and 4 are in
	if next := Next(metadata.NewState(cluster(4)), p, 3, Input{}); next != nil {
		t.Errorf("%+v", next)
	}
	wantRecord(t, Next(metadata.NewState(cluster(4)), p, 2, Input{}), 1, []int32{4, 3, 1}, nil, nil, []int32{1, 4})
	in := Input{Health: Health{Suspects: set(1), Beating: set(1, 2, 3, 4)}}
	next := Next(metadata.NewState(cluster(4)), p, 2, in)
	if next == nil || !Moving(next) || next.Leader == 1 {
		t.Errorf("1 is suspected, so the target has one member that lives: %+v", next)
	}
}

func TestCancel(t *testing.T) {
	s := metadata.NewState(cluster(5))
	p := Retarget(part(0, 1, 2, 3), []int32{4, 2, 5})
	// Nobody has caught up: the new ones go at once.
	wantRecord(t, Cancel(p), 1, []int32{2, 1, 3}, nil, nil, []int32{1, 2, 3})
	if Moving(Cancel(p)) || Cancel(Cancel(p)) != nil {
		t.Error("something is under way")
	}
	// One has, and leads: it goes in an orderly way.
	p = catchUp(p, 4)
	p.Leader, p.LeaderBrokerEpoch = 4, 40
	back := Cancel(p)
	wantRecord(t, back, 4, []int32{2, 1, 3, 4}, nil, []int32{4}, []int32{1, 2, 3, 4})
	wantRecord(t, Next(s, back, 2, Input{}), 2, []int32{2, 1, 3}, nil, nil, []int32{1, 2, 3})
}

func TestRetargetUnderWay(t *testing.T) {
	p := catchUp(Retarget(part(0, 1, 2, 3), []int32{4, 2, 5}), 4)
	if Retarget(p, []int32{4, 2, 5}) != nil {
		t.Error("it is going there already")
	}
	// 5 had not caught up and goes at once, 4 had and is removed with the rest.
	wantRecord(t, Retarget(p, []int32{6, 2, 3}), 1, []int32{6, 2, 3, 4, 1}, []int32{6}, []int32{4, 1}, []int32{1, 2, 3, 4})
	// Another order of the same replicas is all that changes.
	wantRecord(t, Retarget(part(0, 1, 2, 3), []int32{3, 1, 2}), 1, []int32{3, 1, 2}, nil, nil, []int32{1, 2, 3})
}

// TestReassignmentLaws: begin, change, cancel, catch up, die, come back, in any order: every record fits together, the ISR keeps the
// minimum, and when everybody is well and has caught up, the replicas are what was asked for last.
func TestReassignmentLaws(t *testing.T) {
	builder := metadata.NewBuilder("laws")
	rapid.Check(t, func(t *rapid.T) {
		const n, r = 6, 3
		c := cluster(n)
		p := part(0, 1, 2, 3)
		last := []int32{1, 2, 3}
		in := Input{Health: Health{Suspects: map[int32]bool{}}}
		s := metadata.NewState(c)
		minISR := rapid.IntRange(1, r).Draw(t, "minimum")
		check := func(what string, next *metadata.Partition) {
			if next == nil {
				return
			}
			if _, err := builder.SetReassignment(metadata.Tenure{}, []*metadata.Partition{next}); err != nil {
				t.Fatalf("%s: %v (%+v)", what, err, next)
			}
			if len(next.ISR) < minISR {
				t.Fatalf("%s: ISR %v, minimum %d", what, brokersOf(next.ISR), minISR)
			}
			p = next
		}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			id := rapid.Int32Range(1, n).Draw(t, "broker")
			switch rapid.IntRange(0, 5).Draw(t, "event") {
			case 0:
				target := rapid.Permutation([]int32{1, 2, 3, 4, 5, 6}).Draw(t, "target")[:r]
				if next := Retarget(p, target); next != nil {
					check("retarget", next)
				}
				last = target
			case 1:
				if Moving(p) {
					last = Holders(p)
					check("cancel", Cancel(p))
				}
			case 2, 3:
				if p.HasReplica(id) && !in.Health.Suspects[id] {
					check("catch up", catchUp(p, id))
				}
			case 4:
				in.Health.Suspects[id] = true
			case 5:
				delete(in.Health.Suspects, id)
			}
			check("next", Next(s, p, minISR, in))
		}
		clear(in.Health.Suspects)
		for range 5 {
			check("catch up", catchUp(p, p.Replicas...))
			check("next", Next(s, p, minISR, in))
		}
		if Moving(p) || !slices.Equal(p.Replicas, last) || !slices.Contains(last, p.Leader) {
			t.Fatalf("%+v, want %v", p, last)
		}
	})
}

// wide is a cluster with a topic of r replicas per partition.
func wide(n, r int, partitions ...*metadata.Partition) metadata.Contents {
	c := cluster(n)
	c.Topics = []*metadata.Topic{topic(metadata.TopicActive, int32(len(partitions)), int32(len(partitions)))}
	c.Topics[0].Replicas, c.Partitions = int32(r), partitions
	return c
}

// settle carries decisions out, and lets everybody catch up in between, until nothing is left to do. It returns the contents and the most
// partitions that were moving to or from one broker at a time.
func settle(t *testing.T, c metadata.Contents, in Input) (metadata.Contents, int) {
	t.Helper()
	most := 0
	for range 1000 {
		s := metadata.NewState(c)
		plan := Decide(s, nil, in)
		if plan.Empty() {
			return c, most
		}
		now := slices.Clone(c.Partitions)
		for _, next := range slices.Concat(plan.Update, plan.Reassign, plan.Moves) {
			now[next.Partition] = next
		}
		moving := map[int32]int{}
		for i, p := range now {
			for _, id := range slices.Concat(p.Adding, p.Removing) {
				moving[id]++
				most = max(most, moving[id])
			}
			now[i] = catchUp(p, slices.DeleteFunc(slices.Clone(p.Replicas), func(id int32) bool { return !s.Eligible(id) })...)
		}
		c.Partitions = now
		if len(plan.Eligible) > 0 {
			t.Fatalf("plan %+v", plan)
		}
	}
	t.Fatal("it never ends")
	return c, most
}

func TestDrain(t *testing.T) {
	var partitions []*metadata.Partition
	for i, replicas := range Place([]int32{1, 2, 3, 4}, nil, Load{map[int32]int{}, map[int32]int{}}, 40, 3) {
		partitions = append(partitions, part(int32(i), replicas...))
	}
	c := inState(wide(4, 3, partitions...), 2, metadata.StorageDraining)
	in := Input{Settings: Settings{MaxMoves: 5}}

	plan := Decide(metadata.NewState(c), nil, in)
	if len(plan.Update) == 0 || len(plan.Reassign) > 0 {
		t.Fatalf("leaderships move away first: %d updates, %d reassignments", len(plan.Update), len(plan.Reassign))
	}
	for _, p := range plan.Update {
		if p.Leader == 2 || c.Partitions[p.Partition].Leader != 2 {
			t.Errorf("%+v", p)
		}
	}
	c, most := settle(t, c, in)
	if most != 5 {
		t.Errorf("%d at a time, want 5", most)
	}
	s := metadata.NewState(c)
	progress, err := DrainProgress(s, in, 2)
	if err != nil || progress.Replicas != 0 || len(progress.Blocked) > 0 {
		t.Errorf("%+v, %v", progress, err)
	}
	counts := map[int32]int{}
	for _, p := range c.Partitions {
		if len(p.Replicas) != 3 || repeats(p.Replicas) {
			t.Errorf("replicas %v", p.Replicas)
		}
		for _, id := range p.Replicas {
			counts[id]++
		}
	}
	if spread([]int32{1, 3, 4}, counts) > 0 {
		t.Errorf("replicas %v: three brokers hold everything", counts)
	}
}

// TestDrainWithoutRoom: three replicas on three brokers. Leaderships move, replicas cannot, and the status says so; a fourth broker helps.
func TestDrainWithoutRoom(t *testing.T) {
	c := inState(wide(3, 3, part(0, 2, 1, 3), part(1, 1, 2, 3)), 2, metadata.StorageDraining)
	c, _ = settle(t, c, Input{})
	s := metadata.NewState(c)
	progress, err := DrainProgress(s, Input{}, 2)
	if err != nil || progress.Replicas != 2 || progress.Leaders != 0 || len(progress.Blocked) != 2 {
		t.Errorf("%+v, %v", progress, err)
	}
	var left *NotEmptyError
	if _, err := planDecommission(s, 2, disk2); !errors.As(err, &left) || len(left.Left) != 2 || left.Broker != 2 {
		t.Errorf("decommission: %v", err)
	}
	four := cluster(4)
	c.Brokers, c.Storages = four.Brokers, inState(four, 2, metadata.StorageDraining).Storages
	c, _ = settle(t, c, Input{})
	if progress, _ := DrainProgress(metadata.NewState(c), Input{}, 2); progress.Replicas != 0 {
		t.Errorf("%+v", progress)
	}
}

// TestDrainOfADeadBroker: its replicas are made anew elsewhere.
func TestDrainOfADeadBroker(t *testing.T) {
	c := without(inState(wide(4, 3, part(0, 2, 1, 3)), 2, metadata.StorageDraining), 2)
	s := metadata.NewState(c)
	p := Next(s, c.Partitions[0], 2, Input{})
	wantRecord(t, p, 1, []int32{2, 1, 3}, nil, nil, []int32{1, 3})
	c.Partitions[0] = p
	plan := Decide(metadata.NewState(c), nil, Input{})
	if len(plan.Reassign) != 1 {
		t.Fatalf("%+v", plan)
	}
	wantRecord(t, plan.Reassign[0], 1, []int32{4, 1, 3, 2}, []int32{4}, []int32{2}, []int32{1, 3})
	c.Partitions[0] = Next(s, catchUp(plan.Reassign[0], 4), 2, Input{})
	next, err := planDecommission(metadata.NewState(c), 2, disk2)
	if err != nil || next.State != metadata.StorageDecommissioned {
		t.Errorf("%+v, %v", next, err)
	}
}

// TestDrainTargetIsDrainedToo: a reassignment towards a broker that is drained meanwhile turns elsewhere.
func TestDrainTargetIsDrainedToo(t *testing.T) {
	p := Retarget(part(0, 1, 2, 3), []int32{4, 2, 3})
	c := inState(inState(wide(5, 3, p), 1, metadata.StorageDraining), 4, metadata.StorageDraining)
	c, _ = settle(t, c, Input{})
	if got := slices.Sorted(slices.Values(c.Partitions[0].Replicas)); !slices.Equal(got, []int32{2, 3, 5}) || Moving(c.Partitions[0]) {
		t.Errorf("%+v", c.Partitions[0])
	}
}

func TestReplicationChange(t *testing.T) {
	c := wide(4, 3, part(0, 1), part(1, 2))
	for i, rack := range []string{"a", "a", "b", "b"} {
		c.Brokers[i].Rack = rack
	}
	if got := MinISR(c.Topics[0], Retarget(part(0, 1), []int32{1, 2, 3}), nil); got != 1 {
		t.Errorf("minimum %d while the second and third replica catch up", got)
	}
	c, _ = settle(t, c, Input{})
	for _, p := range c.Partitions {
		racks := map[string]int{}
		for _, id := range p.Replicas {
			racks[c.Brokers[id-1].Rack]++
		}
		if len(p.Replicas) != 3 || repeats(p.Replicas) || len(racks) != 2 || p.Replicas[0] != p.Partition+1 {
			t.Errorf("replicas %v in racks %v", p.Replicas, racks)
		}
		if MinISR(c.Topics[0], p, nil) != 2 {
			t.Error("the minimum stays 1")
		}
	}
	smaller := *c.Topics[0]
	smaller.Replicas = 2
	c.Topics = []*metadata.Topic{&smaller}
	c, _ = settle(t, c, Input{})
	for _, p := range c.Partitions {
		if len(p.Replicas) != 2 || c.Brokers[p.Replicas[0]-1].Rack == c.Brokers[p.Replicas[1]-1].Rack || p.Replicas[0] != p.Partition+1 {
			t.Errorf("replicas %v", p.Replicas)
		}
	}
}

func TestReplicationChangeDropsTheDead(t *testing.T) {
	c := without(wide(3, 2, inSync(part(0, 1, 2, 3), 1, 3)), 2)
	c, _ = settle(t, c, Input{})
	if got := c.Partitions[0].Replicas; !slices.Equal(got, []int32{1, 3}) {
		t.Errorf("replicas %v", got)
	}
}

func TestReassignRequests(t *testing.T) {
	c := inState(wide(5, 3, part(0, 1, 2, 3)), 5, metadata.StorageDraining)
	c.Storages = append(c.Storages, stored(6, 60, disks[5]))
	s := metadata.NewState(c)
	ref := metadata.PartitionRef{TopicID: topicID}
	for name, tc := range map[string]struct {
		ref      metadata.PartitionRef
		replicas []int32
		in       Input
		want     error
	}{
		"fine":                          {ref, []int32{4, 2, 1}, Input{}, nil},
		"what it has already":           {ref, []int32{1, 2, 3}, Input{}, nil},
		"unknown partition":             {metadata.PartitionRef{TopicID: topicID, Partition: 1}, []int32{1, 2, 3}, Input{}, ErrUnknownPartition},
		"none":                          {ref, nil, Input{}, metadata.ErrInvalidArgument},
		"twice the same":                {ref, []int32{1, 2, 1}, Input{}, metadata.ErrInvalidArgument},
		"fewer than the minimum":        {ref, []int32{4}, Input{}, metadata.ErrInvalidArgument},
		"fewer than the topic's number": {ref, []int32{4, 1}, Input{}, metadata.ErrInvalidArgument},
		"more than the topic's number":  {ref, []int32{4, 1, 2, 3}, Input{}, metadata.ErrInvalidArgument},
		"more than there are brokers":   {ref, []int32{1, 2, 3, 4, 7, 8}, Input{}, ErrTooFewBrokers},
		"unknown broker":                {ref, []int32{1, 2, 7}, Input{}, ErrUnknownBroker},
		"a broker that is away":         {ref, []int32{1, 2, 6}, Input{}, ErrWrongState},
		"a broker that is drained":      {ref, []int32{1, 2, 5}, Input{}, ErrWrongState},
		"a broker that is suspected":    {ref, []int32{1, 2, 4}, suspects(4), ErrWrongState},
		"a suspect that has it already": {ref, []int32{3, 2, 1}, suspects(3), nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, next, err := planReassign(s, nil, &tc.in, ReassignRequest{tc.ref, tc.replicas})
			if !errors.Is(err, tc.want) || (tc.want != nil) != (err != nil) || err != nil && next != nil {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

func TestPreviewReassign(t *testing.T) {
	s := metadata.NewState(wide(5, 3, part(0, 1, 2, 3), part(1, 1, 2, 3)))
	ref, other := metadata.PartitionRef{TopicID: topicID}, metadata.PartitionRef{TopicID: topicID, Partition: 1}
	got := PreviewReassign(s, nil, Input{}, []ReassignRequest{{ref, []int32{4, 5, 1}}, {other, []int32{4, 2, 1}}, {ref, []int32{3, 2, 1}}, {ref, []int32{9, 2, 1}}},
		map[metadata.PartitionRef]int64{ref: 1000})
	if got[0].Bytes != 2000 || got[1].Bytes != -1 || got[2].Bytes != 0 || !errors.Is(got[3].Err, ErrUnknownBroker) {
		t.Errorf("%+v", got)
	}
	if p := got[0]; !slices.Equal(p.Before, []int32{1, 2, 3}) || !slices.Equal(p.Target, []int32{4, 5, 1}) || !slices.Equal(p.Adding, []int32{4, 5}) ||
		!slices.Equal(p.Removing, []int32{2, 3}) || p.Topic != "t" || p.Waiting == "" {
		t.Errorf("%+v", p)
	}
	if p, _ := s.Partition(topicID, 0); Moving(p) || len(Reassignments(s, Input{})) != 0 {
		t.Error("a preview has changed something")
	}
}
