package cli

import (
	"time"

	"runnel.dev/runnel/client"
)

// What JSON and YAML show. The names are stable: scripts depend on them.

type topicView struct {
	Name       string         `json:"name"`
	ID         string         `json:"id"`
	State      string         `json:"state"`
	Partitions int32          `json:"partitions"`
	Replicas   int32          `json:"replicas"`
	Generation int64          `json:"generation"`
	Owner      string         `json:"owner,omitempty"`
	Created    *time.Time     `json:"created,omitempty"`
	Config     map[string]any `json:"config"`
}

func viewTopic(t client.Topic) topicView {
	v := topicView{
		Name: t.Name, ID: t.ID.String(), State: string(t.State), Partitions: t.Partitions, Replicas: t.Replicas,
		Generation: t.Generation, Owner: t.Owner, Config: viewConfig(t.Config),
	}
	if !t.Created.IsZero() {
		created := t.Created.UTC()
		v.Created = &created
	}
	return v
}

// viewConfig has numbers in bytes and milliseconds, -1 for no bound.
func viewConfig(c client.TopicConfig) map[string]any {
	m := make(map[string]any)
	put := func(name string, set bool, value func() any) {
		if set {
			m[name] = value()
		}
	}
	milliseconds := func(d *time.Duration) func() any {
		return func() any {
			if *d < 0 {
				return -1
			}
			return d.Milliseconds()
		}
	}
	put("retentionMs", c.Retention != nil, milliseconds(c.Retention))
	put("retentionBytes", c.RetentionBytes != nil, func() any { return *c.RetentionBytes })
	put("segmentBytes", c.SegmentBytes != nil, func() any { return *c.SegmentBytes })
	put("segmentAgeMs", c.SegmentAge != nil, milliseconds(c.SegmentAge))
	put("maxBatchBytes", c.MaxBatchBytes != nil, func() any { return *c.MaxBatchBytes })
	put("compression", c.Compression != nil, func() any { return compressionSetting().show(c) })
	put("timestampType", c.LogAppendTime != nil, func() any {
		if *c.LogAppendTime {
			return "log-append-time"
		}
		return "create-time"
	})
	put("cleanupPolicy", c.Compact != nil, func() any {
		if *c.Compact {
			return "compact"
		}
		return "delete"
	})
	put("maxTimestampAheadMs", c.MaxTimestampAhead != nil, milliseconds(c.MaxTimestampAhead))
	put("minInSyncReplicas", c.MinInSyncReplicas != nil, func() any { return *c.MinInSyncReplicas })
	return m
}

type partitionView struct {
	Partition     int32   `json:"partition"`
	Leader        int32   `json:"leader"`
	LeaderEpoch   int32   `json:"leaderEpoch"`
	Replicas      []int32 `json:"replicas"`
	ISR           []int32 `json:"isr"`
	Health        string  `json:"health"`
	Detail        string  `json:"detail,omitempty"`
	LogStart      int64   `json:"logStart"`
	LocalStart    int64   `json:"localStart"`
	TieredEnd     int64   `json:"tieredEnd"`
	Flushed       int64   `json:"flushed"`
	HighWatermark int64   `json:"highWatermark"`
	LogEnd        int64   `json:"logEnd"`
	SizeBytes     int64   `json:"sizeBytes"`
	Segments      int     `json:"segments"`

	UnderReplicated   bool          `json:"underReplicated"`
	MinInSyncReplicas int           `json:"minInSyncReplicas"`
	Adding            []int32       `json:"adding,omitempty"`
	Removing          []int32       `json:"removing,omitempty"`
	ReplicaStates     []replicaView `json:"replicaStates"`
	// -1: unknown.
	RecordsIn float64 `json:"recordsInPerSecond"`
	BytesIn   float64 `json:"bytesInPerSecond"`
	BytesOut  float64 `json:"bytesOutPerSecond"`

	Error string `json:"error,omitempty"`
}

type replicaView struct {
	Broker   int32  `json:"broker"`
	State    string `json:"state"`
	InSync   bool   `json:"inSync"`
	Adding   bool   `json:"adding,omitempty"`
	Removing bool   `json:"removing,omitempty"`
	// -1: unknown.
	Acked         int64   `json:"acked"`
	Lag           int64   `json:"lag"`
	CaughtUpAgoMs int64   `json:"caughtUpAgoMs"`
	Rate          float64 `json:"recordsPerSecond"`
	BrokerState   string  `json:"brokerState"`
	BrokerLive    bool    `json:"brokerLive"`
	Detail        string  `json:"detail,omitempty"`
}

func viewReplicas(rs []client.ReplicaInfo) []replicaView {
	out := make([]replicaView, 0, len(rs))
	for _, r := range rs {
		v := replicaView{
			Broker: r.Broker, State: string(r.State), InSync: r.InSync, Adding: r.Adding, Removing: r.Removing, Acked: r.Acked, Lag: r.Lag,
			CaughtUpAgoMs: -1, Rate: r.Rate, BrokerState: string(r.BrokerState), BrokerLive: r.BrokerLive, Detail: r.Detail,
		}
		if r.CaughtUpAgo >= 0 {
			v.CaughtUpAgoMs = r.CaughtUpAgo.Milliseconds()
		}
		out = append(out, v)
	}
	return out
}

func viewPartitions(ps []client.PartitionInfo) []partitionView {
	out := make([]partitionView, 0, len(ps))
	for _, p := range ps {
		v := partitionView{
			Partition: p.Partition, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR,
			Health: string(p.Health), Detail: p.Detail, LogStart: p.LogStart, LocalStart: p.LocalStart, TieredEnd: p.TieredEnd,
			Flushed: p.Flushed, HighWatermark: p.HighWatermark, LogEnd: p.LogEnd, SizeBytes: p.SizeBytes, Segments: p.Segments,
			UnderReplicated: p.UnderReplicated, MinInSyncReplicas: p.MinInSyncReplicas, Adding: p.Adding, Removing: p.Removing,
			ReplicaStates: viewReplicas(p.ReplicaStates), RecordsIn: p.RecordsIn, BytesIn: p.BytesIn, BytesOut: p.BytesOut,
		}
		if p.Err != nil {
			v.Error = p.Err.Error()
		}
		out = append(out, v)
	}
	return out
}
