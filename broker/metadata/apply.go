package metadata

import (
	"log/slog"
	"maps"
	"slices"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"runnel.dev/runnel/internal/ids"
)

// stateBuilder makes the next State out of the previous one: what does not change is shared, what changes is copied first.
type stateBuilder struct {
	*State
	base *State
	keys keyspace
	lg   *slog.Logger
	// corrupt counts values that could not be decoded; the previous value stays.
	corrupt int
	// owned are the partition lists that belong to the new State already.
	owned                           map[ids.TopicID]bool
	ownBrokers, ownStores, ownTopic bool
	ownPartitions                   bool
}

func newStateBuilder(base *State, keys keyspace, lg *slog.Logger) *stateBuilder {
	next := *base
	next.changed = make(chan struct{})
	return &stateBuilder{State: &next, base: base, keys: keys, lg: lg, owned: map[ids.TopicID]bool{}}
}

// put takes a value in unless a newer one of its key is known: the highest mod revision wins, wherever it comes from.
func (b *stateBuilder) put(kv *mvccpb.KeyValue) {
	var err error
	key := b.keys.parse(string(kv.Key))
	switch key.kind {
	case kindCluster:
		if b.cluster == nil || b.cluster.Revision < kv.ModRevision {
			err = replace(&b.cluster, func() (*Cluster, error) { return decodeCluster(kv) })
		}
	case kindController:
		if b.controller == nil || b.controller.Epoch < kv.ModRevision {
			err = replace(&b.controller, func() (*ControllerInfo, error) { return decodeController(kv) })
		}
	case kindBroker:
		if old := b.brokers[key.id]; old == nil || old.Epoch < kv.ModRevision {
			own(&b.ownBrokers, &b.brokers)
			err = assign(b.brokers, key.id, func() (*Broker, error) { return decodeBroker(kv, key.id) })
		}
	case kindStorage:
		if old := b.storages[key.id]; old == nil || old.Revision < kv.ModRevision {
			own(&b.ownStores, &b.storages)
			err = assign(b.storages, key.id, func() (*Storage, error) { return decodeStorage(kv, key.id) })
		}
	case kindTopic:
		if old := b.byName[key.name]; old == nil || old.Revision < kv.ModRevision {
			err = b.putTopic(kv, key.name, old)
		}
	case kindPartition:
		err = b.putPartition(kv, PartitionRef{TopicID: key.topic, Partition: key.partition})
	case kindOther:
	}
	if err != nil {
		b.corrupt++
		b.lg.Error("unreadable metadata value, the previous one stays", "key", string(kv.Key), "error", err)
	}
}

func (b *stateBuilder) putTopic(kv *mvccpb.KeyValue, name string, old *Topic) error {
	t, err := decodeTopic(kv, name)
	if err != nil {
		return err
	}
	b.ownTopics()
	if old != nil && old.ID != t.ID {
		delete(b.byID, old.ID)
	}
	b.byName[name], b.byID[t.ID] = t, t
	return nil
}

func (b *stateBuilder) putPartition(kv *mvccpb.KeyValue, ref PartitionRef) error {
	if old, ok := b.Partition(ref.TopicID, ref.Partition); ok && old.Revision >= kv.ModRevision {
		return nil
	}
	p, err := decodePartition(kv, ref)
	if err != nil {
		return err
	}
	list := b.ownList(ref.TopicID)
	if missing := int(ref.Partition) + 1 - len(list); missing > 0 {
		list = append(list, make([]*Partition, missing)...)
	}
	list[ref.Partition] = p
	b.partitions[ref.TopicID] = list
	return nil
}

// remove takes a key out unless a newer value of it is known.
func (b *stateBuilder) remove(name string, revision int64) {
	key := b.keys.parse(name)
	switch key.kind {
	case kindController:
		if b.controller != nil && b.controller.Epoch < revision {
			b.controller = nil
		}
	case kindBroker:
		if old := b.brokers[key.id]; old != nil && old.Epoch < revision {
			own(&b.ownBrokers, &b.brokers)
			delete(b.brokers, key.id)
		}
	case kindStorage:
		if old := b.storages[key.id]; old != nil && old.Revision < revision {
			own(&b.ownStores, &b.storages)
			delete(b.storages, key.id)
		}
	case kindTopic:
		if old := b.byName[key.name]; old != nil && old.Revision < revision {
			b.ownTopics()
			delete(b.byName, key.name)
			delete(b.byID, old.ID)
		}
	case kindPartition:
		b.removePartition(PartitionRef{TopicID: key.topic, Partition: key.partition}, revision)
	case kindCluster, kindOther: // the cluster's record is never deleted, and its absence is not evidence of anything
	}
}

func (b *stateBuilder) removePartition(ref PartitionRef, revision int64) {
	old, ok := b.Partition(ref.TopicID, ref.Partition)
	if !ok || old.Revision >= revision {
		return
	}
	list := b.ownList(ref.TopicID)
	list[ref.Partition] = nil
	for len(list) > 0 && list[len(list)-1] == nil {
		list = list[:len(list)-1]
	}
	if len(list) == 0 {
		delete(b.partitions, ref.TopicID)
		delete(b.owned, ref.TopicID)
		return
	}
	b.partitions[ref.TopicID] = list
}

// retain removes every key that a complete list at a revision did not have.
func (b *stateBuilder) retain(listed map[string]bool, revision int64) {
	for id := range b.base.brokers {
		b.drop(b.keys.broker(id), listed, revision)
	}
	for id := range b.base.storages {
		b.drop(b.keys.storage(id), listed, revision)
	}
	for name := range b.base.byName {
		b.drop(b.keys.topic(name), listed, revision)
	}
	for id, list := range b.base.partitions {
		for _, p := range list {
			if p != nil {
				b.drop(b.keys.partition(id, p.Partition), listed, revision)
			}
		}
	}
	b.drop(b.keys.controller(), listed, revision)
}

func (b *stateBuilder) drop(key string, listed map[string]bool, revision int64) {
	if !listed[key] {
		b.remove(key, revision+1)
	}
}

func (b *stateBuilder) ownTopics() {
	if !b.ownTopic {
		b.ownTopic = true
		b.byName, b.byID = maps.Clone(b.byName), maps.Clone(b.byID)
	}
}

// ownList returns a topic's partition list for writing.
func (b *stateBuilder) ownList(id ids.TopicID) []*Partition {
	own(&b.ownPartitions, &b.partitions)
	list := b.partitions[id]
	if !b.owned[id] {
		b.owned[id] = true
		list = slices.Clone(list)
		b.partitions[id] = list
	}
	return list
}

func own[K comparable, V any](owned *bool, m *map[K]V) {
	if !*owned {
		*owned = true
		*m = maps.Clone(*m)
	}
}

func replace[V any](dst **V, read func() (*V, error)) error {
	v, err := read()
	if err == nil {
		*dst = v
	}
	return err
}

func assign[K comparable, V any](m map[K]*V, key K, read func() (*V, error)) error {
	v, err := read()
	if err == nil {
		m[key] = v
	}
	return err
}
