package controller

import (
	"slices"

	"runnel.dev/runnel/broker/metadata"
)

// A reassignment lives in the partition's record: Replicas are the target, in its order, followed by what is being removed; Adding and
// Removing name the difference. All of them replicate. It has arrived when every added replica is in sync and the target alone keeps the
// minimum; then one record makes the target the replicas, elects inside it when the leader was not in it, and takes the others out of the
// ISR. Cancelling is a reassignment back to the replicas that there were, which are there already.

// Target is the set of replicas that a partition is on its way to, in order of preference; without a reassignment, its replicas.
func Target(p *metadata.Partition) []int32 { return minus(p.Replicas, p.Removing) }

// Holders are the replicas that a partition had before the reassignment under way.
func Holders(p *metadata.Partition) []int32 { return minus(p.Replicas, p.Adding) }

// Moving reports whether a reassignment is under way.
func Moving(p *metadata.Partition) bool { return len(p.Adding)+len(p.Removing) > 0 }

// Retarget returns the record with which a partition begins to move to target, or nil when that is where it is, or is going, already. A
// reassignment under way is replaced.
func Retarget(p *metadata.Partition, target []int32) *metadata.Partition {
	if slices.Equal(Target(p), target) {
		return nil
	}
	next := p.Clone()
	next.Adding = minus(target, Holders(p))
	next.Removing = minus(present(p), target)
	next.Replicas = slices.Concat(target, next.Removing)
	return next
}

// Cancel returns the record with which a partition goes back to the replicas that it had, or nil when nothing is under way.
func Cancel(p *metadata.Partition) *metadata.Partition {
	if !Moving(p) {
		return nil
	}
	next := p.Clone()
	holders := Holders(p)
	next.Adding, next.Removing = nil, minus(present(p), holders)
	next.Replicas = slices.Concat(holders, next.Removing)
	return next
}

// present are the replicas without those that were to be added and have not caught up: nothing is lost when they go at once.
func present(p *metadata.Partition) []int32 {
	return slices.DeleteFunc(slices.Clone(p.Replicas), func(id int32) bool {
		_, member := p.Member(id)
		return !member && slices.Contains(p.Adding, id)
	})
}

// complete finishes a reassignment that has arrived. It reports whether it did.
//
// Invariant: what is left of the ISR has at least the minimum of members that live and are sound; all of them have acknowledged whatever was
// committed.
func complete(s *metadata.State, p *metadata.Partition, minISR int, in *Input) bool {
	if !Moving(p) || p.Leader == metadata.NoLeader {
		return false
	}
	target := Target(p)
	next := p.Clone()
	next.ISR = keep(next.ISR, func(m metadata.Member) bool { return slices.Contains(target, m.BrokerID) })
	alive := 0
	for _, m := range next.ISR {
		if !in.dead(s, m.BrokerID) && sound(s, p.PartitionRef, m) {
			alive++
		}
	}
	if alive < max(min(minISR, len(target)), 1) {
		return false
	}
	for _, id := range p.Adding {
		if m, member := next.Member(id); !member || in.dead(s, id) || !sound(s, p.PartitionRef, m) {
			return false
		}
	}
	next.Replicas, next.Adding, next.Removing = target, nil, nil
	if _, stays := next.Member(next.Leader); !stays {
		leader, rank, ok := choose(s, next, in, false)
		if !ok || rank >= rankStopping || rank == rankUnwritable && in.rankFor(s, p.PartitionRef, p.Leader) < rank {
			return false // the leader that there is does better for the moment
		}
		enthrone(s, next, leader)
	}
	*p = *next
	return true
}

// relocate begins the reassignments that the state asks for by itself: off brokers that are drained or decommissioned, and towards the
// number of replicas that the topic wants; at most so many at a time per broker. Partitions without a leader that is well wait: nobody
// could catch up.
func relocate(s *metadata.State, pl *placer) []*metadata.Partition {
	leaving := leavers(s)
	var out []*metadata.Partition
	for _, topic := range s.Topics() {
		if topic.State != metadata.TopicActive {
			continue
		}
		for _, p := range s.Partitions(topic.ID) {
			if p == nil || p.LeaderEpoch == 0 || !registered(s, p) || Moving(p) && !stranded(p, leaving) {
				continue
			}
			if !Moving(p) && len(p.Replicas) == int(topic.Replicas) && !containsAny(p.Replicas, leaving) {
				continue
			}
			pl.count()
			next := Retarget(p, pl.retarget(p, int(topic.Replicas), leaving))
			if next == nil || !pl.admit(p, next) {
				continue
			}
			out = append(out, next)
		}
	}
	return out
}

// leavers are the brokers that must not keep replicas: drained and decommissioned ones, and those whose storage is lost for good.
func leavers(s *metadata.State) map[int32]bool {
	out := map[int32]bool{}
	for _, st := range s.Storages() {
		if st.State == metadata.StorageDraining || barred(st) {
			out[st.BrokerID] = true
		}
	}
	return out
}

// stranded: the partition is moving to a broker that is leaving.
func stranded(p *metadata.Partition, leaving map[int32]bool) bool {
	return containsAny(p.Adding, leaving)
}

func containsAny(list []int32, set map[int32]bool) bool {
	return len(set) > 0 && slices.ContainsFunc(list, func(id int32) bool { return set[id] })
}

// retarget returns the replicas that a partition should have: want of them, none on a broker that is leaving, as far as there are brokers.
func (pl *placer) retarget(p *metadata.Partition, want int, leaving map[int32]bool) []int32 {
	target := slices.Clone(Holders(p))
	for len(target) > want {
		target = minus(target, []int32{pl.dispensable(p, target, leaving)})
	}
	for i, id := range target {
		if !leaving[id] {
			continue
		}
		others := minus(target, []int32{id})
		if to, ok := pl.candidate(others, []int32{id}); ok {
			target[i] = to
		}
	}
	for len(target) < want {
		to, ok := pl.candidate(target, nil)
		if !ok {
			break
		}
		target = append(target, to)
	}
	return target
}

// dispensable is the replica that a partition misses least: on a broker that is leaving, or dead, or not in sync; then one that shares its
// rack with another, then not the leader, then on the most loaded broker, then the last.
func (pl *placer) dispensable(p *metadata.Partition, replicas []int32, leaving map[int32]bool) int32 {
	bad := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	worst := replicas[0]
	for _, id := range replicas[1:] {
		_, worstIn := p.Member(worst)
		_, in := p.Member(id)
		if first(
			bad(leaving[id])-bad(leaving[worst]),
			bad(pl.in.dead(pl.s, id))-bad(pl.in.dead(pl.s, worst)),
			bad(!in)-bad(!worstIn),
			neighbours(pl.racks, replicas, id)-neighbours(pl.racks, replicas, worst),
			bad(id != p.Leader)-bad(worst != p.Leader),
			pl.load.Replicas[id]-pl.load.Replicas[worst],
		) >= 0 {
			worst = id
		}
	}
	return worst
}

// admit counts a move, unless one of its brokers has too many already.
func (pl *placer) admit(p, next *metadata.Partition) bool {
	limit := pl.in.Settings.withDefaults().MaxMoves
	joins, leaves := minus(next.Adding, p.Adding), minus(next.Removing, p.Removing)
	for _, id := range slices.Concat(joins, leaves) {
		if pl.moving[id] >= limit {
			return false
		}
	}
	for _, id := range joins {
		pl.moving[id]++
		pl.load.Replicas[id]++
	}
	for _, id := range leaves {
		pl.moving[id]++
		pl.load.Replicas[id]--
	}
	return true
}

// minus returns list without the ids of another, in its order.
func minus(list, without []int32) []int32 {
	var out []int32
	for _, id := range list {
		if !slices.Contains(without, id) {
			out = append(out, id)
		}
	}
	return out
}
