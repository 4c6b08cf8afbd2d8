package metadata

import (
	"context"
	"fmt"
	"slices"

	"runnel.dev/runnel/internal/ids"
)

// partition writes a partition if its key still has the revision that p was read at (0: absent).
func (b Builder) partition(op string, p *Partition, more ...Compare) (Tx, error) {
	key := b.keys.partition(p.TopicID, p.Partition)
	value, err := encodePartition(p)
	return write(op, key, value, append([]Compare{unchanged(key, p.Revision)}, more...)...), err
}

// partitions makes one single-key transaction per partition, each with the compares that more adds.
func (b Builder) partitions(op string, partitions []*Partition, more func(*Partition) []Compare) ([]Tx, error) {
	items := make([]Tx, len(partitions))
	for i, p := range partitions {
		item, err := b.partition(op, p, more(p)...)
		if err != nil {
			return nil, err
		}
		items[i] = item
	}
	return items, nil
}

func nothingMore(*Partition) []Compare { return nil }

// CreatePartitions writes partitions of a topic that do not exist yet, if the topic's record is still the given one.
func (b Builder) CreatePartitions(t Tenure, topic *Topic, partitions []*Partition) ([]Tx, error) {
	const op = "create_partitions"
	fresh := make([]*Partition, len(partitions))
	for i, p := range partitions {
		c := *p
		c.Revision = 0
		fresh[i] = &c
	}
	items, err := b.partitions(op, fresh, nothingMore)
	return nest(op, b.guard(t, unchanged(b.keys.topic(topic.Name), topic.Revision)), items), err
}

// CreatePartitions writes partitions of a topic that do not exist yet, if the topic's record is still the given one. A crash after any
// chunk leaves a prefix of them; whoever controls next creates the rest. ErrNotController also means that the topic changed: look again.
func (c *Client) CreatePartitions(ctx context.Context, t Tenure, topic *Topic, partitions []*Partition) (BulkResult, error) {
	txs, err := c.build.CreatePartitions(t, topic, partitions)
	if err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, txs, deposed(t))
}

// UpdatePartitions writes new states of partitions, each a changed Clone of what a State shows. A partition with a leader is written only
// while the leader's registration is the one it names.
func (b Builder) UpdatePartitions(t Tenure, partitions []*Partition) ([]Tx, error) {
	const op = "update_partitions"
	items, err := b.partitions(op, partitions, func(p *Partition) []Compare {
		if p.Leader == NoLeader {
			return nil
		}
		return []Compare{unchanged(b.keys.broker(p.Leader), p.LeaderBrokerEpoch)}
	})
	return nest(op, b.guard(t), items), err
}

// UpdatePartitions writes new states of partitions, each a changed Clone of what the cache shows: elections and removals from the ISR.
// A partition with a leader is written only while the leader's registration is the one it names. Put the most urgent first.
func (c *Client) UpdatePartitions(ctx context.Context, t Tenure, partitions []*Partition) (BulkResult, error) {
	txs, err := c.build.UpdatePartitions(t, partitions)
	if err != nil {
		return BulkResult{}, err
	}
	result, outcomes, err := c.bulkOutcomes(ctx, txs, deposed(t))
	result.Written = c.written(partitions, txs, outcomes)
	return result, err
}

// DeletePartitions removes the keys of partitions of a topic that is being deleted, each if it is still the given one.
func (b Builder) DeletePartitions(t Tenure, topic *Topic, partitions []*Partition) []Tx {
	const op = "delete_partitions"
	items := make([]Tx, len(partitions))
	for i, p := range partitions {
		key := b.keys.partition(p.TopicID, p.Partition)
		items[i] = write(op, key, "", unchanged(key, p.Revision))
		items[i].Then[0].Delete = true
	}
	return nest(op, b.guard(t, unchanged(b.keys.topic(topic.Name), topic.Revision)), items)
}

// DeletePartitions removes the keys of partitions of a topic that is being deleted, each if it is still the given one.
func (c *Client) DeletePartitions(ctx context.Context, t Tenure, topic *Topic, partitions []*Partition) (BulkResult, error) {
	return c.bulk(ctx, c.build.DeletePartitions(t, topic, partitions), deposed(t))
}

// Confirmation is a broker's word that its directory for a partition exists and is fsynced.
type Confirmation struct {
	// Partition is what the cache shows.
	Partition *Partition
	// LogID is the new log's identity.
	LogID ids.LogID
}

// NeedsConfirmation reports whether a broker has to create its directory for a partition and confirm it: it holds a replica, the
// partition never had a leader, and the broker has not confirmed this log on this storage.
func NeedsConfirmation(p *Partition, reg *Registration) bool {
	m, ok := p.Member(reg.BrokerID())
	return p.LeaderEpoch == 0 && p.HasReplica(reg.BrokerID()) && (!ok || m.StorageID != reg.Info().StorageID)
}

// ConfirmReplicas adds a broker to the first ISRs of partitions whose directories it has made durable.
func (b Builder) ConfirmReplicas(reg RegRef, confirmations []Confirmation) ([]Tx, error) {
	const op = "confirm_replicas"
	next := make([]*Partition, len(confirmations))
	for i, f := range confirmations {
		p := f.Partition
		if p.LeaderEpoch != 0 || !p.HasReplica(reg.BrokerID) {
			return nil, invalid("partition", fmt.Sprintf("%s/%d (leader epoch %d, replicas %d)", p.TopicID, p.Partition, p.LeaderEpoch, p.Replicas),
				fmt.Sprintf("one that was never led and has a replica on broker %d", reg.BrokerID))
		}
		next[i] = p.Clone()
		next[i].ISR = append(without(p.ISR, reg.BrokerID), Member{BrokerID: reg.BrokerID, StorageID: reg.StorageID, LogID: f.LogID})
	}
	items, err := b.partitions(op, next, nothingMore)
	return nest(op, []Compare{b.alive(reg)}, items), err
}

// ConfirmReplicas tells the controller that this broker has created and fsynced its directories, which makes it a member of each
// partition's first ISR. Partitions that were led already are left alone: there is no other way into their ISR than catching up. Items that
// do not apply were overtaken by another replica's confirmation: confirm again with what the cache shows then.
func (c *Client) ConfirmReplicas(ctx context.Context, reg *Registration, confirmations []Confirmation) (BulkResult, error) {
	ref := reg.Ref()
	txs, err := c.build.ConfirmReplicas(ref, confirmations)
	if err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, txs, notAlive(ref))
}

// ConfirmPurged notes that a broker has no directory any more for partitions of a topic that is being deleted.
func (b Builder) ConfirmPurged(reg RegRef, partitions []*Partition) ([]Tx, error) {
	const op = "confirm_purged"
	next := make([]*Partition, len(partitions))
	for i, p := range partitions {
		next[i] = p.Clone()
		if !slices.Contains(p.Purged, reg.BrokerID) {
			next[i].Purged = append(next[i].Purged, reg.BrokerID)
		}
	}
	items, err := b.partitions(op, next, nothingMore)
	return nest(op, []Compare{b.alive(reg)}, items), err
}

// ConfirmPurged tells the controller that this broker has no directory any more for partitions of a topic that is being deleted.
func (c *Client) ConfirmPurged(ctx context.Context, reg *Registration, partitions []*Partition) (BulkResult, error) {
	ref := reg.Ref()
	txs, err := c.build.ConfirmPurged(ref, partitions)
	if err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, txs, notAlive(ref))
}

// AcceptReplica makes a broker's own log the whole ISR of a partition whose ISR is empty, or is this broker's own.
func (b Builder) AcceptReplica(reg RegRef, p *Partition, logID ids.LogID) ([]Tx, error) {
	const op = "accept_replica"
	if rest := without(p.ISR, reg.BrokerID); len(rest) > 0 || !p.HasReplica(reg.BrokerID) {
		return nil, invalid("partition", fmt.Sprintf("%s/%d (replicas %d, %d other members)", p.TopicID, p.Partition, p.Replicas, len(rest)),
			fmt.Sprintf("one with a replica on broker %d and nobody else in sync", reg.BrokerID))
	}
	next := p.Clone()
	next.ISR = []Member{{BrokerID: reg.BrokerID, StorageID: reg.StorageID, LogID: logID}}
	next.Leader, next.LeaderBrokerEpoch = NoLeader, 0
	next.LeaderEpoch++
	items, err := b.partitions(op, []*Partition{next}, nothingMore)
	return nest(op, []Compare{b.alive(reg)}, items), err
}

// AcceptReplica makes this broker's log the whole ISR of a partition whose ISR is empty, or is this broker's own: the way back for a
// partition without any other replica after its log was damaged or its storage lost. Somebody has accepted the loss. The controller
// then elects the broker under a higher epoch.
func (c *Client) AcceptReplica(ctx context.Context, reg *Registration, p *Partition, logID ids.LogID) (BulkResult, error) {
	ref := reg.Ref()
	txs, err := c.build.AcceptReplica(ref, p, logID)
	if err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, txs, notAlive(ref))
}

func without(members []Member, broker int32) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.BrokerID == broker })
}

func notAlive(reg RegRef) error {
	return fmt.Errorf("%w: broker %d is not registered under broker epoch %d", ErrNotRegistered, reg.BrokerID, reg.Epoch)
}
