package controller

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

var disks = []ids.StorageID{disk1, disk2, disk3, ids.NewStorageID(), ids.NewStorageID(), ids.NewStorageID()}

// cluster has brokers 1 to n, each registered under ten times its id, with the disk of its number, eligible.
func cluster(n int) metadata.Contents {
	c := metadata.Contents{Position: metadata.Position{Revision: 1000}}
	for id := int32(1); id <= int32(n); id++ {
		c.Brokers = append(c.Brokers, alive(id, 10*int64(id), disks[id-1]))
		c.Storages = append(c.Storages, stored(id, 10*int64(id), disks[id-1]))
	}
	return c
}

// without takes the registrations of brokers away.
func without(c metadata.Contents, gone ...int32) metadata.Contents {
	c.Brokers = slices.DeleteFunc(slices.Clone(c.Brokers), func(b *metadata.Broker) bool { return slices.Contains(gone, b.ID) })
	return c
}

// inState puts a broker's storage in another state.
func inState(c metadata.Contents, id int32, state metadata.StorageState) metadata.Contents {
	c.Storages = slices.Clone(c.Storages)
	for i, st := range c.Storages {
		if st.BrokerID == id {
			next := *st
			next.State = state
			c.Storages[i] = &next
		}
	}
	return c
}

// part is a partition led by its first replica at epoch 5, with everybody in sync.
func part(number int32, replicas ...int32) *metadata.Partition {
	p := &metadata.Partition{
		PartitionRef: metadata.PartitionRef{TopicID: topicID, Partition: number}, Leader: replicas[0], LeaderEpoch: 5, LeaderBrokerEpoch: 10 * int64(replicas[0]),
		Replicas: replicas,
	}
	for _, id := range replicas {
		p.ISR = append(p.ISR, member(id, disks[id-1], log1))
	}
	return p
}

// inSync leaves only these in the ISR.
func inSync(p *metadata.Partition, ids ...int32) *metadata.Partition {
	p.ISR = keep(p.ISR, func(m metadata.Member) bool { return slices.Contains(ids, m.BrokerID) })
	return p
}

func set(ids ...int32) map[int32]bool {
	out := map[int32]bool{}
	for _, id := range ids {
		out[id] = true
	}
	return out
}

func suspects(ids ...int32) Input { return Input{Health: Health{Suspects: set(ids...)}} }

func unwritable(ids ...int32) Input { return Input{Health: Health{Unwritable: set(ids...)}} }

// unwritableLog: the log of one partition takes no writes on some brokers.
func unwritableLog(n int32, ids ...int32) Input {
	h := Health{UnwritableLogs: map[int32]map[metadata.PartitionRef]bool{}}
	for _, id := range ids {
		h.UnwritableLogs[id] = map[metadata.PartitionRef]bool{{TopicID: topicID, Partition: n}: true}
	}
	return Input{Health: h}
}

// TestFullDisksAndTheRest: what decisions other than elections make of brokers that take no writes.
func TestFullDisksAndTheRest(t *testing.T) {
	t.Run("leaders come back when the disk has space", func(t *testing.T) {
		s := metadata.NewState(wide(3, 3, leader(part(0, 1, 2, 3), 2), leader(part(1, 3, 1, 2), 1)))
		in := unwritable(1)
		in.Balance = true
		if plan := Decide(s, nil, in); len(plan.Update) != 1 || plan.Update[0].Leader != 3 {
			t.Errorf("%+v", plan)
		}
		s = metadata.NewState(wide(3, 3, leader(part(0, 1, 2, 3), 2), part(1, 3, 1, 2)))
		if plan := Decide(s, nil, in); !plan.Empty() {
			t.Errorf("leaders go to a full disk: %+v", plan)
		}
		one := unwritableLog(0, 1)
		one.Balance = true
		if plan := Decide(s, nil, one); !plan.Empty() {
			t.Errorf("leaders go to a log that takes no writes: %+v", plan)
		}
		if plan := Decide(s, nil, Input{Balance: true}); len(plan.Moves) != 1 || plan.Moves[0].Leader != 1 {
			t.Errorf("%+v", plan)
		}
	})
	t.Run("load does not go to a full disk", func(t *testing.T) {
		s := metadata.NewState(wide(3, 3, part(0, 2, 1, 3), part(1, 2, 1, 3), part(2, 3, 1, 2)))
		in := Input{Balance: true, Loads: map[metadata.PartitionRef]PartitionLoad{refOf(0): {BytesIn: 5e8}, refOf(1): {BytesIn: 5e8}}}
		if moves := Balance(s, in); len(moves) != 1 || moves[0].Leader != 1 {
			t.Errorf("%+v", moves)
		}
		in.Health.Unwritable = set(1)
		for _, p := range Balance(s, in) {
			if p.Leader == 1 {
				t.Errorf("%+v", p)
			}
		}
	})
	t.Run("new partitions go elsewhere, if there is an elsewhere", func(t *testing.T) {
		s := metadata.NewState(cluster(4))
		in := unwritable(2)
		placed := func(replicas int) []*metadata.Partition {
			out := []*metadata.Partition{{PartitionRef: refOf(0)}, {PartitionRef: refOf(1)}}
			if !newPlacer(s, &in).place(out, replicas) {
				t.Fatalf("%d replicas find no place", replicas)
			}
			return out
		}
		for _, p := range placed(3) {
			if p.HasReplica(2) {
				t.Errorf("replicas %v", p.Replicas)
			}
		}
		for _, p := range placed(4) {
			if len(p.Replicas) != 4 {
				t.Errorf("replicas %v", p.Replicas)
			}
		}
	})
	t.Run("the first election does not wait for a full disk", func(t *testing.T) {
		p := changed(inSync(part(0, 1, 2, 3), 1, 2), func(p *metadata.Partition) { p.Leader, p.LeaderEpoch, p.LeaderBrokerEpoch = -1, 0, 0 })
		s := metadata.NewState(cluster(3))
		if next := Next(s, p, 2, Input{}); next != nil {
			t.Errorf("%+v", next)
		}
		if next := Next(s, p, 2, unwritable(3)); next == nil || next.Leader != 1 {
			t.Errorf("%+v", next)
		}
	})
	t.Run("a preferred leader on request", func(t *testing.T) {
		in := unwritable(1)
		if _, next, err := planPreferred(metadata.NewState(wide(3, 3, leader(part(0, 1, 2, 3), 2))), &in, refOf(0)); !errors.Is(err, ErrWrongState) {
			t.Errorf("%+v, %v", next, err)
		}
	})
	t.Run("an unclean election may: reads are better than nothing", func(t *testing.T) {
		if err := CheckUnclean(metadata.NewState(without(wide(3, 3, inSync(part(0, 1, 2, 3), 1)), 1)), unwritable(2), refOf(0), 2); err != nil {
			t.Error(err)
		}
	})
	t.Run("a reassignment does not end on a full disk while somebody else leads", func(t *testing.T) {
		p := changed(part(0, 2, 3, 1), func(p *metadata.Partition) { p.Removing = []int32{1}; leader(p, 1) })
		s := metadata.NewState(cluster(3))
		if next := Next(s, p, 1, unwritable(2, 3)); next != nil {
			t.Errorf("%+v", next)
		}
		if next := Next(s, p, 1, unwritable(2)); next == nil || next.Leader != 3 || Moving(next) {
			t.Errorf("%+v", next)
		}
		if next := Next(s, p, 1, unwritable(1, 2, 3)); next == nil || next.Leader != 2 || Moving(next) {
			t.Errorf("%+v", next)
		}
	})
}

func TestNextByHealth(t *testing.T) {
	draining2 := inState(cluster(3), 2, metadata.StorageDraining)
	for name, tc := range map[string]struct {
		c      metadata.Contents
		p      *metadata.Partition
		minISR int
		in     Input
		// want is the leader and the ISR after; the epoch is 6 when it moved. nil: no change.
		want []int32
	}{
		"all is well":                                       {cluster(3), part(0, 1, 2, 3), 2, Input{}, nil},
		"the leader is suspected":                           {cluster(3), part(0, 1, 2, 3), 2, suspects(1), []int32{2, 2, 3}},
		"a follower is suspected":                           {cluster(3), part(0, 1, 2, 3), 2, suspects(3), []int32{1, 1, 2}},
		"a suspect at the minimum stays a member":           {cluster(3), inSync(part(0, 1, 2, 3), 1, 3), 2, suspects(3), nil},
		"a suspected leader at the minimum":                 {cluster(3), inSync(part(0, 1, 2, 3), 1, 3), 2, suspects(1), []int32{3, 1, 3}},
		"suspicion of the only usable member":               {cluster(3), inSync(part(0, 1, 2, 3), 1), 2, suspects(1), nil},
		"suspicion of everyone":                             {cluster(3), part(0, 1, 2, 3), 2, suspects(1, 2, 3), nil},
		"only a suspect could follow a leader that is gone": {without(cluster(3), 1), inSync(part(0, 1, 2, 3), 1, 2), 2, suspects(2), []int32{2, 1, 2}},
		"a well member is preferred to a suspect":           {without(cluster(3), 1), part(0, 1, 2, 3), 2, suspects(2), []int32{3, 2, 3}},
		"the leader stops":                                  {cluster(3), part(0, 1, 2, 3), 2, Input{Health: Health{Stopping: set(1)}}, []int32{2, 2, 3}},
		"the leader stops and only a suspect is left":       {cluster(3), inSync(part(0, 1, 2, 3), 1, 2), 1, Input{Health: Health{Stopping: set(1), Suspects: set(2)}}, nil},
		"the leader is suspected, the other stops":          {cluster(3), inSync(part(0, 1, 2, 3), 1, 2), 2, Input{Health: Health{Stopping: set(2), Suspects: set(1)}}, []int32{2, 1, 2}},
		"everybody stops":                                   {cluster(3), part(0, 1, 2, 3), 2, Input{Health: Health{Stopping: set(1, 2, 3)}}, nil},
		"a follower stops":                                  {cluster(3), part(0, 1, 2, 3), 2, Input{Health: Health{Stopping: set(2)}}, []int32{1, 1, 3}},
		"the deadest leaves first":                          {without(cluster(4), 4), part(0, 1, 2, 3, 4), 3, Input{Health: Health{Stopping: set(2), Suspects: set(3)}}, []int32{1, 1, 2, 3}},
		"a lapsed leader that beats keeps its place":        {without(cluster(3), 1), part(0, 1, 2, 3), 2, Input{Health: Health{Beating: set(1, 2, 3)}}, nil},
		"a lapsed follower that beats stays":                {without(cluster(3), 3), part(0, 1, 2, 3), 2, Input{Health: Health{Beating: set(1, 2, 3)}}, nil},
		"a follower is gone":                                {without(cluster(3), 3), part(0, 1, 2, 3), 2, Input{Health: Health{Beating: set(1, 2)}}, []int32{1, 1, 2}},
		"a follower is gone, at the minimum":                {without(cluster(3), 3), part(0, 1, 2, 3), 3, Input{}, nil},
		"the leader is gone, at the minimum":                {without(cluster(3), 1), part(0, 1, 2, 3), 3, Input{}, []int32{2, 1, 2, 3}},
		"everybody else is gone":                            {without(cluster(3), 2, 3), part(0, 1, 2, 3), 1, Input{}, []int32{1, 1}},
		"nobody is there":                                   {without(cluster(3), 1, 2, 3), part(0, 1, 2, 3), 1, Input{}, nil},
		"a suspect that came back is spared":                {cluster(3), part(0, 1, 2, 3), 2, Input{Health: Health{Suspects: set(3)}, Spared: set(3)}, nil},
		"a spared suspect does not lead":                    {cluster(3), part(0, 1, 2, 3), 2, Input{Health: Health{Suspects: set(1)}, Spared: set(1)}, []int32{2, 1, 2, 3}},
		"a draining leader gives way":                       {inState(cluster(3), 1, metadata.StorageDraining), part(0, 1, 2, 3), 2, Input{}, []int32{2, 1, 2, 3}},
		"but not to another one":                            {inState(inState(cluster(2), 1, metadata.StorageDraining), 2, metadata.StorageDraining), part(0, 1, 2), 2, Input{}, nil},
		"a draining member comes last":                      {draining2, part(0, 1, 2, 3), 2, suspects(1), []int32{3, 2, 3}},
		"a draining member leads before a suspect":          {draining2, inSync(part(0, 1, 2, 3), 1, 2), 2, suspects(1), []int32{2, 1, 2}},
		"a fenced leader: its storage is lost":              {inState(cluster(3), 1, metadata.StorageFenced), part(0, 1, 2, 3), 3, Input{}, []int32{2, 2, 3}},
		"fenced, and nobody else is in sync":                {inState(cluster(3), 1, metadata.StorageFenced), inSync(part(0, 1, 2, 3), 1), 1, Input{}, []int32{-1}},
		"a fenced follower, below the minimum":              {inState(cluster(2), 2, metadata.StorageFenced), part(0, 1, 2), 2, Input{}, []int32{1, 1}},
		"the leader's disk is full":                         {cluster(3), part(0, 1, 2, 3), 2, unwritable(1), []int32{2, 1, 2, 3}},
		"a follower's disk is full":                         {cluster(3), part(0, 1, 2, 3), 2, unwritable(2), nil},
		"full disks: the first that can write leads":        {cluster(3), part(0, 1, 2, 3), 2, unwritable(1, 2), []int32{3, 1, 2, 3}},
		"every disk is full":                                {cluster(3), part(0, 1, 2, 3), 2, unwritable(1, 2, 3), nil},
		"everybody in sync has a full disk":                 {cluster(3), inSync(part(0, 1, 2, 3), 1, 2), 2, unwritable(1, 2), nil},
		"a full disk is preferred to a suspect":             {cluster(3), inSync(part(0, 1, 2, 3), 1, 2), 2, Input{Health: Health{Suspects: set(1), Unwritable: set(2)}}, []int32{2, 1, 2}},
		"and to a broker that stops":                        {cluster(3), inSync(part(0, 1, 2, 3), 1, 2), 2, Input{Health: Health{Stopping: set(1), Unwritable: set(2)}}, []int32{2, 1, 2}},
		"a full disk does not give way to one that stops":   {cluster(3), inSync(part(0, 1, 2, 3), 1, 2), 2, Input{Health: Health{Stopping: set(2), Unwritable: set(1)}}, nil},
		"a full disk gives way to a draining broker":        {draining2, inSync(part(0, 1, 2, 3), 1, 2), 2, unwritable(1), []int32{2, 1, 2}},
		"an election where only full disks are left":        {without(cluster(3), 1), part(0, 1, 2, 3), 2, unwritable(2, 3), []int32{2, 2, 3}},
		"an election prefers who can write":                 {without(cluster(3), 1), part(0, 1, 2, 3), 2, unwritable(2), []int32{3, 2, 3}},
		"the leader's log takes no writes":                  {cluster(3), part(0, 1, 2, 3), 2, unwritableLog(0, 1), []int32{2, 1, 2, 3}},
		"another log of the leader takes no writes":         {cluster(3), part(0, 1, 2, 3), 2, unwritableLog(7, 1), nil},
		"no log of the partition takes writes":              {cluster(3), part(0, 1, 2, 3), 2, unwritableLog(0, 1, 2, 3), nil},
		"an election passes by a log that takes no writes":  {without(cluster(3), 1), part(0, 1, 2, 3), 2, unwritableLog(0, 2), []int32{3, 2, 3}},
		"no leader, nobody leaves the ISR": {
			without(cluster(3), 1, 2), changed(inSync(part(0, 1, 2, 3), 1, 2), func(p *metadata.Partition) { p.Leader, p.LeaderBrokerEpoch = -1, 0 }), 1, Input{}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := metadata.NewState(tc.c)
			next := Next(s, tc.p, tc.minISR, tc.in)
			if next == nil {
				if tc.want != nil {
					t.Fatalf("no change, want %v", tc.want)
				}
				return
			}
			got := append([]int32{next.Leader}, brokersOf(next.ISR)...)
			if !slices.Equal(got, tc.want) {
				t.Errorf("leader and ISR %v, want %v", got, tc.want)
			}
			moved := next.Leader != tc.p.Leader
			if moved != (next.LeaderEpoch == 6) || !moved && next.LeaderEpoch != 5 {
				t.Errorf("epoch %d", next.LeaderEpoch)
			}
			if more := Next(s, next, tc.minISR, tc.in); more != nil {
				t.Errorf("asks for more: %+v", more)
			}
		})
	}
}

func TestHealthOfView(t *testing.T) {
	h := HealthOf(liveness.View{
		Suspects: []int32{1, 2}, Confirmed: []int32{2}, Stopping: []int32{3}, Beating: []int32{1, 4},
		Unwritable: []int32{5}, UnwritableLogs: map[int32][]liveness.Log{6: {{TopicID: topicID, Partition: 7}}},
	})
	if !maps.Equal(h.Unwritable, set(5)) || len(h.UnwritableLogs) != 1 || !maps.Equal(h.UnwritableLogs[6], map[metadata.PartitionRef]bool{refOf(7): true}) {
		t.Errorf("%+v", h)
	}
	if !maps.Equal(h.Suspects, set(2)) || !maps.Equal(h.Stopping, set(3)) || !maps.Equal(h.Beating, set(1, 4)) {
		t.Errorf("%+v", h)
	}
}

// TestLongestLogAfterAnUncleanStop: without a leader, the order of the replicas decides, unless it is known who has more.
func TestLongestLogAfterAnUncleanStop(t *testing.T) {
	p := part(0, 1, 2, 3)
	p.Leader, p.LeaderBrokerEpoch = metadata.NoLeader, 0
	s := metadata.NewState(cluster(3))
	if next := Next(s, p, 2, Input{}); next.Leader != 1 {
		t.Errorf("leader %d", next.Leader)
	}
	for _, tc := range []struct {
		ends map[int32]End
		want int32
	}{
		{map[int32]End{1: {4, 100}, 2: {5, 10}, 3: {5, 9}}, 2},
		{map[int32]End{1: {5, 10}, 2: {5, 10}, 3: {5, 11}}, 3},
		{map[int32]End{1: {5, 10}, 2: {5, 10}, 3: {5, 10}}, 1},
		{map[int32]End{3: {5, 0}}, 3},
	} {
		in := Input{Ends: map[metadata.PartitionRef]map[int32]End{p.PartitionRef: tc.ends}}
		if next := Next(s, p, 2, in); next.Leader != tc.want {
			t.Errorf("%v: leader %d, want %d", tc.ends, next.Leader, tc.want)
		}
	}
	in := suspects(3)
	in.Ends = map[metadata.PartitionRef]map[int32]End{p.PartitionRef: {3: {9, 9}}}
	if next := Next(s, p, 2, in); next.Leader != 1 {
		t.Errorf("leader %d: the longest log is of a suspect, and all members have what was acknowledged", next.Leader)
	}
}

func TestFirstElectionDoesNotWaitForASuspect(t *testing.T) {
	p := inSync(part(0, 1, 2, 3), 1, 2)
	p.Leader, p.LeaderEpoch, p.LeaderBrokerEpoch = metadata.NoLeader, 0, 0
	s := metadata.NewState(cluster(3))
	if next := Next(s, p, 2, Input{}); next != nil {
		t.Errorf("broker 3 lives and has not confirmed: %+v", next)
	}
	if next := Next(s, p, 2, suspects(3)); next == nil || next.Leader != 1 || next.LeaderEpoch != 1 {
		t.Errorf("%+v", next)
	}
	if next := Next(s, p, 3, suspects(3)); next != nil {
		t.Errorf("two of three have confirmed: %+v", next)
	}
}

// TestLostStorageWhileTheLeaderIsAway: the record names a leader that is not registered, so it cannot be written as it is.
func TestLostStorageWhileTheLeaderIsAway(t *testing.T) {
	c := without(cluster(2), 1, 2)
	c.Brokers = append(c.Brokers, alive(2, 25, disk3))
	s := metadata.NewState(c)
	if next := Next(s, part(0, 1, 2), 1, Input{Health: Health{Beating: set(1)}}); next != nil {
		t.Errorf("the leader registers anew in a moment: %+v", next)
	}
	next := Next(s, part(0, 1, 2), 1, Input{})
	if next == nil || next.Leader != metadata.NoLeader || next.LeaderEpoch != 6 || !slices.Equal(brokersOf(next.ISR), []int32{1}) {
		t.Errorf("%+v", next)
	}
}

// TestElectionsComeFirst: then removals, in one plan.
func TestElectionsComeFirst(t *testing.T) {
	c := cluster(3)
	c.Topics = []*metadata.Topic{topic(metadata.TopicActive, 4, 4)}
	c.Topics[0].Replicas = 3
	c.Partitions = []*metadata.Partition{part(0, 2, 1, 3), part(1, 1, 2, 3), part(2, 3, 1, 2), part(3, 1, 3, 2)}
	plan := Decide(metadata.NewState(c), nil, suspects(1))
	var order []int32
	for _, p := range plan.Update {
		order = append(order, p.Partition)
	}
	if !slices.Equal(order, []int32{1, 3, 0, 2}) {
		t.Errorf("order %v", order)
	}
}

// TestNextLaws: whatever the state and the health, a decision keeps the rules of replication.
func TestNextLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 5
		c := cluster(n)
		in := Input{Health: Health{Suspects: map[int32]bool{}, Stopping: map[int32]bool{}, Beating: map[int32]bool{}, Unwritable: map[int32]bool{}}}
		in.Health.UnwritableLogs = map[int32]map[metadata.PartitionRef]bool{}
		for id := int32(1); id <= n; id++ {
			switch rapid.SampledFrom([]string{"well", "well", "full", "bad log", "suspect", "stopping", "gone", "beating", "restarted", "ineligible", "other disk", "draining", "fenced"}).Draw(t, "broker") {
			case "full":
				in.Health.Unwritable[id] = true
			case "bad log":
				in.Health.UnwritableLogs[id] = map[metadata.PartitionRef]bool{refOf(0): true}
			case "suspect":
				in.Health.Suspects[id] = true
			case "stopping":
				in.Health.Stopping[id] = true
			case "gone":
				c = without(c, id)
			case "beating":
				c, in.Health.Beating[id] = without(c, id), true
			case "restarted":
				c = without(c, id)
				c.Brokers = append(c.Brokers, alive(id, 10*int64(id)+1, disks[id-1]))
				c.Storages[id-1] = stored(id, 10*int64(id)+1, disks[id-1])
			case "ineligible":
				c.Storages[id-1] = stored(id, 1, disks[id-1])
			case "other disk":
				c = without(c, id)
				c.Brokers = append(c.Brokers, alive(id, 10*int64(id)+1, disks[n]))
			case "draining":
				c = inState(c, id, metadata.StorageDraining)
			case "fenced":
				c = inState(c, id, metadata.StorageFenced)
			}
		}
		replicas := rapid.Permutation([]int32{1, 2, 3, 4, 5}).Draw(t, "replicas")[:rapid.IntRange(1, n).Draw(t, "count")]
		p := part(0, replicas...)
		inSync(p, replicas[:rapid.IntRange(0, len(replicas)).Draw(t, "in sync")]...)
		if rapid.IntRange(0, 4).Draw(t, "leaderless") == 0 || len(p.ISR) == 0 {
			p.Leader, p.LeaderBrokerEpoch = metadata.NoLeader, 0
		}
		adding := rapid.IntRange(0, len(replicas)-1).Draw(t, "adding")
		p.Removing = replicas[len(replicas)-adding:]
		minISR := rapid.IntRange(1, len(replicas)).Draw(t, "minimum")
		s := metadata.NewState(c)

		next := Next(s, p, minISR, in)
		if next == nil {
			return
		}
		backed, dead := 0, 0
		for _, m := range p.ISR {
			if !lost(s, m) {
				backed++
			}
			if in.dead(s, m.BrokerID) {
				dead++
			}
		}
		finished := Moving(p) && !Moving(next)
		if least := min(minISR, backed); len(next.ISR) < least && !(finished && len(next.ISR) >= min(minISR, len(next.Replicas))) {
			t.Fatalf("ISR %v after %v, minimum %d, %d backed", next.ISR, p.ISR, minISR, backed)
		}
		for _, m := range next.ISR {
			if !slices.Contains(p.ISR, m) || lost(s, m) || !next.HasReplica(m.BrokerID) {
				t.Fatalf("member %v", m)
			}
		}
		if next.LeaderEpoch < p.LeaderEpoch || (next.Leader != p.Leader || next.LeaderBrokerEpoch != p.LeaderBrokerEpoch) != (next.LeaderEpoch > p.LeaderEpoch) {
			t.Fatalf("leader %d epoch %d → leader %d epoch %d", p.Leader, p.LeaderEpoch, next.Leader, next.LeaderEpoch)
		}
		if next.Leader != metadata.NoLeader {
			if _, in := next.Member(next.Leader); !in || !registered(s, next) {
				t.Fatalf("leader %d is not registered so, or not in the ISR %v", next.Leader, next.ISR)
			}
		}
		_, stays := p.Member(p.Leader)
		if was, is := in.rankFor(s, p.PartitionRef, p.Leader), in.rankFor(s, p.PartitionRef, next.Leader); stays && registered(s, p) && next.Leader != p.Leader && next.Leader != metadata.NoLeader &&
			!finished && was < rankBarred && is >= was {
			t.Fatalf("a registered leader of rank %d made way for one of rank %d", was, is)
		}
		if again := Next(s, next, minISR, in); again != nil && !finished {
			t.Fatalf("asks for more: %+v after %+v", again, next)
		}
		if dead == 0 && backed == len(p.ISR) && !Moving(p) && next.Leader == p.Leader && registered(s, p) && next.LeaderEpoch == p.LeaderEpoch {
			t.Fatalf("changed for nothing: %+v after %+v", next, p)
		}
	})
}
