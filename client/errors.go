package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Every produce error is exactly one of these (errors.Is). After either, later queued records of that partition fail in order
// with ErrNotWritten: order is never silently broken.
var (
	// ErrNotWritten: the record is certainly not in the log, so sending it again is safe.
	ErrNotWritten = errors.New("not written")
	// ErrOutcomeUnknown: the record may be in the log, so sending it again may duplicate it.
	ErrOutcomeUnknown = errors.New("outcome unknown")
)

// Errors to test for with errors.Is.
var (
	// ErrClosed: the client, producer or consumer was closed.
	ErrClosed = errors.New("closed")
	// ErrRecordTooLarge: a record does not fit into a batch; see [RecordTooLargeError].
	ErrRecordTooLarge = errors.New("record too large")
	// ErrDeliveryTimeout: the delivery timeout passed before the record was acknowledged.
	ErrDeliveryTimeout = errors.New("delivery timeout")
	// ErrEarlierFailed: an earlier record of the partition failed, and writing this one would have broken the order.
	ErrEarlierFailed = errors.New("an earlier record of the partition failed")
	// ErrUnknownTopic: the topic does not exist (any more).
	ErrUnknownTopic = errors.New("unknown topic")
	// ErrUnknownPartition: the topic has no such partition.
	ErrUnknownPartition = errors.New("unknown partition")
	// ErrTopicRecreated: the topic's name belongs to another topic now. Nothing is carried over.
	ErrTopicRecreated = errors.New("topic was deleted and created again")
	// ErrTopicExists: a topic of that name exists.
	ErrTopicExists = errors.New("topic exists")
	// ErrConflict: the generation or id that a change was based on is not the current one.
	ErrConflict = errors.New("conflict")
	// ErrInvalidArgument: the request was refused for what it says.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrCorrupt: bytes that were read are not what was written.
	ErrCorrupt = errors.New("corrupt data")
	// ErrStalled: a consumer could not read a partition for a RequestTimeout, or a broker says that waiting will not help. The
	// cause is wrapped beside it. Reading goes on by itself once it can, except with [UntilEnd].
	ErrStalled = errors.New("not readable")
	// ErrUnknownBroker: the cluster has no such broker.
	ErrUnknownBroker = errors.New("unknown broker")
	// ErrBrokerNotEmpty: the broker still holds replicas.
	ErrBrokerNotEmpty = errors.New("the broker still holds replicas")
	// ErrUnsafe: acknowledged records could be lost, and the request does not accept that.
	ErrUnsafe = errors.New("acknowledged records could be lost")
	// ErrUnavailable: no broker could be reached, or the one that is needed could not.
	ErrUnavailable = errors.New("unavailable")
)

// Reasons that brokers give, as far as the client acts on them.
const (
	reasonNotLeader         = "NOT_LEADER"
	reasonUnknownEpoch      = "UNKNOWN_LEADER_EPOCH"
	reasonNotReady          = "LEADER_NOT_READY"
	reasonStarting          = "STARTING"
	reasonShuttingDown      = "SHUTTING_DOWN"
	reasonUnknownTopicID    = "UNKNOWN_TOPIC_ID"
	reasonTopicNotFound     = "TOPIC_NOT_FOUND"
	reasonUnknownPartition  = "UNKNOWN_PARTITION"
	reasonTopicExists       = "TOPIC_EXISTS"
	reasonTopicRecreated    = "TOPIC_RECREATED"
	reasonConflict          = "CONFLICT"
	reasonOutOfRange        = "OFFSET_OUT_OF_RANGE"
	reasonOutOfOrder        = "OUT_OF_ORDER_SEQUENCE"
	reasonUnknownProducer   = "UNKNOWN_PRODUCER"
	reasonProducerFenced    = "PRODUCER_FENCED"
	reasonDuplicateSequence = "DUPLICATE_SEQUENCE"
	reasonOutcomeUnknown    = "OUTCOME_UNKNOWN"
	reasonNoSpace           = "NO_SPACE"
	reasonReadOnly          = "READ_ONLY"
	reasonNotEnoughReplicas = "NOT_ENOUGH_REPLICAS"
	reasonBatchTooLarge     = "BATCH_TOO_LARGE"
	reasonCorruptBatch      = "CORRUPT_BATCH"
	reasonCorrupt           = "CORRUPT"
	reasonNotController     = "NOT_CONTROLLER"
	reasonUnreachable       = "BROKER_UNREACHABLE"
	reasonBrokerBusy        = "BROKER_BUSY"
	reasonUnknownBroker     = "BROKER_UNKNOWN"
	reasonNotEmpty          = "NOT_EMPTY"
	reasonUnsafe            = "UNSAFE"
)

// domain is the ErrorInfo domain of Runnel's reasons.
const domain = "runnel.dev"

// Error is what a broker answered. errors.Is finds the sentinels of this package behind it.
type Error struct {
	Code codes.Code
	// Reason is a stable upper-snake-case name.
	Reason string
	// Message says what was refused, the value and the limit.
	Message string
	// Metadata carries machine-readable details, e.g. "limit", "value".
	Metadata map[string]string

	retriable bool
	unsent    bool // the request never left
	leader    *runnelv1.LeaderHint
}

// Error implements error.
func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("%s: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Message)
}

// Is matches the sentinel that belongs to the reason or code.
func (e *Error) Is(target error) bool {
	if s := reasonSentinels[e.Reason]; s != nil {
		return s == target
	}
	switch e.Code {
	case codes.Unavailable:
		return target == ErrUnavailable
	case codes.InvalidArgument:
		return target == ErrInvalidArgument
	case codes.DataLoss:
		return target == ErrCorrupt
	default:
		return false
	}
}

var reasonSentinels = map[string]error{
	reasonUnknownTopicID:   ErrUnknownTopic,
	reasonTopicNotFound:    ErrUnknownTopic,
	reasonUnknownPartition: ErrUnknownPartition,
	reasonTopicExists:      ErrTopicExists,
	reasonTopicRecreated:   ErrTopicRecreated,
	reasonConflict:         ErrConflict,
	reasonBatchTooLarge:    ErrRecordTooLarge,
	reasonCorrupt:          ErrCorrupt,
	reasonCorruptBatch:     ErrCorrupt,
	reasonUnknownBroker:    ErrUnknownBroker,
	reasonNotEmpty:         ErrBrokerNotEmpty,
	reasonUnsafe:           ErrUnsafe,
}

// GRPCStatus lets status.FromError see the broker's answer.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// RecordTooLargeError names what did not fit. errors.Is(err, ErrRecordTooLarge).
type RecordTooLargeError struct {
	// Size is the size of a batch with that one record alone, and Limit what it may have, bytes.
	Size, Limit int
}

// Error implements error.
func (e *RecordTooLargeError) Error() string {
	return fmt.Sprintf("record too large: a batch with it alone has %d bytes, the limit is %d", e.Size, e.Limit)
}

// Is matches ErrRecordTooLarge.
func (e *RecordTooLargeError) Is(target error) bool { return target == ErrRecordTooLarge }

// OffsetOutOfRangeError also says how much was lost: Earliest - Asked.
type OffsetOutOfRangeError struct {
	TopicPartition
	Asked, Earliest, Latest int64
}

// Error implements error.
func (e *OffsetOutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d of %s is out of range [%d, %d]", e.Asked, e.TopicPartition, e.Earliest, e.Latest)
}

// PartitionError is an error of one partition; others are not affected. Partition is -1 when it concerns a topic as a whole.
type PartitionError struct {
	TopicPartition
	Err error
}

// Error implements error.
func (e *PartitionError) Error() string { return fmt.Sprintf("%s: %v", e.TopicPartition, e.Err) }

// Unwrap returns the cause.
func (e *PartitionError) Unwrap() error { return e.Err }

// ProduceError says that a record was not acknowledged.
type ProduceError struct {
	TopicPartition
	// Outcome is ErrNotWritten or ErrOutcomeUnknown.
	Outcome error
	// Cause says why.
	Cause error
}

// Error implements error.
func (e *ProduceError) Error() string {
	return fmt.Sprintf("produce to %s: %v: %v", e.TopicPartition, e.Outcome, e.Cause)
}

// Unwrap returns outcome and cause.
func (e *ProduceError) Unwrap() []error { return []error{e.Outcome, e.Cause} }

// RecordError is a failure of one record in [Producer.ProduceSync].
type RecordError struct {
	Record *Record
	Err    error
}

// Error implements error.
func (e *RecordError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RecordError) Unwrap() error { return e.Err }

// Retriable reports whether trying later may help. The client already retries such errors within its timeouts.
func Retriable(err error) bool {
	if err == nil || errors.Is(err, ErrClosed) {
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.retriable
	}
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrDeliveryTimeout) || errors.Is(err, ErrEarlierFailed) ||
		errors.Is(err, context.DeadlineExceeded)
}

// fromItem converts the error of one item of a stream or bulk answer; nil stays nil.
func fromItem(e *runnelv1.Error) error {
	if e == nil {
		return nil
	}
	return itemError(e)
}

func itemError(e *runnelv1.Error) *Error {
	return &Error{
		Code: codes.Code(e.GetCode()), Reason: e.GetReason(), Message: e.GetMessage(), Metadata: e.GetMetadata(),
		retriable: e.GetRetriable(), leader: e.GetLeader(),
	}
}

// fromRPC converts the error of a whole call; the caller's own context errors stay recognisable.
func fromRPC(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	e := &Error{Code: st.Code(), Message: st.Message()}
	switch st.Code() {
	case codes.Canceled:
		return fmt.Errorf("%w: %s", context.Canceled, st.Message())
	case codes.DeadlineExceeded:
		if st.Message() == context.DeadlineExceeded.Error() {
			return context.DeadlineExceeded
		}
		return fmt.Errorf("%w: %s", context.DeadlineExceeded, st.Message())
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		e.retriable = true
	default:
	}
	for _, d := range st.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != domain {
			continue
		}
		e.Reason, e.Metadata = info.GetReason(), maps.Clone(info.GetMetadata())
		if v, err := strconv.ParseBool(info.GetMetadata()["retriable"]); err == nil {
			e.retriable = v
		}
	}
	return e
}

// outOfRange makes the typed error of an answer whose reason is OFFSET_OUT_OF_RANGE.
func outOfRange(e *Error, tp TopicPartition, asked int64) *OffsetOutOfRangeError {
	number := func(name string) int64 {
		v, err := strconv.ParseInt(e.Metadata[name], 10, 64)
		if err != nil {
			return -1
		}
		return v
	}
	return &OffsetOutOfRangeError{TopicPartition: tp, Asked: asked, Earliest: number("earliest"), Latest: number("latest")}
}
