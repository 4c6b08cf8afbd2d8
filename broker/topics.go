package broker

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/broker/topicconfig"
)

// clusterDefaults is what this broker's configuration says of topics that do not say it themselves.
func clusterDefaults(t config.Topics) *runnelv1.TopicConfig {
	return &runnelv1.TopicConfig{
		RetentionMs:   proto.Int64(t.RetentionTime.Std().Milliseconds()),
		SegmentBytes:  proto.Int64(int64(t.SegmentBytes)),
		SegmentAgeMs:  proto.Int64(t.SegmentAge.Std().Milliseconds()),
		MaxBatchBytes: proto.Int32(int32(t.MaxBatchBytes)), // validated: at most 16 MiB
	}
}

// decodeLogConfig returns what storage asks for each partition directory that it opens.
func decodeLogConfig(defaults *runnelv1.TopicConfig) func([]byte) (log.Config, error) {
	return func(stored []byte) (log.Config, error) {
		var c runnelv1.TopicConfig
		if err := proto.Unmarshal(stored, &c); err != nil {
			return log.Config{}, fmt.Errorf("topic configuration: %w", err)
		}
		return logConfig(topicconfig.Effective(&c, defaults, 1)), nil
	}
}

// logConfig says what effective topic settings, all of them set, mean to one log.
func logConfig(e *runnelv1.TopicConfig) log.Config {
	c := log.DefaultConfig()
	c.SegmentBytes = e.GetSegmentBytes()
	c.SegmentAge = time.Duration(e.GetSegmentAgeMs()) * time.Millisecond
	c.RetentionTime = forever(e.GetRetentionMs())
	c.RetentionBytes = e.GetRetentionBytes()
	c.MaxBatchBytes = int(e.GetMaxBatchBytes())
	c.MaxTimestampAhead = time.Duration(e.GetMaxTimestampAheadMs()) * time.Millisecond
	c.TimestampType = log.CreateTime
	if e.GetTimestampType() == runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME {
		c.TimestampType = log.LogAppendTime
	}
	return c
}

// forever translates milliseconds with -1 for ever; what does not fit a time.Duration (292 years) is for ever as well.
func forever(ms int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	if ms < 0 || ms > most {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// topicInfo is the copy of a topic's record for its partition directories.
func topicInfo(name string, c *runnelv1.TopicConfig) (storage.TopicInfo, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	return storage.TopicInfo{Name: name, Config: b}, err
}
