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

func spread(brokers []int32, counts map[int32]int) int {
	low, high := counts[brokers[0]], counts[brokers[0]]
	for _, b := range brokers {
		low, high = min(low, counts[b]), max(high, counts[b])
	}
	return high - low
}
