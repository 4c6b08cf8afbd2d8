package v1alpha1

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// kinds makes an empty object of each kind, by the base name of its files.
var kinds = map[string]func() runtime.Object{
	"cluster":       func() runtime.Object { return &Cluster{} },
	"topic":         func() runtime.Object { return &Topic{} },
	"consumergroup": func() runtime.Object { return &ConsumerGroup{} },
}

// TestRoundTrip reads samples, and files that set every field, strictly, and expects to write what it read.
func TestRoundTrip(t *testing.T) {
	for name, empty := range kinds {
		for _, folder := range []string{"../../config/samples", "testdata/full"} {
			t.Run(filepath.Base(folder)+"/"+name, func(t *testing.T) {
				data, err := os.ReadFile(filepath.Join(folder, name+".yaml"))
				if err != nil {
					t.Fatal(err)
				}
				object := empty()
				if err := yaml.UnmarshalStrict(data, object); err != nil {
					t.Fatal(err)
				}
				if got := object.GetObjectKind().GroupVersionKind(); got.GroupVersion() != GroupVersion || !strings.EqualFold(got.Kind, name) {
					t.Errorf("the object is a %v", got)
				}
				written, err := json.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				var got, want any
				if err := json.Unmarshal(written, &got); err != nil {
					t.Fatal(err)
				}
				if err := yaml.Unmarshal(data, &want); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("written differs from read (-read +written):\n%s", diff)
				}
				if diff := cmp.Diff(object, object.DeepCopyObject()); diff != "" {
					t.Errorf("the copy differs:\n%s", diff)
				}
			})
		}
	}
}

// TestFullFilesSetEveryField keeps TestRoundTrip honest: what the schema has, the files under testdata/full set.
func TestFullFilesSetEveryField(t *testing.T) {
	for name := range kinds {
		t.Run(name, func(t *testing.T) {
			set := map[string]bool{}
			notePaths("", readDocuments(t, filepath.Join("testdata", "full", name+".yaml"))[0], set)
			schema := schemaOf(t, onlyVersion(t, readDocuments(t, filepath.Join(crdFolder, "runnel.dev_"+name+"s.yaml"))[0]))
			fields := 0
			walkProperties("", schema, func(path string, _ map[string]any) {
				fields++
				if !set[path] {
					t.Errorf("%s is not set", path)
				}
			})
			if fields < 20 {
				t.Errorf("the schema has %d fields, which is too few to believe", fields)
			}
		})
	}
}

// TestAbsentStaysAbsent: an object written by Go holds no field that its author left open, so that server-side apply does not claim
// fields for a writer that has no opinion on them.
func TestAbsentStaysAbsent(t *testing.T) {
	for _, tt := range []struct {
		object any
		want   string
	}{
		{&Cluster{Spec: ClusterSpec{Brokers: Brokers{Storage: BrokerStorage{Size: "10Gi"}}}}, `{"spec":{"brokers":{"storage":{"size":"10Gi"}}}}`},
		{&Topic{Spec: TopicSpec{ClusterRef: ClusterReference{Name: "demo"}}}, `{"spec":{"clusterRef":{"name":"demo"}}}`},
		{
			&ConsumerGroup{Spec: ConsumerGroupSpec{ClusterRef: ClusterReference{Name: "demo"}, Topics: []string{"orders"}}},
			`{"spec":{"clusterRef":{"name":"demo"},"topics":["orders"]}}`,
		},
	} {
		got, err := json.Marshal(tt.object)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != tt.want {
			t.Errorf("Marshal(%T)\n got %s\nwant %s", tt.object, got, tt.want)
		}
	}
}

// TestOneOddValueDoesNotSpoilTheList: values that the API server admits and that mean nothing to us are still read.
func TestOneOddValueDoesNotSpoilTheList(t *testing.T) {
	const list = `{"items": [
		{"spec": {"clusterRef": {"name": "a"}, "topics": ["t"], "reset": {"id": "1", "notAfter": "2026-01-01t00:00:00z", "to": {"time": "2026-01-01t00:00:00z"}}}},
		{"spec": {"clusterRef": {"name": "b"}, "topics": ["t"], "riskThreshold": "soon"}}]}`
	var groups ConsumerGroupList
	if err := json.Unmarshal([]byte(list), &groups); err != nil || len(groups.Items) != 2 {
		t.Errorf("Unmarshal() = %d items, %v", len(groups.Items), err)
	}
	var clusters ClusterList
	if err := json.Unmarshal([]byte(`{"items":[{"spec":{"brokers":{"storage":{"size":"big"},"podTemplate":{"spec":7},"resources":{"limits":{"cpu":"1e999999999"}}}}}]}`), &clusters); err != nil {
		t.Error(err)
	}
}

func TestAddToScheme(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	known := scheme.KnownTypes(GroupVersion)
	for _, kind := range []string{"Cluster", "ClusterList", "Topic", "TopicList", "ConsumerGroup", "ConsumerGroupList", "ListOptions"} {
		if _, ok := known[kind]; !ok {
			t.Errorf("%s is not registered", kind)
		}
	}
	if got := Resource("topics").String(); got != "topics.runnel.dev" {
		t.Errorf("Resource(topics) = %s", got)
	}
}

func TestNamesInTheCluster(t *testing.T) {
	other := "Orders.v1"
	topic := &Topic{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}
	group := &ConsumerGroup{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}
	got := []string{topic.TopicName(), group.GroupName()}
	topic.Spec.TopicName, group.Spec.GroupName = &other, &other
	got = append(got, topic.TopicName(), group.GroupName())
	if want := []string{"orders", "orders", other, other}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
}

// notePaths notes the path of every value in a document, written as walkProperties writes them. Below a map with free keys it notes
// both readings, as a field and as an entry.
func notePaths(path string, value any, set map[string]bool) {
	set[path] = true
	switch v := value.(type) {
	case map[string]any:
		for key, below := range v {
			notePaths(path+"."+key, below, set)
		}
	case []any:
		for _, below := range v {
			notePaths(path+"[]", below, set)
		}
	}
}
