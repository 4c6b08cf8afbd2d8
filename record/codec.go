package record

import (
	"fmt"
	"strings"
)

// Codec is a compression codec as stored in bits 0 to 2 of a batch's attributes.
type Codec int8

// The codecs of record batch v2. Values 5 to 7 are unassigned.
const (
	CodecNone Codec = iota
	CodecGzip
	CodecSnappy
	CodecLZ4
	CodecZstd
)

var codecNames = [...]string{"none", "gzip", "snappy", "lz4", "zstd"}

// Valid reports whether c is one of the assigned codecs.
func (c Codec) Valid() bool { return c >= CodecNone && c <= CodecZstd }

// String returns the name that Kafka's `compression.type` uses, or "codec(n)" for an unassigned value.
func (c Codec) String() string {
	if !c.Valid() {
		return fmt.Sprintf("codec(%d)", int8(c))
	}
	return codecNames[c]
}

// ParseCodec is the inverse of String; letter case does not matter.
func ParseCodec(s string) (Codec, error) {
	for i, name := range codecNames {
		if strings.EqualFold(s, name) {
			return Codec(i), nil
		}
	}
	return CodecNone, fmt.Errorf("record: unknown compression codec %q, want one of %s", s, strings.Join(codecNames[:], ", "))
}

// Attributes are the flags of a batch; see the diagram in the package comment.
type Attributes int16

const (
	attrCodecMask     Attributes = 0x07
	attrLogAppendTime Attributes = 0x08
	attrTransactional Attributes = 0x10
	attrControl       Attributes = 0x20
	attrDeleteHorizon Attributes = 0x40
	attrUnknown                  = ^(attrCodecMask | attrLogAppendTime | attrTransactional | attrControl | attrDeleteHorizon)
)

// Codec returns the compression codec, which may be an unassigned one (check Valid).
func (a Attributes) Codec() Codec { return Codec(a & attrCodecMask) }

// LogAppendTime reports whether the batch's MaxTimestamp, set by the broker, stands for every record's timestamp.
func (a Attributes) LogAppendTime() bool { return a&attrLogAppendTime != 0 }

// Transactional reports whether the batch belongs to a transaction.
func (a Attributes) Transactional() bool { return a&attrTransactional != 0 }

// Control reports whether the batch holds transaction markers and not a user's records.
func (a Attributes) Control() bool { return a&attrControl != 0 }

// DeleteHorizon reports whether BaseTimestamp holds the time from which compaction may drop tombstones.
func (a Attributes) DeleteHorizon() bool { return a&attrDeleteHorizon != 0 }
