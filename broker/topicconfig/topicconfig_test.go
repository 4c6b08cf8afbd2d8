package topicconfig_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/topicconfig"
)

func TestEffective(t *testing.T) {
	got := topicconfig.Effective(nil, nil, 3)
	want := &runnelv1.TopicConfig{
		RetentionMs: proto.Int64(604_800_000), RetentionBytes: proto.Int64(-1), SegmentBytes: proto.Int64(536_870_912),
		SegmentAgeMs: proto.Int64(86_400_000), MaxBatchBytes: proto.Int32(1_048_576),
		Compression:         runnelv1.Compression_COMPRESSION_UNSPECIFIED.Enum(),
		TimestampType:       runnelv1.TimestampType_TIMESTAMP_TYPE_CREATE_TIME.Enum(),
		CleanupPolicy:       runnelv1.CleanupPolicy_CLEANUP_POLICY_DELETE.Enum(),
		MaxTimestampAheadMs: proto.Int64(3_600_000), MinInSyncReplicas: proto.Int32(2),
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	fields := got.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		if !got.ProtoReflect().Has(fields.Get(i)) {
			t.Errorf("%s is not set", fields.Get(i).Name())
		}
	}
	topic := &runnelv1.TopicConfig{RetentionMs: proto.Int64(1), TimestampType: runnelv1.TimestampType_TIMESTAMP_TYPE_UNSPECIFIED.Enum()}
	cluster := &runnelv1.TopicConfig{RetentionMs: proto.Int64(2), SegmentAgeMs: proto.Int64(5000), MinInSyncReplicas: proto.Int32(3)}
	got = topicconfig.Effective(topic, cluster, 1)
	if got.GetRetentionMs() != 1 || got.GetSegmentAgeMs() != 5000 || got.GetMinInSyncReplicas() != 1 ||
		got.GetTimestampType() != runnelv1.TimestampType_TIMESTAMP_TYPE_CREATE_TIME {
		t.Errorf("layers: %v", got)
	}
	if topic.SegmentAgeMs != nil || cluster.GetMinInSyncReplicas() != 3 {
		t.Error("an argument was changed")
	}
}

func TestMajority(t *testing.T) {
	for replicas, want := range map[int32]int32{-1: 1, 0: 1, 1: 1, 2: 2, 3: 2, 4: 3, 5: 3} {
		if got := topicconfig.Majority(replicas); got != want {
			t.Errorf("Majority(%d) = %d, want %d", replicas, got, want)
		}
	}
}

func TestValidateLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		config *runnelv1.TopicConfig
		field  string // "" means valid
	}{
		"nothing set":              {nil, ""},
		"for ever":                 {&runnelv1.TopicConfig{RetentionMs: proto.Int64(-1), RetentionBytes: proto.Int64(-1)}, ""},
		"retention 0":              {&runnelv1.TopicConfig{RetentionMs: proto.Int64(0)}, "retention_ms"},
		"retention -2":             {&runnelv1.TopicConfig{RetentionMs: proto.Int64(-2)}, "retention_ms"},
		"retention bytes 0":        {&runnelv1.TopicConfig{RetentionBytes: proto.Int64(0)}, "retention_bytes"},
		"smallest segment":         {&runnelv1.TopicConfig{SegmentBytes: proto.Int64(1 << 20)}, ""},
		"segment too small":        {&runnelv1.TopicConfig{SegmentBytes: proto.Int64(1<<20 - 1)}, "segment_bytes"},
		"largest segment":          {&runnelv1.TopicConfig{SegmentBytes: proto.Int64(1<<31 - 1)}, ""},
		"segment too large":        {&runnelv1.TopicConfig{SegmentBytes: proto.Int64(1 << 31)}, "segment_bytes"},
		"segment too short-lived":  {&runnelv1.TopicConfig{SegmentAgeMs: proto.Int64(999)}, "segment_age_ms"},
		"smallest batch":           {&runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(1024)}, ""},
		"batch too small":          {&runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(1023)}, "max_batch_bytes"},
		"batch too large":          {&runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(16<<20 + 1)}, "max_batch_bytes"},
		"batch above segment":      {&runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(2 << 20), SegmentBytes: proto.Int64(1 << 20)}, "max_batch_bytes"},
		"unknown codec":            {&runnelv1.TopicConfig{Compression: runnelv1.Compression(9).Enum()}, "compression"},
		"unknown timestamp type":   {&runnelv1.TopicConfig{TimestampType: runnelv1.TimestampType(9).Enum()}, "timestamp_type"},
		"unknown cleanup":          {&runnelv1.TopicConfig{CleanupPolicy: runnelv1.CleanupPolicy(9).Enum()}, "cleanup_policy"},
		"delete":                   {&runnelv1.TopicConfig{CleanupPolicy: runnelv1.CleanupPolicy_CLEANUP_POLICY_DELETE.Enum()}, ""},
		"negative lead":            {&runnelv1.TopicConfig{MaxTimestampAheadMs: proto.Int64(-1)}, "max_timestamp_ahead_ms"},
		"no member":                {&runnelv1.TopicConfig{MinInSyncReplicas: proto.Int32(0)}, "min_in_sync_replicas"},
		"more members than copies": {&runnelv1.TopicConfig{MinInSyncReplicas: proto.Int32(4)}, "min_in_sync_replicas"},
	} {
		t.Run(name, func(t *testing.T) {
			err := topicconfig.Validate(tc.config, nil, 3)
			var bad *topicconfig.InvalidError
			switch {
			case tc.field == "" && err != nil:
				t.Errorf("err = %v", err)
			case tc.field != "" && !errors.As(err, &bad):
				t.Errorf("err = %v, want a fault of %s", err, tc.field)
			case tc.field != "":
				if f := bad.Faults[0]; len(bad.Faults) != 1 || f.Field != tc.field || f.Value == "" || f.Limit == "" {
					t.Errorf("faults %+v", bad.Faults)
				}
				if errors.Is(err, topicconfig.ErrNotYetAvailable) {
					t.Error("called not yet available")
				}
			}
		})
	}
}

func TestValidateReportsAllFaults(t *testing.T) {
	compact := &runnelv1.TopicConfig{CleanupPolicy: runnelv1.CleanupPolicy_CLEANUP_POLICY_COMPACT.Enum()}
	err := topicconfig.Validate(compact, nil, 1)
	if !errors.Is(err, topicconfig.ErrNotYetAvailable) || !strings.Contains(err.Error(), "cleanup_policy is compact") {
		t.Errorf("compact: %v", err)
	}
	compact.RetentionMs, compact.SegmentBytes = proto.Int64(0), proto.Int64(5)
	err = topicconfig.Validate(compact, nil, 1)
	var bad *topicconfig.InvalidError
	if !errors.As(err, &bad) || len(bad.Faults) != 3 || errors.Is(err, topicconfig.ErrNotYetAvailable) {
		t.Errorf("three faults: %v", err)
	}
	// A batch that fits its own limit but not the cluster's segment.
	err = topicconfig.Validate(&runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(2 << 20)}, &runnelv1.TopicConfig{SegmentBytes: proto.Int64(1 << 20)}, 1)
	if err == nil || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("err = %v", err)
	}
}

func TestApply(t *testing.T) {
	base := &runnelv1.TopicConfig{RetentionMs: proto.Int64(1), SegmentBytes: proto.Int64(2)}
	got, err := topicconfig.Apply(base, &runnelv1.TopicConfig{RetentionBytes: proto.Int64(3)}, []string{"retention_ms"})
	want := &runnelv1.TopicConfig{SegmentBytes: proto.Int64(2), RetentionBytes: proto.Int64(3)}
	if err != nil || !proto.Equal(got, want) || base.RetentionMs == nil {
		t.Errorf("got %v, %v; base is %v", got, err, base)
	}
	var bad *topicconfig.InvalidError
	_, err = topicconfig.Apply(base, &runnelv1.TopicConfig{RetentionMs: proto.Int64(3)}, []string{"retention_ms", "nonsense"})
	if !errors.As(err, &bad) || len(bad.Faults) != 2 {
		t.Errorf("err = %v", err)
	}
}

func TestDiff(t *testing.T) {
	before := &runnelv1.TopicConfig{RetentionMs: proto.Int64(1), SegmentBytes: proto.Int64(2)}
	after := &runnelv1.TopicConfig{SegmentBytes: proto.Int64(2), Compression: runnelv1.Compression_COMPRESSION_ZSTD.Enum()}
	var got []string
	for _, c := range topicconfig.Diff(before, after) {
		got = append(got, c.GetField()+":"+c.GetBefore()+"→"+c.GetAfter())
	}
	if want := []string{"retention_ms:1→", "compression:→zstd"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if d := topicconfig.Diff(nil, nil); len(d) != 0 {
		t.Errorf("nothing differs from nothing: %v", d)
	}
}

// TestApplyLaws: resetting everything leaves nothing; applying what is there changes nothing; Diff is empty exactly for equal settings.
func TestApplyLaws(t *testing.T) {
	optional := func(t *rapid.T, name string) *int64 {
		if !rapid.Bool().Draw(t, name+" set") {
			return nil
		}
		return proto.Int64(rapid.Int64Range(1, 3).Draw(t, name))
	}
	config := func(t *rapid.T, name string) *runnelv1.TopicConfig {
		return &runnelv1.TopicConfig{RetentionMs: optional(t, name+" ms"), RetentionBytes: optional(t, name+" bytes"), SegmentAgeMs: optional(t, name+" age")}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := config(t, "a"), config(t, "b")
		none, err := topicconfig.Apply(a, nil, topicconfig.FieldNames())
		if err != nil || !proto.Equal(none, &runnelv1.TopicConfig{}) {
			t.Fatalf("after a reset of everything: %v, %v", none, err)
		}
		same, err := topicconfig.Apply(a, a, nil)
		if err != nil || !proto.Equal(same, a) {
			t.Fatalf("a over a: %v, %v", same, err)
		}
		if (len(topicconfig.Diff(a, b)) == 0) != proto.Equal(a, b) {
			t.Fatalf("Diff(%v, %v) = %v", a, b, topicconfig.Diff(a, b))
		}
	})
}
