package topicconfig

import (
	"errors"
	"fmt"
	"strings"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Limits of the settings.
const (
	MinSegmentBytes  = int64(1 << 20)
	MaxSegmentBytes  = int64(1<<31 - 1)
	MinMaxBatchBytes = int32(1 << 10)
	MaxMaxBatchBytes = int32(16 << 20)
	MinSegmentAge    = time.Second
	MaxSegmentAge    = 10 * 365 * 24 * time.Hour
	MaxTimestampLead = 10 * 365 * 24 * time.Hour
)

// ErrInvalid is matched by every *InvalidError.
var ErrInvalid = errors.New("invalid topic config")

// ErrNotYetAvailable is wrapped by the error for a value that is part of the API but not implemented yet.
var ErrNotYetAvailable = errors.New("not yet available")

// Fault is one thing that is wrong with a topic's settings.
type Fault struct {
	// Field is the field's name in TopicConfig, e.g. "segment_bytes".
	Field string
	// Value is what was asked for.
	Value string
	// Limit says what would be accepted.
	Limit string
	// NotYet is true for a value that a later version will accept.
	NotYet bool
}

// String is one line: field, value, limit.
func (f Fault) String() string { return fmt.Sprintf("%s is %s, want %s", f.Field, f.Value, f.Limit) }

// InvalidError holds every fault of a topic's settings, at least one, in the order of the fields.
type InvalidError struct{ Faults []Fault }

// Error lists all faults.
func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = f.String()
	}
	return ErrInvalid.Error() + ": " + strings.Join(lines, "; ")
}

// Is makes errors.Is(err, ErrInvalid) true, and errors.Is(err, ErrNotYetAvailable) when every fault is a value that a later version
// will accept.
func (e *InvalidError) Is(target error) bool {
	if target != ErrNotYetAvailable {
		return target == ErrInvalid
	}
	for _, f := range e.Faults {
		if !f.NotYet {
			return false
		}
	}
	return true
}

// Validate checks what a topic sets against the limits and against the settings that then apply together (a batch has to fit into
// a segment). replicas is the topic's number of replicas per partition. It returns nil or an *InvalidError with all faults.
func Validate(topic, cluster *runnelv1.TopicConfig, replicas int32) error {
	if topic == nil {
		topic = &runnelv1.TopicConfig{}
	}
	var c checker
	c.int64("retention_ms", topic.RetentionMs, func(v int64) bool { return v == -1 || v > 0 }, "-1 (for ever) or at least 1")
	c.int64("retention_bytes", topic.RetentionBytes, func(v int64) bool { return v == -1 || v > 0 }, "-1 (unlimited) or at least 1")
	c.between("segment_bytes", topic.SegmentBytes, MinSegmentBytes, MaxSegmentBytes)
	c.between("segment_age_ms", topic.SegmentAgeMs, MinSegmentAge.Milliseconds(), MaxSegmentAge.Milliseconds())
	c.between("max_batch_bytes", widen(topic.MaxBatchBytes), int64(MinMaxBatchBytes), int64(MaxMaxBatchBytes))
	if v := topic.Compression; v != nil && runnelv1.Compression_name[int32(*v)] == "" {
		c.fault("compression", fmt.Sprint(int32(*v)), "0 to 5 (producer, none, gzip, snappy, lz4, zstd)")
	}
	if v := topic.TimestampType; v != nil && runnelv1.TimestampType_name[int32(*v)] == "" {
		c.fault("timestamp_type", fmt.Sprint(int32(*v)), "0 to 2 (default, create time, log append time)")
	}
	c.cleanup(topic.CleanupPolicy)
	c.between("max_timestamp_ahead_ms", topic.MaxTimestampAheadMs, 0, MaxTimestampLead.Milliseconds())
	if v := topic.MinInSyncReplicas; v != nil && (*v < 1 || *v > max(replicas, 1)) {
		c.fault("min_in_sync_replicas", fmt.Sprint(*v), fmt.Sprintf("1 to %d (the topic's replicas)", max(replicas, 1)))
	}
	if len(c.faults) == 0 {
		all := Effective(topic, cluster, replicas)
		if int64(all.GetMaxBatchBytes()) > all.GetSegmentBytes() {
			c.fault("max_batch_bytes", fmt.Sprint(all.GetMaxBatchBytes()), fmt.Sprintf("at most segment_bytes, %d", all.GetSegmentBytes()))
		}
		return c.err()
	}
	return c.err()
}

type checker struct{ faults []Fault }

func (c *checker) err() error {
	if len(c.faults) == 0 {
		return nil
	}
	return &InvalidError{Faults: c.faults}
}

func (c *checker) fault(field, value, limit string) {
	c.faults = append(c.faults, Fault{Field: field, Value: value, Limit: limit})
}

func (c *checker) int64(field string, v *int64, ok func(int64) bool, limit string) {
	if v != nil && !ok(*v) {
		c.fault(field, fmt.Sprint(*v), limit)
	}
}

func (c *checker) between(field string, v *int64, low, high int64) {
	c.int64(field, v, func(v int64) bool { return v >= low && v <= high }, fmt.Sprintf("%d to %d", low, high))
}

func (c *checker) cleanup(v *runnelv1.CleanupPolicy) {
	if v == nil {
		return
	}
	switch *v {
	case runnelv1.CleanupPolicy_CLEANUP_POLICY_UNSPECIFIED, runnelv1.CleanupPolicy_CLEANUP_POLICY_DELETE:
	case runnelv1.CleanupPolicy_CLEANUP_POLICY_COMPACT:
		c.faults = append(c.faults, Fault{
			Field: "cleanup_policy", Value: "compact", Limit: "delete: compaction is not available in this version", NotYet: true,
		})
	default:
		c.fault("cleanup_policy", fmt.Sprint(int32(*v)), "0 to 2 (default, delete, compact)")
	}
}

func widen(v *int32) *int64 {
	if v == nil {
		return nil
	}
	w := int64(*v)
	return &w
}
