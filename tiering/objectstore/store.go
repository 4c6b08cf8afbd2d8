package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Limits of every store. They are the smallest among the services that Runnel
// supports, so that a bucket can be moved from one to another.
const (
	// MaxObjectSize is the size of the largest object in bytes: 5 GiB, what S3
	// takes in one request.
	MaxObjectSize = 5 << 30
	// MaxDeleteKeys is the number of keys in one Delete.
	MaxDeleteKeys = 1000
	// MaxListLimit is the number of objects on one page of List.
	MaxListLimit = 1000
)

// ToEnd as the length of a Get means: up to the end of the object.
const ToEnd int64 = -1

// Store is a bucket, or the part of one below a prefix.
//
// All methods are safe for concurrent use. All of them block on the network or
// the disk, and all return soon after their context has ended, with an error
// that wraps the context's. (A local disk that does not answer cannot be
// interrupted: the file store looks at the context between operations.) Keys
// have to pass [CheckKey]; errors are *[Error] around the sentinels of this
// package.
//
// Reads see what completed writes have done: after a Put or Delete returned
// nil, each Get and Head sees it. List does not promise that: it may miss
// recent objects and still show deleted ones for a while.
type Store interface {
	// Put stores an object whole: readers see all of it or none of it, and
	// while one is replaced the old or the new one. It is durable when Put
	// returns nil. The store has no use for the body afterwards.
	//
	// Errors: ErrInvalidKey and ErrInvalidArgument, ErrPreconditionFailed,
	// ErrChecksum when the body is not what the checksum says, an error of the
	// body itself; after these nothing was stored. After any other one the
	// object may be there: a caller with a precondition that is then told
	// ErrPreconditionFailed has perhaps met its own object, and finds out with
	// Head.
	Put(ctx context.Context, req PutRequest) (Info, error)

	// Get reads length bytes from offset; a range that runs over the end is cut
	// there. ErrInvalidRange: offset is negative or not within the object, or
	// length is neither positive nor ToEnd. (From 0 ToEnd is valid for an empty
	// object.) ErrNotFound: there is no such object. The caller closes the
	// body, which is for one goroutine; Info is of the whole object.
	//
	// The body belongs to the state of the object at one moment. Its reads end
	// with the context too. They fail with ErrUnavailable and
	// io.ErrUnexpectedEOF when bytes are missing, and with ErrChecksum, before
	// the last of them is handed out, when the range is the whole object and
	// its bytes are not those that were put. Parts of an object are not
	// checked: their reader needs checksums of its own.
	Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, Info, error)

	// Head describes an object, or fails with ErrNotFound. An object that it
	// describes is durable, even if the Put that wrote it failed.
	Head(ctx context.Context, key string) (Info, error)

	// Delete removes up to MaxDeleteKeys objects; removing one that is not
	// there succeeds. The error is nil only if all of them are gone, durably.
	// Otherwise the results tell the fate of each key, in the order of keys;
	// they are nil if the call failed as a whole, and then, unless the request
	// was invalid, any of the objects may be gone. The store does not keep keys.
	Delete(ctx context.Context, keys []string) ([]DeleteResult, error)

	// List returns a page of objects in the byte order of their keys.
	List(ctx context.Context, req ListRequest) (Page, error)
}

// Precondition is what has to hold for a Put to take effect.
type Precondition uint8

const (
	// Unconditional lets Put create or replace the object.
	Unconditional Precondition = iota
	// IfNoneMatch lets Put create the object only; ErrPreconditionFailed if
	// there is one.
	IfNoneMatch
)

func (p Precondition) String() string {
	switch p {
	case Unconditional:
		return "none"
	case IfNoneMatch:
		return "if-none-match"
	default:
		return fmt.Sprintf("precondition %d", uint8(p))
	}
}

// PutRequest is an object to be stored.
type PutRequest struct {
	// Key names the object.
	Key string
	// Body holds its bytes from position 0. The store may read them more than
	// once, and several parts at the same time; it does not write to them. They
	// may not change until Put has returned.
	Body io.ReaderAt
	// Size is the number of bytes, from 0 to MaxObjectSize. What Body holds
	// beyond is ignored.
	Size int64
	// Checksum is that of the Size bytes. It is required.
	Checksum Checksum
	// Precondition is Unconditional unless set.
	Precondition Precondition
}

// Validate reports all faults of the request; each is ErrInvalidKey or
// ErrInvalidArgument.
func (r PutRequest) Validate() error {
	faults := []error{CheckKey(r.Key)}
	if r.Body == nil {
		faults = append(faults, &ArgumentError{Name: "body", Value: "nil", Limit: "an io.ReaderAt"})
	}
	if r.Size < 0 || r.Size > MaxObjectSize {
		faults = append(faults, argument("size", r.Size, "0 to %d bytes", int64(MaxObjectSize)))
	}
	if r.Checksum.IsZero() {
		faults = append(faults, &ArgumentError{Name: "checksum", Value: "none", Limit: "a CRC-32C or SHA-256"})
	}
	if r.Precondition > IfNoneMatch {
		faults = append(faults, argument("precondition", uint8(r.Precondition), "0 to %d", IfNoneMatch))
	}
	return errors.Join(faults...)
}

// Info describes an object.
type Info struct {
	Key  string
	Size int64 // bytes
	// Checksum is the one that the object was put with. It is zero in List, and
	// where an object was not written through this package.
	Checksum Checksum
	// Modified is when the object was put, by the clock of the store.
	Modified time.Time
}

// DeleteResult is what became of one key; Err is nil if the object is gone.
type DeleteResult struct {
	Key string
	Err error
}

// DeleteError joins the errors of all results; nil if there is none.
func DeleteError(results []DeleteResult) error {
	var failed []error
	for _, r := range results {
		if r.Err != nil {
			failed = append(failed, r.Err)
		}
	}
	return errors.Join(failed...)
}

// CheckDelete refuses a batch that is too large with ErrInvalidArgument.
func CheckDelete(keys []string) error {
	if len(keys) > MaxDeleteKeys {
		return argument("keys", len(keys), "at most %d in one batch", MaxDeleteKeys)
	}
	return nil
}

// CheckRange finds the bytes that a Get asks for in an object of size bytes: n
// bytes from offset. ErrInvalidRange if there are none, as [Store] defines it.
func CheckRange(offset, length, size int64) (n int64, err error) {
	whole := offset == 0 && length == ToEnd
	switch {
	case length <= 0 && length != ToEnd, offset < 0, offset >= size && !whole:
		return 0, &RangeError{Offset: offset, Length: length, Size: size}
	case length == ToEnd:
		return size - offset, nil
	default:
		return min(length, size-offset), nil
	}
}
