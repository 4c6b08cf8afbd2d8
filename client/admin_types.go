package client

import (
	"fmt"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// TopicConfig holds a topic's settings. A nil field takes the cluster's default when a topic is created, and is not changed when
// it is updated; in what brokers answer every field is set.
type TopicConfig struct {
	// Retention is how long records are kept; negative: for ever.
	Retention *time.Duration
	// RetentionBytes is how much a partition keeps; -1: unlimited.
	RetentionBytes *int64
	// SegmentBytes is the size at which a segment is rolled, 1 MiB to 2 GiB - 1.
	SegmentBytes *int64
	// SegmentAge is the age at which a segment is rolled.
	SegmentAge *time.Duration
	// MaxBatchBytes is the largest batch that is accepted, 1 KiB to 16 MiB.
	MaxBatchBytes *int32
	// Compression is what producers use unless told otherwise; CompressionTopic leaves it to them.
	Compression *Compression
	// LogAppendTime replaces producers' timestamps with the time of the append.
	LogAppendTime *bool
	// Compact asks for compaction, which brokers refuse until it is available.
	Compact *bool
	// MaxTimestampAhead is how far in the future producers' timestamps may lie.
	MaxTimestampAhead *time.Duration
	// MinInSyncReplicas are needed before an acknowledgement.
	MinInSyncReplicas *int32
}

// TopicSpec describes a topic to create.
type TopicSpec struct {
	// Name matches [a-zA-Z0-9._-]{1,249}.
	Name string
	// Partitions and Replicas: 0 takes the cluster's default.
	Partitions, Replicas int32
	Config               TopicConfig
	// Owner names what declares the topic, e.g. a Kubernetes resource.
	Owner string
	// DryRun checks and answers, and creates nothing.
	DryRun bool
}

// TopicChange says what to change of a topic.
type TopicChange struct {
	// ID, unless zero, and Generation, unless 0, make the change conditional.
	ID         TopicID
	Generation int64
	// Partitions is the new number, which can only grow; 0: unchanged.
	Partitions int32
	// Replicas is the new number of each partition's replicas; 0: unchanged.
	Replicas int32
	Config   TopicConfig
	// Reset names settings, as brokers spell them (e.g. "retention_ms"), that go back to the cluster's default.
	Reset []string
	// Force changes a topic although a resource owns it.
	Force bool
	// DryRun checks and answers, and changes nothing.
	DryRun bool
}

// ConfigChange is one difference.
type ConfigChange struct{ Field, Before, After string }

// TopicState is where a topic is in its life.
type TopicState string

// The states.
const (
	TopicCreating TopicState = "creating"
	TopicActive   TopicState = "active"
	TopicDeleting TopicState = "deleting"
)

// Topic is a topic as the cluster knows it.
type Topic struct {
	Name                 string
	ID                   TopicID
	Partitions, Replicas int32
	Config               TopicConfig
	// Generation grows with each change.
	Generation int64
	State      TopicState
	Owner      string
	Created    time.Time
}

// Health says whether a partition can be used.
type Health string

// The health states.
const (
	HealthUnknown     Health = "unknown"
	HealthOnline      Health = "online"
	HealthReadOnly    Health = "read-only"
	HealthQuarantined Health = "quarantined"
	HealthOffline     Health = "offline"
)

// PartitionInfo describes a partition. Offsets are exclusive ends, except the starts.
type PartitionInfo struct {
	TopicPartition
	TopicID       TopicID
	Leader        int32 // -1: none
	LeaderEpoch   int32
	Replicas, ISR []int32
	Health        Health
	// Detail says why, when it is not online.
	Detail                                                                         string
	LogStart, LocalStart, TieredEnd /* -1: none */, Flushed, HighWatermark, LogEnd int64
	SizeBytes                                                                      int64
	Segments                                                                       int
	// ReplicaStates says how each of Replicas is, in their order. Adding and Removing are those of them that come and go.
	ReplicaStates     []ReplicaInfo
	Adding, Removing  []int32
	MinInSyncReplicas int
	UnderReplicated   bool
	// Averages of the recent past at the leader, per second; -1: unknown.
	RecordsIn, BytesIn, BytesOut float64
	// Err is set when the partition could not be asked; offsets are then undefined.
	Err error
}

// ClusterInfo describes a cluster.
type ClusterInfo struct {
	ID                 string
	Controller         int32 // -1: none
	Brokers            []BrokerInfo
	Topics, Partitions int
	// Partitions with fewer in-sync replicas than replicas, than their minimum, and without a leader.
	UnderReplicated, BelowMinimum, Leaderless int
}

// RecoverInfo tells what recovering a partition keeps and loses: records in [KeptEnd, LostEnd) are gone.
type RecoverInfo struct {
	KeptEnd, LostEnd int64
	Detail           string
	// Applied is false when it only was a question.
	Applied bool
}

// OffsetInfo answers one offset look-up.
type OffsetInfo struct {
	TopicPartition
	// Offset is what was looked for.
	Offset int64
	// Timestamp of the record that was found by time; zero otherwise.
	Timestamp time.Time
	// LogStart and HighWatermark at the time of the look-up. HighWatermark is -1 while a new leader does not know it yet.
	LogStart, HighWatermark int64
	// Err is set when this partition could not be looked up; nothing else is then.
	Err error
}

func milliseconds(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := d.Milliseconds()
	if *d < 0 {
		ms = -1
	}
	return &ms
}

func duration(ms *int64) *time.Duration {
	if ms == nil {
		return nil
	}
	d := time.Duration(*ms) * time.Millisecond
	if *ms < 0 {
		d = -1
	}
	return &d
}

func (c TopicConfig) proto() *runnelv1.TopicConfig {
	p := &runnelv1.TopicConfig{
		RetentionMs: milliseconds(c.Retention), RetentionBytes: c.RetentionBytes, SegmentBytes: c.SegmentBytes,
		SegmentAgeMs: milliseconds(c.SegmentAge), MaxBatchBytes: c.MaxBatchBytes, MaxTimestampAheadMs: milliseconds(c.MaxTimestampAhead),
		MinInSyncReplicas: c.MinInSyncReplicas,
	}
	if c.Compression != nil {
		p.Compression = runnelv1.Compression(*c.Compression).Enum()
	}
	if c.LogAppendTime != nil {
		t := runnelv1.TimestampType_TIMESTAMP_TYPE_CREATE_TIME
		if *c.LogAppendTime {
			t = runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME
		}
		p.TimestampType = &t
	}
	if c.Compact != nil {
		t := runnelv1.CleanupPolicy_CLEANUP_POLICY_DELETE
		if *c.Compact {
			t = runnelv1.CleanupPolicy_CLEANUP_POLICY_COMPACT
		}
		p.CleanupPolicy = &t
	}
	return p
}

func configOf(p *runnelv1.TopicConfig) TopicConfig {
	c := TopicConfig{
		Retention: duration(p.RetentionMs), RetentionBytes: p.RetentionBytes, SegmentBytes: p.SegmentBytes,
		SegmentAge: duration(p.SegmentAgeMs), MaxBatchBytes: p.MaxBatchBytes, MaxTimestampAhead: duration(p.MaxTimestampAheadMs),
		MinInSyncReplicas: p.MinInSyncReplicas,
	}
	if p.Compression != nil {
		v := Compression(*p.Compression)
		c.Compression = &v
	}
	if p.TimestampType != nil {
		v := *p.TimestampType == runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME
		c.LogAppendTime = &v
	}
	if p.CleanupPolicy != nil {
		v := *p.CleanupPolicy == runnelv1.CleanupPolicy_CLEANUP_POLICY_COMPACT
		c.Compact = &v
	}
	return c
}

func topicOf(p *runnelv1.Topic) Topic {
	t := Topic{
		Name: p.GetName(), Partitions: p.GetPartitions(), Replicas: p.GetReplicas(), Generation: p.GetGeneration(), Owner: p.GetOwner(),
	}
	copy(t.ID[:], p.GetTopicId())
	if p.GetConfig() != nil {
		t.Config = configOf(p.GetConfig())
	}
	if p.GetCreated() != nil {
		t.Created = p.GetCreated().AsTime()
	}
	switch p.GetState() {
	case runnelv1.TopicState_TOPIC_STATE_CREATING:
		t.State = TopicCreating
	case runnelv1.TopicState_TOPIC_STATE_ACTIVE:
		t.State = TopicActive
	case runnelv1.TopicState_TOPIC_STATE_DELETING:
		t.State = TopicDeleting
	case runnelv1.TopicState_TOPIC_STATE_UNSPECIFIED:
	}
	return t
}

func partitionsOf(ps []*runnelv1.PartitionStatus) []PartitionInfo {
	out := make([]PartitionInfo, 0, len(ps))
	for _, p := range ps {
		info := PartitionInfo{
			TopicPartition: TopicPartition{p.GetTopic(), p.GetPartition()}, Leader: p.GetLeaderId(), LeaderEpoch: p.GetLeaderEpoch(),
			Replicas: p.GetReplicas(), ISR: p.GetIsr(), Health: healthOf(p.GetHealth()), Detail: p.GetDetail(),
			LogStart: p.GetLogStartOffset(), LocalStart: p.GetLocalStartOffset(), TieredEnd: p.GetTieredEndOffset(),
			Flushed: p.GetFlushedOffset(), HighWatermark: p.GetHighWatermark(), LogEnd: p.GetLogEndOffset(),
			SizeBytes: p.GetSizeBytes(), Segments: int(p.GetSegments()), Err: fromItem(p.GetError()),
			Adding: p.GetAdding(), Removing: p.GetRemoving(), MinInSyncReplicas: int(p.GetMinInSyncReplicas()), UnderReplicated: p.GetUnderReplicated(),
			RecordsIn: p.GetRecordsInPerSecond(), BytesIn: p.GetBytesInPerSecond(), BytesOut: p.GetBytesOutPerSecond(),
		}
		for _, r := range p.GetReplicaStatus() {
			info.ReplicaStates = append(info.ReplicaStates, replicaOf(r))
		}
		copy(info.TopicID[:], p.GetTopicId())
		out = append(out, info)
	}
	return out
}

func healthOf(h runnelv1.PartitionHealth) Health {
	switch h {
	case runnelv1.PartitionHealth_PARTITION_HEALTH_ONLINE:
		return HealthOnline
	case runnelv1.PartitionHealth_PARTITION_HEALTH_READ_ONLY:
		return HealthReadOnly
	case runnelv1.PartitionHealth_PARTITION_HEALTH_QUARANTINED:
		return HealthQuarantined
	case runnelv1.PartitionHealth_PARTITION_HEALTH_OFFLINE:
		return HealthOffline
	case runnelv1.PartitionHealth_PARTITION_HEALTH_UNSPECIFIED:
	}
	return HealthUnknown
}

// String names the change as "field: before → after".
func (c ConfigChange) String() string {
	return fmt.Sprintf("%s: %s → %s", c.Field, c.Before, c.After)
}
