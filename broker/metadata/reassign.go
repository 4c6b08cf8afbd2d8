package metadata

import (
	"context"
	"fmt"
	"slices"

	"runnel.dev/runnel/internal/ids"
)

// SetReassignment writes which brokers hold replicas of partitions, and which of them come and go: begin, change, cancel or finish a
// reassignment. Each is a changed Clone of what a State shows, with the same leader and leader epoch: no registration is compared, so it
// also applies while the leader is away.
func (b Builder) SetReassignment(t Tenure, partitions []*Partition) ([]Tx, error) {
	const op = "set_reassignment"
	for _, p := range partitions {
		if err := validateReplicas(p); err != nil {
			return nil, err
		}
	}
	items, err := b.partitions(op, partitions, nothingMore)
	return nest(op, b.guard(t), items), err
}

// SetReassignment writes which brokers hold replicas of partitions, and which of them come and go. Each is a changed Clone of what the cache
// shows, with the same leader and leader epoch. A partition that changed meanwhile is left alone.
func (c *Client) SetReassignment(ctx context.Context, t Tenure, partitions []*Partition) (BulkResult, error) {
	txs, err := c.build.SetReassignment(t, partitions)
	if err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, txs, deposed(t))
}

// validateReplicas checks that a record's sets of brokers fit together.
func validateReplicas(p *Partition) error {
	fault := func(field string, value any, limit string) error {
		return invalid(fmt.Sprintf("%s of partition %s/%d", field, p.TopicID, p.Partition), value, limit)
	}
	if len(p.Replicas) < 1 || len(p.Replicas) > 2*MaxReplicas {
		return fault("replicas", len(p.Replicas), fmt.Sprintf("1 to %d, old and new together", 2*MaxReplicas))
	}
	for i, id := range p.Replicas {
		if id < 0 || slices.Contains(p.Replicas[:i], id) {
			return fault("replicas", p.Replicas, "broker ids, each once")
		}
	}
	for field, list := range map[string][]int32{"adding": p.Adding, "removing": p.Removing} {
		for i, id := range list {
			if !p.HasReplica(id) || slices.Contains(list[:i], id) {
				return fault(field, list, fmt.Sprintf("some of the replicas %d, each once", p.Replicas))
			}
		}
	}
	switch {
	case slices.ContainsFunc(p.Adding, func(id int32) bool { return slices.Contains(p.Removing, id) }):
		return fault("adding", p.Adding, fmt.Sprintf("none of those that are removed: %d", p.Removing))
	case len(p.Removing) == len(p.Replicas):
		return fault("removing", p.Removing, "not all replicas")
	case p.Leader != NoLeader && !p.HasReplica(p.Leader):
		return fault("leader", p.Leader, fmt.Sprintf("one of the replicas %d", p.Replicas))
	case slices.ContainsFunc(p.ISR, func(m Member) bool { return !p.HasReplica(m.BrokerID) }):
		return fault("replicas", p.Replicas, "all members of the ISR")
	}
	return nil
}

// AcceptUnclean makes a broker's own log the whole ISR of a partition although other members are named: somebody has accepted that records
// which only they have are lost. The broker has to be registered and eligible, and its log undamaged.
func (b Builder) AcceptUnclean(s *State, reg RegRef, p *Partition, logID ids.LogID) ([]Tx, error) {
	if !p.HasReplica(reg.BrokerID) || logID.IsZero() {
		return nil, invalid("partition", fmt.Sprintf("%s/%d (replicas %d, log id %s)", p.TopicID, p.Partition, p.Replicas, logID),
			fmt.Sprintf("one with a replica and a log on broker %d", reg.BrokerID))
	}
	own := Member{BrokerID: reg.BrokerID, StorageID: reg.StorageID, LogID: logID}
	more, err := b.admissions(s, ISRChange{
		Partition: p, ISR: []Member{own}, Added: []AddedMember{{BrokerID: reg.BrokerID, BrokerEpoch: reg.Epoch}},
	})
	if err != nil {
		return nil, err
	}
	next := p.Clone()
	next.ISR = []Member{own}
	next.Leader, next.LeaderBrokerEpoch = NoLeader, 0
	next.LeaderEpoch++
	const op = "accept_unclean"
	item, err := b.partition(op, next, more...)
	return nest(op, []Compare{b.alive(reg)}, []Tx{item}), err
}

// AcceptUnclean makes this broker's log the whole ISR of a partition, whoever else is named in it: the forced, unclean election. s is the
// newest State, p the partition in it. The controller then elects the broker under a higher epoch; the earlier members come back
// by truncation. Errors: ErrNotEligible, ErrNotRegistered, ErrInvalidArgument, ErrUnavailable.
func (c *Client) AcceptUnclean(ctx context.Context, reg *Registration, s *State, p *Partition, logID ids.LogID) (BulkResult, error) {
	return c.AcceptUncleanFor(ctx, reg.Ref(), s, p, logID)
}

// AcceptUncleanFor is AcceptUnclean on behalf of another broker, whose registration and log ID the caller has learned from it.
func (c *Client) AcceptUncleanFor(ctx context.Context, ref RegRef, s *State, p *Partition, logID ids.LogID) (BulkResult, error) {
	txs, err := c.build.AcceptUnclean(s, ref, p, logID)
	if err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, txs, notAlive(ref))
}
