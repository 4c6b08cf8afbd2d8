package metadata

import (
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
)

// PartitionValue is a partition's key as a transaction has just written it, for caches that the watch has not told yet.
type PartitionValue struct {
	Ref PartitionRef
	// Era and Revision, the key's mod revision, order what is known of one key: the highest wins.
	Era, Revision int64
	Value         []byte
}

const (
	// pushQueue bounds the calls of Offer that wait.
	pushQueue = 64
	// maxLead is how far ahead of the cache a pushed revision may be: far beyond what a watch ever lags. A number that makes no sense would
	// otherwise hide all that comes after it.
	maxLead = 1 << 32
)

// written returns the values of the items that took effect. outcomes are those of the first transactions' items.
func (c *Client) written(partitions []*Partition, txs []Tx, outcomes []Outcome) []PartitionValue {
	var out []PartitionValue
	era := c.Position().Era
	for _, tx := range txs {
		for i := range tx.Nested {
			if len(outcomes) == 0 {
				return out
			}
			if outcomes[0].Applied {
				put := tx.Nested[i].Then[0]
				out = append(out, PartitionValue{Ref: partitions[0].PartitionRef, Era: era, Revision: outcomes[0].Revision, Value: []byte(put.Value)})
			}
			partitions, outcomes = partitions[1:], outcomes[1:]
		}
	}
	return out
}

// Offer gives the cache values that somebody has just written, ahead of the watch. It does not block, and is best effort: what Run cannot
// take at once is dropped, since the watch brings it too. The values are kept; they have to be true, which the caller answers for.
func (c *Cache) Offer(values []PartitionValue) {
	if len(values) == 0 {
		return
	}
	select {
	case c.pushed <- values:
	default:
	}
}

// takePushed takes offered values in. It runs on Run's goroutine, between two answers of the watch, so that no State is lost.
//
// Only a partition that the State has is changed, and only to a higher mod revision. Whatever the order of pushes and events, the result
// is then what the watch alone would make of it, sooner:
//
//   - The watch delivers the same value later, or older ones before it: put ignores them, as it does whatever is not newer.
//   - A push comes after the watch has delivered its value, or a newer one: it is not newer, and ignored here.
//   - A push comes after the watch has delivered a deletion of its key: the State has no such partition, and it is ignored; else it would
//     bring back for ever what no event removes. That a new partition is not pushed before the watch has shown it is the price.
//   - A push comes before the deletion of its key is delivered: the deletion has the higher revision, and removes it.
//   - A key was deleted and created again, and the push is of the new one: the deletion has the lower revision, and is ignored.
//   - The cache lists again: the list was asked for after the push was taken in, hence after its value was committed, and is
//     linearizable; it shows that value or what came of it, and retain removes by the list's revision, which is not lower.
//
// The State's Revision stays what the watch has reached: who waits for a revision waits for all keys. Its Seen moves, since this process
// is about to act on what it saw.
func (c *Cache) takePushed(values []PartitionValue) {
	b := newStateBuilder(c.Snapshot(), c.client.keys, c.client.lg)
	if !b.base.Loaded() {
		return
	}
	era, newer := c.client.Position().Era, false
	for _, v := range values {
		old, known := b.Partition(v.Ref.TopicID, v.Ref.Partition)
		if !known || v.Era != era || v.Revision <= old.Revision || v.Revision-b.base.Revision() > maxLead {
			continue
		}
		if _, named := b.TopicByID(v.Ref.TopicID); !named {
			continue
		}
		b.put(&mvccpb.KeyValue{Key: []byte(c.client.keys.partition(v.Ref.TopicID, v.Ref.Partition)), Value: v.Value, ModRevision: v.Revision})
		if now, _ := b.Partition(v.Ref.TopicID, v.Ref.Partition); now != old {
			newer = true
			b.seen = max(b.seen, v.Revision)
		}
	}
	if newer {
		c.client.metrics.pushed.Inc()
		c.publish(b, b.base.Revision())
	}
}
