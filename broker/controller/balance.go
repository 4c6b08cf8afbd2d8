package controller

import (
	"math"
	"slices"

	"runnel.dev/runnel/broker/metadata"
)

// Balance returns leaders that are to move for balance. First all go back to the preferred broker, the first of the replicas, so many a
// round. Once they are there, and loads are measured, brokers that are far above the average give leaderships to in-sync followers on
// brokers that are far below; such a partition's preferred leader becomes the new one, so that the next round does not undo it. Nothing
// moves while anybody is suspected, stops, or any partition lacks a leader or an in-sync replica: an election is cheap, but not free.
func Balance(s *metadata.State, in Input) []*metadata.Partition {
	if len(in.Health.Suspects)+len(in.Health.Stopping) > 0 {
		return nil
	}
	settings := in.Settings.withDefaults()
	b := balancer{s: s, in: &in, loads: map[int32]float64{}}
	if !b.collect() {
		return nil
	}
	if back := b.preferred(settings.LeaderMoves); len(back) > 0 || in.Loads == nil {
		return back
	}
	return b.spread(settings)
}

type balancer struct {
	s  *metadata.State
	in *Input
	// settled are partitions that are led and are not moving.
	settled []*metadata.Partition
	// brokers may lead; loads is what their leaderships weigh.
	brokers []int32
	loads   map[int32]float64
}

// collect gathers what can be moved. It is false when the cluster is not in order.
func (b *balancer) collect() bool {
	for _, broker := range b.s.Brokers() {
		if b.in.holds(b.s, broker.ID) {
			b.brokers = append(b.brokers, broker.ID)
		}
	}
	for _, topic := range b.s.Topics() {
		if topic.State == metadata.TopicDeleting {
			continue
		}
		for _, p := range b.s.Partitions(topic.ID) {
			if p == nil || p.LeaderEpoch == 0 {
				continue
			}
			if !registered(b.s, p) {
				return false
			}
			for _, id := range Holders(p) {
				if _, in := p.Member(id); !in && !slices.Contains(p.Removing, id) {
					return false
				}
			}
			b.loads[p.Leader] += b.in.Loads[p.PartitionRef].weight()
			if !Moving(p) {
				b.settled = append(b.settled, p)
			}
		}
	}
	return true
}

// may reports whether a broker may take the leadership of a partition.
func (b *balancer) may(p *metadata.Partition, id int32) bool {
	m, in := p.Member(id)
	return in && b.in.holds(b.s, id) && b.in.rankFor(b.s, p.PartitionRef, id) == rankWell && electable(b.s, p.PartitionRef, m)
}

func (b *balancer) preferred(most int) []*metadata.Partition {
	var out []*metadata.Partition
	for _, p := range b.settled {
		if len(out) < most && p.Leader != p.Replicas[0] && b.may(p, p.Replicas[0]) {
			out = append(out, moved(b.s, p, p.Replicas[0]))
		}
	}
	return out
}

// moved returns a partition with another leader, which is the preferred one from now on.
func moved(s *metadata.State, p *metadata.Partition, to int32) *metadata.Partition {
	next := p.Clone()
	next.Replicas = slices.Concat([]int32{to}, minus(p.Replicas, []int32{to}))
	enthrone(s, next, to)
	return next
}

// spread evens the load out. Hysteresis: it begins above Imbalance and ends below half of that, and a move has to leave the taker clearly
// below what the giver had.
func (b *balancer) spread(settings Settings) []*metadata.Partition {
	total := 0.0
	for _, id := range b.brokers {
		total += b.loads[id]
	}
	average := total / float64(max(len(b.brokers), 1))
	if len(b.brokers) < 2 || average < settings.MinLoad {
		return nil
	}
	var out []*metadata.Partition
	for _, giver := range b.heaviest() {
		if b.loads[giver] <= average*(1+settings.Imbalance) {
			break
		}
		for len(out) < settings.LoadMoves && b.loads[giver] > average*(1+settings.Imbalance/2) {
			p, taker, ok := b.best(giver, average*settings.Imbalance/4)
			if !ok {
				break
			}
			load := b.in.Loads[p.PartitionRef].weight()
			b.loads[giver] -= load
			b.loads[taker] += load
			b.settled = slices.DeleteFunc(b.settled, func(other *metadata.Partition) bool { return other == p })
			out = append(out, moved(b.s, p, taker))
		}
	}
	return out
}

// heaviest returns the brokers by falling load.
func (b *balancer) heaviest() []int32 {
	out := slices.Clone(b.brokers)
	slices.SortStableFunc(out, func(x, y int32) int {
		switch d := b.loads[y] - b.loads[x]; {
		case d > 0:
			return 1
		case d < 0:
			return -1
		}
		return 0
	})
	return out
}

// best returns the partition of giver, and the in-sync follower, between which the load would be most even; the taker stays below giver's
// load by margin.
func (b *balancer) best(giver int32, margin float64) (p *metadata.Partition, taker int32, ok bool) {
	most := math.Inf(1)
	for _, c := range b.settled {
		load := b.in.Loads[c.PartitionRef].weight()
		if c.Leader != giver || load <= 0 {
			continue
		}
		for _, id := range b.brokers {
			if id == giver || !b.may(c, id) || b.loads[id]+load > b.loads[giver]-margin {
				continue
			}
			if after := max(b.loads[giver]-load, b.loads[id]+load); after < most {
				p, taker, most, ok = c, id, after, true
			}
		}
	}
	return p, taker, ok
}
