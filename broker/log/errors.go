package log

import (
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/broker/segment"
)

// Sentinels, for errors.Is.
var (
	// ErrOffsetOutOfRange is matched by *OutOfRangeError.
	ErrOffsetOutOfRange = errors.New("offset out of range")
	// ErrShortBuffer is matched by *ShortBufferError.
	ErrShortBuffer = errors.New("buffer is too small for the next batch")
	// ErrBatchTooLarge is matched by *BatchTooLargeError.
	ErrBatchTooLarge = errors.New("batch is larger than the topic allows")
	// ErrOutOfOrderSequence is matched by *SequenceError.
	ErrOutOfOrderSequence = errors.New("sequence out of order")
	// ErrUnknownProducer: the log remembers nothing of the producer, and its sequence is not 0.
	ErrUnknownProducer = errors.New("unknown producer")
	// ErrProducerFenced: a newer epoch of the producer has written.
	ErrProducerFenced = errors.New("producer is fenced by a newer epoch")
	// ErrTooManyProducers: the producer is new, and there is none that could be forgotten for it yet. It may try again.
	ErrTooManyProducers = errors.New("too many producers")
	// ErrFenced: the leader epoch of the call is older than the log's.
	ErrFenced = errors.New("leader epoch is fenced by a newer one")
	// ErrNotContiguous: a follower's batch does not begin at the log end.
	ErrNotContiguous = errors.New("batch does not continue the log")
	// ErrTruncated: the log was truncated while it was read; the caller looks again.
	ErrTruncated = errors.New("log was truncated under the read")
	// ErrNoSpace, ErrReadOnlyFS and ErrIO classify errors of the disk.
	ErrNoSpace    = errors.New("no space left on the data volume")
	ErrReadOnlyFS = errors.New("the data volume is read-only")
	ErrIO         = errors.New("the data volume failed")
	// ErrReadOnly: the log refuses appends until the disk takes writes again. The cause is wrapped beside it.
	ErrReadOnly = errors.New("log is read-only")
	// ErrFailed: a sync failed; nothing that was not flushed can be trusted, and the log takes no more appends.
	ErrFailed = errors.New("log has failed")
	// ErrQuarantined is matched by *QuarantinedError.
	ErrQuarantined = errors.New("log is quarantined")
	// ErrStartState: what a new log is to begin with contradicts itself.
	ErrStartState = errors.New("start state is invalid")
	// ErrClosed: the log was closed.
	ErrClosed = errors.New("log is closed")
	// ErrVersion: a file was written by a newer version of this program.
	ErrVersion = errors.New("unsupported format version")
	// ErrCorrupt is matched by *CorruptError.
	ErrCorrupt = segment.ErrCorrupt
)

// CorruptError says where a file of a log contradicts itself: file, segment, offset, position.
type CorruptError = segment.CorruptError

// OutOfRangeError says that the log does not have the offset.
type OutOfRangeError struct {
	Asked            int64
	Earliest, Latest int64 // log start and log end
}

// Error implements error.
func (e *OutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d is out of range: the log holds %d up to %d", e.Asked, e.Earliest, e.Latest)
}

// Is matches ErrOffsetOutOfRange.
func (e *OutOfRangeError) Is(target error) bool { return target == ErrOffsetOutOfRange }

// ShortBufferError says that the next batch needs a larger buffer.
type ShortBufferError struct{ Have, Need int }

// Error implements error.
func (e *ShortBufferError) Error() string {
	return fmt.Sprintf("buffer of %d bytes is too small, the next batch has %d", e.Have, e.Need)
}

// Is matches ErrShortBuffer.
func (e *ShortBufferError) Is(target error) bool { return target == ErrShortBuffer }

// BatchTooLargeError says that a batch exceeds the topic's maxBatchBytes, or the size of a segment.
type BatchTooLargeError struct{ Size, Limit int }

// Error implements error.
func (e *BatchTooLargeError) Error() string {
	return fmt.Sprintf("batch of %d bytes, the limit is %d", e.Size, e.Limit)
}

// Is matches ErrBatchTooLarge.
func (e *BatchTooLargeError) Is(target error) bool { return target == ErrBatchTooLarge }

// SequenceError says that a producer's batch is neither the next one nor one of the last five.
type SequenceError struct {
	ProducerID    int64
	Epoch         int16
	Expected, Got int32
}

// Error implements error.
func (e *SequenceError) Error() string {
	return fmt.Sprintf("producer %d epoch %d: sequence %d, expected %d", e.ProducerID, e.Epoch, e.Got, e.Expected)
}

// Is matches ErrOutOfOrderSequence.
func (e *SequenceError) Is(target error) bool { return target == ErrOutOfOrderSequence }

// QuarantinedError says that bytes that had been flushed are damaged. The files are left as they are.
type QuarantinedError struct {
	Dir string
	// Err is usually a *CorruptError.
	Err error
}

// Error implements error.
func (e *QuarantinedError) Error() string {
	return fmt.Sprintf("log in %s is quarantined: %v", e.Dir, e.Err)
}

// Is matches ErrQuarantined.
func (e *QuarantinedError) Is(target error) bool { return target == ErrQuarantined }

// Unwrap returns the damage.
func (e *QuarantinedError) Unwrap() error { return e.Err }

type unknownProducerError struct {
	id       int64
	sequence int32
}

func (e *unknownProducerError) Error() string {
	return fmt.Sprintf("unknown producer %d with sequence %d: only 0 may begin", e.id, e.sequence)
}

func (e *unknownProducerError) Is(target error) bool { return target == ErrUnknownProducer }

type tooManyProducersError struct {
	id    int64
	limit int
	idle  time.Duration
}

func (e *tooManyProducersError) Error() string {
	return fmt.Sprintf("producer %d is new, and the partition remembers %d already, the most that it may: the longest idle one wrote %s ago",
		e.id, e.limit, e.idle.Round(time.Second))
}

func (e *tooManyProducersError) Is(target error) bool { return target == ErrTooManyProducers }

type producerFencedError struct {
	id             int64
	epoch, current int16
}

func (e *producerFencedError) Error() string {
	return fmt.Sprintf("producer %d epoch %d is fenced by epoch %d", e.id, e.epoch, e.current)
}

func (e *producerFencedError) Is(target error) bool { return target == ErrProducerFenced }
