package metadata

import (
	"errors"
	"fmt"
	"maps"
	"time"

	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	metadatav1 "runnel.dev/runnel/api/runnel/metadata/v1"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/ids"
)

// FormatVersion is the layout of keys and values that this version writes, and the highest that it reads.
const FormatVersion = 1

var marshal = proto.MarshalOptions{Deterministic: true}

// encode cannot fail for our messages: they have no required fields, and every string in them was checked to be UTF-8.
func encode(m proto.Message) (string, error) {
	b, err := marshal.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encoding %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return string(b), nil
}

func decode[M proto.Message](kv *mvccpb.KeyValue, m M, check func(M) error) error {
	err := proto.Unmarshal(kv.Value, m)
	if err == nil {
		err = check(m)
	}
	if err != nil {
		return &CorruptValueError{Key: string(kv.Key), Revision: kv.ModRevision, Err: err}
	}
	return nil
}

func id16[T ~[16]byte](b []byte, what string, errs *[]error) T {
	var id T
	if len(b) != len(id) {
		*errs = append(*errs, fmt.Errorf("%s has %d bytes, want %d", what, len(b), len(id)))
		return id
	}
	copy(id[:], b)
	return id
}

// optional16 also accepts no bytes at all, as the zero ID.
func optional16[T ~[16]byte](b []byte, what string, errs *[]error) T {
	if len(b) == 0 {
		return T{}
	}
	return id16[T](b, what, errs)
}

func bytesOf[T ~[16]byte](id T) []byte {
	if id == (T{}) {
		return nil
	}
	b := [16]byte(id)
	return b[:]
}

func encodeCluster(c *Cluster) (string, error) {
	m := &metadatav1.Cluster{
		ClusterId: c.ID, Era: c.Era, FormatVersion: c.FormatVersion, FeatureLevel: c.FeatureLevel, CreatedMs: c.Created.UnixMilli(),
		RecoveredBy: bytesOf(c.RecoveredBy),
	}
	if r := c.Recovery; r != nil {
		m.Recovery = &metadatav1.Recovery{PlanId: bytesOf(r.Plan), Era: r.Era, StartedMs: r.Started.UnixMilli()}
	}
	return encode(m)
}

func decodeCluster(kv *mvccpb.KeyValue) (*Cluster, error) {
	m := &metadatav1.Cluster{}
	c := &Cluster{Revision: kv.ModRevision}
	err := decode(kv, m, func(m *metadatav1.Cluster) error {
		var errs []error
		if m.GetFormatVersion() > FormatVersion {
			return fmt.Errorf("%w: %d, this version reads up to %d", ErrFormatVersion, m.GetFormatVersion(), FormatVersion)
		}
		if m.GetFormatVersion() < 1 || m.GetEra() < 1 || m.GetClusterId() == "" {
			return fmt.Errorf("format version %d, era %d, cluster id %q: want all set", m.GetFormatVersion(), m.GetEra(), m.GetClusterId())
		}
		c.ID, c.Era, c.FormatVersion, c.FeatureLevel = m.GetClusterId(), m.GetEra(), m.GetFormatVersion(), m.GetFeatureLevel()
		c.Created, c.RecoveredBy = time.UnixMilli(m.GetCreatedMs()), optional16[PlanID](m.GetRecoveredBy(), "recovered by", &errs)
		if r := m.GetRecovery(); r != nil {
			c.Recovery = &RecoveryMark{
				Plan: id16[PlanID](r.GetPlanId(), "recovery's plan id", &errs), Era: r.GetEra(), Started: time.UnixMilli(r.GetStartedMs()),
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func encodeBroker(b *Broker) (string, error) {
	return encode(&metadatav1.Broker{
		Id: b.ID, Listeners: b.Listeners, Rack: b.Rack, StorageId: bytesOf(b.StorageID), BootId: b.BootID[:],
		Version: b.Version, LeaseId: b.leaseID,
	})
}

func decodeBroker(kv *mvccpb.KeyValue, id int32) (*Broker, error) {
	m := &metadatav1.Broker{}
	b := &Broker{Epoch: kv.ModRevision}
	err := decode(kv, m, func(m *metadatav1.Broker) error {
		var errs []error
		b.BrokerInfo = BrokerInfo{
			ID: id, Listeners: maps.Clone(m.GetListeners()), Rack: m.GetRack(), Version: m.GetVersion(),
			StorageID: id16[ids.StorageID](m.GetStorageId(), "storage id", &errs),
		}
		b.BootID, b.leaseID = id16[BootID](m.GetBootId(), "boot id", &errs), m.GetLeaseId()
		if m.GetId() != id {
			errs = append(errs, fmt.Errorf("broker id %d under the key of broker %d", m.GetId(), id))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

func encodeStorage(s *Storage) (string, error) {
	m := &metadatav1.Storage{
		BrokerId: s.BrokerID, StorageId: bytesOf(s.StorageID), EligibleBrokerEpoch: s.EligibleEpoch, State: metadatav1.StorageState(s.State),
	}
	for _, mark := range s.Marks {
		m.Marks = append(m.Marks, &metadatav1.LogMark{
			TopicId: bytesOf(mark.Partition.TopicID), Partition: mark.Partition.Partition, Kind: metadatav1.LogMarkKind(mark.Kind), LogId: bytesOf(mark.LogID),
		})
	}
	m.ProtoReflect().SetUnknown(s.unknown)
	return encode(m)
}

func decodeStorage(kv *mvccpb.KeyValue, id int32) (*Storage, error) {
	m := &metadatav1.Storage{}
	s := &Storage{BrokerID: id, Revision: kv.ModRevision}
	err := decode(kv, m, func(m *metadatav1.Storage) error {
		var errs []error
		s.StorageID = id16[ids.StorageID](m.GetStorageId(), "storage id", &errs)
		s.EligibleEpoch, s.State, s.unknown = m.GetEligibleBrokerEpoch(), StorageState(m.GetState()), m.ProtoReflect().GetUnknown()
		if s.State == 0 {
			s.State = StorageActive
		}
		for _, mark := range m.GetMarks() {
			s.Marks = append(s.Marks, Mark{
				Partition: PartitionRef{TopicID: id16[ids.TopicID](mark.GetTopicId(), "mark's topic id", &errs), Partition: mark.GetPartition()},
				Kind:      MarkKind(mark.GetKind()), LogID: optional16[ids.LogID](mark.GetLogId(), "mark's log id", &errs),
			})
		}
		if m.GetBrokerId() != id {
			errs = append(errs, fmt.Errorf("broker id %d under the key of broker %d", m.GetBrokerId(), id))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func encodeController(brokerID int32, brokerEpoch int64) (string, error) {
	return encode(&metadatav1.Controller{BrokerId: brokerID, BrokerEpoch: brokerEpoch})
}

func decodeController(kv *mvccpb.KeyValue) (*ControllerInfo, error) {
	m := &metadatav1.Controller{}
	if err := decode(kv, m, func(*metadatav1.Controller) error { return nil }); err != nil {
		return nil, err
	}
	return &ControllerInfo{BrokerID: m.GetBrokerId(), BrokerEpoch: m.GetBrokerEpoch(), Epoch: kv.ModRevision}, nil
}

func encodeTopic(t *Topic) (string, error) {
	m := &metadatav1.Topic{
		Name: t.Name, TopicId: bytesOf(t.ID), State: metadatav1.TopicState(t.State), Partitions: t.Partitions,
		ReadyPartitions: t.ReadyPartitions, Replicas: t.Replicas, Config: t.Config, Generation: t.Generation, Owner: t.Owner,
		CreatedMs: t.Created.UnixMilli(),
	}
	m.ProtoReflect().SetUnknown(t.unknown)
	return encode(m)
}

func decodeTopic(kv *mvccpb.KeyValue, name string) (*Topic, error) {
	m := &metadatav1.Topic{}
	t := &Topic{Name: name, Revision: kv.ModRevision}
	err := decode(kv, m, func(m *metadatav1.Topic) error {
		var errs []error
		t.ID = id16[ids.TopicID](m.GetTopicId(), "topic id", &errs)
		t.State, t.Partitions, t.ReadyPartitions = TopicState(m.GetState()), m.GetPartitions(), m.GetReadyPartitions()
		t.Replicas, t.Config, t.Generation, t.Owner = m.GetReplicas(), m.GetConfig(), m.GetGeneration(), m.GetOwner()
		t.Created, t.unknown = time.UnixMilli(m.GetCreatedMs()), m.ProtoReflect().GetUnknown()
		if t.Config == nil {
			t.Config = &runnelv1.TopicConfig{}
		}
		if m.GetName() != name {
			errs = append(errs, fmt.Errorf("topic %q under the key of topic %q", m.GetName(), name))
		}
		if t.Partitions < 1 || t.Partitions > MaxPartitions || t.ReadyPartitions < 0 || t.ReadyPartitions > t.Partitions {
			errs = append(errs, fmt.Errorf("%d of %d partitions ready, want 1 to %d partitions", t.ReadyPartitions, t.Partitions, MaxPartitions))
		}
		if t.State < TopicCreating || t.State > TopicDeleting {
			errs = append(errs, fmt.Errorf("state %d is not known", t.State))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func encodePartition(p *Partition) (string, error) {
	m := &metadatav1.Partition{
		Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, LeaderBrokerEpoch: p.LeaderBrokerEpoch, Replicas: p.Replicas,
		Isr: encodeMembers(p.ISR), Adding: p.Adding, Removing: p.Removing, Purged: p.Purged,
	}
	m.ProtoReflect().SetUnknown(p.unknown)
	return encode(m)
}

func decodePartition(kv *mvccpb.KeyValue, ref PartitionRef) (*Partition, error) {
	m := &metadatav1.Partition{}
	p := &Partition{PartitionRef: ref, Revision: kv.ModRevision}
	err := decode(kv, m, func(m *metadatav1.Partition) error {
		var errs []error
		p.Leader, p.LeaderEpoch, p.LeaderBrokerEpoch = m.GetLeader(), m.GetLeaderEpoch(), m.GetLeaderBrokerEpoch()
		p.Replicas, p.Adding, p.Removing, p.Purged = m.GetReplicas(), m.GetAdding(), m.GetRemoving(), m.GetPurged()
		p.ISR = decodeMembers(m.GetIsr(), &errs)
		p.unknown = m.ProtoReflect().GetUnknown()
		if p.LeaderEpoch < 0 || len(p.Replicas) == 0 {
			errs = append(errs, fmt.Errorf("leader epoch %d and %d replicas, want 0 or more and at least 1", p.LeaderEpoch, len(p.Replicas)))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

func encodeMembers(members []Member) []*metadatav1.Member {
	out := make([]*metadatav1.Member, len(members))
	for i, m := range members {
		out[i] = &metadatav1.Member{BrokerId: m.BrokerID, StorageId: bytesOf(m.StorageID), LogId: bytesOf(m.LogID)}
	}
	return out
}

func decodeMembers(members []*metadatav1.Member, errs *[]error) []Member {
	if len(members) == 0 {
		return nil
	}
	out := make([]Member, len(members))
	for i, m := range members {
		out[i] = Member{
			BrokerID:  m.GetBrokerId(),
			StorageID: id16[ids.StorageID](m.GetStorageId(), "member's storage id", errs),
			LogID:     id16[ids.LogID](m.GetLogId(), "member's log id", errs),
		}
	}
	return out
}
