package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/controller"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// Domain is the ErrorInfo domain of Runnel's reasons.
const Domain = "runnel.dev"

// rule turns one class of errors into an answer.
type rule struct {
	target    error
	code      codes.Code
	reason    string
	retriable bool
}

// rules is the one error table. The first rule whose target errors.Is finds applies, so what wraps more comes first.
var rules = []rule{
	// Requests that were refused here.
	{errInvalid, codes.InvalidArgument, "INVALID_ARGUMENT", false},
	{errMalformed, codes.InvalidArgument, "MALFORMED_MESSAGE", false},
	{errTopicNotFound, codes.NotFound, "TOPIC_NOT_FOUND", false},
	{errPartitionNotFound, codes.NotFound, "UNKNOWN_PARTITION", false},
	{errTopicRecreated, codes.FailedPrecondition, "TOPIC_RECREATED", false},
	{errNotYet, codes.Unimplemented, "NOT_YET_AVAILABLE", false},
	{errStopping, codes.Unavailable, "SHUTTING_DOWN", true},
	{errStarting, codes.Unavailable, "STARTING", true},
	{errInternal, codes.Internal, "INTERNAL", false},
	{errUnlisted, codes.PermissionDenied, "UNLISTED_CALL", false},

	// Calls between brokers. What says that a forwarded call's outcome is unknown wraps its cause, which must not decide.
	{peer.ErrUnknown, codes.Unavailable, "PEER_UNKNOWN", true},
	{errForged, codes.PermissionDenied, "FORGED_ENVELOPE", false},
	{peer.ErrRequired, codes.PermissionDenied, "PEER_REQUIRED", false},
	{peer.ErrRefused, codes.PermissionDenied, "PEER_REFUSED", false},
	{errForwardUnknown, codes.Unavailable, "OUTCOME_UNKNOWN", true},
	{errUnreachable, codes.Unavailable, "BROKER_UNREACHABLE", true},
	{errPeerBusy, codes.Unavailable, "BROKER_BUSY", true},
	{errNoController, codes.Unavailable, "NOT_CONTROLLER", true},

	// Brokers and placement.
	{ErrUnknownBroker, codes.NotFound, "BROKER_UNKNOWN", false},
	{ErrUnknownPartition, codes.NotFound, "UNKNOWN_PARTITION", false},
	{ErrTooFewBrokers, codes.FailedPrecondition, "TOO_FEW_BROKERS", false},
	{ErrNoReassignment, codes.FailedPrecondition, "NO_REASSIGNMENT", false},
	{ErrOtherStorage, codes.FailedPrecondition, "STORAGE_MISMATCH", false},
	{ErrNotEmpty, codes.FailedPrecondition, "NOT_EMPTY", false},
	{ErrBrokerLive, codes.FailedPrecondition, "BROKER_LIVE", false},
	{ErrWrongState, codes.FailedPrecondition, "BROKER_STATE", false},
	{ErrNotInSync, codes.FailedPrecondition, "NOT_IN_SYNC", false},
	{ErrUnsafe, codes.FailedPrecondition, "UNSAFE", false},
	{ErrBusy, codes.ResourceExhausted, "TOO_MANY_MOVES", true},

	// Partitions. What has an unknown outcome wraps its cause, which must not decide.
	{partition.ErrOutcomeUnknown, codes.Unavailable, "OUTCOME_UNKNOWN", true},
	{partition.ErrNotLeader, codes.FailedPrecondition, "NOT_LEADER", true},
	{partition.ErrUnknownEpoch, codes.Unavailable, "UNKNOWN_LEADER_EPOCH", true},
	{partition.ErrNotEnoughReplicas, codes.Unavailable, "NOT_ENOUGH_REPLICAS", true},
	{partition.ErrNotReady, codes.Unavailable, "LEADER_NOT_READY", true},
	{partition.ErrClosed, codes.Unavailable, "NOT_LEADER", true},
	{partition.ErrUnknown, codes.NotFound, "UNKNOWN_TOPIC_ID", true},

	// Damage on the disk. It wraps what was found in a batch there, which is not the client's.
	{log.ErrQuarantined, codes.DataLoss, "PARTITION_QUARANTINED", false},
	{log.ErrCorrupt, codes.DataLoss, "CORRUPT", false},
	{segment.ErrCorrupt, codes.DataLoss, "CORRUPT", false},

	// Batches.
	{record.ErrTooLarge, codes.InvalidArgument, "BATCH_TOO_LARGE", false},
	{record.ErrCorrupt, codes.InvalidArgument, "CORRUPT_BATCH", true},
	{record.ErrInvalid, codes.InvalidArgument, "INVALID_BATCH", false},

	// The log.
	{log.ErrOffsetOutOfRange, codes.OutOfRange, "OFFSET_OUT_OF_RANGE", false},
	{log.ErrBatchTooLarge, codes.InvalidArgument, "BATCH_TOO_LARGE", false},
	{log.ErrOutOfOrderSequence, codes.FailedPrecondition, "OUT_OF_ORDER_SEQUENCE", false},
	{log.ErrUnknownProducer, codes.FailedPrecondition, "UNKNOWN_PRODUCER", false},
	{log.ErrTooManyProducers, codes.ResourceExhausted, "TOO_MANY_PRODUCERS", true},
	{log.ErrProducerFenced, codes.FailedPrecondition, "PRODUCER_FENCED", false},
	{log.ErrFenced, codes.FailedPrecondition, "NOT_LEADER", true},
	{log.ErrTruncated, codes.Unavailable, "LOG_TRUNCATED", true},
	{log.ErrFailed, codes.Unavailable, "STORAGE_FAILED", true},
	{storage.ErrDiskFull, codes.ResourceExhausted, "NO_SPACE", true},
	{log.ErrNoSpace, codes.ResourceExhausted, "NO_SPACE", true},
	{log.ErrReadOnlyFS, codes.Unavailable, "READ_ONLY", true},
	{log.ErrIO, codes.Unavailable, "STORAGE_FAILED", true},
	{log.ErrReadOnly, codes.Unavailable, "READ_ONLY", true},
	{log.ErrClosed, codes.Unavailable, "NOT_LEADER", true},
	{storage.ErrLogNotFound, codes.NotFound, "UNKNOWN_PARTITION", false},
	{storage.ErrNotDamaged, codes.FailedPrecondition, "NOT_DAMAGED", false},
	{storage.ErrClosed, codes.Unavailable, "SHUTTING_DOWN", true},

	// Topics and metadata.
	{topicconfig.ErrNotYetAvailable, codes.Unimplemented, "NOT_YET_AVAILABLE", false},
	{topicconfig.ErrInvalid, codes.InvalidArgument, "INVALID_ARGUMENT", false},
	{metadata.ErrInvalidName, codes.InvalidArgument, "INVALID_NAME", false},
	{metadata.ErrInvalidArgument, codes.InvalidArgument, "INVALID_ARGUMENT", false},
	{metadata.ErrTopicExists, codes.AlreadyExists, "TOPIC_EXISTS", false},
	{metadata.ErrTopicNotFound, codes.NotFound, "TOPIC_NOT_FOUND", false},
	{metadata.ErrOwned, codes.FailedPrecondition, "TOPIC_OWNED", false},
	{metadata.ErrConflict, codes.Aborted, "CONFLICT", true},
	// Of a broker that waits for the metadata to be recovered: they come wrapped in ErrUnavailable.
	{metadata.ErrOlderEtcd, codes.Unavailable, "METADATA_REFUSED", true},
	{metadata.ErrForeignEtcd, codes.Unavailable, "METADATA_REFUSED", true},
	{metadata.ErrRecovering, codes.Unavailable, "METADATA_RECOVERING", true},
	{metadata.ErrUnavailable, codes.Unavailable, "METADATA_UNAVAILABLE", true},
	{metadata.ErrNotBootstrapped, codes.Unavailable, "METADATA_UNAVAILABLE", true},
	{metadata.ErrNotRegistered, codes.Unavailable, "METADATA_UNAVAILABLE", true},
	{metadata.ErrNotController, codes.Unavailable, "NOT_CONTROLLER", true},

	// The caller's own clock.
	{context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE_EXCEEDED", true},
	{context.Canceled, codes.Canceled, "CANCELED", true},
}

// Errors of this package's own checks.
var (
	errInvalid           = errors.New("invalid argument")
	errMalformed         = errors.New("malformed message")
	errTopicNotFound     = errors.New("topic not found")
	errPartitionNotFound = errors.New("unknown partition")
	errTopicRecreated    = errors.New("the name belongs to another topic now")
	errNotYet            = errors.New("not yet available")
	errStopping          = errors.New("the broker is shutting down")
	errStarting          = errors.New("the broker is starting and has not read the metadata yet")
	errInternal          = errors.New("internal error")
	errUnlisted          = errors.New("the call is not listed")
	errForged            = errors.New("the call says that a broker forwards it, and no broker does")
	errForwardUnknown    = errors.New("outcome unknown: the broker that the call was forwarded to did not answer")
	errUnreachable       = errors.New("the broker that has to do this cannot be reached")
	errPeerBusy          = errors.New("the broker that has to do this takes nothing at the moment")
	errNoController      = errors.New("there is no controller at the moment")
)

// Errors of a ClusterAdmin, to be wrapped with what they concern: those of the controller.
var (
	ErrUnknownBroker    = controller.ErrUnknownBroker
	ErrUnknownPartition = controller.ErrUnknownPartition
	ErrTooFewBrokers    = controller.ErrTooFewBrokers
	ErrNoReassignment   = controller.ErrNoReassignment
	ErrOtherStorage     = controller.ErrOtherStorage
	ErrNotEmpty         = controller.ErrNotEmpty
	ErrBrokerLive       = controller.ErrBrokerLive
	ErrWrongState       = controller.ErrWrongState
	ErrNotInSync        = controller.ErrNotInSync
	ErrUnsafe           = controller.ErrUnsafe
	ErrBusy             = controller.ErrBusy
)

// argumentError names a field, its value and the limit. errors.Is(err, errInvalid), or whatever kind says.
type argumentError struct {
	field, value, limit string
	kind                error
}

func (e *argumentError) Error() string {
	return fmt.Sprintf("%v: %s is %s, want %s", e.Unwrap(), e.field, e.value, e.limit)
}

func (e *argumentError) Unwrap() error {
	if e.kind != nil {
		return e.kind
	}
	return errInvalid
}

func invalid(field string, value any, limit string) error {
	return &argumentError{field: field, value: clip(fmt.Sprint(value)), limit: limit}
}

// clip keeps values from outside short in messages, and free of control characters.
func clip(s string) string {
	const most = 128
	if len(s) > most {
		s = s[:most] + "…"
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

// fault is an error as clients see it.
type fault struct {
	code      codes.Code
	reason    string
	message   string
	retriable bool
	metadata  map[string]string
	leader    *partition.NotLeaderError
}

// describe looks an error up in the table. Errors that it does not know are logged with an id, which is all that the client sees.
func (s *Server) describe(err error) fault {
	for i := range rules {
		if !errors.Is(err, rules[i].target) {
			continue
		}
		r := rules[i]
		f := fault{code: r.code, reason: r.reason, retriable: r.retriable, message: err.Error(), metadata: details(err)}
		if errors.As(err, &f.leader) && r.reason != "NOT_LEADER" {
			f.leader = nil
		}
		return f
	}
	id := ids.NewLogID().String()
	s.lg.Error("unexpected error of a request", slog.String("error_id", id), slog.Any("error", err))
	s.metrics.internalErrors.Inc()
	return fault{
		code: codes.Internal, reason: "INTERNAL", message: "internal error " + id + ", see the broker's log",
		metadata: map[string]string{"error_id": id},
	}
}

// details are the machine-readable values of the typed errors.
func details(err error) map[string]string {
	m := map[string]string{}
	number := func(name string, v int64) { m[name] = strconv.FormatInt(v, 10) }
	if arg, ok := errors.AsType[*argumentError](err); ok {
		m["field"], m["value"], m["limit"] = arg.field, arg.value, arg.limit
	}
	if named, ok := errors.AsType[*metadata.ArgumentError](err); ok {
		m["field"], m["value"], m["limit"] = named.Field, clip(named.Value), named.Limit
	}
	if settings, ok := errors.AsType[*topicconfig.InvalidError](err); ok && len(settings.Faults) > 0 {
		m["field"], m["value"], m["limit"] = settings.Faults[0].Field, clip(settings.Faults[0].Value), settings.Faults[0].Limit
	}
	if batch, ok := errors.AsType[*record.BatchError](err); ok {
		m["check"] = batch.Reason.String()
		number("value", batch.Value)
		number("limit", batch.Limit)
		if batch.Record >= 0 {
			number("record", int64(batch.Record))
		}
	}
	if size, ok := errors.AsType[*log.BatchTooLargeError](err); ok {
		number("value", int64(size.Size))
		number("limit", int64(size.Limit))
	}
	if oor, ok := errors.AsType[*log.OutOfRangeError](err); ok {
		number("value", oor.Asked)
		number("asked", oor.Asked)
		number("earliest", oor.Earliest)
		number("latest", oor.Latest)
		m["limit"] = fmt.Sprintf("%d to %d", oor.Earliest, oor.Latest)
	}
	if seq, ok := errors.AsType[*log.SequenceError](err); ok {
		number("value", int64(seq.Got))
		number("expected", int64(seq.Expected))
	}
	if nl, ok := errors.AsType[*partition.NotLeaderError](err); ok {
		number("leader_id", int64(nl.LeaderID))
		number("leader_epoch", int64(nl.LeaderEpoch))
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// remoteError is an item's error as another broker answered it, which goes on to the client as it is.
type remoteError struct{ answer *runnelv1.Error }

func (e *remoteError) Error() string { return e.answer.GetReason() + ": " + e.answer.GetMessage() }

// remote returns the error of an item of another broker's answer, nil when there is none.
func remote(e *runnelv1.Error) error {
	if e == nil {
		return nil
	}
	return &remoteError{e}
}

// status is the answer as the error of a whole call.
func (e *remoteError) status() error {
	info := &errdetails.ErrorInfo{
		Reason: e.answer.GetReason(), Domain: Domain, Metadata: map[string]string{"retriable": strconv.FormatBool(e.answer.GetRetriable())},
	}
	maps.Copy(info.Metadata, e.answer.GetMetadata())
	if a := e.answer.GetLeader().GetAddress(); a != "" {
		info.Metadata["leader_address"] = a
	}
	st := status.New(codes.Code(e.answer.GetCode()), e.answer.GetMessage())
	if with, err := st.WithDetails(info); err == nil {
		st = with
	}
	return st.Err()
}

// item is the error of one item of a stream or bulk answer.
func (l *listener) item(err error) *runnelv1.Error {
	if r, ok := err.(*remoteError); ok { //nolint:errorlint // one that is wrapped is not an answer
		return r.answer
	}
	f := l.describe(err)
	e := &runnelv1.Error{
		Code: int32(f.code), Reason: f.reason, Message: f.message, Retriable: f.retriable, Metadata: f.metadata,
	}
	if f.leader != nil && f.leader.LeaderID >= 0 {
		e.Leader = &runnelv1.LeaderHint{BrokerId: f.leader.LeaderID, LeaderEpoch: f.leader.LeaderEpoch, Address: l.addressOf(f.leader.LeaderID)}
	}
	return e
}

// status is the error of a whole call. Errors that are statuses already stay as they are.
func (l *listener) status(err error) error {
	if err == nil {
		return nil
	}
	// Only a status itself: one that is wrapped (the metadata store's, for instance) is not ours to pass on.
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err
	}
	if r, ok := err.(*remoteError); ok { //nolint:errorlint // one that is wrapped is not an answer
		return r.status()
	}
	f := l.describe(err)
	info := &errdetails.ErrorInfo{Reason: f.reason, Domain: Domain, Metadata: map[string]string{"retriable": strconv.FormatBool(f.retriable)}}
	maps.Copy(info.Metadata, f.metadata)
	if f.leader != nil && f.leader.LeaderID >= 0 {
		info.Metadata["leader_address"] = l.addressOf(f.leader.LeaderID)
	}
	st := status.New(f.code, f.message)
	if with, err := st.WithDetails(info); err == nil {
		st = with
	}
	return st.Err()
}
