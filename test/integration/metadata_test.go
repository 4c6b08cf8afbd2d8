package integration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
)

// Nothing on the data path asks etcd. What does ask it says so, and works again by itself.
func TestEtcdStopsAndReturns(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Configure: func(c *config.Config) {
		c.Etcd.RequestTimeout = config.Duration(time.Second)
	}})
	cl := c.Client()
	create(t, cl, "t", 2, client.TopicConfig{})
	l := startLoad(t, cl, "t", 2)
	l.goesOn(100)
	c.Etcd().Stop(t)
	l.goesOn(1000)
	_, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "later", Partitions: 1})
	wantReason(t, err, codes.Unavailable, "METADATA_UNAVAILABLE")
	if !client.Retriable(err) {
		t.Errorf("%v is not retriable", err)
	}
	l.goesOn(1000)
	if epochs := partitions(t, cl, "t"); epochs[0].Leader != 1 || epochs[1].Leader != 1 {
		t.Errorf("leadership was lost with etcd: %+v", epochs)
	}
	c.Etcd().Start(t)
	testcluster.Eventually(t, func() error {
		_, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "later", Partitions: 1})
		if errors.Is(err, client.ErrTopicExists) {
			return nil // an attempt whose answer was lost
		}
		if err != nil && !client.Retriable(err) {
			t.Fatalf("while etcd returns: %v", err)
		}
		return err
	})
	if got := produce(t, cl, "later", 0, "x"); got[0] != 0 {
		t.Errorf("the first record of the new topic is at %d", got[0])
	}
	l.goesOn(100)
	l.check()
}

// A broker whose etcd is away waits, says what for, and can be stopped.
func TestStartWithoutEtcd(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Brokers: -1})
	c.Etcd().Stop(t)
	b := c.AddBroker(1)
	b.Config.Etcd.RequestTimeout = config.Duration(500 * time.Millisecond)
	b.Launch()
	testcluster.Eventually(t, func() error {
		state, err := b.Readiness()
		if err != nil {
			return err
		}
		want := []testcluster.Condition{{Name: "started", Reason: "waiting for etcd"}}
		if state.Ready || state.Code != 503 || !slices.Equal(state.Conditions, want) {
			t.Fatalf("/readyz: %+v", state)
		}
		return nil
	})
	b.Stop()
	b.Launch()
	c.Etcd().Start(t)
	b.AwaitReady()
}

func TestDeleteAndRecreate(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	old := create(t, cl, "t", 2, client.TopicConfig{})
	produce(t, cl, "t", 0, values(5)...)
	p := producer(t, cl)
	if err := p.ProduceSync(bounded(t), &client.Record{Topic: "t", Partition: 1, Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	follower, err := cl.NewConsumer(client.Topics("t"), client.From(client.Latest))
	if err != nil {
		t.Fatal(err)
	}
	s := rawProduce(t, c.Broker(1).Address())
	if resp := s.do(old.ID, 0, batch(t, "raw")); resp.GetError() != nil || resp.GetBaseOffset() != 5 {
		t.Fatalf("before: %v", resp)
	}
	dir := topicDir(c.Broker(1), old.ID)
	if files := list(t, c.Broker(1), dir); len(files) != 2 {
		t.Fatalf("%s holds %v", dir, files)
	}

	if err := cl.Admin().DeleteTopic(bounded(t), "t", client.TopicID{1}); err == nil {
		t.Fatal("a topic was deleted by another topic's id")
	}
	if err := cl.Admin().DeleteTopic(bounded(t), "t", old.ID); err != nil {
		t.Fatal(err)
	}
	if files := list(t, c.Broker(1), dir); len(files) != 0 {
		t.Errorf("%s still holds %v", dir, files)
	}
	now := create(t, cl, "t", 2, client.TopicConfig{})
	if now.ID == old.ID {
		t.Fatal("the new topic has the old one's id")
	}
	// The old incarnation is gone for good, by whatever way it is asked for.
	if resp := s.do(old.ID, 0, batch(t, "late")); resp.GetError().GetReason() != "UNKNOWN_TOPIC_ID" || resp.GetBaseOffset() != -1 {
		t.Errorf("a batch for the old id: %v", resp)
	}
	testcluster.Eventually(t, func() error {
		// Until the client has heard of it, records go to the old id, which is refused too.
		err := p.ProduceSync(bounded(t), &client.Record{Topic: "t", Partition: 1, Value: []byte("new")})
		if err != nil && !errors.Is(err, client.ErrTopicRecreated) && !errors.Is(err, client.ErrUnknownTopic) {
			t.Fatalf("a producer of the old topic: %v", err)
		}
		return err
	})
	_, err = follower.Poll(bounded(t))
	if !errors.Is(err, client.ErrTopicRecreated) && !errors.Is(err, client.ErrUnknownTopic) {
		t.Errorf("a consumer of the old topic: %v", err)
	}
	if got := produce(t, cl, "t", 0, "first"); got[0] != 0 {
		t.Errorf("the new topic begins at %d", got[0])
	}
	if got := texts(read(t, cl, client.Earliest, tp("t", 0), tp("t", 1))); len(got) != 2 {
		t.Errorf("the new topic holds %q", got)
	}
	c.Broker(1).Restart()
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); !slices.Equal(got, []string{"first"}) {
		t.Errorf("after a restart: %q", got)
	}
}

func TestSmallerBatchesAfterUpdate(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	topic := create(t, cl, "t", 1, client.TopicConfig{})
	s := rawProduce(t, c.Broker(1).Address())
	big := batch(t, string(make([]byte, 4<<10)))
	if resp := s.do(topic.ID, 0, big); resp.GetError() != nil {
		t.Fatal(resp)
	}
	change := client.TopicChange{Config: client.TopicConfig{MaxBatchBytes: new(int32(2 << 10))}}
	_, plan, err := cl.Admin().PlanTopic(bounded(t), "t", change)
	if err != nil || len(plan) != 1 || plan[0] != (client.ConfigChange{Field: "max_batch_bytes", Before: "1048576", After: "2048"}) {
		t.Errorf("plan %v, %v", plan, err)
	}
	if resp := s.do(topic.ID, 0, big); resp.GetError() != nil {
		t.Fatalf("planning has changed something: %v", resp)
	}
	updated, err := cl.Admin().UpdateTopic(bounded(t), "t", change)
	if err != nil || *updated.Config.MaxBatchBytes != 2<<10 || updated.Generation <= topic.Generation {
		t.Fatalf("UpdateTopic: %+v, %v", updated, err)
	}
	refused := s.do(topic.ID, 0, big).GetError()
	if refused.GetReason() != "BATCH_TOO_LARGE" || refused.GetRetriable() ||
		refused.GetMetadata()["value"] != itoa(len(big)) || refused.GetMetadata()["limit"] != "2048" {
		t.Errorf("a batch over the new limit: %v", refused)
	}
	if resp := s.do(topic.ID, 0, batch(t, "small")); resp.GetError() != nil || resp.GetBaseOffset() != 2 {
		t.Errorf("a small batch afterwards: %v", resp)
	}
	p := producer(t, c.Client())
	err = p.ProduceSync(bounded(t), &client.Record{Topic: "t", Value: make([]byte, 4<<10)})
	var large *client.RecordTooLargeError
	if !errors.As(err, &large) || large.Limit != 2<<10 || large.Size <= 4<<10 || !errors.Is(err, client.ErrNotWritten) {
		t.Errorf("the client's error: %v", err)
	}
	// The setting outlives the process.
	c.Broker(1).Restart()
	s = rawProduce(t, c.Broker(1).Address())
	if got := s.do(topic.ID, 0, big).GetError(); got.GetReason() != "BATCH_TOO_LARGE" {
		t.Errorf("after a restart: %v", got)
	}
}

func TestNamesAndSettingsOutsideTheirLimits(t *testing.T) {
	t.Parallel()
	c := start(t)
	cl := c.Client()
	long := string(make([]byte, 250))
	for _, name := range []string{"", ".", "..", "a/b", "../a", "a\x00b", "a\nb", "__internal", "ä", long} {
		_, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: name, Partitions: 1})
		answer := wantReason(t, err, codes.InvalidArgument, "INVALID_NAME")
		if answer["limit"] == "" {
			t.Errorf("name %q: no limit in %v", name, answer)
		}
	}
	_, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "t", Partitions: 10_001})
	if a := wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); a["value"] != "10001" || a["limit"] != "at most 10000" {
		t.Errorf("too many partitions: %+v", a)
	}
	_, err = cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "t", Partitions: 1, Replicas: 2})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "t", Partitions: 1, Config: client.TopicConfig{MaxBatchBytes: new(int32(17 << 20))}})
	if a := wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT"); a["field"] != "max_batch_bytes" {
		t.Errorf("batches too large: %+v", a)
	}
	_, err = cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "t", Partitions: 1, Config: client.TopicConfig{Compact: new(true)}})
	wantReason(t, err, codes.Unimplemented, "NOT_YET_AVAILABLE")
	if topics, err := cl.Admin().Topics(bounded(t)); err != nil || len(topics) != 0 {
		t.Errorf("refused topics exist: %+v, %v", topics, err)
	}
}

func TestAutoCreateIsOptInOnBothSides(t *testing.T) {
	t.Parallel()
	willing := start(t, func(c *config.Config) { c.Topics.AutoCreate, c.Topics.Partitions = true, 3 })
	unwilling := start(t)
	send := func(c *testcluster.Cluster, opts ...client.Option) error {
		p := producer(t, c.Client(append(opts, client.TopicWait(0))...))
		return p.ProduceSync(bounded(t), &client.Record{Topic: "wanted", Partition: 2, Value: []byte("v")})
	}
	if err := send(unwilling, client.AutoCreateTopics()); !errors.Is(err, client.ErrUnknownTopic) {
		t.Errorf("the cluster does not create: %v", err)
	}
	if err := send(willing); !errors.Is(err, client.ErrUnknownTopic) {
		t.Errorf("the client did not ask: %v", err)
	}
	p := producer(t, willing.Client(client.AutoCreateTopics()))
	if err := p.ProduceSync(bounded(t), &client.Record{Topic: "wanted", Partition: 2, Value: []byte("v")}); err != nil {
		t.Errorf("both want it: %v", err)
	}
	if got := partitions(t, willing.Client(), "wanted"); len(got) != 3 {
		t.Errorf("the topic has %d partitions", len(got))
	}
	if topics, err := unwilling.Client().Admin().Topics(bounded(t)); err != nil || len(topics) != 0 {
		t.Errorf("topics %+v, %v", topics, err)
	}
}

// Each listener tells its clients the addresses that are advertised for it.
func TestListenersAdvertiseTheirOwnAddresses(t *testing.T) {
	t.Parallel()
	c := start(t, func(c *config.Config) {
		c.Listeners = append(c.Listeners,
			config.Listener{Name: "outside", Address: testcluster.Address(t), Advertised: "runnel.example.com:443"},
			config.Listener{Name: "any", Address: testcluster.Address(t)},
		)
	})
	b := c.Broker(1)
	create(t, c.Client(), "t", 1, client.TopicConfig{})
	for i, want := range []string{b.Address(), "runnel.example.com:443", b.Config.Listeners[2].Address} {
		ctx, cancel := context.WithCancel(bounded(t))
		w, err := runnelv1.NewMetadataClient(dial(t, b.Config.Listeners[i].Address)).Watch(ctx, &runnelv1.WatchRequest{Topics: []string{"t", "none"}})
		if err != nil {
			t.Fatal(err)
		}
		first, err := w.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if !first.GetSnapshot() || !first.GetBrokersChanged() || len(first.GetBrokers()) != 1 || first.GetBrokers()[0].GetAddress() != want {
			t.Errorf("listener %d: %v, want address %s", i, first, want)
		}
		if len(first.GetTopics()) != 1 || first.GetTopics()[0].GetPartitions()[0].GetLeaderId() != 1 || !slices.Equal(first.GetMissingTopics(), []string{"none"}) {
			t.Errorf("listener %d: topics %v, missing %v", i, first.GetTopics(), first.GetMissingTopics())
		}
		cancel()
	}
	info, err := c.Client().Admin().DescribeCluster(bounded(t))
	if err != nil || info.Brokers[0].Listeners["outside"] != "runnel.example.com:443" || len(info.Brokers[0].Listeners) != 3 {
		t.Errorf("DescribeCluster: %+v, %v", info, err)
	}
}
