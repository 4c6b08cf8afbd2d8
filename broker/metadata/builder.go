package metadata

import (
	"errors"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"runnel.dev/runnel/internal/ids"
)

// Builder makes the transactions of one cluster, and reads its keys. It is pure: it asks nobody and carries nothing out. Safe for
// concurrent use.
type Builder struct{ keys keyspace }

// NewBuilder returns the builder of a cluster, which is named as in Config.Cluster.
func NewBuilder(cluster string) Builder { return Builder{keys: newKeyspace(cluster)} }

// Prefix is what every key of the cluster begins with.
func (b Builder) Prefix() string { return b.keys.prefix }

// BrokerKey is the key of a registration, which is attached to a lease.
func (b Builder) BrokerKey(id int32) string { return b.keys.broker(id) }

// PartitionKey is the key of a partition.
func (b Builder) PartitionKey(ref PartitionRef) string {
	return b.keys.partition(ref.TopicID, ref.Partition)
}

// ClusterUnchanged compares the revision of the cluster's record: it holds until a recovery begins.
func (b Builder) ClusterUnchanged(revision int64) Compare {
	return unchanged(b.keys.cluster(), revision)
}

// RegRef names the registration that a broker acts under.
type RegRef struct {
	BrokerID  int32
	StorageID ids.StorageID
	// Epoch is the broker epoch.
	Epoch int64
}

// Decode reads keys and values, at a position, into what NewState takes. Keys of other kinds are left out. The error joins a
// *CorruptValueError per value that cannot be read; the others are in the result.
func (b Builder) Decode(pos Position, kvs []KV) (Contents, error) {
	c := Contents{Position: pos}
	var errs []error
	for _, kv := range kvs {
		if err := b.decode(&c, kv); err != nil {
			errs = append(errs, err)
		}
	}
	return c, errors.Join(errs...)
}

func (b Builder) decode(c *Contents, kv KV) (err error) {
	raw := &mvccpb.KeyValue{Key: []byte(kv.Key), Value: []byte(kv.Value), ModRevision: kv.Revision}
	switch key := b.keys.parse(kv.Key); key.kind {
	case kindCluster:
		err = replace(&c.Cluster, func() (*Cluster, error) { return decodeCluster(raw) })
	case kindController:
		err = replace(&c.Controller, func() (*ControllerInfo, error) { return decodeController(raw) })
	case kindBroker:
		err = add(&c.Brokers, func() (*Broker, error) { return decodeBroker(raw, key.id) })
	case kindStorage:
		err = add(&c.Storages, func() (*Storage, error) { return decodeStorage(raw, key.id) })
	case kindTopic:
		err = add(&c.Topics, func() (*Topic, error) { return decodeTopic(raw, key.name) })
	case kindPartition:
		ref := PartitionRef{TopicID: key.topic, Partition: key.partition}
		err = add(&c.Partitions, func() (*Partition, error) { return decodePartition(raw, ref) })
	case kindOther:
	}
	return err
}

func add[V any](list *[]*V, read func() (*V, error)) error {
	v, err := read()
	if err == nil {
		*list = append(*list, v)
	}
	return err
}

// CreateCluster founds a cluster, unless there is one. Whoever wins, read again.
func (b Builder) CreateCluster(cluster *Cluster) (Tx, error) {
	value, err := encodeCluster(cluster)
	key := b.keys.cluster()
	return Tx{Op: "create_cluster", Compares: []Compare{absent(key)}, Then: []Put{{Key: key, Value: value}}}, err
}

// Register writes a registration under its lease in the place of the one of a revision; 0: there is none. The guards are compared as well.
func (b Builder) Register(revision int64, info BrokerInfo, boot BootID, lease int64, guards ...Compare) (Tx, error) {
	key := b.keys.broker(info.ID)
	value, err := encodeBroker(&Broker{BrokerInfo: info, BootID: boot, leaseID: lease})
	tx := write("register", key, value, append([]Compare{unchanged(key, revision)}, guards...)...)
	tx.Then[0].Lease = lease
	return tx, err
}

// guard compares the controller's tenure.
func (b Builder) guard(t Tenure, more ...Compare) []Compare {
	return append([]Compare{unchanged(b.keys.controller(), t.Epoch)}, more...)
}

// alive compares the registration that a broker acts under.
func (b Builder) alive(reg RegRef) Compare { return unchanged(b.keys.broker(reg.BrokerID), reg.Epoch) }
