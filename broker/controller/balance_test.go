package controller

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"runnel.dev/runnel/broker/metadata"
)

func refOf(n int32) metadata.PartitionRef {
	return metadata.PartitionRef{TopicID: topicID, Partition: n}
}

// leader moves a leadership without touching the preference.
func leader(p *metadata.Partition, id int32) *metadata.Partition {
	p.Leader, p.LeaderBrokerEpoch = id, 10*int64(id)
	return p
}

func TestPreferredLeadersComeBack(t *testing.T) {
	c := wide(3, 3, leader(part(0, 1, 2, 3), 2), leader(part(1, 1, 2, 3), 3), part(2, 2, 3, 1), leader(part(3, 3, 1, 2), 1))
	s := metadata.NewState(c)
	moves := Balance(s, Input{})
	var got [][]int32
	for _, p := range moves {
		got = append(got, []int32{p.Partition, p.Leader, p.LeaderEpoch})
		if len(p.ISR) != 3 || p.LeaderBrokerEpoch != 10*int64(p.Leader) {
			t.Errorf("%+v", p)
		}
	}
	if want := [][]int32{{0, 1, 6}, {1, 1, 6}, {3, 3, 6}}; !slices.EqualFunc(got, want, slices.Equal[[]int32]) {
		t.Errorf("moves %v, want %v", got, want)
	}
	if got := Balance(s, Input{Settings: Settings{LeaderMoves: 2}}); len(got) != 2 {
		t.Errorf("%d moves, want 2 a round", len(got))
	}
	if plan := Decide(s, nil, Input{}); !plan.Empty() {
		t.Errorf("no round is due: %+v", plan)
	}
	if plan := Decide(s, nil, Input{Balance: true}); len(plan.Moves) != 3 {
		t.Errorf("a round is due: %+v", plan)
	}
}

// TestNothingMovesWhileAnythingIsWrong: an election is cheap, but not free.
func TestNothingMovesWhileAnythingIsWrong(t *testing.T) {
	displaced := func() *metadata.Partition { return leader(part(0, 1, 2, 3), 2) }
	for name, tc := range map[string]struct {
		c  metadata.Contents
		in Input
	}{
		"a suspect":                          {wide(4, 3, displaced()), suspects(4)},
		"a broker that stops":                {wide(4, 3, displaced()), Input{Health: Health{Stopping: set(4)}}},
		"another partition is short of one":  {wide(3, 3, displaced(), inSync(part(1, 1, 2, 3), 1, 2)), Input{}},
		"another partition has no leader":    {wide(3, 3, displaced(), leader(part(1, 1, 2, 3), -1)), Input{}},
		"the preferred one is not in sync":   {wide(3, 3, inSync(displaced(), 2, 3)), Input{}},
		"the preferred one is being drained": {inState(wide(3, 3, displaced()), 1, metadata.StorageDraining), Input{}},
		"the partition is moving":            {wide(4, 3, Retarget(displaced(), []int32{1, 2, 4})), Input{}},
	} {
		t.Run(name, func(t *testing.T) {
			if moves := Balance(metadata.NewState(tc.c), tc.in); len(moves) > 0 {
				t.Errorf("%+v", moves[0])
			}
		})
	}
	if moves := Balance(metadata.NewState(wide(4, 3, displaced(), Retarget(part(1, 1, 2, 3), []int32{1, 2, 4}))), Input{}); len(moves) != 1 {
		t.Errorf("a reassignment that has not arrived is nothing wrong: %d moves", len(moves))
	}
}

const mib = 1 << 20

func TestLoadMoves(t *testing.T) {
	c := wide(3, 3, part(0, 1, 2, 3), part(1, 1, 2, 3), part(2, 1, 2, 3), part(3, 2, 3, 1), part(4, 3, 1, 2))
	load := func(weights ...float64) Input {
		in := Input{Loads: map[metadata.PartitionRef]PartitionLoad{}}
		for i, w := range weights {
			in.Loads[refOf(int32(i))] = PartitionLoad{BytesIn: w * mib / 2, BytesOut: w * mib / 2}
		}
		return in
	}
	s := metadata.NewState(c)
	moves := Balance(s, load(20, 20, 20, 5, 5))
	if len(moves) != 2 || moves[0].Leader == moves[1].Leader || moves[0].Leader == 1 || moves[1].Leader == 1 {
		t.Fatalf("%d moves: %+v", len(moves), moves)
	}
	for _, p := range moves {
		if p.Replicas[0] != p.Leader || len(p.Replicas) != 3 || p.LeaderEpoch != 6 {
			t.Errorf("the new leader is not the preferred one: %+v", p)
		}
	}
	for name, in := range map[string]Input{
		"balanced":                         load(10, 10, 10, 30, 30),
		"somewhat uneven":                  load(12, 12, 12, 30, 30),
		"one partition is all there is":    load(60, 0, 0, 5, 5),
		"too little to matter":             load(0.5, 0.5, 0.5, 0.1, 0.1),
		"not measured":                     {},
		"the load would only change hands": load(40, 0, 0, 0, 0),
	} {
		if moves := Balance(s, in); len(moves) > 0 {
			t.Errorf("%s: %+v", name, moves[0])
		}
	}
	in := load(20, 20, 20, 5, 5)
	in.Settings.LoadMoves = 1
	if moves := Balance(s, in); len(moves) != 1 {
		t.Errorf("%d moves, want 1", len(moves))
	}
}

// TestBalanceLaws: rounds end, each makes the most loaded broker less loaded or brings preferred leaders back, and no partition moves
// twice in a row.
func TestBalanceLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "brokers")
		var parts []*metadata.Partition
		in := Input{Loads: map[metadata.PartitionRef]PartitionLoad{}, Settings: Settings{LoadMoves: 1000}}
		for i := range rapid.IntRange(1, 30).Draw(t, "partitions") {
			replicas := rapid.Permutation(numbers(n)).Draw(t, "replicas")[:rapid.IntRange(1, n).Draw(t, "count")]
			p := leader(part(int32(i), replicas...), rapid.SampledFrom(replicas).Draw(t, "leader"))
			parts = append(parts, p)
			in.Loads[p.PartitionRef] = PartitionLoad{BytesIn: float64(rapid.IntRange(0, 50).Draw(t, "MiB")) * mib}
		}
		heaviest := func() float64 {
			loads := map[int32]float64{}
			for _, p := range parts {
				loads[p.Leader] += in.Loads[p.PartitionRef].weight()
			}
			most := 0.0
			for _, l := range loads {
				most = max(most, l)
			}
			return most
		}
		for round := 0; ; round++ {
			s := metadata.NewState(wide(n, 1, parts...))
			moves := Balance(s, in)
			if len(moves) == 0 {
				break
			}
			if round > 10 {
				t.Fatal("it never ends")
			}
			before := heaviest()
			seen := map[int32]bool{}
			for _, p := range moves {
				was := parts[p.Partition]
				if seen[p.Partition] || p.Leader == was.Leader || p.LeaderEpoch != was.LeaderEpoch+1 || !slices.Contains(brokersOf(was.ISR), p.Leader) {
					t.Fatalf("%+v after %+v", p, was)
				}
				seen[p.Partition] = true
				parts[p.Partition] = p
			}
			if round > 0 && heaviest() > before {
				t.Fatalf("round %d made it worse: %v after %v", round, heaviest(), before)
			}
		}
		for _, p := range parts {
			if p.Leader != p.Replicas[0] {
				t.Fatalf("%+v is not where it is preferred", p)
			}
		}
	})
}
