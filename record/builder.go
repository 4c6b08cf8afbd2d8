package record

import (
	"fmt"
	"math"
	"slices"
)

// HeaderKV is one header of a record. The key is bytes and not a string, so that reading borrows and does
// not allocate; a nil Key is written as an empty one, a nil Value as null.
type HeaderKV struct {
	Key   []byte
	Value []byte
}

// Builder encodes records into one batch. It keeps its buffer over Reset and allocates nothing per record.
// Not safe for concurrent use.
type Builder struct {
	codec Codec
	// buf holds room for the header and then the encoded records.
	buf           []byte
	baseTS, maxTS int64
	count         int32
	producerID    int64
	producerEpoch int16
	baseSequence  int32
	err           error
}

// NewBuilder returns an empty builder that compresses with codec.
func NewBuilder(codec Codec) *Builder {
	b := &Builder{codec: codec, buf: make([]byte, HeaderSize, 4096)}
	b.Reset()
	return b
}

// Reset drops the records and the producer fields, and keeps the memory.
func (b *Builder) Reset() {
	b.buf = b.buf[:HeaderSize]
	b.baseTS, b.maxTS = 0, 0
	b.count = 0
	b.err = nil
	b.SetProducer(-1, -1, -1)
}

// SetProducer sets the idempotent producer's fields of the batch; all are -1 otherwise.
func (b *Builder) SetProducer(id int64, epoch int16, baseSequence int32) {
	b.producerID, b.producerEpoch, b.baseSequence = id, epoch, baseSequence
}

// Count returns the number of records appended since Reset.
func (b *Builder) Count() int { return int(b.count) }

// Size returns the exact size in bytes of the batch so far, before compression.
func (b *Builder) Size() int { return len(b.buf) }

// SizeWith returns what Size would be with one more record.
func (b *Builder) SizeWith(ts int64, key, value []byte, headers []HeaderKV) int {
	body := b.bodySize(ts, key, value, headers)
	return len(b.buf) + uvarintSize(zigzag(int64(body))) + body
}

// bodySize returns the bytes of the next record behind its length field.
func (b *Builder) bodySize(ts int64, key, value []byte, headers []HeaderKV) int {
	delta := ts - b.baseTS
	if b.count == 0 {
		delta = 0
	}
	n := 1 + uvarintSize(zigzag(delta)) + uvarintSize(uint64(b.count)<<1) + // #nosec G115 -- not negative
		bytesSize(key) + bytesSize(value) + uvarintSize(uint64(len(headers))<<1)
	for i := range headers {
		k := len(headers[i].Key)
		n += uvarintSize(uint64(k)<<1) + k + bytesSize(headers[i].Value)
	}
	return n
}

// bytesSize returns the size of a nullable byte field with its length.
func bytesSize(p []byte) int {
	return uvarintSize(uint64(len(p))<<1) + len(p) // null is -1, zig-zag 1: one byte like 0
}

// Append adds a record. ts is in ms since the Unix epoch and not negative; a nil key or value is null. The
// arguments are copied. A record that cannot be encoded makes Build fail, and is not counted.
func (b *Builder) Append(ts int64, key, value []byte, headers []HeaderKV) {
	body := b.bodySize(ts, key, value, headers)
	start := len(b.buf)
	end := start + uvarintSize(zigzag(int64(body))) + body
	if ts < 0 || end > math.MaxInt32 || b.count == math.MaxInt32 {
		b.refuse(ts, end)
		return
	}
	if b.count == 0 {
		b.baseTS, b.maxTS = ts, ts
	}
	b.maxTS = max(b.maxTS, ts)

	b.buf = slices.Grow(b.buf, end-start)[:end]
	p := b.buf
	i := putUvarint(p, start, zigzag(int64(body)))
	p[i] = 0 // attributes
	i = putUvarint(p, i+1, zigzag(ts-b.baseTS))
	i = putUvarint(p, i, uint64(b.count)<<1) // #nosec G115 -- not negative
	i = putBytes(p, i, key)
	i = putBytes(p, i, value)
	i = putUvarint(p, i, uint64(len(headers))<<1)
	for h := range headers {
		i = putUvarint(p, i, uint64(len(headers[h].Key))<<1)
		i += copy(p[i:], headers[h].Key)
		i = putBytes(p, i, headers[h].Value)
	}
	b.count++
}

// refuse remembers the first record that could not be appended.
func (b *Builder) refuse(ts int64, size int) {
	if b.err != nil {
		return
	}
	var e *BatchError
	switch {
	case ts < 0:
		e = fault(ReasonTimestamp, ts, 0, "timestamp %d ms is negative", ts)
	case size > math.MaxInt32:
		e = fault(ReasonTooLarge, int64(size), math.MaxInt32, "the batch would have %d bytes, the format's limit is %d", size, math.MaxInt32)
	default:
		e = fault(ReasonCount, int64(b.count)+1, math.MaxInt32, "a batch holds at most %d records", math.MaxInt32)
	}
	e.Record = int(b.count)
	b.err = e
}

// putBytes writes a nullable byte field and returns the index behind it.
func putBytes(p []byte, i int, v []byte) int {
	if v == nil {
		p[i] = 1 // zig-zag of -1
		return i + 1
	}
	i = putUvarint(p, i, uint64(len(v))<<1)
	return i + copy(p[i:], v)
}

// Build appends the finished batch to dst and returns the result: compressed (unless that would make it
// larger), checksummed, with base offset 0 and leader epoch -1. The builder keeps its records until Reset.
// It fails when there is no record, or with the fault of a record that Append could not take; dst then
// comes back as it was.
func (b *Builder) Build(dst []byte) ([]byte, error) {
	if b.err != nil {
		return dst, b.err
	}
	if b.count == 0 {
		return dst, fault(ReasonCount, 0, 1, "a batch holds at least one record")
	}
	if !b.codec.Valid() {
		return dst, fault(ReasonAttributes, int64(b.codec), int64(CodecZstd), "unknown compression %s", b.codec)
	}
	start, codec := len(dst), b.codec
	if codec != CodecNone {
		dst = slices.Grow(dst, HeaderSize)[:start+HeaderSize]
		var err error
		if dst, err = compress(dst, codec, b.buf[HeaderSize:]); err != nil {
			return dst[:start], fmt.Errorf("record: compress with %s: %w", codec, err)
		}
		if len(dst)-start >= len(b.buf) {
			codec = CodecNone
		}
	}
	if codec == CodecNone {
		dst = append(dst[:start], b.buf...)
	}
	batch := dst[start:]
	encodeHeader(batch, Header{
		Length:          int32(len(batch) - LogOverhead), // #nosec G115 -- Append keeps it below MaxInt32
		LeaderEpoch:     -1,
		Magic:           Magic,
		Attributes:      Attributes(codec),
		LastOffsetDelta: b.count - 1,
		BaseTimestamp:   b.baseTS,
		MaxTimestamp:    b.maxTS,
		ProducerID:      b.producerID,
		ProducerEpoch:   b.producerEpoch,
		BaseSequence:    b.baseSequence,
		Count:           b.count,
	})
	putCRC(batch)
	return dst, nil
}
