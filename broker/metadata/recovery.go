package metadata

import (
	"time"

	"runnel.dev/runnel/internal/ids"
)

// A recovery makes metadata out of what is left after etcd was lost or went back in time: its old contents, cluster snapshots, and the
// brokers' data directories. Client.BeginRecovery stops brokers, PlanRecovery decides, Client.Restore writes. Brokers that start meanwhile
// wait.
//
// # Why nothing that was acknowledged is missing
//
// A replica adopts a leader epoch once it leads it or has truncated to its leader's history, and acknowledges nothing in it before that
// is durable; a leader lets nobody follow before its own adoption is. So of all directories the one with the largest (adopted epoch,
// latest epoch, end) has everything. The largest adopted epoch E has been adopted by its leader, which was elected from the in-sync set
// and therefore had all that was acknowledged before E, and by followers that truncated to it. What was acknowledged in E is in every
// member of its set, and logs that took part in E are prefixes of its leader's: the longest has all. The largest latest epoch alone
// would not do: an old leader may have written in an epoch in which nobody followed it.
//
// This holds when all directories are there. When one is missing, the plan says so. Leader epochs leave a gap for those that were given
// out and that nothing here has seen.

// BrokerInventory is what one data directory holds.
type BrokerInventory struct {
	BrokerID  int32
	StorageID ids.StorageID
	// Position is how far its broker had seen the metadata. ClusterID is required.
	Position Position
	Logs     []LogInventory
}

// LogInventory is one partition's log in a data directory.
type LogInventory struct {
	TopicID   ids.TopicID
	Partition int32
	// TopicName and TopicConfig (an encoded runnel.v1.TopicConfig) are the directory's own copies; empty when they cannot be read.
	TopicName   string
	TopicConfig []byte
	LogID       ids.LogID
	// AdoptedEpoch is the newest leader epoch that the replica durably took part in, 0: none. LatestEpoch is the newest of its batches, -1: none.
	AdoptedEpoch, LatestEpoch int32
	// LogStart and End bound what is durable.
	LogStart, End int64
	// MaxProducerID is the largest producer id in the log, -1: none.
	MaxProducerID int64
	// Lineage is the epochs of the log with their first offsets, nil when it is not known. Logs without it are never taken for equal.
	Lineage []EpochStart
	// Damaged logs are not chosen.
	Damaged bool
}

// EpochStart is where a leader epoch begins in a log.
type EpochStart struct {
	Epoch int32
	Start int64
}

// RecoveryInput is what is left.
type RecoveryInput struct {
	// Inventories are all data directories that can be read, at least one. They agree about the cluster id.
	Inventories []BrokerInventory
	// Etcd is what the etcd has that the cluster is to go on with, from Client.ReadPrefix; nil: nothing. Keep it as a snapshot before Restore
	// writes: what an unfinished recovery has left is not used a second time.
	Etcd *Snapshot
	// Snapshots are cluster snapshots as EncodeSnapshot wrote them. Damaged ones and those of other clusters are reported and left out.
	Snapshots [][]byte
	Now       time.Time
}

// Recovery is the plan: what etcd has to hold, and what a person should know before it is written.
type Recovery struct {
	Plan      PlanID
	ClusterID string
	// Era is the one that begins. 2 or more.
	Era int64
	// Source says where topics, settings, groups and offsets come from.
	Source string
	// Keys are without the prefix, ascending; the record of the cluster is not among them.
	Keys []KV
	// Missing are brokers that the sources know and that have no inventory here.
	Missing    []int32
	Topics     []TopicRecovery
	Partitions []PartitionRecovery
	Findings   []Finding

	cluster Cluster
}

// TopicOutcome says what becomes of a topic.
type TopicOutcome string

// Outcomes of topics.
const (
	// TopicKept: its record is the one of the source.
	TopicKept TopicOutcome = "kept"
	// TopicRebuilt: only data directories know it.
	TopicRebuilt TopicOutcome = "rebuilt"
	// TopicDropped: it was deleted by the time of the source, or its name went to the topic that has the data.
	TopicDropped TopicOutcome = "dropped"
)

// TopicRecovery is what becomes of a topic.
type TopicRecovery struct {
	Name    string
	ID      ids.TopicID
	Outcome TopicOutcome
}

// PartitionRecovery is what becomes of a partition.
type PartitionRecovery struct {
	PartitionRef
	Topic string
	// LeaderEpoch is above every epoch that was ever used, as far as can be known.
	LeaderEpoch int32
	Replicas    []int32
	// ISR are the chosen logs; empty: the partition stays offline until somebody accepts the loss. End is where they end.
	ISR []Member
	End int64
}

// Severity says how much a finding matters.
type Severity string

// Severities.
const (
	// SeverityInfo: what happens, for the record.
	SeverityInfo Severity = "info"
	// SeverityWarning: something may be other than it was, or could not be looked at.
	SeverityWarning Severity = "warning"
	// SeverityLoss: something is not there any more.
	SeverityLoss Severity = "loss"
)

// Finding is something that a person should know before a recovery is carried out.
type Finding struct {
	Severity Severity
	// Topic is empty when the finding is about the whole; Partition is -1 when it is about no single one.
	Topic     string
	Partition int32
	Message   string
}
