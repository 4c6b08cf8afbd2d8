package server_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/server"
)

// admin is a ClusterAdmin that answers with its own name, and fails when it is told to.
type admin struct {
	name string
	fail error
	seen []proto.Message
	calm bool // it suspects nobody
	rate atomic.Int64
}

func answer[R any](a *admin, r proto.Message, resp R) (R, error) {
	a.seen = append(a.seen, r)
	if a.fail != nil {
		var zero R
		return zero, a.fail
	}
	return resp, nil
}

func (a *admin) ReassignPartitions(_ context.Context, r *runnelv1.ReassignPartitionsRequest) ([]server.ReassignResult, error) {
	var out []server.ReassignResult
	for _, t := range r.GetTargets() {
		res := server.ReassignResult{Message: &runnelv1.ReassignmentResult{Topic: t.GetTopic(), Partition: t.GetPartition(), Target: t.GetReplicas()}}
		for _, id := range t.GetReplicas() {
			if id > 3 {
				res = server.ReassignResult{Err: fmt.Errorf("%w: %d", server.ErrUnknownBroker, id)}
			}
		}
		out = append(out, res)
	}
	return answer(a, r, out)
}

func (a *admin) ListReassignments(_ context.Context, r *runnelv1.ListReassignmentsRequest) (*runnelv1.ListReassignmentsResponse, error) {
	return answer(a, r, &runnelv1.ListReassignmentsResponse{Total: 7})
}

func (a *admin) ElectLeaders(_ context.Context, r *runnelv1.ElectLeadersRequest) ([]server.ElectResult, error) {
	return answer(a, r, []server.ElectResult{{Err: fmt.Errorf("%w: broker 2", server.ErrNotInSync)}})
}

func (a *admin) DrainBroker(_ context.Context, r *runnelv1.DrainBrokerRequest) (*runnelv1.DrainBrokerResponse, error) {
	return answer(a, r, &runnelv1.DrainBrokerResponse{Replicas: 5})
}

func (a *admin) UndrainBroker(_ context.Context, r *runnelv1.UndrainBrokerRequest) (*runnelv1.UndrainBrokerResponse, error) {
	return answer(a, r, &runnelv1.UndrainBrokerResponse{})
}

func (a *admin) DecommissionBroker(_ context.Context, r *runnelv1.DecommissionBrokerRequest) (*runnelv1.DecommissionBrokerResponse, error) {
	return answer(a, r, &runnelv1.DecommissionBrokerResponse{})
}

func (a *admin) FenceBroker(_ context.Context, r *runnelv1.FenceBrokerRequest) (*runnelv1.FenceBrokerResponse, error) {
	return answer(a, r, &runnelv1.FenceBrokerResponse{})
}

func (a *admin) UnfenceBroker(_ context.Context, r *runnelv1.UnfenceBrokerRequest) (*runnelv1.UnfenceBrokerResponse, error) {
	return answer(a, r, &runnelv1.UnfenceBrokerResponse{})
}

func (a *admin) SafeToStop(_ context.Context, r *runnelv1.SafeToStopRequest) (*runnelv1.SafeToStopResponse, error) {
	return answer(a, r, &runnelv1.SafeToStopResponse{Safe: true})
}

func (a *admin) ListOperations(_ context.Context, r *runnelv1.ListOperationsRequest) (*runnelv1.ListOperationsResponse, error) {
	return answer(a, r, &runnelv1.ListOperationsResponse{})
}

func (a *admin) Throttle(bytesPerSecond int64) { a.rate.Store(bytesPerSecond) }

func (a *admin) BrokerStatus(st *runnelv1.BrokerStatus) {
	st.Suspect = st.GetId() == other && !a.calm
	if (st.GetId() == other) == (a.name == "number two") { // only its own
		st.SizeBytes = int64(len(a.name))
	}
}

func (a *admin) Rates(server.PartitionRef) (server.Rates, bool) {
	return server.Rates{RecordsIn: 1, BytesIn: 2, BytesOut: 3}, true
}

func (a *admin) DescribeConfig() []*runnelv1.ConfigEntry {
	return []*runnelv1.ConfigEntry{{Name: "z"}, {Name: "brokerName", Value: a.name}}
}

func setupAdmins(t *testing.T) (p *pair, a, b *admin) {
	a, b = &admin{name: "first"}, &admin{name: "number two"}
	p = setupPair(t, func(c *server.Config) { c.Cluster = a })
	// The second broker has its own; it is the controller.
	p.b.conn.Close()
	pb := p.pb
	p.b = setup(t, func(c *server.Config) { c.BrokerID, c.Forwarder, c.Cluster = other, pb, b })
	p.pa.conns[other] = p.b.conn
	for _, f := range []*fixture{p.a, p.b} {
		f.cluster.change(func(s *server.Snapshot) { s.ControllerID = other })
	}
	return p, a, b
}

// calls makes every call for the controller with a request that passes the checks.
func (f *fixture) controllerCalls() map[string]func(context.Context) error {
	one := []*runnelv1.PartitionTarget{{Topic: "t", Partition: 0, Replicas: []int32{1, 2}}}
	return map[string]func(context.Context) error{
		"ReassignPartitions": func(ctx context.Context) error {
			_, err := f.admin.ReassignPartitions(ctx, &runnelv1.ReassignPartitionsRequest{Targets: one})
			return err
		},
		"ListReassignments": func(ctx context.Context) error {
			_, err := f.admin.ListReassignments(ctx, &runnelv1.ListReassignmentsRequest{Topics: []string{"t"}})
			return err
		},
		"ElectLeaders": func(ctx context.Context) error {
			_, err := f.admin.ElectLeaders(ctx, &runnelv1.ElectLeadersRequest{})
			return err
		},
		"DrainBroker": func(ctx context.Context) error {
			_, err := f.admin.DrainBroker(ctx, &runnelv1.DrainBrokerRequest{BrokerId: 1})
			return err
		},
		"UndrainBroker": func(ctx context.Context) error {
			_, err := f.admin.UndrainBroker(ctx, &runnelv1.UndrainBrokerRequest{BrokerId: 1})
			return err
		},
		"DecommissionBroker": func(ctx context.Context) error {
			_, err := f.admin.DecommissionBroker(ctx, &runnelv1.DecommissionBrokerRequest{BrokerId: 1, StorageId: "s"})
			return err
		},
		"FenceBroker": func(ctx context.Context) error {
			_, err := f.admin.FenceBroker(ctx, &runnelv1.FenceBrokerRequest{BrokerId: 1, StorageId: "s"})
			return err
		},
		"UnfenceBroker": func(ctx context.Context) error {
			_, err := f.admin.UnfenceBroker(ctx, &runnelv1.UnfenceBrokerRequest{BrokerId: 1, StorageId: "s"})
			return err
		},
		"SafeToStop": func(ctx context.Context) error {
			_, err := f.admin.SafeToStop(ctx, &runnelv1.SafeToStopRequest{BrokerId: 1})
			return err
		},
		"ListOperations": func(ctx context.Context) error {
			_, err := f.admin.ListOperations(ctx, &runnelv1.ListOperationsRequest{})
			return err
		},
	}
}

func TestCallsForTheControllerGoThere(t *testing.T) {
	p, a, b := setupAdmins(t)
	calls := p.a.controllerCalls()
	for name, call := range calls {
		if err := call(p.a.ctx()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(a.seen) != 0 || len(b.seen) != len(calls) {
		t.Fatalf("the first broker had %d calls, the controller %d of %d", len(a.seen), len(b.seen), len(calls))
	}
	// What the controller refuses comes back as it is.
	b.fail = fmt.Errorf("%w: broker 1 has 3", server.ErrNotEmpty)
	for name, call := range calls {
		if c, r, _ := reasonOf(call(p.a.ctx())); c != codes.FailedPrecondition || r != "NOT_EMPTY" {
			t.Errorf("%s: %v %s", name, c, r)
		}
	}
	// A broker that is not the controller any more does not send it on.
	b.fail = metadata.ErrNotController
	for name, call := range calls {
		c, r, m := reasonOf(call(p.a.ctx()))
		if c != codes.Unavailable || r != "NOT_CONTROLLER" || m["retriable"] != "true" {
			t.Errorf("%s: %v %s", name, c, r)
		}
	}
	p.a.cluster.change(func(s *server.Snapshot) { s.ControllerID = -1 })
	for name, call := range calls {
		if c, r, _ := reasonOf(call(p.a.ctx())); c != codes.Unavailable || r != "NOT_CONTROLLER" {
			t.Errorf("%s without a controller: %v %s", name, c, r)
		}
	}
	if len(a.seen) != 0 {
		t.Errorf("the first broker had %d calls", len(a.seen))
	}
}

func TestCallsForTheControllerThatIsGone(t *testing.T) {
	p, _, _ := setupAdmins(t)
	p.pa.conns[other] = nil
	for name, call := range p.a.controllerCalls() {
		if c, r, _ := reasonOf(call(p.a.ctx())); c != codes.Unavailable || r != "BROKER_UNREACHABLE" {
			t.Errorf("%s: %v %s", name, c, r)
		}
	}
	// A cluster without a controller can still be described.
	r, err := p.a.admin.DescribeCluster(p.a.ctx(), &runnelv1.DescribeClusterRequest{})
	if err != nil || len(r.GetBrokers()) != 2 || r.GetBrokers()[0].GetSizeBytes() != int64(len("first")) {
		t.Fatalf("%v %v", r, err)
	}
}

func TestClusterCallsRefuseBadRequests(t *testing.T) {
	p, a, b := setupAdmins(t)
	target := func(topic string, replicas ...int32) *runnelv1.ReassignPartitionsRequest {
		return &runnelv1.ReassignPartitionsRequest{Targets: []*runnelv1.PartitionTarget{{Topic: topic, Replicas: replicas}}}
	}
	twice := target("t", 1)
	twice.Targets = append(twice.Targets, twice.GetTargets()[0])
	negative := int64(-1)
	for name, r := range map[string]*runnelv1.ReassignPartitionsRequest{
		"nothing":                         {},
		"no replicas":                     target("t"),
		"a broker twice":                  target("t", 1, 1),
		"a negative broker":               target("t", -1),
		"too many replicas":               target("t", make([]int32, 40)...),
		"a name that leaves its key":      target("../../x", 1),
		"a name with a line break":        target("t\r\nx", 1),
		"a name of 10 kB":                 target(string(make([]byte, 10_000)), 1),
		"a partition twice":               twice,
		"a cancellation with replicas":    {Cancel: true, Targets: target("t", 1).GetTargets()},
		"a negative throttle":             {ThrottleBytesPerSecond: &negative},
		"a topic id of the wrong length":  {Targets: []*runnelv1.PartitionTarget{{Topic: "t", Replicas: []int32{1}, TopicId: []byte("x")}}},
		"more targets than are allowed":   {Targets: make([]*runnelv1.PartitionTarget, 10_001)},
		"a target that is not filled in ": {Targets: []*runnelv1.PartitionTarget{{}}},
	} {
		_, err := p.a.admin.ReassignPartitions(p.a.ctx(), r)
		if c, reason, _ := reasonOf(err); c != codes.InvalidArgument || reason != "INVALID_ARGUMENT" && reason != "INVALID_NAME" {
			t.Errorf("%s: %v %s (%v)", name, c, reason, err)
		}
	}
	for name, r := range map[string]*runnelv1.ElectLeadersRequest{
		"unclean without partitions": {Type: runnelv1.ElectionType_ELECTION_TYPE_UNCLEAN, AcceptDataLoss: true},
		"unclean without consent": {
			Type:    runnelv1.ElectionType_ELECTION_TYPE_UNCLEAN,
			Targets: []*runnelv1.ElectionTarget{{Topic: "t", BrokerId: proto.Int32(1)}},
		},
		"unclean without a broker": {
			Type: runnelv1.ElectionType_ELECTION_TYPE_UNCLEAN, AcceptDataLoss: true, Targets: []*runnelv1.ElectionTarget{{Topic: "t"}},
		},
		"an unknown type":      {Type: 9},
		"a negative partition": {Targets: []*runnelv1.ElectionTarget{{Topic: "t", Partition: -1}}},
	} {
		_, err := p.a.admin.ElectLeaders(p.a.ctx(), r)
		if c, reason, _ := reasonOf(err); c != codes.InvalidArgument || reason != "INVALID_ARGUMENT" {
			t.Errorf("%s: %v %s (%v)", name, c, reason, err)
		}
	}
	_, err := p.a.admin.FenceBroker(p.a.ctx(), &runnelv1.FenceBrokerRequest{BrokerId: 1})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = p.a.admin.DrainBroker(p.a.ctx(), &runnelv1.DrainBrokerRequest{BrokerId: -3})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	_, err = p.a.admin.SafeToStop(p.a.ctx(), &runnelv1.SafeToStopRequest{BrokerId: 1, Limit: 20_000})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	if len(a.seen)+len(b.seen) != 0 {
		t.Errorf("a bad request went through")
	}
	// A broker that does not exist is an error of its partition alone.
	resp, err := p.a.admin.ReassignPartitions(p.a.ctx(), &runnelv1.ReassignPartitionsRequest{Targets: []*runnelv1.PartitionTarget{
		{Topic: "t", Partition: 0, Replicas: []int32{1, 9}}, {Topic: "t", Partition: 1, Replicas: []int32{1, 2}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if r := resp.GetResults(); r[0].GetError().GetReason() != "BROKER_UNKNOWN" || r[0].GetTopic() != "t" || r[1].GetError() != nil || r[1].GetPartition() != 1 {
		t.Errorf("%v", r)
	}
}

func TestDescribeConfigOfAnyBroker(t *testing.T) {
	p, _, _ := setupAdmins(t)
	for want, id := range map[string]*int32{"first": nil, "number two": proto.Int32(other)} {
		r, err := p.a.admin.DescribeConfig(p.a.ctx(), &runnelv1.DescribeConfigRequest{BrokerId: id})
		if err != nil || r.GetEntries()[0].GetValue() != want {
			t.Errorf("%s: %v %v", want, r, err)
		}
	}
	_, err := p.a.admin.DescribeConfig(p.a.ctx(), &runnelv1.DescribeConfigRequest{BrokerId: proto.Int32(44)})
	wantReason(t, err, codes.NotFound, "BROKER_UNKNOWN")
}

// TestThrottleReachesEveryBroker: copies come from all of them.
func TestThrottleReachesEveryBroker(t *testing.T) {
	p, a, b := setupAdmins(t)
	set := func(r *runnelv1.ReassignPartitionsRequest) error {
		_, err := p.a.admin.ReassignPartitions(p.a.ctx(), r)
		return err
	}
	one := []*runnelv1.PartitionTarget{{Topic: "t", Partition: 0, Replicas: []int32{1, 2}}}
	if err := set(&runnelv1.ReassignPartitionsRequest{ThrottleBytesPerSecond: proto.Int64(9), ValidateOnly: true}); err != nil || a.rate.Load()+b.rate.Load() != 0 {
		t.Fatalf("a dry run: %v, %d and %d", err, a.rate.Load(), b.rate.Load())
	}
	if err := set(&runnelv1.ReassignPartitionsRequest{ThrottleBytesPerSecond: proto.Int64(1 << 20)}); err != nil || a.rate.Load() != 1<<20 || b.rate.Load() != 1<<20 {
		t.Fatalf("alone: %v, %d and %d", err, a.rate.Load(), b.rate.Load())
	}
	if len(a.seen)+len(b.seen) != 0 {
		t.Fatalf("something moved: %v %v", a.seen, b.seen)
	}
	if err := set(&runnelv1.ReassignPartitionsRequest{ThrottleBytesPerSecond: proto.Int64(0), Targets: one}); err != nil || a.rate.Load()+b.rate.Load() != 0 {
		t.Fatalf("with a move: %v, %d and %d", err, a.rate.Load(), b.rate.Load())
	}
	if len(b.seen) != 1 || len(b.seen[0].(*runnelv1.ReassignPartitionsRequest).GetTargets()) != 1 {
		t.Fatalf("the controller saw %v", b.seen)
	}
	p.pa.conns[other] = nil
	wantReason(t, set(&runnelv1.ReassignPartitionsRequest{ThrottleBytesPerSecond: proto.Int64(5), Targets: one}), codes.Unavailable, "BROKER_UNREACHABLE")
}

// TestDescribeClusterAsksEachBrokerWhatItMeasured: whoever is the controller, and whoever answers.
func TestDescribeClusterAsksEachBrokerWhatItMeasured(t *testing.T) {
	for _, controller := range []int32{self, other, -1} {
		p, a, b := setupAdmins(t)
		a.calm, b.calm = true, true
		for _, f := range []*fixture{p.a, p.b} {
			f.cluster.change(func(s *server.Snapshot) { s.ControllerID = controller })
		}
		r, err := p.a.admin.DescribeCluster(p.a.ctx(), &runnelv1.DescribeClusterRequest{})
		if err != nil || len(r.GetBrokers()) != 2 {
			t.Fatalf("controller %d: %v %v", controller, r, err)
		}
		for i, name := range []string{"first", "number two"} {
			if got := r.GetBrokers()[i]; got.GetSizeBytes() != int64(len(name)) || got.GetFreeBytes() != -1 {
				t.Errorf("controller %d: %v", controller, got)
			}
		}
	}
}

// TestALeaderThatIsGoneLeadsNothing: the record names it until somebody else may lead.
func TestALeaderThatIsGoneLeadsNothing(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	f.cluster.change(func(s *server.Snapshot) {
		next := *s.Topics["t"]
		next.Partitions = []server.Partition{{LeaderID: 8, LeaderEpoch: 3, Replicas: []int32{8, self}, ISR: []int32{8}}}
		s.Topics["t"], s.TopicsByID[topic.ID] = &next, &next
	})
	r, err := f.admin.DescribeCluster(f.ctx(), &runnelv1.DescribeClusterRequest{})
	if err != nil || r.GetLeaderlessPartitions() != 1 {
		t.Fatalf("%v %v", r, err)
	}
	d, err := f.admin.DescribePartitions(f.ctx(), &runnelv1.DescribePartitionsRequest{Topic: "t"})
	if err != nil || len(d.GetPartitions()) != 1 {
		t.Fatalf("%v %v", d, err)
	}
	p := d.GetPartitions()[0]
	if p.GetHealth() != runnelv1.PartitionHealth_PARTITION_HEALTH_OFFLINE || p.GetDetail() != "its leader, broker 8, is not running; in sync are [8]" ||
		p.GetError() != nil || p.GetLeaderId() != 8 || len(p.GetReplicaStatus()) != 2 {
		t.Errorf("%v", p)
	}
}

// TestBelowTheMinimumCountsWhoIsThere: an in-sync set does not shrink below the minimum, so brokers that are gone stay in it.
func TestBelowTheMinimumCountsWhoIsThere(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 2)
	f.cluster.change(func(s *server.Snapshot) {
		next := *s.Topics["t"]
		next.Config = &runnelv1.TopicConfig{MinInSyncReplicas: proto.Int32(2)}
		next.Partitions = []server.Partition{
			{LeaderID: self, LeaderEpoch: 1, Replicas: []int32{self, 8, 9}, ISR: []int32{self, 8}},
			{LeaderID: self, LeaderEpoch: 1, Replicas: []int32{self, other, 9}, ISR: []int32{self, other}},
		}
		s.Topics["t"], s.TopicsByID[topic.ID] = &next, &next
	})
	r, err := f.admin.DescribeCluster(f.ctx(), &runnelv1.DescribeClusterRequest{})
	if err != nil || r.GetBelowMinimumPartitions() != 1 || r.GetUnderReplicatedPartitions() != 2 {
		t.Fatalf("%v %v", r, err)
	}
}

func TestDescribeClusterKnowsBrokersThatAreAway(t *testing.T) {
	p, _, _ := setupAdmins(t)
	topic := p.topic("t", 2)
	p.b.cluster.change(func(s *server.Snapshot) {
		s.Storages = map[int32]*server.Storage{
			self:  {BrokerID: self, State: runnelv1.BrokerState_BROKER_STATE_DRAINING, EligibleEpoch: 7},
			other: {BrokerID: other, State: runnelv1.BrokerState_BROKER_STATE_ACTIVE, EligibleEpoch: 1, Damaged: map[server.PartitionRef]bool{{TopicID: topic.ID}: true}},
			3:     {BrokerID: 3, State: runnelv1.BrokerState_BROKER_STATE_FENCED, StorageID: "three"},
			4:     {BrokerID: 4, State: runnelv1.BrokerState_BROKER_STATE_DECOMMISSIONED},
		}
		next := *s.Topics["t"]
		next.Partitions = []server.Partition{
			{LeaderID: -1, LeaderEpoch: 2, Replicas: []int32{self, 3}, ISR: nil},
			{LeaderID: other, LeaderEpoch: 1, Replicas: []int32{other, 3}, ISR: []int32{other}},
		}
		s.Topics["t"], s.TopicsByID[topic.ID] = &next, &next
	})
	r, err := p.a.admin.DescribeCluster(p.a.ctx(), &runnelv1.DescribeClusterRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.GetBrokers()) != 3 || r.GetUnderReplicatedPartitions() != 2 || r.GetLeaderlessPartitions() != 1 || r.GetBelowMinimumPartitions() != 1 {
		t.Fatalf("%v", r)
	}
	one, two, three := r.GetBrokers()[0], r.GetBrokers()[1], r.GetBrokers()[2]
	if one.GetState() != runnelv1.BrokerState_BROKER_STATE_DRAINING || !one.GetEligible() || one.GetController() || one.GetUnderReplicated() != 1 {
		t.Errorf("%v", one)
	}
	if two.GetEligible() || !two.GetController() || two.GetDamaged() != 1 || two.GetLeaders() != 1 || !two.GetSuspect() {
		t.Errorf("%v", two)
	}
	if three.GetLive() || three.GetStorageId() != "three" || three.GetReplicas() != 2 || three.GetUnderReplicated() != 2 {
		t.Errorf("%v", three)
	}
}

// TestReplicaStatesByMetadata: without a leader to ask, the metadata says how far a replica is.
func TestReplicaStatesByMetadata(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	ref := server.PartitionRef{TopicID: topic.ID}
	f.cluster.change(func(s *server.Snapshot) {
		next := *s.Topics["t"]
		next.Partitions = []server.Partition{{
			LeaderID: -1, LeaderEpoch: 2, Replicas: []int32{1, 2, 5, 6, 7}, ISR: []int32{2, 7}, Adding: []int32{6}, Removing: []int32{2},
		}}
		s.Topics["t"], s.TopicsByID[topic.ID] = &next, &next
		s.Storages = map[int32]*server.Storage{
			2: {BrokerID: 2, State: runnelv1.BrokerState_BROKER_STATE_ACTIVE, Damaged: map[server.PartitionRef]bool{ref: true}},
			6: {BrokerID: 6, State: runnelv1.BrokerState_BROKER_STATE_FENCED},
		}
		s.Brokers = append(s.Brokers, &server.Broker{ID: 6}, &server.Broker{ID: 7})
	})
	r, err := f.admin.DescribePartitions(f.ctx(), &runnelv1.DescribePartitionsRequest{Topic: "t"})
	if err != nil {
		t.Fatal(err)
	}
	st := r.GetPartitions()[0]
	if !st.GetUnderReplicated() || len(st.GetReplicaStatus()) != 5 {
		t.Fatalf("%v", st)
	}
	want := []runnelv1.ReplicaState{
		runnelv1.ReplicaState_REPLICA_STATE_STARTING, runnelv1.ReplicaState_REPLICA_STATE_DAMAGED, runnelv1.ReplicaState_REPLICA_STATE_BROKER_DOWN,
		runnelv1.ReplicaState_REPLICA_STATE_STARTING, runnelv1.ReplicaState_REPLICA_STATE_IN_SYNC,
	}
	for i, r := range st.GetReplicaStatus() {
		if r.GetState() != want[i] || r.GetAckedOffset() != -1 && r.GetBrokerId() != self {
			t.Errorf("%v, want %v", r, want[i])
		}
	}
	if r := st.GetReplicaStatus(); !r[1].GetRemoving() || !r[3].GetAdding() || r[3].GetBrokerState() != runnelv1.BrokerState_BROKER_STATE_FENCED {
		t.Errorf("%v", r)
	}
}
