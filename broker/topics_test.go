package broker

import (
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/topicconfig"
)

func TestForever(t *testing.T) {
	for ms, want := range map[int64]time.Duration{
		-1: -1, math.MinInt64: -1,
		0: 0, 1: time.Millisecond, 1000: time.Second,
		9_223_372_036_854: 9_223_372_036_854 * time.Millisecond, // the longest time.Duration, in whole milliseconds
		9_223_372_036_855: -1, math.MaxInt64: -1,
	} {
		if got := forever(ms); got != want {
			t.Errorf("forever(%d) = %v, want %v", ms, got, want)
		}
	}
}

func TestClusterDefaultsAreWhatTheConfigurationSays(t *testing.T) {
	c := config.Default().Topics
	c.MaxBatchBytes, c.SegmentBytes, c.SegmentAge, c.RetentionTime = 2<<20, 64<<20, config.Duration(time.Hour), config.Forever
	d := clusterDefaults(c)
	if d.GetMaxBatchBytes() != 2<<20 || d.GetSegmentBytes() != 64<<20 || d.GetSegmentAgeMs() != 3_600_000 || d.GetRetentionMs() != -1 {
		t.Errorf("defaults %v", d)
	}
	if err := topicconfig.Validate(nil, d, 1); err != nil {
		t.Error(err)
	}
	if err := topicconfig.Validate(nil, clusterDefaults(config.Default().Topics), 1); err != nil {
		t.Errorf("the documented defaults: %v", err)
	}
}

func TestLogConfig(t *testing.T) {
	logAppend := runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME
	topic := &runnelv1.TopicConfig{
		RetentionMs: proto.Int64(60_000), RetentionBytes: proto.Int64(5 << 20), SegmentBytes: proto.Int64(2 << 20), SegmentAgeMs: proto.Int64(7_000),
		MaxBatchBytes: proto.Int32(4 << 10), TimestampType: &logAppend, MaxTimestampAheadMs: proto.Int64(9_000),
	}
	got := logConfig(topicconfig.Effective(topic, nil, 1))
	want := log.DefaultConfig()
	want.RetentionTime, want.RetentionBytes, want.SegmentBytes, want.SegmentAge = time.Minute, 5<<20, 2<<20, 7*time.Second
	want.MaxBatchBytes, want.TimestampType, want.MaxTimestampAhead = 4<<10, log.LogAppendTime, 9*time.Second
	if got != want {
		t.Errorf("logConfig() = %+v, want %+v", got, want)
	}
	if got = logConfig(topicconfig.Effective(&runnelv1.TopicConfig{RetentionMs: proto.Int64(-1)}, nil, 1)); got.RetentionTime != -1 || got.RetentionBytes != -1 || got.TimestampType != log.CreateTime {
		t.Errorf("a topic that keeps all: %+v", got)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
}

// What a partition's directory remembers of its topic is what its log is opened with, before any metadata was read.
func TestStoredConfigDecodes(t *testing.T) {
	defaults := clusterDefaults(config.Default().Topics)
	info, err := topicInfo("t", &runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(2048)})
	if err != nil || info.Name != "t" {
		t.Fatalf("%+v, %v", info, err)
	}
	decode := decodeLogConfig(defaults)
	got, err := decode(info.Config)
	if err != nil || got.MaxBatchBytes != 2048 || got.RetentionTime != 7*24*time.Hour {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err = decode(nil); err != nil || got.MaxBatchBytes != 1<<20 {
		t.Errorf("nothing stored: %+v, %v", got, err)
	}
	if _, err = decode([]byte{0xff}); err == nil {
		t.Error("nonsense was decoded")
	}
}
