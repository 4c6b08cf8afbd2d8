package index

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
)

// Sizes of one entry in bytes.
const (
	OffsetEntrySize = 8
	TimeEntrySize   = 12
)

// MaxRelativeOffset is the largest relative offset that an entry may hold. A segment has to roll before
// one would be larger.
const MaxRelativeOffset = math.MaxInt32

// CorruptError reports bytes that are not an index.
type CorruptError struct {
	// Entry is the number of the first bad entry, from 0.
	Entry  int
	Detail string
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("index is corrupt at entry %d: %s", e.Entry, e.Detail)
}

// OffsetEntry is one entry of an offset index.
type OffsetEntry struct {
	RelativeOffset uint32 // last offset of the batch, minus the segment's base offset
	Position       uint32 // where the batch starts in the segment file, in bytes
}

// TimeEntry is one entry of a time index.
type TimeEntry struct {
	Timestamp      int64  // largest timestamp so far, ms since the Unix epoch
	RelativeOffset uint32 // last offset of the batch that holds it, minus the segment's base offset
}

// AppendOffset appends the encoding of e to dst.
func AppendOffset(dst []byte, e OffsetEntry) []byte {
	dst = binary.BigEndian.AppendUint32(dst, e.RelativeOffset)
	return binary.BigEndian.AppendUint32(dst, e.Position)
}

// AppendTime appends the encoding of e to dst.
func AppendTime(dst []byte, e TimeEntry) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.Timestamp)) // #nosec G115 -- bits kept
	return binary.BigEndian.AppendUint32(dst, e.RelativeOffset)
}

// Offsets is the content of an offset index. Its methods allocate nothing (errors aside).
type Offsets []byte

// Len returns the number of whole entries.
func (x Offsets) Len() int { return len(x) / OffsetEntrySize }

// At decodes entry i, which must lie in [0, Len).
func (x Offsets) At(i int) OffsetEntry {
	b := x[i*OffsetEntrySize:][:OffsetEntrySize]
	return OffsetEntry{RelativeOffset: binary.BigEndian.Uint32(b), Position: binary.BigEndian.Uint32(b[4:])}
}

// Lookup returns the last entry whose offset is ≤ relativeOffset, and false when there is none: the search
// then starts at the beginning of the segment. x must be valid.
func (x Offsets) Lookup(relativeOffset uint32) (OffsetEntry, bool) {
	// sort.Search inlines here and keeps the closure off the heap.
	i := sort.Search(x.Len(), func(i int) bool { return x.At(i).RelativeOffset > relativeOffset })
	if i == 0 {
		return OffsetEntry{}, false
	}
	return x.At(i - 1), true
}

// Before returns how many leading entries have an offset < relativeOffset: what remains of the index, in
// entries, when the segment is truncated to that offset.
func (x Offsets) Before(relativeOffset uint32) int {
	return sort.Search(x.Len(), func(i int) bool { return x.At(i).RelativeOffset >= relativeOffset })
}

// Validate checks that x is whole entries, with offsets and positions that increase strictly. The error is
// a *CorruptError.
func (x Offsets) Validate() error {
	for i := range x.Len() {
		e := x.At(i)
		if e.RelativeOffset > MaxRelativeOffset {
			return &CorruptError{i, fmt.Sprintf("relative offset %d, the maximum is %d", e.RelativeOffset, MaxRelativeOffset)}
		}
		if i == 0 {
			continue
		}
		if last := x.At(i - 1); e.RelativeOffset <= last.RelativeOffset {
			return &CorruptError{i, fmt.Sprintf("relative offset %d follows %d", e.RelativeOffset, last.RelativeOffset)}
		} else if e.Position <= last.Position {
			return &CorruptError{i, fmt.Sprintf("position %d follows %d", e.Position, last.Position)}
		}
	}
	return partial(len(x), OffsetEntrySize)
}

// Times is the content of a time index. Its methods allocate nothing (errors aside).
type Times []byte

// Len returns the number of whole entries.
func (x Times) Len() int { return len(x) / TimeEntrySize }

// At decodes entry i, which must lie in [0, Len).
func (x Times) At(i int) TimeEntry {
	b := x[i*TimeEntrySize:][:TimeEntrySize]
	return TimeEntry{
		Timestamp:      int64(binary.BigEndian.Uint64(b)), // #nosec G115 -- bits kept
		RelativeOffset: binary.BigEndian.Uint32(b[8:]),
	}
}

// Lookup returns the last entry whose timestamp is ≤ ms, and false when there is none. The first record with
// a timestamp ≥ ms lies in the batch that the entry names, when its timestamp is ms, or else behind it. x
// must be valid.
func (x Times) Lookup(ms int64) (TimeEntry, bool) {
	i := sort.Search(x.Len(), func(i int) bool { return x.At(i).Timestamp > ms })
	if i == 0 {
		return TimeEntry{}, false
	}
	return x.At(i - 1), true
}

// Before returns how many leading entries have an offset < relativeOffset.
func (x Times) Before(relativeOffset uint32) int {
	return sort.Search(x.Len(), func(i int) bool { return x.At(i).RelativeOffset >= relativeOffset })
}

// Validate checks that x is whole entries, with timestamps and offsets that increase strictly. The error is
// a *CorruptError.
func (x Times) Validate() error {
	for i := range x.Len() {
		e := x.At(i)
		if e.Timestamp < 0 {
			return &CorruptError{i, fmt.Sprintf("timestamp %d is negative", e.Timestamp)}
		}
		if e.RelativeOffset > MaxRelativeOffset {
			return &CorruptError{i, fmt.Sprintf("relative offset %d, the maximum is %d", e.RelativeOffset, MaxRelativeOffset)}
		}
		if i == 0 {
			continue
		}
		if last := x.At(i - 1); e.Timestamp <= last.Timestamp {
			return &CorruptError{i, fmt.Sprintf("timestamp %d follows %d", e.Timestamp, last.Timestamp)}
		} else if e.RelativeOffset <= last.RelativeOffset {
			return &CorruptError{i, fmt.Sprintf("relative offset %d follows %d", e.RelativeOffset, last.RelativeOffset)}
		}
	}
	return partial(len(x), TimeEntrySize)
}

func partial(size, entry int) error {
	if rest := size % entry; rest != 0 {
		return &CorruptError{size / entry, fmt.Sprintf("%d bytes of an entry of %d", rest, entry)}
	}
	return nil
}
