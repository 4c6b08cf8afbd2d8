package controller

import (
	"fmt"
	"slices"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// Safety says what stopping a broker would mean.
type Safety struct {
	// Blocking are partitions that would fall below their minimum of in-sync replicas. None: it is safe.
	Blocking []Blocker
	// Single is the number of partitions whose only replica is there. They do not block: they come back with the broker.
	Single int
	// Leaders is how many partitions it leads, Controller whether it is the controller.
	Leaders    int
	Controller bool
}

// Safe reports whether every partition with more than one replica keeps its minimum.
func (s Safety) Safe() bool { return len(s.Blocking) == 0 }

// SafeToStop says whether every partition stays available while a broker is stopped: its leaderships go elsewhere, and enough others are in
// sync and alive. It promises nothing for later. ErrUnknownBroker.
func SafeToStop(s *metadata.State, defaults *runnelv1.TopicConfig, in Input, id int32) (Safety, error) {
	if err := knownBroker(s, id); err != nil {
		return Safety{}, err
	}
	var out Safety
	now := s.Controller()
	out.Controller = now != nil && now.BrokerID == id
	each(s, func(topic *metadata.Topic, p *metadata.Partition) {
		if p.Leader == id {
			out.Leaders++
		}
		if _, member := p.Member(id); !member || p.LeaderEpoch == 0 {
			return
		}
		if len(p.Replicas) == 1 {
			out.Single++
			return
		}
		minISR := MinISR(topic, p, defaults)
		left := 0
		for _, m := range p.ISR {
			if m.BrokerID != id && !in.dead(s, m.BrokerID) && sound(s, p.PartitionRef, m) {
				left++
			}
		}
		if left < minISR {
			out.Blocking = append(out.Blocking, Blocker{
				Partition: p.PartitionRef, Topic: topic.Name, InSync: left, MinInSync: minISR,
				Reason: fmt.Sprintf("%d in-sync replicas would be left, %d are needed", left, minISR),
			})
		}
	})
	return out, nil
}

func knownBroker(s *metadata.State, id int32) error {
	_, alive := s.Broker(id)
	if _, known := s.Storage(id); !alive && !known {
		return fmt.Errorf("%w: %d", ErrUnknownBroker, id)
	}
	return nil
}

func blocker(topic *metadata.Topic, p *metadata.Partition, format string, args ...any) Blocker {
	return Blocker{Partition: p.PartitionRef, Topic: topic.Name, Reason: fmt.Sprintf(format, args...), InSync: len(p.ISR)}
}

// DrainStatus is how far the draining of a broker is.
type DrainStatus struct {
	Broker int32
	State  metadata.StorageState
	// Replicas are still there, Leaders of them lead, and Moving are on their way. The broker is empty when Replicas is 0.
	Replicas, Leaders, Moving int
	// Blocked are partitions that cannot move as things are.
	Blocked []Blocker
}

// DrainProgress returns how far the draining of a broker is, or how far it would have to go. ErrUnknownBroker.
func DrainProgress(s *metadata.State, in Input, id int32) (DrainStatus, error) {
	if err := knownBroker(s, id); err != nil {
		return DrainStatus{}, err
	}
	out := DrainStatus{Broker: id, State: metadata.StorageActive}
	if st, ok := s.Storage(id); ok {
		out.State = st.State
	}
	pl := newPlacer(s, &in)
	pl.count()
	each(s, func(topic *metadata.Topic, p *metadata.Partition) {
		if !p.HasReplica(id) {
			return
		}
		out.Replicas++
		if p.Leader == id {
			out.Leaders++
		}
		block := func(format string, args ...any) {
			out.Blocked = append(out.Blocked, blocker(topic, p, format, args...))
		}
		switch reason := waiting(s, &in, p); {
		case slices.Contains(p.Removing, id):
			out.Moving++
			if reason != "" && !in.catchingUp(s, p) {
				block("%s", reason)
			}
		case reason != "" && !in.catchingUp(s, p):
			block("it is moving, and %s", reason)
		case p.Leader == metadata.NoLeader || !registered(s, p):
			block("the partition has no leader that is well")
		default:
			if _, ok := pl.candidate(minus(p.Replicas, []int32{id}), []int32{id}); !ok && len(Target(p)) <= int(topic.Replicas) {
				block("no other broker can take a replica: %d are well, the topic wants %d replicas", len(pl.brokers), topic.Replicas)
			}
		}
	})
	return out, nil
}

// catchingUp: a reassignment waits for nothing but bytes.
func (in *Input) catchingUp(s *metadata.State, p *metadata.Partition) bool {
	return !in.dead(s, p.Leader) && !slices.ContainsFunc(p.Adding, func(id int32) bool { return in.dead(s, id) })
}

// change returns a broker's registry entry in another state, or nil when it has that state already. from lists the states that allow it.
func change(s *metadata.State, id int32, to metadata.StorageState, from ...metadata.StorageState) (*metadata.Storage, error) {
	if err := knownBroker(s, id); err != nil {
		return nil, err
	}
	st, known := s.Storage(id)
	switch {
	case !known:
		return nil, fmt.Errorf("%w: broker %d is registered and not in the registry yet", ErrWrongState, id)
	case st.State == to:
		return nil, nil //nolint:nilnil // nothing to change
	case !slices.Contains(from, st.State):
		return nil, fmt.Errorf("%w: broker %d is %s", ErrWrongState, id, stateName(st.State))
	}
	next := *st
	next.State = to
	return &next, nil
}

// named checks that a broker's storage is the one that is meant.
func named(s *metadata.State, id int32, storage ids.StorageID) error {
	if err := knownBroker(s, id); err != nil {
		return err
	}
	if st, known := s.Storage(id); !known || st.StorageID != storage {
		return fmt.Errorf("%w: broker %d, asked for storage %s", ErrOtherStorage, id, storage)
	}
	return nil
}

// planDecommission: nothing may be left, and nobody may be there.
func planDecommission(s *metadata.State, id int32, storage ids.StorageID) (*metadata.Storage, error) {
	if err := named(s, id, storage); err != nil {
		return nil, err
	}
	next, err := change(s, id, metadata.StorageDecommissioned, metadata.StorageActive, metadata.StorageDraining, metadata.StorageFenced)
	if next == nil || err != nil {
		return nil, err
	}
	var left []Blocker
	each(s, func(topic *metadata.Topic, p *metadata.Partition) {
		if p.HasReplica(id) {
			left = append(left, blocker(topic, p, "its replicas are %d", p.Replicas))
		}
	})
	if len(left) > 0 {
		return nil, &NotEmptyError{Broker: id, Left: left}
	}
	if b, alive := s.Broker(id); alive {
		return nil, fmt.Errorf("%w: broker %d, broker epoch %d", ErrBrokerLive, id, b.Epoch)
	}
	return next, nil
}

// planFence declares a storage lost. affected are the partitions that are left with fewer in-sync replicas than they need.
func planFence(
	s *metadata.State, defaults *runnelv1.TopicConfig, id int32, storage ids.StorageID, acceptLoss bool,
) (next *metadata.Storage, affected []Blocker, err error) {
	if err := named(s, id, storage); err != nil {
		return nil, nil, err
	}
	next, err = change(s, id, metadata.StorageFenced, metadata.StorageActive, metadata.StorageDraining)
	if next == nil || err != nil {
		return nil, nil, err
	}
	var last []Blocker
	each(s, func(topic *metadata.Topic, p *metadata.Partition) {
		if m, member := p.Member(id); !member || m.StorageID != storage || p.LeaderEpoch == 0 {
			return
		}
		b := Blocker{Partition: p.PartitionRef, Topic: topic.Name, MinInSync: MinISR(topic, p, defaults)}
		for _, m := range p.ISR {
			if m.BrokerID != id && sound(s, p.PartitionRef, m) {
				b.InSync++
			}
		}
		b.Reason = fmt.Sprintf("%d in-sync replicas are left, %d are needed", b.InSync, b.MinInSync)
		if b.InSync == 0 {
			last = append(last, b)
		}
		if b.InSync < b.MinInSync {
			affected = append(affected, b)
		}
	})
	if len(last) > 0 && !acceptLoss {
		return nil, affected, &UnsafeError{Broker: id, Affected: last}
	}
	return next, affected, nil
}

// planUnfence takes a fencing back. The registration has to be declared eligible anew.
func planUnfence(s *metadata.State, id int32, storage ids.StorageID) (*metadata.Storage, error) {
	if err := named(s, id, storage); err != nil {
		return nil, err
	}
	next, err := change(s, id, metadata.StorageActive, metadata.StorageFenced)
	if next != nil {
		next.EligibleEpoch = 0
	}
	return next, err
}
