package objectstore

import (
	"errors"
	"fmt"
)

// Sentinels, for errors.Is.
var (
	// ErrNotFound: there is no such object.
	ErrNotFound = errors.New("object not found")
	// ErrPreconditionFailed: the object exists, and was not to.
	ErrPreconditionFailed = errors.New("precondition failed: the object exists")
	// ErrInvalidRange is matched by *RangeError.
	ErrInvalidRange = errors.New("invalid range")
	// ErrInvalidKey is matched by *KeyError.
	ErrInvalidKey = errors.New("invalid object key")
	// ErrInvalidArgument is matched by *ArgumentError.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrChecksum is matched by *ChecksumError, and by what a store says of an
	// object that is damaged in another way.
	ErrChecksum = errors.New("object does not match its checksum")
	// ErrThrottled: the store asks for fewer requests. Retriable.
	ErrThrottled = errors.New("object store is throttling requests")
	// ErrUnavailable: the store, or the way to it, is out of order. Retriable.
	ErrUnavailable = errors.New("object store is unavailable")
	// ErrDenied: the store refuses the caller; somebody has to change
	// credentials, permissions or a clock.
	ErrDenied = errors.New("object store denied access")
)

// Retriable tells whether the same call may succeed a little later without
// anybody having changed anything. The end of the call's context is not
// retriable here, because only the caller knows whether there is more time.
func Retriable(err error) bool {
	return errors.Is(err, ErrThrottled) || errors.Is(err, ErrUnavailable)
}

// Op is a method of [Store]; its value is the name that messages use.
type Op string

// The methods of Store.
const (
	OpPut    Op = "put"
	OpGet    Op = "get"
	OpHead   Op = "head"
	OpDelete Op = "delete"
	OpList   Op = "list"
)

// Error says which call failed. Err wraps a sentinel, the error of the context,
// or that of a body.
type Error struct {
	Op  Op
	Key string // the prefix, of a list; "" where many keys are concerned
	Err error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s %s: %v", e.Op, quoted(e.Key), e.Err) }

func (e *Error) Unwrap() error { return e.Err }

// Wrap names the call that err came from; nil stays nil.
func Wrap(op Op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Key: key, Err: err}
}

// KeyError says why a key or prefix is refused. It is ErrInvalidKey.
type KeyError struct {
	Key    string
	Reason string // what the key has or is
	Limit  string // what is allowed
}

// Error implements error.
func (e *KeyError) Error() string {
	return fmt.Sprintf("invalid object key: %s %s; allowed: %s", quoted(e.Key), e.Reason, e.Limit)
}

// Is makes the error ErrInvalidKey.
func (e *KeyError) Is(target error) bool { return target == ErrInvalidKey }

// ArgumentError says why a request is refused. It is ErrInvalidArgument.
type ArgumentError struct {
	Name  string
	Value string
	Limit string // what is allowed
}

// Error implements error.
func (e *ArgumentError) Error() string {
	return fmt.Sprintf("invalid argument: %s is %s; allowed: %s", e.Name, e.Value, e.Limit)
}

// Is makes the error ErrInvalidArgument.
func (e *ArgumentError) Is(target error) bool { return target == ErrInvalidArgument }

func argument(name string, value any, limit string, args ...any) error {
	return &ArgumentError{Name: name, Value: fmt.Sprint(value), Limit: fmt.Sprintf(limit, args...)}
}

// RangeError says that a range has no bytes of an object. It is
// ErrInvalidRange.
type RangeError struct {
	Offset, Length int64 // as asked for
	Size           int64 // of the object; -1 where the store did not tell
}

// Error implements error.
func (e *RangeError) Error() string {
	return fmt.Sprintf("invalid range: offset %d, length %d of an object of %d bytes", e.Offset, e.Length, e.Size)
}

// Is makes the error ErrInvalidRange.
func (e *RangeError) Is(target error) bool { return target == ErrInvalidRange }

// ChecksumError says that bytes are not those that were meant. It is
// ErrChecksum.
type ChecksumError struct {
	Want, Got Checksum
}

// Error implements error.
func (e *ChecksumError) Error() string {
	return fmt.Sprintf("object does not match its checksum: it is %v, want %v", e.Got, e.Want)
}

// Is makes the error ErrChecksum.
func (e *ChecksumError) Is(target error) bool { return target == ErrChecksum }

// quoted makes a name from outside fit for a message: no control characters,
// and not endless.
func quoted(s string) string {
	const most = 200
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:most], len(s))
}
