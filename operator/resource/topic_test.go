package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestCreateTopicGolden reads testdata/topic/*.yaml, a Topic and, after a line of dashes, the Cluster's topicDefaults, and compares the
// request with the .json of the same name.
func TestCreateTopicGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/topic/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d inputs, %v", len(files), err)
	}
	files = append(files, "../../config/samples/topic.yaml")
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			topic, defaults := readTopic(t, file)
			before := topic.DeepCopy()
			request, err := CreateTopic(topic, defaults)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(topic, before) {
				t.Error("CreateTopic changed its argument")
			}
			got := render(t, request)
			golden := filepath.Join("testdata", "topic", name+".json")
			if *update {
				if err := os.WriteFile(golden, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the request is\n%s\nwant %s:\n%s", got, golden, want)
			}
		})
	}
}

// TestCreateTopicDefaults: an object that the API server has filled in and one that it has not mean the same.
func TestCreateTopicDefaults(t *testing.T) {
	filled := makeTopic(func(s *v1alpha1.TopicSpec) {
		s.Partitions, s.CleanupPolicy, s.Compression, s.Tiering = 3, v1alpha1.CleanupDelete, v1alpha1.CompressionProducer, v1alpha1.TopicTieringInherit
		s.Retention.Time, s.Segment = "7d", v1alpha1.Segment{Bytes: "512Mi", Time: "24h"}
		s.DeletionPolicy = v1alpha1.DeletionRetain
	})
	a, errA := CreateTopic(filled, nil)
	b, errB := CreateTopic(makeTopic(nil), &v1alpha1.TopicDefaults{})
	if errA != nil || errB != nil || !proto.Equal(a, b) {
		t.Errorf("filled in: %v, %v\nnot filled in: %v, %v", a, errA, b, errB)
	}
}

func TestCreateTopicReplicas(t *testing.T) {
	tests := []struct {
		name                         string
		replicas, minimum            *int32 // the topic's
		clusterReplicas, clusterMini *int32
		want                         int32
		wantMinimum                  *int32
	}{
		{"nobody says", nil, nil, nil, nil, 0, nil},
		{"the topic says", proto.Int32(3), proto.Int32(2), nil, nil, 3, proto.Int32(2)},
		{"the cluster says", nil, nil, proto.Int32(5), proto.Int32(3), 5, proto.Int32(3)},
		{"the topic wins", proto.Int32(3), proto.Int32(1), proto.Int32(5), proto.Int32(3), 3, proto.Int32(1)},
		{"the cluster's minimum is capped", proto.Int32(1), nil, proto.Int32(3), proto.Int32(2), 1, proto.Int32(1)},
		{"the minimum of an unknown number stays", nil, nil, nil, proto.Int32(2), 0, proto.Int32(2)},
		{"the topic's minimum on the cluster's replicas", nil, proto.Int32(2), proto.Int32(3), nil, 3, proto.Int32(2)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			topic := makeTopic(func(s *v1alpha1.TopicSpec) { s.Replicas, s.MinInSyncReplicas = tt.replicas, tt.minimum })
			got, err := CreateTopic(topic, &v1alpha1.TopicDefaults{Replicas: tt.clusterReplicas, MinInSyncReplicas: tt.clusterMini})
			if err != nil {
				t.Fatal(err)
			}
			if got.GetReplicas() != tt.want || !reflect.DeepEqual(got.GetConfig().MinInSyncReplicas, tt.wantMinimum) {
				t.Errorf("replicas %d, minimum %v", got.GetReplicas(), got.GetConfig().MinInSyncReplicas)
			}
		})
	}
}

func TestCreateTopicRefuses(t *testing.T) {
	half := v1alpha1.BytesOrUnlimited("0.5")
	tests := []struct {
		name   string
		change func(*v1alpha1.TopicSpec)
		want   string
		notYet bool
	}{
		{"no name", named(""), `spec.topicName is "", want 1 to 249`, false},
		{"a path", named("../x"), `spec.topicName is "../x", want 1 to 249`, false},
		{"dots", named(".."), `spec.topicName is "..", want`, false},
		{"a reserved name", named("__offsets"), `spec.topicName is "__offsets", want`, false},
		{"control characters", named("a\r\x1b[2J"), `spec.topicName is "a\r\x1b[2J", want`, false},
		{"look-alikes", named("оrders"), `want 1 to 249 of a-z`, false},
		{"a long name", named(strings.Repeat("n", 250)), `(250 bytes), want 1 to 249`, false},
		{"negative partitions", func(s *v1alpha1.TopicSpec) { s.Partitions = -1 }, "spec.partitions is -1, want 1 to 10000", false},
		{"many partitions", func(s *v1alpha1.TopicSpec) { s.Partitions = 10_001 }, "spec.partitions is 10001, want 1 to 10000", false},
		{"replicas", func(s *v1alpha1.TopicSpec) { s.Replicas = proto.Int32(0) }, "spec.replicas is 0, want 1 to 7", false},
		{"a minimum above the replicas", func(s *v1alpha1.TopicSpec) {
			s.Replicas, s.MinInSyncReplicas = proto.Int32(2), proto.Int32(3)
		}, "spec.minInSyncReplicas is 3, want 1 to 2", false},
		{"retention", func(s *v1alpha1.TopicSpec) { s.Retention.Time = "1w" }, `spec.retention.time is "1w", want a whole number of s, m, h or d`, false},
		{"endless retention", func(s *v1alpha1.TopicSpec) { s.Retention.Time = "999999999999999d" }, `want at most 106751991167d`, false},
		{"half a byte", func(s *v1alpha1.TopicSpec) { s.Retention.Bytes = &half }, `spec.retention.bytes is "0.5", want a positive whole number`, false},
		{"a small segment", func(s *v1alpha1.TopicSpec) { s.Segment.Bytes = "1023Ki" }, "spec.segment.bytes is 1047552 bytes, want 1048576 to 2147483647 bytes", false},
		{"a large segment", func(s *v1alpha1.TopicSpec) { s.Segment.Bytes = "2Gi" }, "spec.segment.bytes is 2147483648 bytes, want", false},
		{"no segment size", func(s *v1alpha1.TopicSpec) { s.Segment.Bytes = "big" }, `spec.segment.bytes is "big", want a positive whole number of bytes`, false},
		{"an old segment", func(s *v1alpha1.TopicSpec) { s.Segment.Time = "3651d" }, "spec.segment.time is 315446400000 ms, want 1000 to 315360000000 ms", false},
		{"a codec", func(s *v1alpha1.TopicSpec) { s.Compression = "brotli" }, `spec.compression is "brotli", want Producer, None`, false},
		{"a policy", func(s *v1alpha1.TopicSpec) { s.CleanupPolicy = "compact" }, `spec.cleanupPolicy is "compact", want Delete`, false},
		{"a tiering", func(s *v1alpha1.TopicSpec) { s.Tiering = "On" }, `spec.tiering is "On", want Inherit`, false},
		{"compaction with retention", func(s *v1alpha1.TopicSpec) { s.CleanupPolicy = v1alpha1.CleanupCompactDelete }, "spec.cleanupPolicy is CompactDelete", true},
		{"tiering", func(s *v1alpha1.TopicSpec) { s.Tiering = v1alpha1.TopicTieringEnabled }, "spec.tiering is Enabled, want Disabled", true},
		{"local retention", func(s *v1alpha1.TopicSpec) { s.LocalRetention = &v1alpha1.LocalRetention{} }, "spec.localRetention is set", true},
		{"access", func(s *v1alpha1.TopicSpec) { s.Access = make([]v1alpha1.TopicAccess, 2) }, "spec.access is 2 entries, want none", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request, err := CreateTopic(makeTopic(tt.change), nil)
			var invalid *InvalidError
			if request != nil || !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) || len(invalid.Faults) != 1 {
				t.Fatalf("CreateTopic() = %v, %v, want one fault", request, err)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q, want %q in it", err, tt.want)
			}
			if errors.Is(err, ErrNotImplemented) != tt.notYet {
				t.Errorf("errors.Is(%q, ErrNotImplemented) = %t", err, !tt.notYet)
			}
		})
	}
}

func TestCreateTopicNamesAllFaults(t *testing.T) {
	topic := makeTopic(func(s *v1alpha1.TopicSpec) {
		s.TopicName, s.Partitions, s.Tiering, s.Segment.Time = nil, -2, v1alpha1.TopicTieringEnabled, "soon"
	})
	topic.Name = "__x"
	_, err := CreateTopic(topic, nil)
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	fields := make([]string, 0, len(invalid.Faults))
	for _, f := range invalid.Faults {
		fields = append(fields, f.Field)
	}
	if got, want := strings.Join(fields, " "), "metadata.name spec.partitions spec.segment.time spec.tiering"; got != want {
		t.Errorf("faults in %s, want %s", got, want)
	}
	if errors.Is(err, ErrNotImplemented) {
		t.Error("a later version would refuse this as well")
	}
	_, err = CreateTopic(makeTopic(nil), &v1alpha1.TopicDefaults{Replicas: proto.Int32(8), MinInSyncReplicas: proto.Int32(0), Tiering: v1alpha1.TopicTieringEnabled})
	for _, want := range []string{"topicDefaults.replicas is 8", "topicDefaults.minInSyncReplicas is 0", "topicDefaults.tiering is Enabled"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}

// TestTopicNameRule: what is accepted is what the cluster's rule says, written a second way.
func TestTopicNameRule(t *testing.T) {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
	names := rapid.OneOf(rapid.String(), rapid.StringMatching(`_{0,2}[a-zA-Z0-9._-]{0,3}`), rapid.StringMatching(`[a-z]{247,251}`))
	rapid.Check(t, func(t *rapid.T) {
		name := names.Draw(t, "name")
		legal := len(name) >= 1 && len(name) <= 249 && !strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(allowed, r) }) &&
			name != "." && name != ".." && !strings.HasPrefix(name, "__")
		if err := TopicName(name); (err == nil) != legal || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("TopicName(%q) = %v, want legal %t", name, err, legal)
		}
	})
}

func named(name string) func(*v1alpha1.TopicSpec) {
	return func(s *v1alpha1.TopicSpec) { s.TopicName = &name }
}

func makeTopic(change func(*v1alpha1.TopicSpec)) *v1alpha1.Topic {
	topic := &v1alpha1.Topic{}
	topic.Namespace, topic.Name = "shop", "orders"
	topic.Spec.ClusterRef.Name = "demo"
	if change != nil {
		change(&topic.Spec)
	}
	return topic
}

func readTopic(t *testing.T, file string) (*v1alpha1.Topic, *v1alpha1.TopicDefaults) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first, second, found := bytes.Cut(data, []byte("\n---\n"))
	topic := &v1alpha1.Topic{}
	if err := yaml.UnmarshalStrict(first, topic); err != nil {
		t.Fatal(err)
	}
	if !found {
		return topic, nil
	}
	defaults := &v1alpha1.TopicDefaults{}
	if err := yaml.UnmarshalStrict(second, defaults); err != nil {
		t.Fatal(err)
	}
	return topic, defaults
}

// render writes a request as JSON in one fixed form; protojson itself varies its spaces on purpose.
func render(t *testing.T, request *runnelv1.CreateTopicRequest) []byte {
	t.Helper()
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}
