package server_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/ids"
)

// peers is a Forwarder over the connections of a test. A call with the header is from the broker that it names.
type peers struct {
	self  string
	conns map[int32]grpc.ClientConnInterface
}

const testPeer = "test-peer"

func (p *peers) Conn(id int32) (grpc.ClientConnInterface, error) {
	if cc := p.conns[id]; cc != nil {
		return cc, nil
	}
	return nil, fmt.Errorf("%w: broker %d", peer.ErrUnknown, id)
}

func (p *peers) Outgoing(ctx context.Context) context.Context {
	return grpcmetadata.AppendToOutgoingContext(ctx, testPeer, p.self)
}

func (p *peers) VerifyPeer(ctx context.Context) (int32, error) {
	switch v := grpcmetadata.ValueFromIncomingContext(ctx, testPeer); {
	case len(v) == 0:
		return 0, peer.ErrRequired
	case v[0] == "a":
		return self, nil
	case v[0] == "b":
		return other, nil
	}
	return 0, peer.ErrRefused
}

// pair is two brokers that know each other. The first one's client is a thin one: it asks that broker for everything.
type pair struct {
	a, b   *fixture
	pa, pb *peers
}

func setupPair(t testing.TB, change ...func(*server.Config)) *pair {
	p := &pair{pa: &peers{self: "a", conns: map[int32]grpc.ClientConnInterface{}}, pb: &peers{self: "b", conns: map[int32]grpc.ClientConnInterface{}}}
	p.a = setup(t, append(change, func(c *server.Config) { c.Forwarder = p.pa })...)
	p.b = setup(t, append(change, func(c *server.Config) { c.BrokerID, c.Forwarder = other, p.pb })...)
	p.pa.conns[other], p.pb.conns[self] = p.b.conn, p.a.conn
	return p
}

// topic makes one whose partition 0 the first broker leads, partition 1 the second, and so on in turn.
func (p *pair) topic(name string, partitions int) *server.Topic {
	topic := &server.Topic{
		Name: name, ID: ids.NewTopicID(), Replicas: 1, Config: topicconfig.Effective(nil, nil, 1), Generation: 1,
		State: runnelv1.TopicState_TOPIC_STATE_ACTIVE, Created: time.UnixMilli(1),
	}
	var onA, onB []*partition.Partition
	for n := range int32(partitions) {
		leader := self + n%2
		topic.Partitions = append(topic.Partitions, server.Partition{LeaderID: leader, LeaderEpoch: 1, Replicas: []int32{leader}, ISR: []int32{leader}})
		if leader == self {
			onA, onB = append(onA, p.a.host.Leader(topic.ID, n, self, log.DefaultConfig())), append(onB, nil)
		} else {
			onA, onB = append(onA, nil), append(onB, p.b.host.Leader(topic.ID, n, other, log.DefaultConfig()))
		}
	}
	for f, parts := range map[*fixture][]*partition.Partition{p.a: onA, p.b: onB} {
		f.cluster.mu.Lock()
		f.cluster.parts[topic.ID] = parts
		f.cluster.mu.Unlock()
		f.cluster.change(func(s *server.Snapshot) { s.Topics[name], s.TopicsByID[topic.ID] = topic, topic })
	}
	return topic
}

// move gives a partition another leader in what one broker knows, and its log to that broker when part is not nil.
func (f *fixture) move(t *server.Topic, n, leader, epoch int32, part *partition.Partition) {
	f.cluster.mu.Lock()
	f.cluster.parts[t.ID][n] = part
	f.cluster.mu.Unlock()
	f.cluster.change(func(s *server.Snapshot) {
		next := *s.Topics[t.Name]
		next.Partitions = append([]server.Partition{}, next.Partitions...)
		next.Partitions[n].LeaderID, next.Partitions[n].LeaderEpoch = leader, epoch
		s.Topics[t.Name], s.TopicsByID[t.ID] = &next, &next
	})
}

func (p *pair) syncing() { p.a.syncing(); p.b.syncing() }

func direct(ctx context.Context) context.Context {
	return grpcmetadata.AppendToOutgoingContext(ctx, "runnel-route", "direct")
}

func TestProduceReachesEveryLeaderThroughAnyBroker(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 4)
	s := p.a.produce(p.a.ctx())
	const rounds = 50
	sent := map[uint64]int32{}
	for i := range rounds {
		for n := range int32(4) {
			sent[s.send(topic, n, p.a.batch(fmt.Sprintf("%d-%d", n, i)))] = n
		}
	}
	next := map[int32]int64{}
	last := map[int32]uint64{}
	for range sent {
		r := s.answer()
		n := sent[r.GetCorrelationId()]
		if r.GetError() != nil || r.GetPartition() != n || r.GetBaseOffset() != next[n] || r.GetCorrelationId() <= last[n] {
			t.Fatalf("partition %d, want offset %d: %v", n, next[n], r)
		}
		next[n]++
		last[n] = r.GetCorrelationId()
	}
	for n := range int32(4) {
		if next[n] != rounds {
			t.Errorf("partition %d: %d answers", n, next[n])
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err == nil {
		t.Fatal("the stream goes on")
	}
}

func TestDirectClientsAreToldTheLeaderInstead(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 2)
	s := p.a.produce(direct(p.a.ctx()))
	s.send(topic, 1, p.a.batch("x"))
	if r := s.answer(); r.GetError().GetReason() != "NOT_LEADER" || r.GetError().GetLeader().GetAddress() != "two:7650" {
		t.Fatalf("%v", r)
	}
	st, err := p.a.consumer.Fetch(direct(p.a.ctx()))
	if err != nil {
		t.Fatal(err)
	}
	fs := &fetchStream{p.a, st}
	fs.ask(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 1, 0, plenty)}})
	if fr := fs.frame(); fr.Error.GetReason() != "NOT_LEADER" {
		t.Fatalf("%+v", fr.FetchFrame)
	}
	resp, err := p.a.consumer.ListOffsets(direct(p.a.ctx()), &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{{TopicId: topic.ID[:], Partition: 1}}})
	if err != nil || resp.GetResults()[0].GetError().GetReason() != "NOT_LEADER" {
		t.Fatalf("%v %v", resp, err)
	}
}

// TestForwardedCallsAreForwardedOnce: two brokers that take each other for the leader must not send a request back and forth.
func TestForwardedCallsAreForwardedOnce(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 2)
	p.b.move(topic, 1, self, 2, nil) // the second broker has lost it; the first does not know yet
	s := p.a.produce(p.a.ctx())
	s.send(topic, 1, p.a.batch("x"))
	if r := s.answer(); r.GetError().GetReason() != "NOT_LEADER" || !r.GetError().GetRetriable() {
		t.Fatalf("%v", r)
	}
	fs := p.a.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(9, topic, 1, 0, plenty)}})
	if fr := fs.frame(); fr.Error.GetReason() != "NOT_LEADER" || fr.SubscriptionID != 9 {
		t.Fatalf("%+v", fr.FetchFrame)
	}
	one := int32(1)
	pub, err := p.a.producer.Publish(p.a.ctx(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{{Partition: &one}}})
	if err != nil || pub.GetResults()[0].GetError().GetReason() != "NOT_LEADER" {
		t.Fatalf("%v %v", pub, err)
	}
	// The hint is an address of the listener that the client came in on.
	if a := pub.GetResults()[0].GetError().GetLeader().GetAddress(); a != "two:7650" {
		t.Errorf("the client is sent to %q", a)
	}
}

func TestForgedEnvelopesAndPeersAreRefused(t *testing.T) {
	p := setupPair(t)
	p.topic("t", 2)
	env := string([]byte{0x0a, 1, 'x', 0x12, 1, 'y'})
	for name, tc := range map[string]struct {
		md     []string
		code   codes.Code
		reason string
	}{
		"an envelope without credentials":    {[]string{"runnel-forwarded-bin", env}, codes.PermissionDenied, "FORGED_ENVELOPE"},
		"an envelope with wrong credentials": {[]string{"runnel-forwarded-bin", env, testPeer, "mallory"}, codes.PermissionDenied, "PEER_REFUSED"},
		"two envelopes":                      {[]string{"runnel-forwarded-bin", env, "runnel-forwarded-bin", env, testPeer, "b"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"an envelope of garbage":             {[]string{"runnel-forwarded-bin", "\xff\xff", testPeer, "b"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"an empty envelope":                  {[]string{"runnel-forwarded-bin", "", testPeer, "b"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
		"an envelope that is too long":       {[]string{"runnel-forwarded-bin", string(make([]byte, 2000)), testPeer, "b"}, codes.InvalidArgument, "INVALID_ARGUMENT"},
	} {
		ctx := grpcmetadata.AppendToOutgoingContext(p.a.ctx(), tc.md...)
		_, err := p.a.admin.DescribeCluster(ctx, &runnelv1.DescribeClusterRequest{})
		if c, r, _ := reasonOf(err); c != tc.code || r != tc.reason {
			t.Errorf("%s: %v %s (%v)", name, c, r, err)
		}
	}
	// Credentials alone neither help nor hurt a client's call.
	if _, err := p.a.admin.DescribeCluster(grpcmetadata.AppendToOutgoingContext(p.a.ctx(), testPeer, "b"), &runnelv1.DescribeClusterRequest{}); err != nil {
		t.Error(err)
	}
}

func TestReplicationCallsByAClientAreRefused(t *testing.T) {
	p := setupPair(t)
	alone := setup(t)
	for name, f := range map[string]*fixture{"with peers": p.a, "without": alone} {
		api := runnelv1.NewReplicationClient(f.conn)
		replicate, err := api.Replicate(f.ctx())
		if err != nil {
			t.Fatal(err)
		}
		_, err = replicate.Recv()
		if c, r, _ := reasonOf(err); c != codes.PermissionDenied || r != "PEER_REQUIRED" {
			t.Errorf("%s: Replicate: %v", name, err)
		}
		beat, err := api.Heartbeat(f.ctx())
		if err != nil {
			t.Fatal(err)
		}
		_, err = beat.Recv()
		if c, r, _ := reasonOf(err); c != codes.PermissionDenied || r != "PEER_REQUIRED" {
			t.Errorf("%s: Heartbeat: %v", name, err)
		}
		inventory, err := api.Inventory(f.ctx(), &runnelv1.InventoryRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = inventory.Recv()
		if c, r, _ := reasonOf(err); c != codes.PermissionDenied || r != "PEER_REQUIRED" {
			t.Errorf("%s: Inventory: %v", name, err)
		}
	}
}

func TestForwardedBatchesOfABrokerThatStops(t *testing.T) {
	p := setupPair(t)
	topic := p.topic("t", 2) // nobody syncs: what is appended stays unanswered
	s := p.a.produce(p.a.ctx())
	s.send(topic, 1, p.a.batch("in flight"))
	waitFor(t, func() bool { return p.b.cluster.parts[topic.ID][1].Status().Offsets.End == 1 })
	p.b.conn.Close()
	r := s.answer()
	if r.GetError().GetReason() != "OUTCOME_UNKNOWN" || !r.GetError().GetRetriable() {
		t.Fatalf("%v", r)
	}
	s.send(topic, 1, p.a.batch("later"))
	if r := s.answer(); r.GetError().GetReason() != "BROKER_UNREACHABLE" || !r.GetError().GetRetriable() || r.GetCorrelationId() != 2 {
		t.Fatalf("%v", r)
	}
	// What this broker leads is not concerned.
	s.send(topic, 0, p.a.batch("mine"))
	waitFor(t, func() bool {
		p.a.host.Sync()
		return p.a.cluster.parts[topic.ID][0].Status().Offsets.HighWatermark == 1
	})
	if r := s.answer(); r.GetError() != nil || r.GetPartition() != 0 {
		t.Fatalf("%v", r)
	}
}

// TestForwardedBatchesOfABrokerThatHangs: once another leads, nobody waits for its answers, and nothing overtakes what it was sent.
func TestForwardedBatchesOfABrokerThatHangs(t *testing.T) {
	p := setupPair(t)
	topic := p.topic("t", 2)
	s := p.a.produce(p.a.ctx())
	s.send(topic, 1, p.a.batch("hanging"))
	waitFor(t, func() bool { return p.b.cluster.parts[topic.ID][1].Status().Offsets.End == 1 })
	p.a.move(topic, 1, self, 2, p.a.host.Leader(topic.ID, 1, self, log.DefaultConfig()))
	s.send(topic, 1, p.a.batch("overtaking"))
	first, second := s.answer(), s.answer()
	if first.GetCorrelationId() != 1 || first.GetError().GetReason() != "OUTCOME_UNKNOWN" {
		t.Fatalf("%v", first)
	}
	if second.GetCorrelationId() != 2 || second.GetError().GetReason() != "NOT_LEADER" {
		t.Fatalf("%v", second)
	}
	s.send(topic, 1, p.a.batch("after"))
	waitFor(t, func() bool {
		p.a.host.Sync()
		return p.a.cluster.parts[topic.ID][1].Status().Offsets.HighWatermark == 1
	})
	if r := s.answer(); r.GetError() != nil || r.GetBaseOffset() != 0 {
		t.Fatalf("%v", r)
	}
}

func TestForwardedBatchesAreChecked(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 2)
	s := p.a.produce(p.a.ctx())
	bad := p.a.batch("x")
	bad[len(bad)-1] ^= 1
	s.send(topic, 1, bad)
	if r := s.answer(); r.GetError().GetReason() != "CORRUPT_BATCH" {
		t.Fatalf("%v", r)
	}
	s.send(topic, 1, p.a.batch("y"), func(f *codec.ProduceFrame) { f.LeaderEpoch = 9 })
	if r := s.answer(); r.GetError().GetReason() != "UNKNOWN_LEADER_EPOCH" {
		t.Fatalf("%v", r)
	}
	s.send(topic, 1, p.a.batch("z"), func(f *codec.ProduceFrame) { f.Acks = runnelv1.Acks(9) })
	if r := s.answer(); r.GetError().GetReason() != "INVALID_ARGUMENT" {
		t.Fatalf("%v", r)
	}
}

func TestPublishIsSpreadOverLeaders(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 4)
	req := &runnelv1.PublishRequest{Topic: "t", TopicId: topic.ID[:]}
	for i := range int32(8) {
		n := i % 4
		req.Records = append(req.Records, &runnelv1.PublishRecord{Partition: &n, ValueKind: &runnelv1.PublishRecord_Text{Text: fmt.Sprint(i)}})
	}
	resp, err := p.a.producer.Publish(p.a.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range resp.GetResults() {
		if r.GetError() != nil || r.GetPartition() != int32(i)%4 || r.GetOffset() != int64(i/4) || r.GetTimestampMs() <= 0 {
			t.Errorf("record %d: %v", i, r)
		}
	}
	// A retry of a numbered request is recognised, wherever the partition is.
	one, id, epoch, seq := int32(1), int64(77), int32(0), int32(0)
	numbered := &runnelv1.PublishRequest{
		Topic: "t", ProducerId: &id, ProducerEpoch: &epoch, Sequence: &seq,
		Records: []*runnelv1.PublishRecord{{Partition: &one, ValueKind: &runnelv1.PublishRecord_Text{Text: "once"}}},
	}
	for range 2 {
		resp, err := p.a.producer.Publish(p.a.ctx(), numbered)
		if err != nil || resp.GetResults()[0].GetError() != nil || resp.GetResults()[0].GetOffset() != 2 {
			t.Fatalf("%v %v", resp, err)
		}
	}
	recreated := ids.NewTopicID()
	_, err = p.a.producer.Publish(p.a.ctx(), &runnelv1.PublishRequest{Topic: "t", TopicId: recreated[:], Records: req.GetRecords()})
	wantReason(t, err, codes.FailedPrecondition, "TOPIC_RECREATED")
}

func TestPublishThroughABrokerThatReachesNobody(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	p.topic("t", 2)
	p.pa.conns[other] = nil
	zero, one := int32(0), int32(1)
	resp, err := p.a.producer.Publish(p.a.ctx(), &runnelv1.PublishRequest{Topic: "t", Records: []*runnelv1.PublishRecord{{Partition: &one}, {Partition: &zero}}})
	if err != nil {
		t.Fatal(err)
	}
	if e := resp.GetResults()[0].GetError(); e.GetReason() != "BROKER_UNREACHABLE" || !e.GetRetriable() {
		t.Errorf("%v", e)
	}
	if e := resp.GetResults()[1].GetError(); e != nil {
		t.Errorf("%v", e)
	}
}

func TestListAndDeleteAndDescribeAskTheLeaders(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 4)
	for n := range int32(4) {
		f := p.a
		if n%2 == 1 {
			f = p.b
		}
		f.put(topic, n, "a", "b", "c")
	}
	req := &runnelv1.ListOffsetsRequest{}
	for n := range int32(5) {
		req.Queries = append(req.Queries, &runnelv1.OffsetQuery{TopicId: topic.ID[:], Partition: n, At: &runnelv1.Position{At: &runnelv1.Position_Latest{Latest: true}}})
	}
	offsets, err := p.a.consumer.ListOffsets(p.a.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	for n, r := range offsets.GetResults()[:4] {
		if r.GetError() != nil || r.GetOffset() != 3 || r.GetPartition() != int32(n) {
			t.Errorf("%v", r)
		}
	}
	if e := offsets.GetResults()[4].GetError(); e.GetReason() != "UNKNOWN_PARTITION" {
		t.Errorf("%v", e)
	}
	del, err := p.a.admin.DeleteRecords(p.a.ctx(), &runnelv1.DeleteRecordsRequest{
		Topic: "t", Targets: []*runnelv1.DeleteRecordsTarget{{Partition: 1, BeforeOffset: 2}, {Partition: 0, BeforeOffset: 1}, {Partition: 3, BeforeOffset: -5}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := del.GetResults(); r[0].GetLogStartOffset() != 2 || r[1].GetLogStartOffset() != 1 || r[2].GetError().GetReason() != "INVALID_ARGUMENT" {
		t.Errorf("%v", r)
	}
	desc, err := p.a.admin.DescribeTopic(p.a.ctx(), &runnelv1.DescribeTopicRequest{Name: "t"})
	if err != nil {
		t.Fatal(err)
	}
	for n, st := range desc.GetPartitions() {
		if st.GetError() != nil || st.GetHighWatermark() != 3 || st.GetHealth() != runnelv1.PartitionHealth_PARTITION_HEALTH_ONLINE ||
			st.GetReplicaStatus()[0].GetState() != runnelv1.ReplicaState_REPLICA_STATE_LEADER || st.GetReplicaStatus()[0].GetAckedOffset() != 3 {
			t.Errorf("partition %d: %v", n, st)
		}
	}
	// A broker that is not reached leaves what the metadata says.
	p.pa.conns[other] = nil
	part, err := p.a.admin.DescribePartitions(p.a.ctx(), &runnelv1.DescribePartitionsRequest{Topic: "t", Partitions: []int32{1, 0, 17}})
	if err != nil {
		t.Fatal(err)
	}
	if st := part.GetPartitions()[0]; st.GetError().GetReason() != "BROKER_UNREACHABLE" || st.GetLeaderId() != other || st.GetHighWatermark() != -1 {
		t.Errorf("%v", st)
	}
	if st := part.GetPartitions()[1]; st.GetError() != nil || st.GetHighWatermark() != 3 {
		t.Errorf("%v", st)
	}
	if st := part.GetPartitions()[2]; st.GetError().GetReason() != "UNKNOWN_PARTITION" {
		t.Errorf("%v", st)
	}
}

func TestRecoverPartitionGoesToTheReplica(t *testing.T) {
	p := setupPair(t)
	p.topic("t", 2)
	b := int32(other)
	if r, err := p.a.admin.RecoverPartition(p.a.ctx(), &runnelv1.RecoverPartitionRequest{Topic: "t", Partition: 1, BrokerId: &b}); err != nil || r.GetKeptEndOffset() != 5 {
		t.Fatalf("%v %v", r, err)
	}
	_, err := p.a.admin.RecoverPartition(p.a.ctx(), &runnelv1.RecoverPartitionRequest{Topic: "t", Partition: 0, BrokerId: &b})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = p.a.admin.RecoverPartition(p.a.ctx(), &runnelv1.RecoverPartitionRequest{Topic: "t", Partition: 0, TopicId: []byte("short")})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	p.pa.conns[other] = nil
	_, err = p.a.admin.RecoverPartition(p.a.ctx(), &runnelv1.RecoverPartitionRequest{Topic: "t", Partition: 1})
	wantReason(t, err, codes.Unavailable, "BROKER_UNREACHABLE")
}
