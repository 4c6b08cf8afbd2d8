package server_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/internal/ids"
)

func (f *fixture) watch(req *runnelv1.WatchRequest) func() *runnelv1.WatchResponse {
	f.Helper()
	st, err := f.meta.Watch(f.ctx(), req)
	if err != nil {
		f.Fatal(err)
	}
	return func() *runnelv1.WatchResponse {
		f.Helper()
		r, err := st.Recv()
		if err != nil {
			f.Fatal(err)
		}
		return r
	}
}

func names(r *runnelv1.WatchResponse) (topics []string) {
	for _, t := range r.GetTopics() {
		topics = append(topics, t.GetName())
	}
	return topics
}

func TestWatchSnapshotThenChanges(t *testing.T) {
	f := setup(t)
	a := f.topic("a", 2)
	next := f.watch(&runnelv1.WatchRequest{Topics: []string{"b", "a", "b"}})
	r := next()
	if !r.GetSnapshot() || r.GetClusterId() != "test" || r.GetControllerId() != self || !slices.Equal(names(r), []string{"a"}) || !slices.Equal(r.GetMissingTopics(), []string{"b"}) {
		t.Fatalf("%v", r)
	}
	if b := r.GetBrokers(); len(b) != 2 || b[0].GetAddress() != "one:7650" || b[1].GetAddress() != "two:7650" {
		t.Fatalf("addresses of another listener: %v", b)
	}
	if p := r.GetTopics()[0].GetPartitions(); len(p) != 2 || p[1].GetLeaderId() != self || r.GetTopics()[0].GetConfig().GetMaxBatchBytes() == 0 {
		t.Fatalf("%v", r)
	}
	f.topic("uninteresting", 1)
	f.topic("b", 1)
	if r = next(); r.GetSnapshot() || r.GetBrokersChanged() || !slices.Equal(names(r), []string{"b"}) || len(r.GetMissingTopics()) != 0 {
		t.Fatalf("%v", r)
	}
	// A leader moves: the topic is sent again, with all its partitions.
	f.cluster.change(func(s *server.Snapshot) {
		moved := *a
		moved.Partitions = slices.Clone(a.Partitions)
		moved.Partitions[1] = server.Partition{LeaderID: other, LeaderEpoch: 2}
		s.Topics["a"] = &moved
	})
	if r = next(); !slices.Equal(names(r), []string{"a"}) || r.GetTopics()[0].GetPartitions()[1].GetLeaderId() != other {
		t.Fatalf("%v", r)
	}
	f.cluster.remove(a)
	if r = next(); !slices.Equal(r.GetMissingTopics(), []string{"a"}) {
		t.Fatalf("%v", r)
	}
	f.cluster.change(func(s *server.Snapshot) { s.Brokers = s.Brokers[:1] })
	if r = next(); !r.GetBrokersChanged() || len(r.GetBrokers()) != 1 {
		t.Fatalf("%v", r)
	}
}

func TestWatchAllTopics(t *testing.T) {
	f := setup(t)
	f.topic("b", 1)
	a := f.topic("a", 1)
	next := f.watch(&runnelv1.WatchRequest{AllTopics: true})
	if r := next(); !slices.Equal(names(r), []string{"a", "b"}) {
		t.Fatalf("%v", r)
	}
	f.cluster.change(func(s *server.Snapshot) {
		deleting := *a
		deleting.State = runnelv1.TopicState_TOPIC_STATE_DELETING
		s.Topics["a"] = &deleting
	})
	if r := next(); !slices.Equal(r.GetMissingTopics(), []string{"a"}) || len(r.GetTopics()) != 0 {
		t.Fatalf("%v", r)
	}
}

// A client that does not read gets the newest state once, not every state in between.
func TestWatchCoalesces(t *testing.T) {
	f := setup(t)
	next := f.watch(&runnelv1.WatchRequest{AllTopics: true})
	next()
	for i := range 50 {
		f.topic(strings.Repeat("x", i+1), 1)
	}
	got, messages := 0, 0
	for got < 50 {
		got += len(next().GetTopics())
		messages++
	}
	if got != 50 || messages > 50 {
		t.Fatalf("%d topics in %d messages", got, messages)
	}
}

func TestWatchAutoCreateIsOptInOnBothSides(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		f := setup(t, func(c *server.Config) { c.AutoCreateTopics = allowed })
		r := f.watch(&runnelv1.WatchRequest{Topics: []string{"new"}, AutoCreate: true})()
		if created := len(r.GetTopics()) == 1; created != allowed || len(r.GetMissingTopics()) == 1 == allowed {
			t.Fatalf("allowed %v: %v", allowed, r)
		}
		r = f.watch(&runnelv1.WatchRequest{Topics: []string{"not asked for"[:3]}})()
		if len(r.GetMissingTopics()) != 1 {
			t.Fatalf("created without being asked: %v", r)
		}
	}
	f := setup(t, func(c *server.Config) { c.AutoCreateTopics = true })
	st, err := f.meta.Watch(f.ctx(), &runnelv1.WatchRequest{Topics: []string{"../x"}, AutoCreate: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = st.Recv()
	wantReason(t, err, codes.InvalidArgument, "INVALID_NAME")
}

func TestTopicAdministration(t *testing.T) {
	f := setup(t)
	created, err := f.admin.CreateTopic(f.ctx(), &runnelv1.CreateTopicRequest{Name: "orders", Partitions: 3})
	if err != nil {
		t.Fatal(err)
	}
	id := created.GetTopic().GetTopicId()
	_, err = f.admin.CreateTopic(f.ctx(), &runnelv1.CreateTopicRequest{Name: "orders"})
	wantReason(t, err, codes.AlreadyExists, "TOPIC_EXISTS")
	for _, n := range []string{"a", "b", "c"} {
		f.topic(n, 1)
	}
	page, err := f.admin.ListTopics(f.ctx(), &runnelv1.ListTopicsRequest{PageSize: 3})
	if err != nil || len(page.GetTopics()) != 3 || page.GetNextPageToken() != "c" {
		t.Fatalf("%v %v", page, err)
	}
	page, err = f.admin.ListTopics(f.ctx(), &runnelv1.ListTopicsRequest{PageSize: 3, PageToken: page.GetNextPageToken()})
	if err != nil || len(page.GetTopics()) != 1 || page.GetTopics()[0].GetPartitions() != 3 || page.GetNextPageToken() != "" {
		t.Fatalf("%v %v", page, err)
	}
	dry, err := f.admin.UpdateTopic(f.ctx(), &runnelv1.UpdateTopicRequest{Name: "orders", ValidateOnly: true, Config: &runnelv1.TopicConfig{RetentionMs: proto.Int64(5000)}})
	if err != nil || len(dry.GetChanges()) != 1 || dry.GetChanges()[0].GetAfter() == "" {
		t.Fatalf("%v %v", dry, err)
	}
	d, err := f.admin.DescribeTopic(f.ctx(), &runnelv1.DescribeTopicRequest{Name: "orders"})
	if err != nil || len(d.GetPartitions()) != 3 || d.GetPartitions()[2].GetHealth() != runnelv1.PartitionHealth_PARTITION_HEALTH_ONLINE {
		t.Fatalf("%v %v", d, err)
	}
	cl, err := f.admin.DescribeCluster(f.ctx(), &runnelv1.DescribeClusterRequest{})
	if err != nil || cl.GetTopics() != 4 || cl.GetPartitions() != 6 || cl.GetBrokers()[0].GetLeaders() != 6 || cl.GetBrokers()[1].GetLeaders() != 0 {
		t.Fatalf("%v %v", cl, err)
	}
	wrong := ids.NewTopicID()
	_, err = f.admin.DeleteTopic(f.ctx(), &runnelv1.DeleteTopicRequest{Name: "orders", TopicId: wrong[:]})
	wantReason(t, err, codes.NotFound, "TOPIC_NOT_FOUND")
	if _, err = f.admin.DeleteTopic(f.ctx(), &runnelv1.DeleteTopicRequest{Name: "orders", TopicId: id}); err != nil {
		t.Fatal(err)
	}
	_, err = f.admin.DescribeTopic(f.ctx(), &runnelv1.DescribeTopicRequest{Name: "orders"})
	wantReason(t, err, codes.NotFound, "TOPIC_NOT_FOUND")
}

func TestAdminRefusesBadRequests(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	short := topic.ID[:7]
	calls := map[string]struct {
		call   func(context.Context) error
		code   codes.Code
		reason string
	}{
		"create with a path": {func(c context.Context) error {
			_, err := f.admin.CreateTopic(c, &runnelv1.CreateTopicRequest{Name: "a/../b"})
			return err
		}, codes.InvalidArgument, "INVALID_NAME"},
		"create with -1 partitions": {func(c context.Context) error {
			_, err := f.admin.CreateTopic(c, &runnelv1.CreateTopicRequest{Name: "x", Partitions: -1})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"create with -1 replicas": {func(c context.Context) error {
			_, err := f.admin.CreateTopic(c, &runnelv1.CreateTopicRequest{Name: "x", Replicas: -1})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"create compacted": {func(c context.Context) error {
			_, err := f.admin.CreateTopic(c, &runnelv1.CreateTopicRequest{Name: "x", Config: &runnelv1.TopicConfig{CleanupPolicy: runnelv1.CleanupPolicy_CLEANUP_POLICY_COMPACT.Enum()}})
			return err
		}, codes.Unimplemented, "NOT_YET_AVAILABLE"},
		"update, stale generation": {func(c context.Context) error {
			_, err := f.admin.UpdateTopic(c, &runnelv1.UpdateTopicRequest{Name: "t", Generation: 9})
			return err
		}, codes.Aborted, "CONFLICT"},
		"update, short id": {func(c context.Context) error {
			_, err := f.admin.UpdateTopic(c, &runnelv1.UpdateTopicRequest{Name: "t", TopicId: short})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"delete without id": {func(c context.Context) error {
			_, err := f.admin.DeleteTopic(c, &runnelv1.DeleteTopicRequest{Name: "t"})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"list, page too large": {func(c context.Context) error {
			_, err := f.admin.ListTopics(c, &runnelv1.ListTopicsRequest{PageSize: 1001})
			return err
		}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"delete records, other id": {func(c context.Context) error {
			_, err := f.admin.DeleteRecords(c, &runnelv1.DeleteRecordsRequest{Topic: "t", TopicId: make([]byte, 16)})
			return err
		}, codes.FailedPrecondition, "TOPIC_RECREATED"},
		"describe unknown": {func(c context.Context) error {
			_, err := f.admin.DescribePartitions(c, &runnelv1.DescribePartitionsRequest{Topic: "nope"})
			return err
		}, codes.NotFound, "TOPIC_NOT_FOUND"},
		"recover unknown partition": {func(c context.Context) error {
			_, err := f.admin.RecoverPartition(c, &runnelv1.RecoverPartitionRequest{Topic: "t", Partition: 4})
			return err
		}, codes.NotFound, "UNKNOWN_PARTITION"},
	}
	for name, tc := range calls {
		t.Run(name, func(t *testing.T) { wantReason(t, tc.call(f.ctx()), tc.code, tc.reason) })
	}
	if _, ok := f.cluster.Snapshot().Topics["t"]; !ok {
		t.Fatal("a refused request changed something")
	}
}

func TestDeleteRecordsAndDescribePartitions(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 3)
	f.put(topic, 0, "a", "b", "c")
	f.cluster.mu.Lock()
	f.cluster.parts[topic.ID][1] = nil
	f.cluster.mu.Unlock()
	r, err := f.admin.DeleteRecords(f.ctx(), &runnelv1.DeleteRecordsRequest{Topic: "t", TopicId: topic.ID[:], Targets: []*runnelv1.DeleteRecordsTarget{
		{Partition: 0, BeforeOffset: 2}, {Partition: 0, BeforeOffset: 4}, {Partition: 1}, {Partition: 7}, {Partition: 0, BeforeOffset: -2},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "OFFSET_OUT_OF_RANGE", "NOT_LEADER", "UNKNOWN_PARTITION", "INVALID_ARGUMENT"} {
		if got := r.GetResults()[i].GetError().GetReason(); got != want {
			t.Fatalf("%d: %q, want %q", i, got, want)
		}
	}
	if r.GetResults()[0].GetLogStartOffset() != 2 {
		t.Fatalf("%v", r)
	}
	d, err := f.admin.DescribePartitions(f.ctx(), &runnelv1.DescribePartitionsRequest{Topic: "t", Partitions: []int32{0, 1, 9}})
	if err != nil {
		t.Fatal(err)
	}
	p := d.GetPartitions()
	if p[0].GetLogStartOffset() != 2 || p[0].GetHighWatermark() != 3 || p[0].GetFlushedOffset() != 3 || p[0].GetTieredEndOffset() != -1 || p[0].GetSegments() != 1 || p[0].GetLeaderId() != self {
		t.Fatalf("%v", p[0])
	}
	if p[1].GetError().GetReason() != "NOT_LEADER" || p[1].GetLogEndOffset() != -1 || p[2].GetError().GetReason() != "UNKNOWN_PARTITION" {
		t.Fatalf("%v", p)
	}
	plan, err := f.admin.RecoverPartition(f.ctx(), &runnelv1.RecoverPartitionRequest{Topic: "t", Partition: 0})
	if err != nil || plan.GetApplied() || plan.GetKeptEndOffset() != 5 || plan.GetLostEndOffset() != 9 {
		t.Fatalf("%v %v", plan, err)
	}
}

func TestUnknownErrorsShowAnIdOnlyAndDetailsGoToTheLog(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	f.cluster.mu.Lock()
	f.cluster.broken = errBroken
	f.cluster.mu.Unlock()
	_, err := f.admin.RecoverPartition(f.ctx(), &runnelv1.RecoverPartitionRequest{Topic: "t"})
	if err != nil {
		t.Fatal(err) // Recover is not broken
	}
	s := f.produce(f.ctx())
	s.send(topic, 0, f.batch("a"))
	e := s.answer().GetError()
	id := e.GetMetadata()["error_id"]
	if codes.Code(e.GetCode()) != codes.Internal || e.GetReason() != "INTERNAL" || strings.Contains(e.GetMessage(), "secret") || id == "" {
		t.Fatalf("%v", e)
	}
	if log := f.logged.String(); !strings.Contains(log, id) || !strings.Contains(log, "secret detail") {
		t.Fatalf("log: %s", log)
	}
}

func TestAPanicEndsOneCallAlone(t *testing.T) {
	f := setup(t)
	f.topic("t", 1)
	set := func(on bool) {
		f.cluster.mu.Lock()
		f.cluster.panics = on
		f.cluster.mu.Unlock()
	}
	set(true)
	_, err := f.admin.DescribeCluster(f.ctx(), &runnelv1.DescribeClusterRequest{})
	wantReason(t, err, codes.Internal, "INTERNAL")
	st, err := f.meta.Watch(f.ctx(), &runnelv1.WatchRequest{AllTopics: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = st.Recv()
	wantReason(t, err, codes.Internal, "INTERNAL")
	set(false)
	if _, err := f.admin.DescribeCluster(f.ctx(), &runnelv1.DescribeClusterRequest{}); err != nil {
		t.Fatal(err)
	}
	if log := f.logged.String(); !strings.Contains(log, "metadata is broken") || !strings.Contains(log, "stack") {
		t.Fatalf("log: %s", log)
	}
}

func TestHealthFollowsReadiness(t *testing.T) {
	f := setup(t)
	c := healthv1.NewHealthClient(f.conn)
	for _, ready := range []bool{false, true, false} {
		f.srv.SetReady(ready)
		for _, service := range []string{"", "runnel.v1.Producer"} {
			r, err := c.Check(f.ctx(), &healthv1.HealthCheckRequest{Service: service})
			if err != nil || (r.GetStatus() == healthv1.HealthCheckResponse_SERVING) != ready {
				t.Fatalf("%q ready %v: %v %v", service, ready, r, err)
			}
		}
	}
}

func TestReflectionListsTheServices(t *testing.T) {
	f := setup(t)
	st, err := reflectionv1.NewServerReflectionClient(f.conn).ServerReflectionInfo(f.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	r, err := st.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range r.GetListServicesResponse().GetService() {
		got = append(got, s.GetName())
	}
	for _, want := range []string{"runnel.v1.Producer", "runnel.v1.Consumer", "runnel.v1.Admin", "runnel.v1.Metadata", "grpc.health.v1.Health"} {
		if !slices.Contains(got, want) {
			t.Fatalf("%v lacks %s", got, want)
		}
	}
	_ = st.CloseSend()
}

func TestDeletedTopicEndsItsReaders(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, plenty)}})
	s.data()
	f.cluster.remove(topic)
	if e := s.frame().Error; e == nil || !e.GetRetriable() {
		t.Fatalf("%v", e)
	}
	s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{add(2, topic, 0, 0, plenty)}})
	if e := s.frame().Error; e.GetReason() != "UNKNOWN_TOPIC_ID" {
		t.Fatalf("%v", e)
	}
	if _, err := f.cluster.Lookup(topic.ID, 0); !errors.Is(err, partition.ErrUnknown) {
		t.Fatal(err)
	}
}

func TestConfigReportsAllFaults(t *testing.T) {
	l := bufconn.Listen(1)
	defer l.Close()
	cfg := server.Config{
		BrokerID: -1, Listeners: []server.Listener{{Name: "a", Listener: l}, {Name: "a"}, {Listener: l}},
		Limits: server.Limits{InFlightBytes: 5, StreamInFlightBytes: 6, Subscriptions: -1, UnaryTimeout: -1},
	}
	_, err := server.New(cfg)
	for _, want := range []string{"broker id is -1", "occurs twice", "not open", "has no name", "in-flight bytes are 5", "per stream are 6", "are -1", "source is missing", "clock"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
