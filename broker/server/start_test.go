package server_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/server"
)

// Before the first metadata every topic looks missing. Nobody may be told so.
func TestNothingIsMissingBeforeTheMetadataWasRead(t *testing.T) {
	f := setup(t, func(c *server.Config) { c.Limits.UnaryTimeout = 50 * time.Millisecond })
	f.topic("t", 1)
	f.cluster.change(func(s *server.Snapshot) {
		s.ClusterID, s.Brokers = "", nil
		delete(s.Topics, "t")
	})
	_, err := f.admin.ListTopics(f.ctx(), &runnelv1.ListTopicsRequest{})
	wantReason(t, err, codes.Unavailable, "STARTING")
	_, err = f.producer.Publish(f.ctx(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{{}}})
	wantReason(t, err, codes.Unavailable, "STARTING")
	st, err := f.meta.Watch(f.ctx(), &runnelv1.WatchRequest{Topics: []string{"t"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = st.Recv()
	wantReason(t, err, codes.Unavailable, "STARTING")
}

// A broker that will not have any metadata says why, at once.
func TestCallsOfABrokerThatRefusesItsMetadata(t *testing.T) {
	f := setup(t, func(c *server.Config) {
		c.Refused = &metadata.UnavailableError{Op: "serve", Err: &metadata.OlderEtcdError{}}
	})
	f.topic("t", 1)
	f.cluster.change(func(s *server.Snapshot) { s.ClusterID = "" })
	_, err := f.admin.ListTopics(f.ctx(), &runnelv1.ListTopicsRequest{})
	wantReason(t, err, codes.Unavailable, "METADATA_REFUSED")
	_, err = f.producer.Publish(f.ctx(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{{}}})
	wantReason(t, err, codes.Unavailable, "METADATA_REFUSED")
	st, err := f.meta.Watch(f.ctx(), &runnelv1.WatchRequest{Topics: []string{"t"}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = st.Recv()
	wantReason(t, err, codes.Unavailable, "METADATA_REFUSED")
}

func TestCallsWaitForTheFirstMetadata(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	f.cluster.change(func(s *server.Snapshot) {
		s.ClusterID = ""
		delete(s.Topics, "t")
	})
	got := make(chan *runnelv1.WatchResponse, 1)
	st, err := f.meta.Watch(f.ctx(), &runnelv1.WatchRequest{Topics: []string{"t"}})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		r, _ := st.Recv()
		got <- r
	}()
	f.cluster.change(func(s *server.Snapshot) { s.ClusterID, s.Topics["t"] = "test", topic })
	if r := <-got; !r.GetSnapshot() || len(r.GetTopics()) != 1 || len(r.GetMissingTopics()) != 0 {
		t.Fatalf("%v", r)
	}
}

// stuckCreate is a metadata store that does not answer.
type stuckCreate struct{ *cluster }

func (stuckCreate) CreateTopic(ctx context.Context, _ *runnelv1.CreateTopicRequest) (*runnelv1.Topic, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A topic that cannot be created on demand does not keep the client from the topics that exist.
func TestAutoCreationThatFailsHoldsUpNothingElse(t *testing.T) {
	f := setup(t, func(c *server.Config) {
		c.AutoCreateTopics, c.Limits.UnaryTimeout = true, 50*time.Millisecond
		c.Topics = stuckCreate{c.Topics.(*cluster)}
	})
	f.topic("a", 1)
	next := f.watch(&runnelv1.WatchRequest{Topics: []string{"a", "b"}, AutoCreate: true})
	if r := next(); len(r.GetTopics()) != 1 || len(r.GetMissingTopics()) != 1 {
		t.Fatalf("%v", r)
	}
}

// Records that were appended and not acknowledged in time are of unknown outcome, each by itself; the others keep theirs.
func TestPublishThatIsNotAcknowledgedInTime(t *testing.T) {
	f := setup(t, func(c *server.Config) { c.Limits.UnaryTimeout = 100 * time.Millisecond })
	f.topic("t", 2)
	zero, nine := int32(0), int32(9)
	r, err := f.producer.Publish(t.Context(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{{Partition: &zero}, {Partition: &nine}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.GetResults()[0].GetError(); got.GetReason() != "OUTCOME_UNKNOWN" {
		t.Errorf("appended: %v", got)
	}
	if got := r.GetResults()[1].GetError(); got.GetReason() != "UNKNOWN_PARTITION" {
		t.Errorf("refused: %v", got)
	}
	f.host.Sync() // the answer that nobody waits for gives its budget back
	if n := metric(f, "runnel_server_produce_in_flight_bytes"); n != 0 {
		t.Errorf("%v bytes in flight", n)
	}
}

func metric(f *fixture, name string) float64 {
	f.Helper()
	families, err := f.reg.Gather()
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range families {
		if m.GetName() == name {
			return m.GetMetric()[0].GetGauge().GetValue()
		}
	}
	f.Fatalf("no metric %s", name)
	return 0
}
