package controller

import (
	"fmt"

	"runnel.dev/runnel/broker/metadata"
)

// planPreferred checks that a partition's preferred replica can lead, and returns the record with which it does; nil when it leads already.
func planPreferred(s *metadata.State, in *Input, ref metadata.PartitionRef) (p, next *metadata.Partition, err error) {
	_, p, err = lookup(s, ref)
	if err != nil {
		return nil, nil, err
	}
	to := Target(p)[0]
	if p.Leader == to && registered(s, p) {
		return p, nil, nil
	}
	m, member := p.Member(to)
	switch {
	case p.LeaderEpoch == 0:
		return p, nil, fmt.Errorf("%w: the partition has never been led", ErrWrongState)
	case !member:
		return p, nil, fmt.Errorf("%w: broker %d, in sync are %d", ErrNotInSync, to, brokersOf(p.ISR))
	case !electable(s, ref, m):
		return p, nil, fmt.Errorf("%w: broker %d is not eligible, or its log is damaged", ErrWrongState, to)
	case in.rankFor(s, ref, to) == rankUnwritable:
		return p, nil, fmt.Errorf("%w: the disk of broker %d takes no writes", ErrWrongState, to)
	case in.rank(s, to) >= rankStopping:
		return p, nil, fmt.Errorf("%w: broker %d is suspected to be dead, or is stopping", ErrWrongState, to)
	}
	next = p.Clone()
	enthrone(s, next, to)
	return p, next, nil
}

func brokersOf(members []metadata.Member) []int32 {
	out := make([]int32, len(members))
	for i, m := range members {
		out[i] = m.BrokerID
	}
	return out
}

// CheckUnclean says whether a broker that is not in sync could be made the leader of a partition, at the price of records that only
// others have: nobody in sync can lead, and the broker has an undamaged replica and is alive. ErrUnknownPartition, ErrUnknownBroker,
// ErrWrongState, ErrNotInSync when it has no replica.
func CheckUnclean(s *metadata.State, in Input, ref metadata.PartitionRef, broker int32) error {
	_, p, err := lookup(s, ref)
	if err != nil {
		return err
	}
	if err := knownBroker(s, broker); err != nil {
		return err
	}
	st, known := s.Storage(broker)
	switch {
	case !p.HasReplica(broker):
		return fmt.Errorf("%w: broker %d has no replica, the replicas are %d", ErrNotInSync, broker, p.Replicas)
	case p.LeaderEpoch == 0:
		return fmt.Errorf("%w: the partition has never been led, nothing is lost by waiting", ErrWrongState)
	case !s.Eligible(broker) || !known:
		return fmt.Errorf("%w: broker %d is not registered, or not eligible", ErrWrongState, broker)
	case st.Marked(ref):
		return fmt.Errorf("%w: the log of broker %d is damaged", ErrWrongState, broker)
	case in.rank(s, broker) >= rankStopping:
		return fmt.Errorf("%w: broker %d is suspected to be dead, or is stopping", ErrWrongState, broker)
	}
	if registered(s, p) && !in.dead(s, p.Leader) {
		return fmt.Errorf("%w: broker %d leads, nothing needs to be lost", ErrWrongState, p.Leader)
	}
	if leader, rank, ok := choose(s, p, &in, true); ok && rank < rankSuspect {
		return fmt.Errorf("%w: broker %d is in sync and can lead, nothing needs to be lost", ErrWrongState, leader)
	}
	return nil
}

// ChooseUnclean returns the broker that an unclean election would lose least with: the longest log where ends are known, else the first
// replica that could lead. ErrUnknownPartition, or why none can.
func ChooseUnclean(s *metadata.State, in Input, ref metadata.PartitionRef) (int32, error) {
	_, p, err := lookup(s, ref)
	if err != nil {
		return metadata.NoLeader, err
	}
	best, found := metadata.NoLeader, false
	var why error
	for _, id := range p.Replicas {
		if err := CheckUnclean(s, in, ref, id); err != nil {
			if why == nil {
				why = err
			}
			continue
		}
		if !found || in.Ends[ref][best].before(in.Ends[ref][id]) {
			best, found = id, true
		}
	}
	if !found {
		return metadata.NoLeader, why
	}
	return best, nil
}
