package controller

import (
	"errors"
	"fmt"

	"runnel.dev/runnel/broker/metadata"
)

// Errors of requests to the controller. Typed errors and messages below name the values; values outside their limits are
// *metadata.ArgumentError.
var (
	// ErrNotController: another broker is the controller, or nobody. *NotControllerError says who.
	ErrNotController = metadata.ErrNotController
	// ErrUnknownBroker: neither a registration nor the registry names the broker.
	ErrUnknownBroker = errors.New("unknown broker")
	// ErrUnknownPartition: the topic has no such partition, or is being deleted.
	ErrUnknownPartition = errors.New("unknown partition")
	// ErrTooFewBrokers: more replicas than brokers.
	ErrTooFewBrokers = errors.New("too few brokers")
	// ErrNoReassignment: nothing is under way that could be cancelled.
	ErrNoReassignment = errors.New("no reassignment is under way")
	// ErrOtherStorage: the broker's storage is another than the request names.
	ErrOtherStorage = errors.New("the broker has another storage")
	// ErrNotEmpty: the broker still holds replicas. *NotEmptyError lists them.
	ErrNotEmpty = errors.New("the broker still holds replicas")
	// ErrBrokerLive: the broker is registered, and must not be for this.
	ErrBrokerLive = errors.New("the broker is running")
	// ErrWrongState: the state of a broker or a partition does not allow it.
	ErrWrongState = errors.New("the state does not allow this")
	// ErrNotInSync: the replica to elect is not in sync, or does not exist.
	ErrNotInSync = errors.New("the replica is not in sync")
	// ErrUnsafe: acknowledged records could be lost. *UnsafeError lists where.
	ErrUnsafe = errors.New("acknowledged records could be lost")
	// ErrBusy: as many partitions are moving as may. Retriable.
	ErrBusy = errors.New("too many partitions are moving")
)

// NotControllerError names the controller, as far as this broker knows. It wraps ErrNotController.
type NotControllerError struct {
	// Controller is a broker id; metadata.NoLeader: nobody is known.
	Controller int32
}

func (e *NotControllerError) Error() string {
	if e.Controller == metadata.NoLeader {
		return fmt.Sprintf("%v: there is none at the moment", ErrNotController)
	}
	return fmt.Sprintf("%v: broker %d is", ErrNotController, e.Controller)
}

// Unwrap returns ErrNotController.
func (e *NotControllerError) Unwrap() error { return ErrNotController }

// Blocker is a partition that stands in the way, and why.
type Blocker struct {
	Partition metadata.PartitionRef
	Topic     string
	// Reason is for people.
	Reason string
	// InSync is how many members would be, or are, in sync and alive; MinInSync how many there have to be.
	InSync, MinInSync int
}

func (b Blocker) String() string {
	return fmt.Sprintf("%s/%d: %s", b.Topic, b.Partition.Partition, b.Reason)
}

// NotEmptyError lists what a broker still holds. It wraps ErrNotEmpty.
type NotEmptyError struct {
	Broker int32
	Left   []Blocker
}

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("%v: broker %d has %d, the first is %v", ErrNotEmpty, e.Broker, len(e.Left), e.Left[0])
}

// Unwrap returns ErrNotEmpty.
func (e *NotEmptyError) Unwrap() error { return ErrNotEmpty }

// UnsafeError lists partitions that would be left without an in-sync replica. It wraps ErrUnsafe.
type UnsafeError struct {
	Broker   int32
	Affected []Blocker
}

func (e *UnsafeError) Error() string {
	return fmt.Sprintf("%v: broker %d has the last in-sync replica of %d partitions, the first is %v",
		ErrUnsafe, e.Broker, len(e.Affected), e.Affected[0])
}

// Unwrap returns ErrUnsafe.
func (e *UnsafeError) Unwrap() error { return ErrUnsafe }

func argument(field string, value any, limit string) error {
	return &metadata.ArgumentError{Field: field, Value: fmt.Sprint(value), Limit: limit, Err: metadata.ErrInvalidArgument}
}
