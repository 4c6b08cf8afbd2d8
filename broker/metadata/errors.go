package metadata

import (
	"errors"
	"fmt"
	"strings"

	"runnel.dev/runnel/internal/ids"
)

// Errors of this package. The typed errors below wrap one of them and carry the values.
var (
	// ErrUnavailable: etcd did not answer in time or has no quorum. Retriable. *UnavailableError says whether a write may yet happen.
	ErrUnavailable = errors.New("metadata store unavailable")
	// ErrForeignEtcd: the etcd behind the endpoints, or the Runnel cluster in it, is another than the one this broker belongs to.
	ErrForeignEtcd = errors.New("foreign metadata store")
	// ErrOlderEtcd: etcd is behind what this broker has seen; it was restored from an old snapshot, or emptied.
	ErrOlderEtcd = errors.New("metadata store went back in time")
	// ErrFormatVersion: the metadata was written in a layout that this version does not know.
	ErrFormatVersion = errors.New("metadata format version is not supported")
	// ErrRecovering: the metadata is being recovered. Brokers wait.
	ErrRecovering = errors.New("the metadata is being recovered")
	// ErrNotBootstrapped: an operation before Client.Bootstrap has succeeded.
	ErrNotBootstrapped = errors.New("metadata client is not bootstrapped")
	// ErrBrokerConflict: another storage is registered under this broker id, and is alive.
	ErrBrokerConflict = errors.New("broker id is taken")
	// ErrForeignStorage: this storage holds the replicas of another broker id, which a broker of this id would take for left over, and remove.
	ErrForeignStorage = errors.New("storage belongs to another broker id")
	// ErrSuperseded: a newer registration of this broker id exists; this process must stop.
	ErrSuperseded = errors.New("registration superseded")
	// ErrNotRegistered: the registration that the broker acted under has lapsed or was replaced. Retriable after registering anew.
	ErrNotRegistered = errors.New("registration is not alive")
	// ErrNotEligible: a broker may not lead or be in sync under the registration that was named.
	ErrNotEligible = errors.New("registration is not eligible")
	// ErrNotController: the controller key does not name this controller epoch any more.
	ErrNotController = errors.New("not the controller")
	// ErrTopicExists: the name is taken.
	ErrTopicExists = errors.New("topic exists")
	// ErrTopicNotFound: no such topic, or another one has the name by now.
	ErrTopicNotFound = errors.New("topic not found")
	// ErrConflict: what the change was based on has changed (generation, or a concurrent writer).
	ErrConflict = errors.New("conflicting change")
	// ErrOwned: a resource owns the topic and the change was not forced.
	ErrOwned = errors.New("topic is owned")
	// ErrInvalidName: a name that the rules forbid.
	ErrInvalidName = errors.New("invalid name")
	// ErrInvalidArgument: a value outside its limits, other than a name or a topic setting.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrCorruptSnapshot: bytes that are no cluster snapshot, or a damaged one. *SnapshotError says where.
	ErrCorruptSnapshot = errors.New("corrupt cluster snapshot")
	// ErrSnapshotVersion: a cluster snapshot in a format that this version does not know.
	ErrSnapshotVersion = errors.New("cluster snapshot version is not supported")
	// ErrCorruptValue: a value in etcd that cannot be decoded.
	ErrCorruptValue = errors.New("corrupt metadata value")
)

// UnavailableError is an operation that etcd did not answer. It wraps ErrUnavailable and the last cause.
type UnavailableError struct {
	// Op names the operation.
	Op string
	// Unsettled is true for a write that may still take effect: its outcome is unknown.
	Unsettled bool
	// Err is the last failure.
	Err error
}

func (e *UnavailableError) Error() string {
	outcome := ""
	if e.Unsettled {
		outcome = ", outcome unknown"
	}
	return fmt.Sprintf("%v: %s%s: %v", ErrUnavailable, e.Op, outcome, e.Err)
}

// Unwrap exposes ErrUnavailable and the cause.
func (e *UnavailableError) Unwrap() []error { return []error{ErrUnavailable, e.Err} }

// ForeignEtcdError says what was expected and what was found. It wraps ErrForeignEtcd.
type ForeignEtcdError struct {
	// What is "etcd cluster id" or "cluster id".
	What string
	// Want is what this broker belongs to, Got what the store has.
	Want, Got string
}

func (e *ForeignEtcdError) Error() string {
	return fmt.Sprintf("%v: %s is %s, this broker belongs to %s", ErrForeignEtcd, e.What, e.Got, e.Want)
}

// Unwrap returns ErrForeignEtcd.
func (e *ForeignEtcdError) Unwrap() error { return ErrForeignEtcd }

// OlderEtcdError says how far back the store went. It wraps ErrOlderEtcd.
type OlderEtcdError struct{ Want, Got Position }

func (e *OlderEtcdError) Error() string {
	return fmt.Sprintf("%v: era %d revision %d, this broker has seen era %d revision %d; `runnel etcd recover` is the way out",
		ErrOlderEtcd, e.Got.Era, e.Got.Revision, e.Want.Era, e.Want.Revision)
}

// Unwrap returns ErrOlderEtcd.
func (e *OlderEtcdError) Unwrap() error { return ErrOlderEtcd }

// BrokerConflictError is a live registration of another storage under the same id. It wraps ErrBrokerConflict.
type BrokerConflictError struct {
	BrokerID int32
	// Live is the registered storage, Own the one that was refused.
	Live, Own ids.StorageID
	// Epoch is the live registration's broker epoch.
	Epoch int64
}

func (e *BrokerConflictError) Error() string {
	return fmt.Sprintf("%v: broker %d is registered with storage %s (broker epoch %d), this storage is %s",
		ErrBrokerConflict, e.BrokerID, e.Live, e.Epoch, e.Own)
}

// Unwrap returns ErrBrokerConflict.
func (e *BrokerConflictError) Unwrap() error { return ErrBrokerConflict }

// ForeignStorageError is a storage that the registry lists under another broker id. It wraps ErrForeignStorage.
type ForeignStorageError struct {
	// BrokerID is who was refused, Owner whose storage it is.
	BrokerID, Owner int32
	StorageID       ids.StorageID
}

func (e *ForeignStorageError) Error() string {
	return fmt.Sprintf("%v: storage %s is that of broker %d, this is broker %d", ErrForeignStorage, e.StorageID, e.Owner, e.BrokerID)
}

// Unwrap returns ErrForeignStorage.
func (e *ForeignStorageError) Unwrap() error { return ErrForeignStorage }

// SupersededError is a newer registration of this broker's id. It wraps ErrSuperseded.
type SupersededError struct {
	BrokerID   int32
	Epoch, New int64
}

func (e *SupersededError) Error() string {
	return fmt.Sprintf("%v: broker %d, broker epoch %d, was taken over by broker epoch %d", ErrSuperseded, e.BrokerID, e.Epoch, e.New)
}

// Unwrap returns ErrSuperseded.
func (e *SupersededError) Unwrap() error { return ErrSuperseded }

// TopicError names the topic that one of ErrTopicExists, ErrTopicNotFound or ErrOwned is about.
type TopicError struct {
	Name string
	// ID is the topic ID that was asked for (not found) or that exists (exists, owned); zero when there is none.
	ID ids.TopicID
	// State is the existing topic's state.
	State TopicState
	// Owner is set with ErrOwned.
	Owner string
	Err   error
}

func (e *TopicError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %q", e.Err, e.Name)
	if !e.ID.IsZero() {
		fmt.Fprintf(&b, " (topic id %s)", e.ID)
	}
	if e.State == TopicDeleting {
		b.WriteString(", it is being deleted")
	}
	if e.Owner != "" {
		fmt.Fprintf(&b, " by %s", e.Owner)
	}
	return b.String()
}

// Unwrap returns the sentinel.
func (e *TopicError) Unwrap() error { return e.Err }

// ConflictError is a change that was based on a generation that is not the current one. It wraps ErrConflict.
type ConflictError struct {
	Name      string
	Want, Got int64
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("%v: topic %q has generation %d, the change is based on %d", ErrConflict, e.Name, e.Got, e.Want)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

// ArgumentError names a value that was refused and its limit. It wraps ErrInvalidArgument, or ErrInvalidName for names.
type ArgumentError struct {
	Field, Value, Limit string
	Err                 error
}

func (e *ArgumentError) Error() string {
	return fmt.Sprintf("%v: %s is %s, want %s", e.Err, e.Field, e.Value, e.Limit)
}

// Unwrap returns the sentinel.
func (e *ArgumentError) Unwrap() error { return e.Err }

func invalid(field string, value any, limit string) error {
	return &ArgumentError{Field: field, Value: fmt.Sprint(value), Limit: limit, Err: ErrInvalidArgument}
}

// CorruptValueError names the key whose value cannot be decoded. It wraps ErrCorruptValue.
type CorruptValueError struct {
	Key      string
	Revision int64
	Err      error
}

func (e *CorruptValueError) Error() string {
	return fmt.Sprintf("%v: key %q at mod revision %d: %v", ErrCorruptValue, e.Key, e.Revision, e.Err)
}

// Unwrap exposes ErrCorruptValue and the cause.
func (e *CorruptValueError) Unwrap() []error { return []error{ErrCorruptValue, e.Err} }
