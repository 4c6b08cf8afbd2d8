package index

import (
	"errors"
	"fmt"
	"math"

	"runnel.dev/runnel/record"
)

// DefaultInterval is how many bytes of log lie between two entries.
const DefaultInterval = 4096

// ErrOutOfRange means that a batch cannot be indexed in this segment, which should have rolled before it.
var ErrOutOfRange = errors.New("index: out of the segment's range")

// Builder makes both indexes of a segment from its batches' headers, in order. Entries are collected until
// Take. Not safe for concurrent use.
type Builder struct {
	base     int64 // the segment's base offset
	interval int

	offsets, times []byte

	since      int   // bytes of log since the last offset entry
	lastOffset int64 // of the last batch added, base-1 at first
	lastPos    int64 // of the last batch added, -1 at first
	indexed    int64 // timestamp of the last time entry, -1 at first
	maxTS      int64 // largest timestamp added, -1 at first
	maxTSLast  int64 // last offset of the first batch that has it
}

// NewBuilder returns a builder for a segment that starts at base. An entry is made once more than interval
// bytes lie behind the last one; 0 means DefaultInterval.
func NewBuilder(base int64, interval int) *Builder {
	if interval <= 0 {
		interval = DefaultInterval
	}
	b := &Builder{interval: interval}
	b.Reset(base)
	return b
}

// Reset forgets everything and starts on a segment with another base offset; buffers are kept.
func (b *Builder) Reset(base int64) {
	*b = Builder{
		base: base, interval: b.interval, offsets: b.offsets[:0], times: b.times[:0],
		lastOffset: base - 1, lastPos: -1, indexed: -1, maxTS: -1,
	}
}

// Add takes the next batch, which starts at position in the segment file. As Kafka does, the entries of a
// batch are decided before its own size counts, so a segment's first batch never has one. Offsets and
// positions must increase; a violation, a relative offset beyond 31 bits or a position beyond 32 bits is
// ErrOutOfRange, and the batch is not added.
func (b *Builder) Add(h record.Header, position int64) error {
	last := h.LastOffset()
	if h.BaseOffset <= b.lastOffset || last < h.BaseOffset || last-b.base > MaxRelativeOffset {
		return fmt.Errorf("%w: offsets %d to %d in a segment from %d, behind offset %d", ErrOutOfRange, h.BaseOffset, last, b.base, b.lastOffset)
	}
	if position <= b.lastPos || position > math.MaxUint32 {
		return fmt.Errorf("%w: position %d behind %d, the maximum is %d", ErrOutOfRange, position, b.lastPos, uint32(math.MaxUint32))
	}
	b.lastOffset, b.lastPos = last, position
	if h.MaxTimestamp > b.maxTS {
		b.maxTS, b.maxTSLast = h.MaxTimestamp, last
	}
	if b.since > b.interval {
		b.offsets = AppendOffset(b.offsets, OffsetEntry{
			RelativeOffset: uint32(last - b.base), // #nosec G115 -- checked above
			Position:       uint32(position),      // #nosec G115 -- checked above
		})
		b.addTime()
		b.since = 0
	}
	b.since += h.Size()
	return nil
}

// Seal adds a time entry for the largest timestamp, if there is none yet: a sealed segment's last time entry
// is its largest timestamp.
func (b *Builder) Seal() { b.addTime() }

func (b *Builder) addTime() {
	if b.maxTS > b.indexed {
		b.times = AppendTime(b.times, TimeEntry{Timestamp: b.maxTS, RelativeOffset: uint32(b.maxTSLast - b.base)}) // #nosec G115 -- checked by Add
		b.indexed = b.maxTS
	}
}

// MaxTimestamp returns the largest timestamp added and the last offset of the first batch that holds it,
// and false when nothing was added.
func (b *Builder) MaxTimestamp() (ms, lastOffset int64, ok bool) {
	return b.maxTS, b.maxTSLast, b.maxTS >= 0
}

// Take returns the entries made since the last Take and starts new, empty buffers over the same memory: the
// slices are valid until the next Add, Seal or Reset.
func (b *Builder) Take() (Offsets, Times) {
	o, t := b.offsets, b.times
	b.offsets, b.times = b.offsets[:0], b.times[:0]
	return o, t
}
