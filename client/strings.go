package client

import (
	"fmt"
	"strings"
	"time"
)

// The types below embed a TopicPartition, whose String would otherwise stand for all of them when they are printed.

// String describes the partition and everything that is known of it, on one line.
func (p PartitionInfo) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v topic_id=%v health=%s leader=%d leader_epoch=%d replicas=%v isr=%v", p.TopicPartition, p.TopicID, p.Health, p.Leader, p.LeaderEpoch, p.Replicas, p.ISR)
	if p.Err == nil {
		fmt.Fprintf(&b, " log_start=%d local_start=%d tiered_end=%d flushed=%d high_watermark=%d log_end=%d size_bytes=%d segments=%d",
			p.LogStart, p.LocalStart, p.TieredEnd, p.Flushed, p.HighWatermark, p.LogEnd, p.SizeBytes, p.Segments)
	}
	if p.Detail != "" {
		fmt.Fprintf(&b, " detail=%q", p.Detail)
	}
	return b.String() + failed(p.Err)
}

// String describes the answer on one line.
func (o OffsetInfo) String() string {
	if o.Err != nil {
		return o.TopicPartition.String() + failed(o.Err)
	}
	s := fmt.Sprintf("%v offset=%d log_start=%d high_watermark=%d", o.TopicPartition, o.Offset, o.LogStart, o.HighWatermark)
	if !o.Timestamp.IsZero() {
		s += " timestamp=" + o.Timestamp.UTC().Format(time.RFC3339Nano)
	}
	return s
}

// String describes the outcome on one line.
func (d DeletedRecords) String() string {
	if d.Err != nil {
		return d.TopicPartition.String() + failed(d.Err)
	}
	return fmt.Sprintf("%v log_start=%d", d.TopicPartition, d.LogStart)
}

// String describes the batch on one line.
func (b ProducedBatch) String() string {
	return fmt.Sprintf("%v records=%d bytes=%d latency=%v attempts=%d duplicate=%t", b.TopicPartition, b.Records, b.Bytes, b.Latency, b.Attempts, b.Duplicate) +
		failed(b.Err)
}

// String describes the frame on one line.
func (f FetchedFrame) String() string {
	return fmt.Sprintf("%v bytes=%d next_offset=%d high_watermark=%d", f.TopicPartition, f.Bytes, f.NextOffset, f.HighWatermark)
}

// String describes the batch, not its records, on one line.
func (b *Batch) String() string {
	return fmt.Sprintf("%v next_offset=%d high_watermark=%d", b.TopicPartition, b.NextOffset, b.HighWatermark)
}

func failed(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf(" error=%q", err)
}
