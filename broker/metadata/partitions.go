package metadata

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"runnel.dev/runnel/internal/ids"
)

// partitionItem writes a partition if its key still has the revision that p was read at (0: absent).
func (c *Client) partitionItem(p *Partition, extra ...clientv3.Cmp) (bulkItem, error) {
	key := c.keys.partition(p.TopicID, p.Partition)
	value, err := encodePartition(p)
	if err != nil {
		return bulkItem{}, err
	}
	return bulkItem{key: key, value: value, compares: append([]clientv3.Cmp{unchanged(key, p.Revision)}, extra...)}, nil
}

// CreatePartitions writes partitions of a topic that do not exist yet, if the topic's record is still the given one. A crash after any
// chunk leaves a prefix of them; whoever controls next creates the rest. ErrNotController also means that the topic changed: look again.
func (c *Client) CreatePartitions(ctx context.Context, t Tenure, topic *Topic, partitions []*Partition) (BulkResult, error) {
	items := make([]bulkItem, 0, len(partitions))
	for _, p := range partitions {
		fresh := *p
		fresh.Revision = 0
		item, err := c.partitionItem(&fresh)
		if err != nil {
			return BulkResult{}, err
		}
		items = append(items, item)
	}
	guards := append(c.guard(t), unchanged(c.keys.topic(topic.Name), topic.Revision))
	return c.bulk(ctx, "create_partitions", guards, items, deposed(t))
}

// UpdatePartitions writes new states of partitions, each a changed Clone of what the cache shows: elections and removals from the ISR.
// A partition with a leader is written only while the leader's registration is the one it names. Put the most urgent first.
func (c *Client) UpdatePartitions(ctx context.Context, t Tenure, partitions []*Partition) (BulkResult, error) {
	items := make([]bulkItem, 0, len(partitions))
	for _, p := range partitions {
		var extra []clientv3.Cmp
		if p.Leader != NoLeader {
			extra = append(extra, unchanged(c.keys.broker(p.Leader), p.LeaderBrokerEpoch))
		}
		item, err := c.partitionItem(p, extra...)
		if err != nil {
			return BulkResult{}, err
		}
		items = append(items, item)
	}
	return c.bulk(ctx, "update_partitions", c.guard(t), items, deposed(t))
}

// DeletePartitions removes the keys of partitions of a topic that is being deleted, each if it is still the given one.
func (c *Client) DeletePartitions(ctx context.Context, t Tenure, topic *Topic, partitions []*Partition) (BulkResult, error) {
	items := make([]bulkItem, 0, len(partitions))
	for _, p := range partitions {
		key := c.keys.partition(p.TopicID, p.Partition)
		items = append(items, bulkItem{key: key, compares: []clientv3.Cmp{unchanged(key, p.Revision)}})
	}
	guards := append(c.guard(t), unchanged(c.keys.topic(topic.Name), topic.Revision))
	return c.bulk(ctx, "delete_partitions", guards, items, deposed(t))
}

// FinishTopic records that the keys of all partitions of a topic exist: it becomes active, or has finished growing. It does
// nothing when the topic or the tenure had changed. The cache shows the result from revision on.
func (c *Client) FinishTopic(ctx context.Context, t Tenure, topic *Topic) (revision int64, err error) {
	next := *topic
	next.State, next.ReadyPartitions = TopicActive, topic.Partitions
	return shown(c.putTopic(ctx, "finish_topic", &next, c.guard(t)))
}

// ForgetTopic removes the key of a topic that is being deleted, if none of its partitions is left. It does nothing when something had
// changed. The cache shows the result from revision on.
func (c *Client) ForgetTopic(ctx context.Context, t Tenure, topic *Topic) (revision int64, err error) {
	if topic.State != TopicDeleting {
		return 0, invalid("topic state", topic.State, "deleting")
	}
	key := c.keys.topic(topic.Name)
	none := clientv3.Compare(clientv3.ModRevision(c.keys.prefix+"partitions/"+topic.ID.String()+"/").WithPrefix(), "=", 0)
	return shown(c.commit(ctx, txn{
		op: "forget_topic", compares: append(c.guard(t), unchanged(key, topic.Revision), none),
		then: []clientv3.Op{clientv3.OpDelete(key)},
		// Nothing to recognise: an attempt that took effect and one that was overtaken both leave no such topic.
	}))
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

// ConfirmReplicas tells the controller that this broker has created and fsynced its directories, which makes it a member of each
// partition's first ISR. Partitions that were led already are left alone: there is no other way into their ISR than catching up. Items that
// do not apply were overtaken by another replica's confirmation: confirm again with what the cache shows then.
func (c *Client) ConfirmReplicas(ctx context.Context, reg *Registration, confirmations []Confirmation) (BulkResult, error) {
	items := make([]bulkItem, 0, len(confirmations))
	for _, f := range confirmations {
		p := f.Partition
		if p.LeaderEpoch != 0 || !p.HasReplica(reg.BrokerID()) {
			return BulkResult{}, invalid("partition", fmt.Sprintf("%s/%d (leader epoch %d, replicas %d)", p.TopicID, p.Partition, p.LeaderEpoch, p.Replicas),
				fmt.Sprintf("one that was never led and has a replica on broker %d", reg.BrokerID()))
		}
		next := p.Clone()
		next.ISR = append(without(next.ISR, reg.BrokerID()), Member{BrokerID: reg.BrokerID(), StorageID: reg.Info().StorageID, LogID: f.LogID})
		item, err := c.partitionItem(next)
		if err != nil {
			return BulkResult{}, err
		}
		items = append(items, item)
	}
	return c.bulk(ctx, "confirm_replicas", c.alive(reg), items, notAlive(reg))
}

// ConfirmPurged tells the controller that this broker has no directory any more for partitions of a topic that is being deleted.
func (c *Client) ConfirmPurged(ctx context.Context, reg *Registration, partitions []*Partition) (BulkResult, error) {
	items := make([]bulkItem, 0, len(partitions))
	for _, p := range partitions {
		next := p.Clone()
		if !slices.Contains(next.Purged, reg.BrokerID()) {
			next.Purged = append(next.Purged, reg.BrokerID())
		}
		item, err := c.partitionItem(next)
		if err != nil {
			return BulkResult{}, err
		}
		items = append(items, item)
	}
	return c.bulk(ctx, "confirm_purged", c.alive(reg), items, notAlive(reg))
}

// AcceptReplica makes this broker's log the whole ISR of a partition whose ISR is empty, or is this broker's own: the way back for a
// partition without any other replica after its log was damaged or its storage lost. Somebody has accepted the loss. The controller
// then elects the broker under a higher epoch.
func (c *Client) AcceptReplica(ctx context.Context, reg *Registration, p *Partition, logID ids.LogID) (BulkResult, error) {
	if rest := without(p.ISR, reg.BrokerID()); len(rest) > 0 || len(p.Pending) > 0 || !p.HasReplica(reg.BrokerID()) {
		return BulkResult{}, invalid("partition", fmt.Sprintf("%s/%d (replicas %d, %d other members)", p.TopicID, p.Partition, p.Replicas, len(rest)),
			fmt.Sprintf("one with a replica on broker %d and nobody else in sync", reg.BrokerID()))
	}
	next := p.Clone()
	next.ISR = []Member{{BrokerID: reg.BrokerID(), StorageID: reg.Info().StorageID, LogID: logID}}
	next.Leader, next.LeaderBrokerEpoch = NoLeader, 0
	next.LeaderEpoch++
	item, err := c.partitionItem(next)
	if err != nil {
		return BulkResult{}, err
	}
	return c.bulk(ctx, "accept_replica", c.alive(reg), []bulkItem{item}, notAlive(reg))
}

func without(members []Member, broker int32) []Member {
	return slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m.BrokerID == broker })
}

// alive compares the registration that a broker acts under.
func (c *Client) alive(reg *Registration) []clientv3.Cmp {
	return []clientv3.Cmp{unchanged(c.keys.broker(reg.BrokerID()), reg.Epoch())}
}

func notAlive(reg *Registration) error {
	return fmt.Errorf("%w: broker %d is not registered under broker epoch %d", ErrNotRegistered, reg.BrokerID(), reg.Epoch())
}
