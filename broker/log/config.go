package log

import (
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/record"
)

// TimestampType says whose clock stamps the records.
type TimestampType uint8

const (
	// CreateTime keeps the timestamps of the producer.
	CreateTime TimestampType = iota
	// LogAppendTime replaces them by the broker's at append.
	LogAppendTime
)

// Config is what a topic's configuration means to one log. Zero values are not defaults: start from DefaultConfig.
type Config struct {
	// SegmentBytes rolls the active segment before it would exceed this size. Range: 256 bytes to 2 GiB-1.
	SegmentBytes int64
	// SegmentAge rolls the active segment at the first append this long after its first one. > 0.
	SegmentAge time.Duration
	// IndexInterval is the log bytes between two index entries. Range: 1 to SegmentBytes.
	IndexInterval int
	// RetentionTime deletes segments whose newest record is older; -1 keeps them for ever.
	RetentionTime time.Duration
	// RetentionBytes deletes the oldest segments as long as the others hold at least this much; -1 = no bound.
	RetentionBytes int64
	// MaxBatchBytes bounds one batch. Range: 61 to 16 MiB.
	MaxBatchBytes int
	// TimestampType is CreateTime or LogAppendTime.
	TimestampType TimestampType
	// MaxTimestampAhead is how far a record's timestamp may lie in the future before retention stops believing it and
	// goes by the time of the segment's last write. ≥ 0.
	MaxTimestampAhead time.Duration
	// ProducerIDExpiry forgets idempotent producers that have not written for this long. > 0.
	ProducerIDExpiry time.Duration
	// MaxProducers bounds the idempotent producers that are remembered, about 160 bytes of memory and up to 140 of a snapshot
	// each. When there are more, the longest idle one that is surely done is forgotten (see producers), or the new one refused.
	// Range: 1 to 1,000,000, which keeps every snapshot readable. The default, 100,000 or 14 MB of a snapshot, is far above
	// what writes to one partition at a time.
	MaxProducers int
	// SnapshotInterval is the log bytes after which producer state is snapshotted within a segment, which bounds what a
	// recovery has to walk. > 0.
	SnapshotInterval int64
	// RecoverVerifyBytes is how much below the flushed offset a recovery checks again, beside all above it. ≥ 0.
	RecoverVerifyBytes int64
}

// DefaultConfig returns the defaults of a topic.
func DefaultConfig() Config {
	return Config{
		SegmentBytes:       512 << 20,
		SegmentAge:         24 * time.Hour,
		IndexInterval:      4096,
		RetentionTime:      7 * 24 * time.Hour,
		RetentionBytes:     -1,
		MaxBatchBytes:      1 << 20,
		TimestampType:      CreateTime,
		MaxTimestampAhead:  time.Hour,
		ProducerIDExpiry:   24 * time.Hour,
		MaxProducers:       100_000,
		SnapshotInterval:   64 << 20,
		RecoverVerifyBytes: 1 << 20,
	}
}

const (
	minSegmentBytes = 256
	maxBatchBytes   = 16 << 20
	maxProducers    = 1_000_000
)

// A snapshot of as many producers as may be configured can be read back: this does not compile otherwise.
const _ = uint(maxEnvelope - envelopeSize - snapshotHeader - maxProducers*(snapshotProducer+rememberedBatches*snapshotBatch))

// Validate returns all faults, joined.
func (c Config) Validate() error {
	var all []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Errorf("log config: "+format, args...))
		}
	}
	check(c.SegmentBytes >= minSegmentBytes && c.SegmentBytes <= segment.MaxSize,
		"segmentBytes is %d, it must lie between %d and %d", c.SegmentBytes, int64(minSegmentBytes), int64(segment.MaxSize))
	check(c.SegmentAge > 0, "segmentAge is %s, it must be positive", c.SegmentAge)
	check(c.IndexInterval >= 1 && int64(c.IndexInterval) <= max(c.SegmentBytes, 1),
		"indexInterval is %d, it must lie between 1 and segmentBytes", c.IndexInterval)
	check(c.RetentionTime == -1 || c.RetentionTime > 0, "retentionTime is %s, it must be positive, or -1 for ever", c.RetentionTime)
	check(c.RetentionBytes == -1 || c.RetentionBytes > 0, "retentionBytes is %d, it must be positive, or -1 for no bound", c.RetentionBytes)
	check(c.MaxBatchBytes >= record.HeaderSize && c.MaxBatchBytes <= maxBatchBytes,
		"maxBatchBytes is %d, it must lie between %d and %d", c.MaxBatchBytes, record.HeaderSize, maxBatchBytes)
	check(c.TimestampType <= LogAppendTime, "timestampType is %d, it must be 0 (create time) or 1 (log append time)", c.TimestampType)
	check(c.MaxTimestampAhead >= 0, "maxTimestampAhead is %s, it must not be negative", c.MaxTimestampAhead)
	check(c.ProducerIDExpiry > 0, "producerIDExpiry is %s, it must be positive", c.ProducerIDExpiry)
	check(c.MaxProducers >= 1 && c.MaxProducers <= maxProducers, "maxProducers is %d, it must lie between 1 and %d", c.MaxProducers, maxProducers)
	check(c.SnapshotInterval > 0, "snapshotInterval is %d, it must be positive", c.SnapshotInterval)
	check(c.RecoverVerifyBytes >= 0, "recoverVerifyBytes is %d, it must not be negative", c.RecoverVerifyBytes)
	return errors.Join(all...)
}
