package controller

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"runnel.dev/runnel/broker/metadata"
)

// OperationKind says what takes time.
type OperationKind int

// Kinds of operations.
const (
	// OperationReassignment: replicas move, of the whole cluster.
	OperationReassignment OperationKind = iota + 1
	// OperationDrain: a broker is being emptied.
	OperationDrain
	// OperationBalance: leaders are not where they are preferred.
	OperationBalance
	// OperationRepair: replicas of a broker are not in sync.
	OperationRepair
)

// Operation is something that takes time, and how far it is.
type Operation struct {
	Kind OperationKind
	// Broker is metadata.NoLeader for the cluster.
	Broker int32
	// Total is the most partitions that this controller saw it concern, Done how many of them are finished.
	Total, Done int
	// Since is when this controller first saw it.
	Since time.Time
	// Waiting says for people what it waits for when it does not get on, "" when it does; Blocking are the partitions concerned.
	Waiting  string
	Blocking []Blocker
}

type operationKey struct {
	kind   OperationKind
	broker int32
}

// work is what is left of an operation.
type work struct {
	left     int
	blocking []Blocker
}

// tally is what is wrong and under way, in partitions.
type tally struct {
	leaderless, underMinimum, underReplicated, moving int
	works                                             map[operationKey]*work
}

// survey goes over the whole state.
func survey(s *metadata.State, in Input, minISR func(*metadata.Topic, *metadata.Partition) int) tally {
	t := tally{works: map[operationKey]*work{}}
	at := func(kind OperationKind, broker int32) *work {
		key := operationKey{kind, broker}
		if t.works[key] == nil {
			t.works[key] = &work{}
		}
		return t.works[key]
	}
	for _, st := range s.Storages() {
		if st.State != metadata.StorageDraining {
			continue
		}
		if progress, err := DrainProgress(s, in, st.BrokerID); err == nil && progress.Replicas > 0 {
			*at(OperationDrain, st.BrokerID) = work{progress.Replicas, progress.Blocked}
		}
	}
	each(s, func(topic *metadata.Topic, p *metadata.Partition) {
		if p.LeaderEpoch == 0 {
			return
		}
		if p.Leader == metadata.NoLeader {
			t.leaderless++
		}
		if len(p.ISR) < minISR(topic, p) {
			t.underMinimum++
		}
		if Moving(p) {
			t.moving++
			w := at(OperationReassignment, metadata.NoLeader)
			w.left++
			if !in.catchingUp(s, p) {
				w.blocking = append(w.blocking, blocker(topic, p, "%s", waiting(s, &in, p)))
			}
		} else if p.Leader != p.Replicas[0] {
			at(OperationBalance, metadata.NoLeader).left++
		}
		behind := false
		for _, id := range minus(Target(p), p.Adding) {
			if _, member := p.Member(id); member {
				continue
			}
			behind = true
			w := at(OperationRepair, id)
			w.left++
			if in.dead(s, id) {
				w.blocking = append(w.blocking, blocker(topic, p, "broker %d is not there", id))
			}
		}
		if behind {
			t.underReplicated++
		}
	})
	return t
}

// survey notes what is wrong and under way.
func (c *Controller) survey(s *metadata.State, in Input, now time.Time) {
	t := survey(s, in, func(topic *metadata.Topic, p *metadata.Partition) int { return MinISR(topic, p, c.defaults) })
	for state, n := range map[string]int{
		"leaderless": t.leaderless, "under_minimum": t.underMinimum, "under_replicated": t.underReplicated, "moving": t.moving,
	} {
		c.metrics.partitions.WithLabelValues(state).Set(float64(n))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.mu.seen, func(key operationKey, _ *Operation) bool { return t.works[key] == nil })
	for key, w := range t.works {
		op := c.mu.seen[key]
		if op == nil {
			op = &Operation{Kind: key.kind, Broker: key.broker, Since: now}
			c.mu.seen[key] = op
		}
		op.Total = max(op.Total, w.left)
		op.Done, op.Blocking, op.Waiting = op.Total-w.left, w.blocking, ""
		if len(w.blocking) > 0 {
			op.Waiting = w.blocking[0].String()
		}
	}
}

// operations returns what the last survey found.
func (c *Controller) operations() []Operation {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Operation, 0, len(c.mu.seen))
	for _, op := range c.mu.seen {
		out = append(out, *op)
	}
	slices.SortFunc(out, func(a, b Operation) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Broker, b.Broker)) })
	return out
}
