package metadata

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/ids"
)

func TestCreateTopicStoresOnlyWhatIsSet(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	config := &runnelv1.TopicConfig{RetentionMs: proto.Int64(1000)}
	made, err := c.CreateTopic(t.Context(), NewTopic{Name: "orders", Partitions: 3, Config: config, Owner: "ns/orders"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.GetTopic(t.Context(), "orders", made.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.State != TopicCreating || got.Partitions != 3 || got.Replicas != 1 || got.Generation != 1 || got.Owner != "ns/orders" ||
		got.ReadyPartitions != 0 || got.Revision != made.Revision || !proto.Equal(got.Config, config) {
		t.Errorf("got %+v", got)
	}
	again, err := c.CreateTopic(t.Context(), NewTopic{Name: "orders", Partitions: 1})
	var exists *TopicError
	if !errors.As(err, &exists) || !errors.Is(err, ErrTopicExists) || exists.ID != made.ID || again != nil {
		t.Errorf("creating it again: %v", err)
	}
}

func TestCreateTopicReportsAllFaults(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	_, err := c.CreateTopic(t.Context(), NewTopic{
		Name: "../x", Partitions: 0, Replicas: 2, Owner: strings.Repeat("o", MaxOwnerLength+1),
		Config: &runnelv1.TopicConfig{
			SegmentBytes: proto.Int64(1), CleanupPolicy: runnelv1.CleanupPolicy_CLEANUP_POLICY_COMPACT.Enum(),
		},
	})
	if !errors.Is(err, ErrInvalidName) || !errors.Is(err, ErrInvalidArgument) {
		t.Fatalf("err = %v", err)
	}
	for _, part := range []string{`"../x"`, "partitions is 0, want 1 to 100000", "replicas is 2, want 1 to 1", "owner is 1025 bytes", "segment_bytes is 1", "cleanup_policy is compact"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is missing in:\n%v", part, err)
		}
	}
	if _, err := c.GetTopic(t.Context(), "../x", ids.TopicID{}); !errors.Is(err, ErrInvalidName) {
		t.Errorf("GetTopic = %v", err)
	}
}

func TestCreateTopicLostAnswer(t *testing.T) {
	f := &faults{}
	c := client(t, f)
	register(t, c, 1, ids.NewStorageID())
	f.next(lost, delayed)
	made := create(t, c, "orders", 1)
	f.deliver(t)
	got, err := c.GetTopic(t.Context(), "orders", made.ID)
	if err != nil || got.Revision != made.Revision {
		t.Errorf("created %+v, etcd has %+v, %v", made, got, err)
	}
}

func TestUpdateTopic(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	made := create(t, c, "orders", 2)
	update := TopicUpdate{
		Name: "orders", ID: made.ID, Generation: 1, Partitions: 4, Config: &runnelv1.TopicConfig{RetentionBytes: proto.Int64(5)},
	}
	got, changes, err := c.UpdateTopic(t.Context(), update)
	if err != nil {
		t.Fatal(err)
	}
	if got.Generation != 2 || got.Partitions != 4 || got.Config.GetRetentionBytes() != 5 || got.Config.RetentionMs != nil {
		t.Errorf("got %+v", got)
	}
	var said []string
	for _, ch := range changes {
		said = append(said, ch.GetField()+" "+ch.GetBefore()+" "+ch.GetAfter())
	}
	if want := []string{"retention_bytes -1 5", "partitions 2 4"}; !slices.Equal(said, want) {
		t.Errorf("changes %q, want %q", said, want)
	}

	var conflict *ConflictError
	if _, _, err := c.UpdateTopic(t.Context(), update); !errors.As(err, &conflict) || !errors.Is(err, ErrConflict) || conflict.Got != 2 || conflict.Want != 1 {
		t.Errorf("a stale generation: %v", err)
	}
	_, _, err = c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Partitions: 3})
	if !errors.Is(err, ErrInvalidArgument) || !strings.Contains(err.Error(), "partitions is 3, want 4 (now) to 100000") {
		t.Errorf("fewer partitions: %v", err)
	}
	if _, _, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", ID: ids.NewTopicID()}); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("another topic's ID: %v", err)
	}
	var bad *topicconfig.InvalidError
	if _, _, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Reset: []string{"nonsense"}}); !errors.As(err, &bad) {
		t.Errorf("an unknown field: %v", err)
	}
	same, changes, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Partitions: 4})
	if err != nil || same.Generation != 2 || len(changes) != 0 || same.Revision != got.Revision {
		t.Errorf("a change that changes nothing: %+v, %v, %v", same, changes, err)
	}
	back, changes, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Reset: []string{"retention_bytes"}})
	if err != nil || back.Config.RetentionBytes != nil || len(changes) != 1 || changes[0].GetAfter() != "-1" {
		t.Errorf("taken back: %+v, %v, %v", back, changes, err)
	}
}

// TestConcurrentUpdates without a generation are all applied.
func TestConcurrentUpdates(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	create(t, c, "orders", 1)
	patches := []*runnelv1.TopicConfig{
		{RetentionBytes: proto.Int64(7)},
		{RetentionMs: proto.Int64(7)},
		{SegmentAgeMs: proto.Int64(7000)},
		{MaxTimestampAheadMs: proto.Int64(7)},
	}
	errs := make(chan error, len(patches))
	for _, patch := range patches {
		go func() {
			_, _, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Config: patch})
			errs <- err
		}()
	}
	for range patches {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	got, err := c.GetTopic(t.Context(), "orders", ids.TopicID{})
	if err != nil || got.Generation != 5 || got.Config.GetRetentionBytes() != 7 || got.Config.GetRetentionMs() != 7 ||
		got.Config.GetSegmentAgeMs() != 7000 || got.Config.GetMaxTimestampAheadMs() != 7 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestOwnedTopic(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	made, err := c.CreateTopic(t.Context(), NewTopic{Name: "orders", Partitions: 1, Owner: "ns/orders"})
	if err != nil {
		t.Fatal(err)
	}
	var owned *TopicError
	if _, _, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Partitions: 2}); !errors.As(err, &owned) || !errors.Is(err, ErrOwned) || owned.Owner != "ns/orders" {
		t.Errorf("update by nobody: %v", err)
	}
	if _, _, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Partitions: 2, By: "ns/orders"}); err != nil {
		t.Errorf("update by the owner: %v", err)
	}
	if _, _, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Partitions: 3, Force: true}); err != nil {
		t.Errorf("forced update: %v", err)
	}
	if _, err := c.DeleteTopic(t.Context(), "orders", made.ID, "", false); !errors.Is(err, ErrOwned) {
		t.Errorf("delete by nobody: %v", err)
	}
	if _, err := c.DeleteTopic(t.Context(), "orders", made.ID, "", true); err != nil {
		t.Errorf("forced delete: %v", err)
	}
}

func TestDeleteTopic(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	made := create(t, c, "orders", 1)
	if _, err := c.DeleteTopic(t.Context(), "orders", ids.NewTopicID(), "", false); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("a namesake's ID: %v", err)
	}
	if _, err := c.DeleteTopic(t.Context(), "orders", ids.TopicID{}, "", false); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("no ID: %v", err)
	}
	for range 2 {
		if got, err := c.DeleteTopic(t.Context(), "orders", made.ID, "", false); err != nil || got.State != TopicDeleting || got.Generation != 2 {
			t.Errorf("delete: %+v, %v", got, err)
		}
	}
	_, err := c.CreateTopic(t.Context(), NewTopic{Name: "orders", Partitions: 1})
	if !errors.Is(err, ErrTopicExists) || !strings.Contains(err.Error(), "being deleted") {
		t.Errorf("the name is taken until the end: %v", err)
	}
	if _, _, err := c.UpdateTopic(t.Context(), TopicUpdate{Name: "orders", Partitions: 2}); !errors.Is(err, ErrTopicNotFound) {
		t.Errorf("a change of a topic that is being deleted: %v", err)
	}
}

func TestTopicNames(t *testing.T) {
	for _, name := range []string{"a", "A.b-c_9", strings.Repeat("x", 249), "...", "_a", "a__b"} {
		if err := ValidateTopicName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "__a", "a/b", "../a", "a\x00b", "a b", "ä", strings.Repeat("x", 250)} {
		err := ValidateTopicName(name)
		var bad *ArgumentError
		if !errors.As(err, &bad) || !errors.Is(err, ErrInvalidName) || bad.Value == "" || !strings.Contains(bad.Limit, "{1,249}") {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := ValidateTopicName(strings.Repeat("x", 100_000)); len(err.Error()) > 500 {
		t.Errorf("the error for a long name has %d bytes", len(err.Error()))
	}
}
