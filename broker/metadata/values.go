package metadata

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/ids"
)

// Values as the rest of the broker sees them. Values that come out of a Cache or a State are shared: they must not be changed.
// Revision is always the key's mod revision, which is what a change compares.

// Cluster is the cluster's own record.
type Cluster struct {
	// ID is the cluster id, a UUID. Data directories belong to it.
	ID string
	// Era grows with every recovery of the metadata store. Revisions are comparable within an era only.
	Era int64
	// FormatVersion is the layout of keys and values, FeatureLevel what all brokers may rely on.
	FormatVersion, FeatureLevel int32
	Created                     time.Time
	// Recovery is not nil while a recovery is under way. Era then still is the one before it.
	Recovery *RecoveryMark
	// RecoveredBy is the plan whose recovery began this era; zero in the first one.
	RecoveredBy PlanID
	Revision    int64
}

// RecoveryMark says that what is in etcd is being replaced: nobody registers, and brokers wait.
type RecoveryMark struct {
	Plan PlanID
	// Era is the one that begins when the recovery is finished.
	Era     int64
	Started time.Time
}

// PlanID identifies a Recovery by its contents.
type PlanID [16]byte

// BrokerInfo is what a broker says about itself.
type BrokerInfo struct {
	// ID is the broker id, 0 or more.
	ID int32
	// Listeners maps a listener's name to the host:port advertised for it.
	Listeners map[string]string
	Rack      string
	// StorageID is the data directory's identity.
	StorageID ids.StorageID
	// Version is the software version.
	Version string
}

// Broker is a live registration.
type Broker struct {
	BrokerInfo
	// Epoch is the broker epoch: the mod revision of the registration.
	Epoch int64
	// BootID tells the process from every other one. Brokers prove to each other who they are with it.
	BootID BootID

	leaseID int64
}

// BootID is 128 random bits, new for every process. It is known to brokers only: every way of printing it hides it.
type BootID [16]byte

// Format hides the value from every verb.
func (BootID) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(hidden)") }

// MarshalText hides the value from encoders.
func (BootID) MarshalText() ([]byte, error) { return []byte("(hidden)"), nil }

// LogValue hides the value from logs.
func (BootID) LogValue() slog.Value { return slog.StringValue("(hidden)") }

// StorageState is what the cluster thinks of a broker's storage.
type StorageState int32

// Storage states.
const (
	StorageActive         StorageState = 1
	StorageDraining       StorageState = 2
	StorageDecommissioned StorageState = 3
	StorageFenced         StorageState = 4
)

// String is the state in lower case.
func (s StorageState) String() string {
	switch s {
	case StorageActive:
		return "active"
	case StorageDraining:
		return "draining"
	case StorageDecommissioned:
		return "decommissioned"
	case StorageFenced:
		return "fenced"
	}
	return "unknown"
}

// MarkKind says what is wrong with a log.
type MarkKind int32

// Kinds of marks.
const (
	MarkQuarantined MarkKind = 1
	MarkFailed      MarkKind = 2
)

// Mark names a log that lost what it had acknowledged.
type Mark struct {
	Partition PartitionRef
	Kind      MarkKind
	// LogID is zero when it could not be read.
	LogID ids.LogID
}

// Storage is the durable registry entry of a broker.
type Storage struct {
	BrokerID  int32
	StorageID ids.StorageID
	// EligibleEpoch is the broker epoch that may lead and may be in an ISR; 0: none.
	EligibleEpoch int64
	State         StorageState
	Marks         []Mark
	Revision      int64

	unknown []byte
}

// Marked reports whether the log of a partition is marked.
func (s *Storage) Marked(ref PartitionRef) bool {
	return slices.ContainsFunc(s.Marks, func(m Mark) bool { return m.Partition == ref })
}

// ControllerInfo names the controller.
type ControllerInfo struct {
	BrokerID    int32
	BrokerEpoch int64
	// Epoch is the controller epoch: the key's mod revision.
	Epoch int64
}

// TopicState is where a topic is in its life.
type TopicState int32

// Topic states.
const (
	// TopicCreating: partition keys are being written; some may be absent.
	TopicCreating TopicState = 1
	TopicActive   TopicState = 2
	// TopicDeleting: replicas are removing their directories. It never becomes active again.
	TopicDeleting TopicState = 3
)

// String is the state in lower case.
func (s TopicState) String() string {
	switch s {
	case TopicCreating:
		return "creating"
	case TopicActive:
		return "active"
	case TopicDeleting:
		return "deleting"
	}
	return "unknown"
}

// Topic is a topic's record.
type Topic struct {
	Name  string
	ID    ids.TopicID
	State TopicState
	// Partitions is how many are wanted. The keys of partitions 0 … ReadyPartitions-1 have all been written; the number is lower
	// than Partitions while the topic is created or grows. Clients are told of ready partitions only.
	Partitions, ReadyPartitions int32
	// Replicas per partition.
	Replicas int32
	// Config holds only what somebody set; topicconfig.Effective has what applies. Never nil.
	Config *runnelv1.TopicConfig
	// Generation grows by one with every change that somebody asks for; the first is 1.
	Generation int64
	Owner      string
	Created    time.Time
	Revision   int64

	unknown []byte
}

// PartitionRef names a partition.
type PartitionRef struct {
	TopicID   ids.TopicID
	Partition int32
}

// NoLeader is the Leader of a partition that has none.
const NoLeader = int32(-1)

// Member is an ISR entry: an identity, not merely a broker.
type Member struct {
	BrokerID  int32
	StorageID ids.StorageID
	LogID     ids.LogID
}

// Partition is a partition's record.
type Partition struct {
	PartitionRef
	// Leader is a broker id or NoLeader.
	Leader int32
	// LeaderEpoch is 0 until the first election, whose epoch is 1. It only grows.
	LeaderEpoch int32
	// LeaderBrokerEpoch is the registration that leads. The broker leads under no other.
	LeaderBrokerEpoch int64
	// Replicas are broker ids, the preferred leader first. While the partition is reassigned they are the target, in its order, and behind it
	// those in Removing.
	Replicas []int32
	// ISR are the in-sync replicas; before the first election, the replicas that confirmed an fsynced directory.
	ISR []Member
	// Adding are replicas that a reassignment brings, Removing those that it takes away once all others are in sync.
	Adding, Removing []int32
	// Purged are the replicas that removed their directory, while the topic is deleted.
	Purged   []int32
	Revision int64

	unknown []byte
}

// Member returns the ISR entry of a broker.
func (p *Partition) Member(broker int32) (Member, bool) {
	for _, m := range p.ISR {
		if m.BrokerID == broker {
			return m, true
		}
	}
	return Member{}, false
}

// HasReplica reports whether a broker holds, or is about to hold, a replica.
func (p *Partition) HasReplica(broker int32) bool { return slices.Contains(p.Replicas, broker) }

// Clone returns a copy that the caller may change.
func (p *Partition) Clone() *Partition {
	c := *p
	c.Replicas, c.ISR = slices.Clone(p.Replicas), slices.Clone(p.ISR)
	c.Adding, c.Removing, c.Purged = slices.Clone(p.Adding), slices.Clone(p.Removing), slices.Clone(p.Purged)
	return &c
}

// Position is how far this broker has seen the metadata. Brokers persist it and give it back as Config.Known after a restart: etcd
// must never be behind it.
type Position struct {
	// ClusterID is the Runnel cluster's id.
	ClusterID string
	// EtcdClusterID is etcd's own cluster id; another one is accepted only together with a higher era.
	EtcdClusterID uint64
	Era           int64
	Revision      int64
}

// Before reports whether p is older than q: by era, then by revision.
func (p Position) Before(q Position) bool {
	return p.Era < q.Era || p.Era == q.Era && p.Revision < q.Revision
}
