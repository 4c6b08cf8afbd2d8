package client

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// What embeds a TopicPartition does not print as one.
func TestEverythingIsPrinted(t *testing.T) {
	tp, fault := TopicPartition{"t", 3}, errors.New("no such luck")
	info := PartitionInfo{
		TopicPartition: tp, TopicID: TopicID{15: 7}, Leader: 1, LeaderEpoch: 2, Replicas: []int32{1, 2}, ISR: []int32{1}, Health: HealthOnline,
		LogStart: 10, LocalStart: 20, TieredEnd: 30, Flushed: 40, HighWatermark: 50, LogEnd: 60, SizeBytes: 70, Segments: 8,
	}
	lost := PartitionInfo{TopicPartition: tp, Leader: -1, Health: HealthOffline, Detail: "no leader", Err: fault}
	const offsets = " log_start=10 local_start=20 tiered_end=30 flushed=40 high_watermark=50 log_end=60 size_bytes=70 segments=8"
	for want, v := range map[string]any{
		"t/3": tp,
		"t/3 topic_id=00000000-0000-0000-0000-000000000007 health=online leader=1 leader_epoch=2 replicas=[1 2] isr=[1]" + offsets:                             info,
		`t/3 topic_id=00000000-0000-0000-0000-000000000000 health=offline leader=-1 leader_epoch=0 replicas=[] isr=[] detail="no leader" error="no such luck"`: lost,
		"t/3 offset=5 log_start=1 high_watermark=9":                                OffsetInfo{TopicPartition: tp, Offset: 5, LogStart: 1, HighWatermark: 9},
		"t/3 offset=5 log_start=1 high_watermark=9 timestamp=1970-01-01T00:00:01Z": OffsetInfo{TopicPartition: tp, Offset: 5, LogStart: 1, HighWatermark: 9, Timestamp: time.Unix(1, 0)},
		`t/3 error="no such luck"`:                                                 OffsetInfo{TopicPartition: tp, Err: fault},
		"t/3 log_start=6":                                                          DeletedRecords{TopicPartition: tp, LogStart: 6},
		`t/3 error="no such luck" `:                                                DeletedRecords{TopicPartition: tp, Err: fault},
		`t/3 records=1 bytes=2 latency=3s attempts=4 duplicate=true error="no such luck"`: ProducedBatch{
			TopicPartition: tp, Records: 1, Bytes: 2, Latency: 3 * time.Second, Attempts: 4, Duplicate: true, Err: fault,
		},
		"t/3 bytes=1 next_offset=2 high_watermark=3": FetchedFrame{TopicPartition: tp, Bytes: 1, NextOffset: 2, HighWatermark: 3},
		"t/3 next_offset=2 high_watermark=3":         &Batch{TopicPartition: tp, NextOffset: 2, HighWatermark: 3},
	} {
		for _, verb := range []string{"%v", "%+v", "%s"} {
			if got := fmt.Sprintf(verb, v); got != want && got+" " != want {
				t.Errorf("%s prints\n%s, want\n%s", verb, got, want)
			}
		}
	}
}
