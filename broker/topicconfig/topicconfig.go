// Package topicconfig knows the settings of a topic: their limits, their defaults, and how a change applies to them.
//
// A topic is stored with the fields that somebody set, and nothing else, so that a later change of a default reaches every topic
// that never chose a value. Readers ask Effective, a pure function, for what applies now. All functions are pure and safe for
// concurrent use, and leave their arguments as they are.
package topicconfig

import (
	"time"

	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Built-in defaults, for what neither the topic nor the cluster sets.
const (
	DefaultRetention         = 7 * 24 * time.Hour
	DefaultRetentionBytes    = int64(-1)
	DefaultSegmentBytes      = int64(512 << 20)
	DefaultSegmentAge        = 24 * time.Hour
	DefaultMaxBatchBytes     = int32(1 << 20)
	DefaultMaxTimestampAhead = time.Hour
)

// Effective returns the settings that apply to a topic with this many replicas: what the topic sets, else what the cluster sets,
// else the built-in default. Every field of the answer is set, and the answer is the caller's. topic and cluster may be nil.
// Compression stays COMPRESSION_UNSPECIFIED when nobody chose one: producers choose. MinInSyncReplicas defaults to a majority of
// replicas, and a cluster-wide value is capped at the number of replicas.
func Effective(topic, cluster *runnelv1.TopicConfig, replicas int32) *runnelv1.TopicConfig {
	out := builtin(replicas)
	if cluster != nil {
		proto.Merge(out, cluster)
		out.MinInSyncReplicas = proto.Int32(min(out.GetMinInSyncReplicas(), max(replicas, 1)))
	}
	if topic != nil {
		proto.Merge(out, topic)
	}
	if out.GetTimestampType() == runnelv1.TimestampType_TIMESTAMP_TYPE_UNSPECIFIED {
		out.TimestampType = runnelv1.TimestampType_TIMESTAMP_TYPE_CREATE_TIME.Enum()
	}
	if out.GetCleanupPolicy() == runnelv1.CleanupPolicy_CLEANUP_POLICY_UNSPECIFIED {
		out.CleanupPolicy = runnelv1.CleanupPolicy_CLEANUP_POLICY_DELETE.Enum()
	}
	return out
}

func builtin(replicas int32) *runnelv1.TopicConfig {
	return &runnelv1.TopicConfig{
		RetentionMs:         proto.Int64(DefaultRetention.Milliseconds()),
		RetentionBytes:      proto.Int64(DefaultRetentionBytes),
		SegmentBytes:        proto.Int64(DefaultSegmentBytes),
		SegmentAgeMs:        proto.Int64(DefaultSegmentAge.Milliseconds()),
		MaxBatchBytes:       proto.Int32(DefaultMaxBatchBytes),
		Compression:         runnelv1.Compression_COMPRESSION_UNSPECIFIED.Enum(),
		TimestampType:       runnelv1.TimestampType_TIMESTAMP_TYPE_CREATE_TIME.Enum(),
		CleanupPolicy:       runnelv1.CleanupPolicy_CLEANUP_POLICY_DELETE.Enum(),
		MaxTimestampAheadMs: proto.Int64(DefaultMaxTimestampAhead.Milliseconds()),
		MinInSyncReplicas:   proto.Int32(Majority(replicas)),
	}
}

// Majority returns the smallest number that is more than half of replicas, at least 1.
func Majority(replicas int32) int32 { return max(replicas, 0)/2 + 1 }
