package controller

import (
	"slices"

	"runnel.dev/runnel/broker/metadata"
)

// Load is what brokers hold already.
type Load struct{ Leaders, Replicas map[int32]int }

// Place chooses replicas for n new partitions with r replicas each, among brokers. The first of each is the preferred leader. Replicas of
// one partition are in as many different racks as there are; a broker without a rack is one of its own. Each partition goes where the
// load is lowest, leaders and followers each by their own number, ties in a circle around the leader; so between brokers that began
// equal, and as far as racks allow, leaders differ by at most one and replicas by at most two, and followers are not always the same
// pairs. It counts the new replicas into load. r must be at most the number of brokers; brokers must be sorted and without duplicates.
func Place(brokers []int32, racks map[int32]string, load Load, n, r int) [][]int32 {
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
		chosen := make([]int32, 1, r)
		chosen[0] = leader
		for len(chosen) < r {
			next := slices.MinFunc(followers, func(a, b int32) int { return neighbours(racks, chosen, a) - neighbours(racks, chosen, b) })
			chosen = append(chosen, next)
			followers = slices.DeleteFunc(followers, func(b int32) bool { return b == next })
		}
		out[i] = chosen
		load.Leaders[leader]++
		for _, b := range chosen {
			load.Replicas[b]++
		}
	}
	return out
}

// neighbours is the number of brokers in a list that share a broker's rack. Where a broker without a rack stands is not known.
func neighbours(racks map[int32]string, list []int32, id int32) int {
	n := 0
	for _, other := range list {
		if other != id && racks[id] != "" && racks[other] == racks[id] {
			n++
		}
	}
	return n
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

// placer counts the load when somebody needs it, which is rare.
type placer struct {
	s  *metadata.State
	in *Input
	// brokers are those that may be given replicas, sorted.
	brokers []int32
	// unwritable are those that only lack a disk that takes writes.
	unwritable []int32
	racks      map[int32]string
	load       Load
	// moving counts the partitions that are being moved to or from a broker.
	moving map[int32]int
}

func newPlacer(s *metadata.State, in *Input) *placer { return &placer{s: s, in: in} }

// place gives new partitions their replicas. It is false when there are too few brokers.
func (pl *placer) place(partitions []*metadata.Partition, replicas int) bool {
	pl.count()
	brokers := pl.brokers
	if replicas > len(brokers) {
		// A replica on a full disk is one that counts once there is space; a topic that waits for that is of no use to anybody.
		brokers = slices.Sorted(slices.Values(slices.Concat(brokers, pl.unwritable)))
	}
	if replicas > len(brokers) {
		return false
	}
	for i, replicas := range Place(brokers, pl.racks, pl.load, len(partitions), replicas) {
		partitions[i].Replicas = replicas
	}
	return true
}

func (pl *placer) count() {
	if pl.racks != nil {
		return
	}
	pl.load = Load{Leaders: map[int32]int{}, Replicas: map[int32]int{}}
	pl.racks, pl.moving = map[int32]string{}, map[int32]int{}
	for _, b := range pl.s.Brokers() {
		pl.racks[b.ID] = b.Rack
		if pl.in.holds(pl.s, b.ID) {
			pl.brokers = append(pl.brokers, b.ID)
		} else if pl.s.Eligible(b.ID) && pl.in.rank(pl.s, b.ID) == rankUnwritable && !leavers(pl.s)[b.ID] {
			pl.unwritable = append(pl.unwritable, b.ID)
		}
	}
	for _, topic := range pl.s.Topics() {
		for _, p := range pl.s.Partitions(topic.ID) {
			if p == nil || topic.State == metadata.TopicDeleting {
				continue
			}
			// The preferred leader counts: a leader that is elsewhere for the moment goes back.
			pl.load.Leaders[p.Replicas[0]]++
			for _, id := range Target(p) {
				pl.load.Replicas[id]++
			}
			for _, id := range p.Adding {
				pl.moving[id]++
			}
			for _, id := range p.Removing {
				pl.moving[id]++
			}
		}
	}
}

// candidate returns the broker that is best for one more replica beside others: another rack if there is one, then the lowest load.
// Brokers in others or refused are out of the question.
func (pl *placer) candidate(others, refused []int32) (int32, bool) {
	best, found := metadata.NoLeader, false
	for _, id := range pl.brokers {
		if slices.Contains(others, id) || slices.Contains(refused, id) {
			continue
		}
		if !found || first(neighbours(pl.racks, others, id)-neighbours(pl.racks, others, best), pl.load.Replicas[id]-pl.load.Replicas[best]) < 0 {
			best, found = id, true
		}
	}
	return best, found
}
