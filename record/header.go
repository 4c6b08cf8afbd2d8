package record

import (
	"encoding/binary"
	"hash/crc32"
	"math"
)

// Sizes of the fixed part of a batch, in bytes.
const (
	// HeaderSize is the size of everything before the records.
	HeaderSize = 61
	// LogOverhead is the size of the base offset and length fields, which the length does not count.
	LogOverhead = 12
	// Magic is the only format version that this package knows.
	Magic = 2

	minLength = HeaderSize - LogOverhead
	maxLength = math.MaxInt32 - LogOverhead
)

// Field positions; see the diagram in the package comment.
const (
	posBaseOffset      = 0
	posLength          = 8
	posLeaderEpoch     = 12
	posMagic           = 16
	posCRC             = 17
	posAttributes      = 21
	posLastOffsetDelta = 23
	posBaseTimestamp   = 27
	posMaxTimestamp    = 35
	posProducerID      = 43
	posProducerEpoch   = 51
	posBaseSequence    = 53
	posCount           = 57
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the fixed part of a batch, decoded.
type Header struct {
	BaseOffset      int64
	Length          int32 // bytes behind this field
	LeaderEpoch     int32 // -1 until a leader has stamped it
	Magic           int8
	CRC             uint32 // CRC-32C of everything from the attributes on
	Attributes      Attributes
	LastOffsetDelta int32
	BaseTimestamp   int64 // ms since the Unix epoch
	MaxTimestamp    int64 // ms since the Unix epoch
	ProducerID      int64 // -1 = none
	ProducerEpoch   int16 // -1 = none
	BaseSequence    int32 // means something only together with a producer id
	Count           int32 // records
}

// Size returns the size of the whole batch in bytes.
func (h Header) Size() int { return LogOverhead + int(h.Length) }

// LastOffset returns the offset of the last record.
func (h Header) LastOffset() int64 { return h.BaseOffset + int64(h.LastOffsetDelta) }

// NextOffset returns the offset that follows the batch.
func (h Header) NextOffset() int64 { return h.LastOffset() + 1 }

// LastSequence returns the sequence of the last record. Sequences wrap from MaxInt32 to 0. It is -1 for a
// batch without producer id or sequence.
func (h Header) LastSequence() int32 {
	if h.ProducerID < 0 || h.BaseSequence < 0 {
		return -1
	}
	return int32((int64(h.BaseSequence) + int64(h.LastOffsetDelta)) & math.MaxInt32) // #nosec G115 -- masked to 31 bits
}

// ParseHeader decodes the first HeaderSize bytes of a batch; the records may be absent. It checks only what
// framing needs: enough bytes (ReasonTruncated), a sane length (ReasonTruncated, ReasonTooLarge) and the
// magic (ReasonMagic).
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, fault(ReasonTruncated, int64(len(b)), HeaderSize, "%d bytes, a batch header has %d", len(b), HeaderSize)
	}
	h := decodeHeader(b)
	if h.Length < minLength {
		return Header{}, fault(ReasonTruncated, int64(h.Length), minLength, "length field is %d, the minimum is %d", h.Length, minLength)
	}
	if h.Length > maxLength {
		return Header{}, fault(ReasonTooLarge, int64(h.Length), maxLength, "length field is %d, the maximum is %d", h.Length, maxLength)
	}
	if h.Magic != Magic {
		return Header{}, fault(ReasonMagic, int64(h.Magic), Magic, "magic is %d, only %d is supported", h.Magic, Magic)
	}
	return h, nil
}

// The conversions below keep the bits as they are: two's complement on both sides.

func decodeHeader(b []byte) Header {
	b = b[:HeaderSize]
	be := binary.BigEndian
	return Header{
		BaseOffset:      int64(be.Uint64(b[posBaseOffset:])),      // #nosec G115
		Length:          int32(be.Uint32(b[posLength:])),          // #nosec G115
		LeaderEpoch:     int32(be.Uint32(b[posLeaderEpoch:])),     // #nosec G115
		Magic:           int8(b[posMagic]),                        // #nosec G115
		CRC:             be.Uint32(b[posCRC:]),                    // #nosec G115
		Attributes:      Attributes(be.Uint16(b[posAttributes:])), // #nosec G115
		LastOffsetDelta: int32(be.Uint32(b[posLastOffsetDelta:])), // #nosec G115
		BaseTimestamp:   int64(be.Uint64(b[posBaseTimestamp:])),   // #nosec G115
		MaxTimestamp:    int64(be.Uint64(b[posMaxTimestamp:])),    // #nosec G115
		ProducerID:      int64(be.Uint64(b[posProducerID:])),      // #nosec G115
		ProducerEpoch:   int16(be.Uint16(b[posProducerEpoch:])),   // #nosec G115
		BaseSequence:    int32(be.Uint32(b[posBaseSequence:])),    // #nosec G115
		Count:           int32(be.Uint32(b[posCount:HeaderSize])), // #nosec G115
	}
}

// encodeHeader writes every field, the CRC included.
func encodeHeader(b []byte, h Header) {
	b = b[:HeaderSize]
	be := binary.BigEndian
	be.PutUint64(b[posBaseOffset:], uint64(h.BaseOffset))           // #nosec G115
	be.PutUint32(b[posLength:], uint32(h.Length))                   // #nosec G115
	be.PutUint32(b[posLeaderEpoch:], uint32(h.LeaderEpoch))         // #nosec G115
	b[posMagic] = byte(h.Magic)                                     // #nosec G115
	be.PutUint32(b[posCRC:], h.CRC)                                 // #nosec G115
	be.PutUint16(b[posAttributes:], uint16(h.Attributes))           // #nosec G115
	be.PutUint32(b[posLastOffsetDelta:], uint32(h.LastOffsetDelta)) // #nosec G115
	be.PutUint64(b[posBaseTimestamp:], uint64(h.BaseTimestamp))     // #nosec G115
	be.PutUint64(b[posMaxTimestamp:], uint64(h.MaxTimestamp))       // #nosec G115
	be.PutUint64(b[posProducerID:], uint64(h.ProducerID))           // #nosec G115
	be.PutUint16(b[posProducerEpoch:], uint16(h.ProducerEpoch))     // #nosec G115
	be.PutUint32(b[posBaseSequence:], uint32(h.BaseSequence))       // #nosec G115
	be.PutUint32(b[posCount:], uint32(h.Count))                     // #nosec G115
}

func checksum(b []byte) uint32 { return crc32.Checksum(b[posAttributes:], castagnoli) }

func putCRC(b []byte) { binary.BigEndian.PutUint32(b[posCRC:], checksum(b)) }

// VerifyCRC checks the checksum of b, which must be exactly one batch.
func VerifyCRC(b []byte) error {
	h, err := parseExact(b)
	if err != nil {
		return err
	}
	return h.verifyCRC(b)
}

func (h Header) verifyCRC(b []byte) error {
	if got := checksum(b); got != h.CRC {
		return fault(ReasonCRC, int64(got), int64(h.CRC), "CRC-32C of the content is %08x, the header says %08x", got, h.CRC)
	}
	return nil
}

// parseExact parses the header of b and requires that b is one batch, no more and no less.
func parseExact(b []byte) (Header, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return Header{}, err
	}
	if size := h.Size(); len(b) < size {
		return Header{}, fault(ReasonTruncated, int64(len(b)), int64(size), "%d bytes of a batch of %d", len(b), size)
	} else if len(b) > size {
		return Header{}, fault(ReasonTrailingBytes, int64(len(b)), int64(size), "%d bytes behind a batch of %d", len(b)-size, size)
	}
	return h, nil
}

// Stamp sets base offset and leader epoch in place. Both lie outside the checksum, which stays valid. b must
// hold at least a batch header.
func Stamp(b []byte, baseOffset int64, leaderEpoch int32) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint64(b[posBaseOffset:], uint64(baseOffset))   // #nosec G115 -- bits kept
	binary.BigEndian.PutUint32(b[posLeaderEpoch:], uint32(leaderEpoch)) // #nosec G115 -- bits kept
}

// StampLogAppendTime makes ms the timestamp of every record of b: it sets the timestamp-type bit and the
// maximum timestamp, as Kafka's broker does, leaves base timestamp and deltas alone, and renews the checksum.
// b must be exactly one batch that has been validated.
func StampLogAppendTime(b []byte, ms int64) {
	_ = b[HeaderSize-1]
	b[posAttributes+1] |= byte(attrLogAppendTime)
	binary.BigEndian.PutUint64(b[posMaxTimestamp:], uint64(ms)) // #nosec G115 -- bits kept
	putCRC(b)
}

// SetProducerOn replaces the producer fields of a finished batch and renews the checksum: for a client that
// has taken a new producer id. b must be exactly one batch.
func SetProducerOn(b []byte, id int64, epoch int16, baseSequence int32) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint64(b[posProducerID:], uint64(id))             // #nosec G115 -- bits kept
	binary.BigEndian.PutUint16(b[posProducerEpoch:], uint16(epoch))       // #nosec G115 -- bits kept
	binary.BigEndian.PutUint32(b[posBaseSequence:], uint32(baseSequence)) // #nosec G115 -- bits kept
	putCRC(b)
}
