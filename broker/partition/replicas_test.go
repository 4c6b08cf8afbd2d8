package partition_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

// replicas are one partition on several brokers, joined by a network that delivers when the test says so.
type replicas struct {
	*testing.T
	answers
	clk     *clock.Fake
	topic   ids.TopicID
	record  replica.Record
	brokers map[int32]*node
	// down brokers are reached by nobody. actions are what is on its way.
	down    map[int32]bool
	actions []func()
}

type node struct {
	all  *replicas
	id   int32
	host *partitiontest.Host
	p    *partition.Partition
	log  *log.Log
	// subscribed is the session at the present leader.
	own, theirs replica.Session
	leader      int32
	resets      []int64
}

func newReplicas(t *testing.T, minISR int, brokers ...int32) *replicas {
	t.Helper()
	r := &replicas{T: t, clk: clock.NewFake(start), topic: ids.NewTopicID(), brokers: map[int32]*node{}, down: map[int32]bool{}}
	r.record = replica.Record{Revision: 10, Leader: brokers[0], LeaderEpoch: 1, LeaderBrokerEpoch: 1, Replicas: brokers, MinISR: minISR}
	for _, id := range brokers {
		n := &node{all: r, id: id, host: partitiontest.NewHost(t, r.clk)}
		n.log = n.host.Log(r.topic, 0, log.DefaultConfig())
		n.p = partition.New(partition.Config{
			Context: t.Context(), Log: n.log, Clock: r.clk, Origin: start.Add(-time.Hour), Replica: replica.Config{BrokerID: id}, Transport: n, Metadata: n, Reset: n,
		})
		r.brokers[id] = n
		r.record.ISR = append(r.record.ISR, n.member())
	}
	r.publish()
	r.settle()
	return r
}

func (n *node) member() replica.Member {
	return replica.Member{BrokerID: n.id, StorageID: partitiontest.StorageID, LogID: n.log.LogID()}
}

func (r *replicas) later(f func()) { r.actions = append(r.actions, f) }

// publish shows the record to all.
func (r *replicas) publish() {
	rec := r.record
	for _, id := range r.record.Replicas {
		if n := r.brokers[id]; !r.down[id] {
			n.p.SetRecord(partition.RecordUpdate{Record: &rec, BrokerEpoch: 1, StorageID: partitiontest.StorageID, Usable: true})
		}
	}
}

// elect makes another broker lead.
func (r *replicas) elect(id int32) {
	r.record.Revision++
	r.record.Leader, r.record.LeaderEpoch = id, r.record.LeaderEpoch+1
	r.publish()
}

// settle lets everything that is on its way arrive, with syncs in between, and time pass.
func (r *replicas) settle() {
	for range 12 {
		for len(r.actions) > 0 {
			f := r.actions[0]
			r.actions = r.actions[1:]
			f()
		}
		for _, n := range r.brokers {
			n.host.Sync()
		}
		r.clk.Advance(30 * time.Millisecond)
		for id, n := range r.brokers {
			if !r.down[id] {
				n.p.Tick()
			}
		}
	}
}

// cut takes a broker off the network: its streams break.
func (r *replicas) cut(id int32) {
	r.down[id] = true
	for _, n := range r.brokers {
		if n.own == 0 || n.id != id && n.leader != id {
			continue
		}
		r.brokers[n.leader].p.FollowerGone(n.theirs)
		own := n.own
		n.own = 0
		n.p.Refused(own, 0)
	}
}

// lag lets so much time pass that who has not acknowledged leaves the in-sync set.
func (r *replicas) lag() {
	for range 12 {
		r.settle()
	}
}

func (r *replicas) produce(broker int32, name string) {
	r.Helper()
	b, h := partitiontest.Batch(r, 1, name)
	r.brokers[broker].p.Produce(&partition.Produce{Batch: b, Header: h, LeaderEpoch: -1, InOrder: true, Waiter: waiter{&r.answers, name}})
}

// acked wants exactly one answer, a good one.
func (r *replicas) acked(names ...string) {
	r.Helper()
	for i, a := range r.wait(len(names)) {
		if a.Err != nil || a.name != names[i] {
			r.Fatalf("%+v, want %s acknowledged", a, names[i])
		}
	}
}

func (r *replicas) wait(n int) []answer {
	r.Helper()
	got := r.take()
	if len(got) != n {
		r.Fatalf("%d answers, want %d: %+v", len(got), n, got)
	}
	return got
}

func (r *replicas) same(end, hw int64) {
	r.Helper()
	for id, n := range r.brokers {
		if o := n.log.Offsets(); !r.down[id] && (o.End != end || o.HighWatermark != hw) {
			r.Errorf("broker %d: %+v, want end %d and high watermark %d", id, o, end, hw)
		}
	}
}

// Subscribe, Unsubscribe and Ack are the follower's side of the network.
func (n *node) Subscribe(p *partition.Partition, sub partition.Subscription) {
	n.own, n.theirs, n.leader = sub.Session, 0, sub.Leader
	n.all.later(func() {
		leader := n.all.brokers[sub.Leader]
		if n.own != sub.Session {
			return
		}
		if n.all.down[n.id] || n.all.down[sub.Leader] {
			p.Refused(sub.Session, 0)
			return
		}
		s := &sender{from: leader, to: n, session: sub.Session}
		n.theirs = leader.p.SubscribeFollower(s, sub.Self, sub.BrokerEpoch, sub.Session, sub.Epoch, sub.Offset, sub.LastEpoch, sub.LogStart)
	})
}

func (n *node) Unsubscribe(_ *partition.Partition, s replica.Session) {
	if n.own != s {
		return
	}
	theirs, leader := n.theirs, n.all.brokers[n.leader]
	n.own = 0
	n.all.later(func() { leader.p.FollowerGone(theirs) })
}

func (n *node) Ack(_ *partition.Partition, s replica.Session, epoch int32, flushed, logStart int64) {
	n.all.later(func() {
		if n.own == s && !n.all.down[n.id] && !n.all.down[n.leader] {
			n.all.brokers[n.leader].p.FollowerAck(n.theirs, 1, epoch, flushed, logStart)
		}
	})
}

// ProposeISR is etcd: it compares the revision, and tells everybody.
func (n *node) ProposeISR(p *partition.Partition, proposal uint64, revision int64, isr []replica.Member, _ []replica.Added) {
	r := n.all
	r.later(func() {
		applied := r.record.Revision == revision
		if applied {
			r.record.Revision++
			r.record.ISR = slices.Clone(isr)
		}
		rec := r.record
		p.ProposalSettled(proposal, applied, &rec)
		r.publish()
	})
}

func (n *node) Reset(p *partition.Partition, _, _ int32, offset int64) {
	n.resets = append(n.resets, offset)
	n.all.later(func() { p.ResetFailed(errors.New("not in this test")) })
}

// sender is the leader's side.
type sender struct {
	from, to *node
	session  replica.Session
	next     int64
	pushing  bool
	granted  bool
}

func (s *sender) deliver(f func()) {
	s.to.all.later(func() {
		if s.to.own == s.session && !s.to.all.down[s.from.id] && !s.to.all.down[s.to.id] {
			f()
		}
	})
}

func (s *sender) Grant(offset int64) {
	s.next, s.granted = offset, true
	epoch := s.from.p.Role().Epoch
	s.deliver(func() { s.to.p.Granted(s.session, epoch, offset) })
	s.Progress()
}

func (s *sender) Diverging(epoch int32, end int64) {
	s.deliver(func() { s.to.p.DivergingAt(s.session, epoch, end) })
}

func (s *sender) BelowStart(at int64) { s.deliver(func() { s.to.p.BelowStartAt(s.session, at) }) }

func (s *sender) Refuse(why replica.Reason) { s.deliver(func() { s.to.p.Refused(s.session, why) }) }

func (s *sender) Progress() {
	if s.pushing {
		return
	}
	s.pushing = true
	s.to.all.later(func() {
		s.pushing = false
		if s.to.own == s.session && !s.to.all.down[s.from.id] && !s.to.all.down[s.to.id] {
			s.push()
		}
	})
}

func (s *sender) push() {
	for {
		rng, lim, err := s.from.p.ReadForFollower(s.next, 1<<20)
		if err != nil {
			s.to.p.Refused(s.session, replica.ReasonNotLeader)
			return
		}
		b := make([]byte, rng.Len)
		err = rng.ReadInto(b)
		rng.Release()
		if err != nil {
			s.to.all.Errorf("read: %v", err)
		}
		base := s.next
		s.next = max(s.next, rng.Next)
		if err := s.to.p.Deliver(s.session, lim.Epoch, lim.HighWatermark, lim.LogStartWanted, lim.LogStartPublished, base, b); err != nil {
			s.to.all.Errorf("deliver: %v", err)
		}
		if rng.Len == 0 {
			return
		}
	}
}

func TestAckWaitsForAllInSyncReplicas(t *testing.T) {
	r := newReplicas(t, 2, 1, 2, 3)
	r.produce(1, "a")
	r.brokers[1].host.Sync()
	r.wait(0)
	r.settle()
	r.acked("a")
	r.same(1, 1)
	if s := r.brokers[2].p.Status(); s.Replication.Following != "following" || s.Role.Leading || s.Role.LeaderID != 1 {
		t.Errorf("follower: %+v", s)
	}
	if s := r.brokers[1].p.Status(); len(s.Replication.Followers) != 2 || !s.Role.Writable {
		t.Errorf("leader: %+v", s)
	}
	if _, _, err := r.brokers[2].p.Read(0, 100); !errors.Is(err, partition.ErrNotLeader) {
		t.Errorf("a follower serves readers: %v", err)
	}
}

func TestADeadFollowerLeavesTheInSyncSetAndReturns(t *testing.T) {
	r := newReplicas(t, 2, 1, 2, 3)
	r.cut(3)
	r.produce(1, "waits")
	r.settle()
	r.wait(0) // 3 counts
	r.lag()
	r.acked("waits")
	if n := len(r.record.ISR); n != 2 {
		t.Fatalf("%d members are in sync", n)
	}
	delete(r.down, 3)
	r.publish()
	r.settle()
	if n := len(r.record.ISR); n != 3 {
		t.Fatalf("%d members are in sync after the return", n)
	}
	r.same(1, 1)
}

func TestProduceIsRefusedBelowTheMinimum(t *testing.T) {
	r := newReplicas(t, 2, 1, 2)
	r.cut(2)
	r.lag()
	r.produce(1, "refused")
	if a := r.wait(1)[0]; !errors.Is(a.Err, partition.ErrNotEnoughReplicas) {
		t.Fatalf("%+v", a)
	}
	if len(r.record.ISR) != 2 || r.brokers[1].log.End() != 0 {
		t.Errorf("in sync %d, log end %d", len(r.record.ISR), r.brokers[1].log.End())
	}
	delete(r.down, 2)
	r.settle()
	r.produce(1, "taken")
	r.settle()
	r.acked("taken")
}

// What the old leader appended alone is cut when it follows, and who waited for it is told that nobody knows.
func TestTheOldLeaderTruncatesToTheNewOnesHistory(t *testing.T) {
	r := newReplicas(t, 1, 1, 2)
	r.produce(1, "kept")
	r.settle()
	r.acked("kept")
	r.cut(1)
	r.produce(1, "lost")
	r.brokers[1].host.Sync()
	r.elect(2)
	r.settle()
	r.produce(2, "new")
	r.lag()
	r.acked("new")
	delete(r.down, 1)
	r.publish()
	if a := r.wait(1)[0]; !errors.Is(a.Err, partition.ErrOutcomeUnknown) || a.name != "lost" {
		t.Fatalf("%+v", a)
	}
	r.settle()
	r.same(2, 2)
	if found, end := r.brokers[1].log.EndOffsetForEpoch(1); found != 1 || end != 1 {
		t.Errorf("epoch %d ends at %d", found, end)
	}
}

func TestDeleteRecordsWaitsForFollowers(t *testing.T) {
	r := newReplicas(t, 1, 1, 2)
	r.produce(1, "a")
	r.produce(1, "b")
	r.settle()
	r.acked("a", "b")
	r.cut(2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.brokers[1].p.DeleteRecords(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("did not wait: %v", err)
	}
	if at := r.brokers[1].log.LogStart(); at != 0 {
		t.Fatalf("log start %d while a member has not journaled it", at)
	}
	delete(r.down, 2)
	r.settle()
	if at, err := r.brokers[1].p.DeleteRecords(ctx, 1); err != nil || at != 1 {
		t.Fatalf("%d %v", at, err)
	}
	if at := r.brokers[2].log.LogStart(); at != 1 {
		t.Errorf("the follower's log starts at %d", at)
	}
	var oor *log.OutOfRangeError
	if _, err := r.brokers[1].p.DeleteRecords(ctx, 3); !errors.As(err, &oor) {
		t.Errorf("above the high watermark: %v", err)
	}
	if _, err := r.brokers[2].p.DeleteRecords(ctx, 2); !errors.Is(err, partition.ErrNotLeader) {
		t.Errorf("at a follower: %v", err)
	}
}

// A replica that left the in-sync set and comes back below its leader's log start asks for a new log.
func TestAFollowerBelowTheLogStartIsReset(t *testing.T) {
	r := newReplicas(t, 1, 1, 2)
	r.cut(2)
	r.produce(1, "a")
	r.lag()
	r.acked("a")
	if at, err := r.brokers[1].p.DeleteRecords(t.Context(), -1); err != nil || at != 1 {
		t.Fatalf("%d %v", at, err)
	}
	delete(r.down, 2)
	r.publish()
	r.settle()
	if got := r.brokers[2].resets; len(got) == 0 || got[0] != 1 {
		t.Fatalf("resets %v", got)
	}
	if start, err := r.brokers[1].p.StartStateAt(1); err != nil || start.Offset != 1 || len(start.Epochs) != 1 {
		t.Errorf("%+v %v", start, err)
	}
	if _, err := r.brokers[2].p.StartStateAt(1); !errors.Is(err, partition.ErrNotLeader) {
		t.Errorf("of a follower: %v", err)
	}
}

func TestWorkersRunEverythingAndEnd(t *testing.T) {
	w := partition.NewWorkers(2)
	done := make(chan int, 100)
	for i := range 100 {
		w.Go(func() { done <- i })
	}
	w.Wait()
	if len(done) != 100 {
		t.Errorf("%d of 100 ran", len(done))
	}
}
