package resource

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/api/v1alpha1"
)

// Limits of a topic's settings, as the cluster has them.
const (
	maxPartitions   = 10_000
	maxReplicas     = 7
	minSegmentBytes = int64(1 << 20)
	maxSegmentBytes = int64(1<<31 - 1)
	maxSegmentAge   = 10 * 365 * 24 * time.Hour
)

// TopicOwner is who the cluster records as the owner of a topic that a resource declares: topics.runnel.dev/NAMESPACE/NAME. It holds no
// UID, so that a resource that was deleted and restored finds its own topic again.
func TopicOwner(topic *v1alpha1.Topic) string {
	return v1alpha1.Resource("topics").String() + "/" + topic.Namespace + "/" + topic.Name
}

// CreateTopic returns the request that creates what a Topic declares. defaults are those of the topic's Cluster, nil for none.
//
// Fields that the API server has not filled in mean its defaults. What the resource cannot express, such as the largest batch, stays
// unset and follows the cluster. The error is an *InvalidError with all faults; it matches ErrNotImplemented when the only fault is to
// ask for something that this version does not have: tiering, access rules, compaction with retention.
func CreateTopic(topic *v1alpha1.Topic, defaults *v1alpha1.TopicDefaults) (*runnelv1.CreateTopicRequest, error) {
	if defaults == nil {
		defaults = &v1alpha1.TopicDefaults{}
	}
	var f faults
	field := "spec.topicName"
	if topic.Spec.TopicName == nil {
		field = "metadata.name"
	}
	f.topicName(field, topic.TopicName())
	partitions := valueOr(topic.Spec.Partitions, v1alpha1.DefaultTopicPartitions)
	f.upTo(maxPartitions, "spec.partitions", partitions)
	replicas := f.replicas(topic.Spec.Replicas, defaults.Replicas)
	request := &runnelv1.CreateTopicRequest{
		Name:       topic.TopicName(),
		Partitions: partitions,
		Replicas:   replicas,
		Config:     f.topicConfig(&topic.Spec, defaults, replicas),
		Owner:      TopicOwner(topic),
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return request, nil
}

// topicConfig maps the settings, in the order of the resource's fields.
func (f *faults) topicConfig(spec *v1alpha1.TopicSpec, defaults *v1alpha1.TopicDefaults, replicas int32) *runnelv1.TopicConfig {
	config := &runnelv1.TopicConfig{
		MinInSyncReplicas: f.minInSyncReplicas(spec.MinInSyncReplicas, defaults.MinInSyncReplicas, replicas),
		CleanupPolicy:     f.cleanupPolicy(spec.CleanupPolicy),
		RetentionMs:       proto.Int64(f.parsed("spec.retention.time", valueOr(spec.Retention.Time, v1alpha1.DefaultTopicRetention).Milliseconds)),
	}
	if bytes := spec.Retention.Bytes; bytes != nil {
		config.RetentionBytes = proto.Int64(f.parsed("spec.retention.bytes", bytes.Value))
	}
	if spec.LocalRetention != nil {
		f.notYet("spec.localRetention", "set", "it absent: tiering is not available in this version")
	}
	config.SegmentBytes = proto.Int64(f.parsedBetween("spec.segment.bytes",
		valueOr(spec.Segment.Bytes, v1alpha1.DefaultTopicSegmentBytes).Value, minSegmentBytes, maxSegmentBytes, "bytes"))
	config.SegmentAgeMs = proto.Int64(f.parsedBetween("spec.segment.time",
		valueOr(spec.Segment.Time, v1alpha1.DefaultTopicSegmentTime).Milliseconds, time.Second.Milliseconds(), maxSegmentAge.Milliseconds(), "ms"))
	config.Compression = f.compression(spec.Compression)
	f.tiering(spec.Tiering, defaults.Tiering)
	if len(spec.Access) > 0 {
		f.notYet("spec.access", fmt.Sprintf("%d entries", len(spec.Access)), "none: authorization is not available in this version")
	}
	return config
}

// replicas returns the topic's choice, else the Cluster's, else 0: the brokers' default.
func (f *faults) replicas(topic, cluster *int32) int32 {
	switch {
	case topic != nil:
		f.upTo(maxReplicas, "spec.replicas", *topic)
		return *topic
	case cluster != nil:
		f.upTo(maxReplicas, "topicDefaults.replicas", *cluster)
		return *cluster
	default:
		return 0
	}
}

// minInSyncReplicas returns the topic's choice, else the Cluster's capped at the topic's replicas, else nil: a majority.
func (f *faults) minInSyncReplicas(topic, cluster *int32, replicas int32) *int32 {
	most := int32(maxReplicas)
	if replicas > 0 {
		most = min(most, replicas)
	}
	switch {
	case topic != nil:
		f.upTo(most, "spec.minInSyncReplicas", *topic)
		return proto.Int32(*topic)
	case cluster != nil:
		f.upTo(maxReplicas, "topicDefaults.minInSyncReplicas", *cluster)
		return proto.Int32(min(*cluster, most))
	default:
		return nil
	}
}

func (f *faults) cleanupPolicy(policy v1alpha1.CleanupPolicy) *runnelv1.CleanupPolicy {
	switch valueOr(policy, v1alpha1.CleanupDelete) {
	case v1alpha1.CleanupDelete:
		return runnelv1.CleanupPolicy_CLEANUP_POLICY_DELETE.Enum()
	case v1alpha1.CleanupCompact:
		// The cluster says itself whether it can compact.
		return runnelv1.CleanupPolicy_CLEANUP_POLICY_COMPACT.Enum()
	case v1alpha1.CleanupCompactDelete:
		f.notYet("spec.cleanupPolicy", string(policy), "Delete or Compact: their combination is not available in this version")
	default:
		f.add("spec.cleanupPolicy", quoted(string(policy)), "Delete, Compact or CompactDelete")
	}
	return nil
}

var compressions = map[v1alpha1.Compression]runnelv1.Compression{
	v1alpha1.CompressionProducer: runnelv1.Compression_COMPRESSION_UNSPECIFIED,
	v1alpha1.CompressionNone:     runnelv1.Compression_COMPRESSION_NONE,
	v1alpha1.CompressionGzip:     runnelv1.Compression_COMPRESSION_GZIP,
	v1alpha1.CompressionSnappy:   runnelv1.Compression_COMPRESSION_SNAPPY,
	v1alpha1.CompressionLZ4:      runnelv1.Compression_COMPRESSION_LZ4,
	v1alpha1.CompressionZstd:     runnelv1.Compression_COMPRESSION_ZSTD,
}

func (f *faults) compression(c v1alpha1.Compression) *runnelv1.Compression {
	codec, known := compressions[valueOr(c, v1alpha1.CompressionProducer)]
	if !known {
		f.add("spec.compression", quoted(string(c)), "Producer, None, Gzip, Snappy, LZ4 or Zstd")
	}
	return &codec
}

// tiering refuses to keep records on disks alone where somebody relies on a bucket.
func (f *faults) tiering(topic, cluster v1alpha1.TopicTiering) {
	field := "spec.tiering"
	topic = valueOr(topic, v1alpha1.TopicTieringInherit)
	if topic == v1alpha1.TopicTieringInherit {
		field, topic = "topicDefaults.tiering", valueOr(cluster, v1alpha1.TopicTieringDisabled)
	}
	switch topic {
	case v1alpha1.TopicTieringDisabled:
	case v1alpha1.TopicTieringEnabled:
		f.notYet(field, string(topic), "Disabled: tiering is not available in this version")
	default:
		f.add(field, quoted(string(topic)), "Inherit, Enabled or Disabled")
	}
}

// parsed returns what parse answers, and notes its error as a fault.
func (f *faults) parsed(field string, parse func() (int64, error)) int64 {
	value, err := parse()
	if quantity, ok := errors.AsType[*v1alpha1.QuantityError](err); ok {
		f.add(field, quantity.Shown(), quantity.Limit)
	} else if err != nil {
		f.add(field, err.Error(), "a quantity")
	}
	return value
}

func (f *faults) parsedBetween(field string, parse func() (int64, error), low, high int64, unit string) int64 {
	before := len(f.list)
	value := f.parsed(field, parse)
	if len(f.list) == before && (value < low || value > high) {
		f.add(field, fmt.Sprintf("%d %s", value, unit), fmt.Sprintf("%d to %d %s", low, high, unit))
	}
	return value
}

// upTo refuses a number that is not within 1 and most.
func (f *faults) upTo(most int32, field string, value int32) {
	if value < 1 || value > most {
		f.add(field, fmt.Sprint(value), fmt.Sprintf("1 to %d", most))
	}
}

// valueOr returns value, or what stands for its absence.
func valueOr[T comparable](value, absent T) T {
	var zero T
	if value == zero {
		return absent
	}
	return value
}
