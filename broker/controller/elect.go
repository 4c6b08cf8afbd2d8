package controller

import (
	"cmp"
	"slices"

	"runnel.dev/runnel/broker/metadata"
)

// Next returns what a partition's record has to become, or nil when it is right as it is. minISR is the partition's effective
// minimum of in-sync replicas (MinISR): the first election waits for so many, and removals leave at least so many.
//
// One record holds all that is decided about a partition: members whose storage is lost are out, then somebody leads, then a reassignment
// that has arrived is finished, then dead members are out as far as the minimum allows.
func Next(s *metadata.State, p *metadata.Partition, minISR int, in Input) *metadata.Partition {
	if settled(s, p, &in) {
		return nil
	}
	next := p.Clone()
	next.ISR = keep(next.ISR, func(m metadata.Member) bool { return !lost(s, m) })
	less := len(next.ISR) != len(p.ISR)
	changed := elect(s, next, minISR, &in) || less
	if next.Leader != metadata.NoLeader && !registered(s, next) {
		// A record is written only under a leader that is registered as it says.
		if !less || returning(s, next.Leader, &in) {
			return nil
		}
		depose(next)
	}
	if complete(s, next, minISR, &in) {
		return next // with these replicas the minimum may be another one
	}
	if !shed(s, next, minISR, &in) && !changed {
		return nil
	}
	return next
}

// settled reports, without allocating, that there is nothing to decide: the usual case.
func settled(s *metadata.State, p *metadata.Partition, in *Input) bool {
	if len(p.Adding)+len(p.Removing) > 0 || !registered(s, p) || in.rankFor(s, p.PartitionRef, p.Leader) != rankWell {
		return false
	}
	led := false
	for _, m := range p.ISR {
		if lost(s, m) || in.dead(s, m.BrokerID) {
			return false
		}
		led = led || m.BrokerID == p.Leader
	}
	return led
}

// lost reports whether the storage that a member names is gone for good: its broker is alive with another one, or somebody fenced it.
func lost(s *metadata.State, m metadata.Member) bool {
	if b, alive := s.Broker(m.BrokerID); alive && b.StorageID != m.StorageID {
		return true
	}
	st, known := s.Storage(m.BrokerID)
	return known && st.State == metadata.StorageFenced && st.StorageID == m.StorageID
}

// sound reports whether a member can be counted on to stay: its storage is not lost and its log is not damaged. What is not sound leaves the
// in-sync set in a moment, so nobody may be let go because of it.
func sound(s *metadata.State, ref metadata.PartitionRef, m metadata.Member) bool {
	st, known := s.Storage(m.BrokerID)
	return !lost(s, m) && !(known && st.StorageID == m.StorageID && st.Marked(ref))
}

// registered reports whether the leader is alive under the registration that the partition names.
func registered(s *metadata.State, p *metadata.Partition) bool {
	b, alive := s.Broker(p.Leader)
	return alive && b.Epoch == p.LeaderBrokerEpoch
}

// elect gives p a new leader, or takes its leader away, under the next epoch, where the rules ask for it. It reports whether it did.
func elect(s *metadata.State, p *metadata.Partition, minISR int, in *Input) bool {
	_, member := p.Member(p.Leader)
	_, alive := s.Broker(p.Leader)
	switch {
	case p.LeaderEpoch == 0 && !confirmed(s, p, minISR, in):
		return false
	case member && registered(s, p):
		// It leads. It gives way to a better one, if there is one: suspicion of the only usable member changes nothing.
		leader, rank, ok := choose(s, p, in, false)
		was := in.rankFor(s, p.PartitionRef, p.Leader)
		if !ok || rank >= was || was == rankDraining && Moving(p) && slices.Contains(Target(p), p.Leader) {
			return false // a target that is drained keeps its leader until the reassignment has arrived: the end of it would undo the move
		}
		enthrone(s, p, leader)
		return true
	case member && !alive && in.Health.Beating[p.Leader]:
		return false
	}
	leader, _, ok := choose(s, p, in, true)
	if !ok {
		if p.Leader == metadata.NoLeader || member {
			// Invariant: a lapsed lease alone ends nothing, and the only usable member is not deposed for nobody.
			return false
		}
		depose(p)
		return true
	}
	enthrone(s, p, leader)
	return true
}

// returning: a leader that is not registered as its partition says will be elected anew, or will register anew, in a moment.
func returning(s *metadata.State, leader int32, in *Input) bool {
	_, alive := s.Broker(leader)
	return in.Health.Beating[leader] || alive && in.rank(s, leader) < rankBarred
}

func enthrone(s *metadata.State, p *metadata.Partition, leader int32) {
	b, _ := s.Broker(leader)
	p.Leader, p.LeaderBrokerEpoch = leader, b.Epoch
	p.LeaderEpoch++
}

func depose(p *metadata.Partition) {
	p.Leader, p.LeaderBrokerEpoch = metadata.NoLeader, 0
	p.LeaderEpoch++
}

// choose returns the member to elect and its rank: the lowest rank, then the longest log where ends are known and count, then the present
// leader, then the order of the replicas.
func choose(s *metadata.State, p *metadata.Partition, in *Input, byEnd bool) (leader int32, rank int, ok bool) {
	ends := in.Ends[p.PartitionRef]
	if !byEnd {
		ends = nil
	}
	leader, rank = metadata.NoLeader, rankBarred
	var end End
	consider := func(id int32) {
		m, member := p.Member(id)
		if !member || !electable(s, p.PartitionRef, m) {
			return
		}
		r, e := in.rankFor(s, p.PartitionRef, id), ends[id]
		if r < rank || r == rank && end.before(e) {
			leader, rank, end, ok = id, r, e, true
		}
	}
	consider(p.Leader)
	for _, id := range p.Replicas {
		consider(id)
	}
	return leader, rank, ok
}

// electable: the registration is eligible, its storage is the one that the ISR entry names, and the log is not marked.
func electable(s *metadata.State, ref metadata.PartitionRef, m metadata.Member) bool {
	st, ok := s.Storage(m.BrokerID)
	return ok && s.Eligible(m.BrokerID) && st.StorageID == m.StorageID && !st.Marked(ref)
}

// confirmed reports whether a partition that was never led can be: enough replicas confirmed their directories, and every one that
// is alive and well did, so that the first ISR is as large as it can be.
func confirmed(s *metadata.State, p *metadata.Partition, minISR int, in *Input) bool {
	if len(p.ISR) < minISR {
		return false
	}
	for _, id := range p.Replicas {
		_, alive := s.Broker(id)
		if _, member := p.Member(id); alive && !member && !in.Health.Suspects[id] && !in.Health.Unwritable[id] {
			return false
		}
	}
	return true
}

// dead: the broker does not take part any more, or is about not to.
func (in *Input) dead(s *metadata.State, id int32) bool { return in.decay(s, id) > 0 }

// decay says how dead a broker is: 0, it lives; then stopping, suspected, gone for good.
func (in *Input) decay(s *metadata.State, id int32) int {
	_, alive := s.Broker(id)
	switch rank := in.rank(s, id); {
	case in.gone(s, id), rank == rankBarred:
		return 3
	case alive && rank == rankSuspect:
		return 2
	case alive && rank == rankStopping:
		return 1
	}
	return 0
}

// shed takes dead followers out of the ISR, the deadest first, so that the high watermark moves without waiting for the leader to notice.
// It reports whether it did.
//
// Invariant: the ISR never shrinks below the minimum; at the minimum the leader replaces a dead member once another has caught up. Without
// a leader that is well nobody leaves: the ISR is what an election may choose from.
func shed(s *metadata.State, p *metadata.Partition, minISR int, in *Input) bool {
	spare := -max(minISR, 1)
	for _, m := range p.ISR {
		if sound(s, p.PartitionRef, m) {
			spare++
		}
	}
	if p.Leader == metadata.NoLeader || spare <= 0 || in.dead(s, p.Leader) {
		return false
	}
	var dead []int32
	for _, m := range p.ISR {
		if m.BrokerID != p.Leader && in.dead(s, m.BrokerID) && (!in.Spared[m.BrokerID] || in.gone(s, m.BrokerID)) {
			dead = append(dead, m.BrokerID)
		}
	}
	slices.SortStableFunc(dead, func(a, b int32) int { return cmp.Compare(in.decay(s, b), in.decay(s, a)) })
	dead = dead[:min(len(dead), spare)]
	p.ISR = keep(p.ISR, func(m metadata.Member) bool { return !slices.Contains(dead, m.BrokerID) })
	return len(dead) > 0
}

func keep(members []metadata.Member, ok func(metadata.Member) bool) []metadata.Member {
	return slices.DeleteFunc(members, func(m metadata.Member) bool { return !ok(m) })
}
