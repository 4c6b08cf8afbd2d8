package controller

import (
	"fmt"
	"slices"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
)

// ReassignRequest asks for a partition's replicas to be on certain brokers.
type ReassignRequest struct {
	Partition metadata.PartitionRef
	// Replicas are broker ids, the preferred leader first: as many as the topic has replicas.
	Replicas []int32
}

// Reassignment is where a partition moves.
type Reassignment struct {
	Partition metadata.PartitionRef
	Topic     string
	// Before are the replicas without those being added; Target is what they become.
	Before, Target   []int32
	Adding, Removing []int32
	// ISR are the brokers in sync.
	ISR []int32
	// Bytes that have to be copied, over all added replicas; -1: unknown.
	Bytes int64
	// Waiting says for people what a reassignment waits for, "" when it is about to finish.
	Waiting string
	// Err, of a request: why nothing is done. ErrUnknownPartition, ErrUnknownBroker, ErrTooFewBrokers, ErrWrongState, ErrBusy,
	// ErrNoReassignment, metadata.ErrInvalidArgument, metadata.ErrConflict.
	Err error
}

// planReassign checks a request and returns the record with which it begins; nil when there is nothing to do.
func planReassign(
	s *metadata.State, defaults *runnelv1.TopicConfig, in *Input, r ReassignRequest,
) (p, next *metadata.Partition, err error) {
	topic, p, err := lookup(s, r.Partition)
	if err != nil {
		return nil, nil, err
	}
	minISR := newMinimum(topic, defaults).ofReplicas(topic.Replicas)
	switch n := len(r.Replicas); {
	case n == 0:
		err = argument("replicas", "empty", fmt.Sprintf("%d broker ids", topic.Replicas))
	case repeats(r.Replicas):
		err = argument("replicas", r.Replicas, "different broker ids")
	case n > len(s.Brokers()):
		err = fmt.Errorf("%w: %d replicas %d, %d brokers are live", ErrTooFewBrokers, n, r.Replicas, len(s.Brokers()))
	case n < minISR:
		err = argument("replicas", r.Replicas, fmt.Sprintf("at least min_in_sync_replicas, %d", minISR))
	case n != int(topic.Replicas):
		err = argument("replicas", r.Replicas, fmt.Sprintf("as many as the topic has, %d: change that first", topic.Replicas))
	}
	if err != nil {
		return p, nil, err
	}
	for _, id := range r.Replicas {
		if err := admissible(s, in, id, slices.Contains(Holders(p), id)); err != nil {
			return p, nil, err
		}
	}
	return p, Retarget(p, r.Replicas), nil
}

// admissible: a broker may be in a target. New replicas go to brokers that are there, and stay.
func admissible(s *metadata.State, in *Input, id int32, holder bool) error {
	_, alive := s.Broker(id)
	st, known := s.Storage(id)
	switch {
	case !alive && !known:
		return fmt.Errorf("%w: %d", ErrUnknownBroker, id)
	case known && (barred(st) || st.State == metadata.StorageDraining):
		return fmt.Errorf("%w: broker %d is %s", ErrWrongState, id, stateName(st.State))
	case holder || in.holds(s, id):
		return nil
	case !alive:
		return fmt.Errorf("%w: broker %d is not registered", ErrWrongState, id)
	case !s.Eligible(id):
		return fmt.Errorf("%w: broker %d is not eligible yet", ErrWrongState, id)
	}
	return fmt.Errorf("%w: broker %d is suspected to be dead, or is stopping", ErrWrongState, id)
}

func stateName(state metadata.StorageState) string {
	switch state {
	case metadata.StorageActive:
		return "active"
	case metadata.StorageDraining:
		return "draining"
	case metadata.StorageDecommissioned:
		return "decommissioned"
	case metadata.StorageFenced:
		return "fenced"
	}
	return "unknown"
}

func lookup(s *metadata.State, ref metadata.PartitionRef) (*metadata.Topic, *metadata.Partition, error) {
	topic, ok := s.TopicByID(ref.TopicID)
	p, has := s.Partition(ref.TopicID, ref.Partition)
	if !ok || !has || topic.State == metadata.TopicDeleting {
		return nil, nil, fmt.Errorf("%w: %s/%d", ErrUnknownPartition, ref.TopicID, ref.Partition)
	}
	return topic, p, nil
}

func repeats(list []int32) bool {
	sorted := slices.Sorted(slices.Values(list))
	return len(slices.Compact(sorted)) != len(list)
}

// PreviewReassign says what requests would do, without doing it. sizes are the bytes of a partition's log, where they are known. The answer
// has an entry per request.
func PreviewReassign(
	s *metadata.State, defaults *runnelv1.TopicConfig, in Input, requests []ReassignRequest, sizes map[metadata.PartitionRef]int64,
) []Reassignment {
	out := make([]Reassignment, len(requests))
	for i, r := range requests {
		p, next, err := planReassign(s, defaults, &in, r)
		if next == nil {
			next = p
		}
		out[i] = Reassignment{Partition: r.Partition, Bytes: -1, Err: err}
		if next == nil {
			continue
		}
		out[i] = describe(s, &in, next)
		out[i].Before, out[i].Err = Holders(p), err
		if size, known := sizes[r.Partition]; known || len(next.Adding) == 0 {
			out[i].Bytes = size * int64(len(next.Adding))
		}
	}
	return out
}

func describe(s *metadata.State, in *Input, p *metadata.Partition) Reassignment {
	r := Reassignment{
		Partition: p.PartitionRef, Before: Holders(p), Target: Target(p), Adding: slices.Clone(p.Adding), Removing: slices.Clone(p.Removing),
		Bytes: -1,
	}
	if topic, ok := s.TopicByID(p.TopicID); ok {
		r.Topic = topic.Name
	}
	for _, m := range p.ISR {
		r.ISR = append(r.ISR, m.BrokerID)
	}
	r.Waiting = waiting(s, in, p)
	return r
}

// waiting says what a reassignment waits for.
func waiting(s *metadata.State, in *Input, p *metadata.Partition) string {
	if !Moving(p) {
		return ""
	}
	if p.Leader == metadata.NoLeader || in.dead(s, p.Leader) {
		return "the partition has no leader that is well"
	}
	for _, id := range p.Adding {
		switch _, member := p.Member(id); {
		case in.gone(s, id):
			return fmt.Sprintf("broker %d is not there", id)
		case in.dead(s, id):
			return fmt.Sprintf("broker %d is suspected to be dead, stops or is barred", id)
		case !member:
			return fmt.Sprintf("broker %d has to catch up", id)
		}
	}
	return ""
}

// Reassignments lists what is under way, by topic and partition.
func Reassignments(s *metadata.State, in Input) []Reassignment {
	var out []Reassignment
	each(s, func(_ *metadata.Topic, p *metadata.Partition) {
		if Moving(p) {
			out = append(out, describe(s, &in, p))
		}
	})
	return out
}

// each calls f for every partition of topics that are not being deleted.
func each(s *metadata.State, f func(*metadata.Topic, *metadata.Partition)) {
	for _, topic := range s.Topics() {
		if topic.State == metadata.TopicDeleting {
			continue
		}
		for _, p := range s.Partitions(topic.ID) {
			if p != nil {
				f(topic, p)
			}
		}
	}
}
