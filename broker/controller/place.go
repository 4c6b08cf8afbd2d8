package controller

import "slices"

// Load is what brokers hold already.
type Load struct{ Leaders, Replicas map[int32]int }

// Place chooses replicas for n new partitions with r replicas each, among brokers. The first of each is the preferred leader. Each
// partition goes where the load is lowest, leaders and followers each by their own number, ties in a circle around the leader; so between
// brokers that began equal, leaders differ by at most one and replicas by at most two, and followers are not always the same pairs. It
// counts the new replicas into load. r must be at most the number of brokers; brokers must be sorted and without duplicates.
func Place(brokers []int32, load Load, n, r int) [][]int32 {
	follows := func(b int32) int { return load.Replicas[b] - load.Leaders[b] }
	out := make([][]int32, n)
	for i := range out {
		leader := slices.MinFunc(brokers, func(a, b int32) int {
			return first(load.Leaders[a]-load.Leaders[b], load.Replicas[a]-load.Replicas[b], int(a)-int(b))
		})
		at := slices.Index(brokers, leader)
		// The circle starts one further right for every round of leaders, so that a broker's followers vary.
		shift := 1 + load.Leaders[leader]%max(len(brokers)-1, 1)
		distance := func(b int32) int {
			d := (slices.Index(brokers, b) - at - shift) % len(brokers)
			return (d + len(brokers)) % len(brokers)
		}
		followers := slices.DeleteFunc(slices.Clone(brokers), func(b int32) bool { return b == leader })
		slices.SortFunc(followers, func(a, b int32) int {
			return first(follows(a)-follows(b), load.Replicas[a]-load.Replicas[b], distance(a)-distance(b))
		})
		out[i] = append([]int32{leader}, followers[:r-1]...)
		load.Leaders[leader]++
		for _, b := range out[i] {
			load.Replicas[b]++
		}
	}
	return out
}

// first returns the first difference that is not zero.
func first(differences ...int) int {
	for _, d := range differences {
		if d != 0 {
			return d
		}
	}
	return 0
}
