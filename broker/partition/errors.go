package partition

import (
	"errors"
	"fmt"

	"runnel.dev/runnel/internal/ids"
)

// Errors to test for with errors.Is.
var (
	// ErrNotLeader: this broker does not lead the partition; nothing was done. Wrapped by *NotLeaderError.
	ErrNotLeader = errors.New("not the partition's leader")
	// ErrUnknownEpoch: the request names a newer leader epoch than this broker knows. Trying again helps once metadata has
	// arrived. Wrapped by *UnknownEpochError.
	ErrUnknownEpoch = errors.New("leader epoch is newer than this broker knows")
	// ErrOutcomeUnknown: the batch was appended, and whether it stays is not known. Wrapped by *OutcomeError.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrNotEnoughReplicas: fewer in-sync replicas than the topic demands; nothing was appended.
	ErrNotEnoughReplicas = errors.New("not enough in-sync replicas")
	// ErrNotReady: the leader has not yet committed the start of its epoch, so it cannot say what is latest.
	ErrNotReady = errors.New("leader is not ready")
	// ErrClosed: the partition is not hosted here any more.
	ErrClosed = errors.New("partition is closed")
	// ErrUnknown: no such partition here. Wrapped by *UnknownError.
	ErrUnknown = errors.New("unknown partition")
)

// NotLeaderError says who leads, as far as this broker knows. errors.Is(err, ErrNotLeader).
type NotLeaderError struct {
	// LeaderID is -1 while there is none.
	LeaderID, LeaderEpoch int32
}

// Error implements error.
func (e *NotLeaderError) Error() string {
	if e.LeaderID < 0 {
		return fmt.Sprintf("not the partition's leader: there is none in epoch %d", e.LeaderEpoch)
	}
	return fmt.Sprintf("not the partition's leader: broker %d leads in epoch %d", e.LeaderID, e.LeaderEpoch)
}

// Is matches ErrNotLeader.
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

// UnknownEpochError says which epoch was asked for and which is known. errors.Is(err, ErrUnknownEpoch).
type UnknownEpochError struct{ Asked, Known int32 }

// Error implements error.
func (e *UnknownEpochError) Error() string {
	return fmt.Sprintf("leader epoch %d is newer than %d, the newest that this broker knows", e.Asked, e.Known)
}

// Is matches ErrUnknownEpoch.
func (e *UnknownEpochError) Is(target error) bool { return target == ErrUnknownEpoch }

// OutcomeError says why a waiting produce cannot be answered. errors.Is(err, ErrOutcomeUnknown).
type OutcomeError struct {
	// Offset is where the batch was appended, in Epoch.
	Offset int64
	Epoch  int32
	Cause  error
}

// Error implements error.
func (e *OutcomeError) Error() string {
	return fmt.Sprintf("outcome unknown: batch at offset %d of epoch %d was not acknowledged in time: %v", e.Offset, e.Epoch, e.Cause)
}

// Unwrap returns ErrOutcomeUnknown and the cause.
func (e *OutcomeError) Unwrap() []error { return []error{ErrOutcomeUnknown, e.Cause} }

// UnknownError names a partition that does not exist, as far as this broker knows. errors.Is(err, ErrUnknown).
type UnknownError struct {
	TopicID   ids.TopicID
	Partition int32
	// Partitions is how many the topic has; 0 when the topic itself is unknown.
	Partitions int32
}

// Error implements error.
func (e *UnknownError) Error() string {
	if e.Partitions > 0 {
		return fmt.Sprintf("partition %d is unknown: topic %s has %d partitions", e.Partition, e.TopicID, e.Partitions)
	}
	return fmt.Sprintf("topic id %s is unknown", e.TopicID)
}

// Is matches ErrUnknown.
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// errTruncated is the cause when a log was truncated under a waiting produce.
var errTruncated = errors.New("the log was truncated")
