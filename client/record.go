package client

import (
	"bytes"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Record is one record, produced or consumed.
//
// Producing: Topic is required, Partition is read only under [ManualPartitioner], and a zero Timestamp becomes the time of the
// call. Offset, Partition and Timestamp are set before done runs. The record and what it points to belong to the producer from
// Produce until done.
//
// Consuming: the record, Key, Value and Headers are borrowed until the next record, poll or batch; Clone keeps one.
type Record struct {
	Topic     string
	Partition int32
	// Offset is the record's position in its partition; -1 when it was not written or the offset is not known.
	Offset int64
	// Key and Value may be nil (null) or empty, which differ.
	Key, Value []byte
	// Headers keep their order; keys may repeat.
	Headers []Header
	// Timestamp has millisecond precision in the log.
	Timestamp time.Time
}

// Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Clone returns a deep copy that shares nothing with r.
func (r *Record) Clone() *Record {
	c := *r
	c.Key, c.Value = bytes.Clone(r.Key), bytes.Clone(r.Value)
	if r.Headers != nil {
		c.Headers = make([]Header, len(r.Headers))
		for i, h := range r.Headers {
			c.Headers[i] = Header{Key: h.Key, Value: bytes.Clone(h.Value)}
		}
	}
	return &c
}

// TopicPartition names one partition of a topic.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// String returns "topic/partition".
func (tp TopicPartition) String() string { return fmt.Sprintf("%s/%d", tp.Topic, tp.Partition) }

// TopicID names one incarnation of a topic: a topic that was deleted and created again has another one.
type TopicID [16]byte

// String returns the canonical UUID form.
func (id TopicID) String() string { return uuid.UUID(id).String() }

// IsZero reports whether id names no topic.
func (id TopicID) IsZero() bool { return id == TopicID{} }

// ParseTopicID reads the canonical UUID form.
func ParseTopicID(s string) (TopicID, error) {
	id, err := uuid.Parse(s)
	if err != nil || id.String() != s {
		return TopicID{}, fmt.Errorf("client: topic id %q is not a canonical UUID", s)
	}
	return TopicID(id), nil
}

// Compression names the codec of record batches.
type Compression int8

// The codecs. CompressionTopic is the topic's own setting, which clients learn from metadata.
const (
	CompressionTopic Compression = iota
	CompressionNone
	CompressionGzip
	CompressionSnappy
	CompressionLZ4
	CompressionZstd
)

var compressionNames = [...]string{"topic", "none", "gzip", "snappy", "lz4", "zstd"}

// String returns the lower-case name, as in configuration.
func (c Compression) String() string {
	if c < 0 || int(c) >= len(compressionNames) {
		return fmt.Sprintf("compression(%d)", int8(c))
	}
	return compressionNames[c]
}

// ParseCompression is the inverse of String.
func ParseCompression(s string) (Compression, error) {
	for i, name := range compressionNames {
		if s == name {
			return Compression(i), nil
		}
	}
	return 0, fmt.Errorf("client: unknown compression %q, want one of %v", s, compressionNames)
}

// Position names a place in a partition: [Earliest], [Latest], [At] or [Since].
type Position struct {
	kind  positionKind
	value int64 // an offset, or milliseconds since 1970
}

type positionKind int8

const (
	posEarliest positionKind = iota
	posLatest
	posOffset
	posTime
)

// The two ends of a partition.
var (
	// Earliest is the log start: the oldest record that is still kept.
	Earliest = Position{kind: posEarliest}
	// Latest is the high watermark: only records that arrive later are read.
	Latest = Position{kind: posLatest}
)

// At is the position of one offset.
func At(offset int64) Position { return Position{kind: posOffset, value: offset} }

// Since is the position of the first record whose timestamp is t or later; the high watermark when there is none.
func Since(t time.Time) Position { return Position{kind: posTime, value: t.UnixMilli()} }

// String describes the position.
func (p Position) String() string {
	switch p.kind {
	case posEarliest:
		return "earliest"
	case posLatest:
		return "latest"
	case posOffset:
		return fmt.Sprintf("offset %d", p.value)
	case posTime:
		return time.UnixMilli(p.value).UTC().Format(time.RFC3339Nano)
	}
	return "invalid"
}
