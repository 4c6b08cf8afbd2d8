package controller

import (
	"slices"

	"runnel.dev/runnel/broker/metadata"
)

// Next returns what a partition's record has to become, or nil when it is right as it is. minISR is the topic's effective
// min_in_sync_replicas, which only the first election waits for.
func Next(s *metadata.State, p *metadata.Partition, minISR int) *metadata.Partition {
	next := p.Clone()
	backed := func(m metadata.Member) bool { return !replaced(s, m) }
	next.ISR = keep(next.ISR, backed)
	next.Pending = keep(next.Pending, backed)
	changed := len(next.ISR) != len(p.ISR) || len(next.Pending) != len(p.Pending)
	if elect(s, next, minISR) {
		changed = true
	}
	if !changed {
		return nil
	}
	return next
}

// replaced reports whether a broker is alive with another storage than the one that the member names.
func replaced(s *metadata.State, m metadata.Member) bool {
	b, alive := s.Broker(m.BrokerID)
	return alive && b.StorageID != m.StorageID
}

// elect gives p a new leader, or takes its leader away, under the next epoch, where the rules ask for it. It reports whether it did.
func elect(s *metadata.State, p *metadata.Partition, minISR int) bool {
	if p.LeaderEpoch == 0 && !confirmed(s, p, minISR) || leads(s, p) {
		return false
	}
	leader, ok := choose(s, p)
	if !ok {
		if _, member := p.Member(p.Leader); p.Leader == metadata.NoLeader || member {
			// Invariant: a lapsed lease alone ends nothing, and the only usable member is not deposed for nobody.
			return false
		}
		p.Leader, p.LeaderBrokerEpoch = metadata.NoLeader, 0
		p.LeaderEpoch++
		return true
	}
	b, _ := s.Broker(leader)
	p.Leader, p.LeaderBrokerEpoch = leader, b.Epoch
	p.LeaderEpoch++
	return true
}

// leads reports whether the leader is alive under the registration that the partition names, and still in sync.
func leads(s *metadata.State, p *metadata.Partition) bool {
	b, alive := s.Broker(p.Leader)
	_, member := p.Member(p.Leader)
	return alive && member && b.Epoch == p.LeaderBrokerEpoch
}

// choose returns the member to elect: the present leader when it can, else in the order of the replicas; members that are
// being drained come last.
func choose(s *metadata.State, p *metadata.Partition) (int32, bool) {
	order := append([]int32{p.Leader}, p.Replicas...)
	for _, draining := range []bool{false, true} {
		for _, id := range order {
			m, ok := p.Member(id)
			if !ok || !electable(s, p.PartitionRef, m) {
				continue
			}
			if st, _ := s.Storage(id); (st.State == metadata.StorageDraining) == draining {
				return id, true
			}
		}
	}
	return metadata.NoLeader, false
}

// electable: the registration is eligible, its storage is the one that the ISR entry names, and the log is not marked.
func electable(s *metadata.State, ref metadata.PartitionRef, m metadata.Member) bool {
	st, ok := s.Storage(m.BrokerID)
	return ok && s.Eligible(m.BrokerID) && st.StorageID == m.StorageID && !st.Marked(ref)
}

// confirmed reports whether a partition that was never led can be: enough replicas confirmed their directories, and every one that
// is alive did, so that the first ISR is as large as it can be.
func confirmed(s *metadata.State, p *metadata.Partition, minISR int) bool {
	if len(p.ISR) < minISR {
		return false
	}
	for _, id := range p.Replicas {
		_, alive := s.Broker(id)
		if _, member := p.Member(id); alive && !member {
			return false
		}
	}
	return true
}

func keep(members []metadata.Member, ok func(metadata.Member) bool) []metadata.Member {
	return slices.DeleteFunc(members, func(m metadata.Member) bool { return !ok(m) })
}
