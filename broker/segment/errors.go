package segment

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt is matched by every *CorruptError.
	ErrCorrupt = errors.New("log is corrupt")
	// ErrRetired says that the segment was removed from its log before its file could be opened. The caller looks the offset
	// up again.
	ErrRetired = errors.New("segment was removed")
	// ErrShort says that fewer bytes are in the file than the segment had when the read was planned: it was truncated meanwhile.
	ErrShort = errors.New("segment was truncated under the read")
)

// CorruptError says where a file of a log contradicts itself.
type CorruptError struct {
	File     string // path
	Segment  int64  // base offset of the segment
	Offset   int64  // first log offset that cannot be trusted
	Position int64  // byte position in File
	Detail   string
	Err      error // cause, often a *record.BatchError; may be nil
}

// Error implements error.
func (e *CorruptError) Error() string {
	s := fmt.Sprintf("corrupt: file %s, segment %d, offset %d, position %d: %s", e.File, e.Segment, e.Offset, e.Position, e.Detail)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is matches ErrCorrupt.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }
