package controller

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPlaceGolden(t *testing.T) {
	got := Place([]int32{1, 2, 3}, nil, Load{Leaders: map[int32]int{}, Replicas: map[int32]int{}}, 6, 2)
	want := [][]int32{{1, 2}, {3, 1}, {2, 3}, {1, 3}, {2, 1}, {3, 2}}
	if !slices.EqualFunc(got, want, slices.Equal[[]int32]) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestPlaceLaws: r different brokers each; from equal loads, leaders differ by at most one, replicas by at most two.
func TestPlaceLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		brokers := rapid.SliceOfNDistinct(rapid.Int32Range(0, 1000), 1, 9, rapid.ID[int32]).Draw(t, "brokers")
		slices.Sort(brokers)
		n := rapid.IntRange(0, 60).Draw(t, "partitions")
		r := rapid.IntRange(1, len(brokers)).Draw(t, "replicas")
		load := Load{Leaders: map[int32]int{}, Replicas: map[int32]int{}}
		placed := Place(brokers, nil, load, n, r)
		if len(placed) != n {
			t.Fatalf("%d placed, want %d", len(placed), n)
		}
		leaders, replicas := map[int32]int{}, map[int32]int{}
		for _, ids := range placed {
			sorted := slices.Sorted(slices.Values(ids))
			if len(ids) != r || len(slices.Compact(sorted)) != r {
				t.Fatalf("replicas %v, want %d different ones", ids, r)
			}
			leaders[ids[0]]++
			for _, id := range ids {
				if !slices.Contains(brokers, id) {
					t.Fatalf("broker %d is not among %v", id, brokers)
				}
				replicas[id]++
			}
		}
		if d := spread(brokers, leaders); d > 1 {
			t.Fatalf("leaders %v differ by %d", leaders, d)
		}
		if d := spread(brokers, replicas); d > 2 {
			t.Fatalf("replicas %v differ by %d", replicas, d)
		}
	})
}

// TestPlaceInRacks: replicas of one partition are in as many racks as there are; between racks of equal size, brokers stay balanced.
func TestPlaceInRacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 4).Draw(t, "racks")
		size := rapid.IntRange(1, 3).Draw(t, "brokers per rack")
		var brokers []int32
		racks := map[int32]string{}
		for _, id := range rapid.Permutation(numbers(count*size)).Draw(t, "order") {
			racks[id] = string(rune('a' + len(brokers)%count))
			brokers = append(brokers, id)
		}
		slices.Sort(brokers)
		n := rapid.IntRange(0, 60).Draw(t, "partitions")
		r := rapid.IntRange(1, len(brokers)).Draw(t, "replicas")
		leaders, replicas := map[int32]int{}, map[int32]int{}
		for _, ids := range Place(brokers, racks, Load{Leaders: map[int32]int{}, Replicas: map[int32]int{}}, n, r) {
			in := map[string]int{}
			for _, id := range ids {
				in[racks[id]]++
				replicas[id]++
			}
			leaders[ids[0]]++
			if len(in) != min(r, count) {
				t.Fatalf("replicas %v are in %d racks, want %d", ids, len(in), min(r, count))
			}
			for rack, k := range in {
				if most := (r + count - 1) / count; k > most {
					t.Fatalf("rack %s has %d of %v, want at most %d", rack, k, ids, most)
				}
			}
		}
		if d := spread(brokers, leaders); d > 1 {
			t.Fatalf("leaders %v differ by %d", leaders, d)
		}
		if d := spread(brokers, replicas); d > 3 {
			t.Fatalf("replicas %v differ by %d", replicas, d)
		}
	})
}

func numbers(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i + 1)
	}
	return out
}

// TestPlaceWithSomeRacksUnknown: a broker without a rack is one of its own.
func TestPlaceWithSomeRacksUnknown(t *testing.T) {
	racks := map[int32]string{1: "a", 2: "a"}
	for _, ids := range Place([]int32{1, 2, 3, 4}, racks, Load{Leaders: map[int32]int{}, Replicas: map[int32]int{}}, 20, 3) {
		if slices.Contains(ids, 1) && slices.Contains(ids, 2) {
			t.Errorf("replicas %v are in one rack twice, and there are three", ids)
		}
	}
}

// TestPlaceOnANewBroker: it gets what the others have too much of.
func TestPlaceOnANewBroker(t *testing.T) {
	load := Load{Leaders: map[int32]int{1: 10, 2: 10}, Replicas: map[int32]int{1: 20, 2: 20}}
	for _, ids := range Place([]int32{1, 2, 3}, nil, load, 10, 2) {
		if ids[0] != 3 {
			t.Errorf("replicas %v", ids)
		}
	}
}

func spread(brokers []int32, counts map[int32]int) int {
	low, high := counts[brokers[0]], counts[brokers[0]]
	for _, b := range brokers {
		low, high = min(low, counts[b]), max(high, counts[b])
	}
	return high - low
}
