package broker

import (
	"context"
	"errors"
	"testing"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func withBrokers(revision int64, topics []*metadata.Topic, parts []*metadata.Partition, brokers ...*metadata.Broker) *metadata.State {
	return metadata.NewState(metadata.Contents{
		Position: metadata.Position{ClusterID: "c", EtcdClusterID: 1, Era: 1, Revision: revision},
		Cluster:  &metadata.Cluster{ID: "c"}, Controller: &metadata.ControllerInfo{BrokerID: 1}, Topics: topics, Partitions: parts, Brokers: brokers,
	})
}

func live(id int32, epoch int64) *metadata.Broker {
	return &metadata.Broker{BrokerInfo: metadata.BrokerInfo{ID: id, Listeners: map[string]string{"client": "host:7650"}, StorageID: ids.NewStorageID()}, Epoch: epoch}
}

// Watchers find changes by comparing pointers: what did not change must keep its own.
func TestViewKeepsPointersOfWhatDidNotChange(t *testing.T) {
	v := newView(nil)
	empty := v.Snapshot()
	if empty.ControllerID != -1 || closed(empty.Changed) {
		t.Errorf("before the first state: %+v", empty)
	}
	// States that are made of values know only lists of partitions that are empty to be the same: a has none.
	a, b := topic("a"), topic("b")
	pb := part(b)
	one, two := live(1, 5), live(2, 6)
	v.publish(withBrokers(10, []*metadata.Topic{a, b}, []*metadata.Partition{pb}, one, two))
	first := v.Snapshot()
	if !closed(empty.Changed) || closed(first.Changed) {
		t.Error("the first snapshot was not announced")
	}
	if first.Revision != 10 || first.ControllerID != 1 || first.ClusterID != "c" || len(first.Topics) != 2 || len(first.Brokers) != 2 {
		t.Errorf("first snapshot %+v", first)
	}

	led := pb.Clone()
	led.Leader, led.LeaderEpoch, led.ISR = 2, 1, []metadata.Member{{BrokerID: 2}}
	again := live(2, 7)
	v.publish(withBrokers(11, []*metadata.Topic{a, b}, []*metadata.Partition{led}, one, again))
	second := v.Snapshot()
	if !closed(first.Changed) {
		t.Error("the second snapshot was not announced")
	}
	if second.Topics["a"] != first.Topics["a"] || second.TopicsByID[a.ID] != first.TopicsByID[a.ID] || second.Brokers[0] != first.Brokers[0] {
		t.Error("what did not change has new pointers")
	}
	if second.Topics["b"] == first.Topics["b"] || second.Brokers[1] == first.Brokers[1] {
		t.Error("what changed has kept its pointer")
	}
	if p := second.Topics["b"].Partitions[0]; p.LeaderID != 2 || p.LeaderEpoch != 1 || len(p.ISR) != 1 || p.ISR[0] != 2 {
		t.Errorf("partition %+v", p)
	}
	if p := first.Topics["b"].Partitions[0]; p.LeaderID != metadata.NoLeader {
		t.Errorf("the old snapshot was changed: %+v", p)
	}
}

func TestViewOfAStateThatIsShownAlready(t *testing.T) {
	v := newView(nil)
	s := withBrokers(10, nil, nil)
	v.publish(s)
	before := v.Snapshot()
	v.publish(s)
	if v.Snapshot() != before || closed(before.Changed) {
		t.Error("watchers were woken for nothing")
	}
}

// Clients see partitions only once all before them exist, and every setting of a topic.
func TestViewOfATopic(t *testing.T) {
	v := newView(nil)
	growing := topic("t")
	growing.Partitions, growing.ReadyPartitions = 3, 1
	parts := []*metadata.Partition{part(growing), part(growing)}
	parts[1].Partition = 1
	v.publish(withBrokers(10, []*metadata.Topic{growing}, parts))
	got := v.Snapshot().Topics["t"]
	if len(got.Partitions) != 1 {
		t.Errorf("%d partitions are shown, 1 is ready", len(got.Partitions))
	}
	if got.State != runnelv1.TopicState_TOPIC_STATE_ACTIVE || got.Config.MaxBatchBytes == nil || got.Config.RetentionMs == nil || got.Config.MinInSyncReplicas == nil {
		t.Errorf("topic %+v", got)
	}
}

// A topic that was deleted leaves; its namesake takes over the name at once.
func TestViewOfANamesake(t *testing.T) {
	v := newView(nil)
	old := topic("t")
	v.publish(withBrokers(10, []*metadata.Topic{old}, []*metadata.Partition{part(old)}))
	now := topic("t")
	v.publish(withBrokers(11, []*metadata.Topic{now}, []*metadata.Partition{part(now)}))
	s := v.Snapshot()
	if len(s.Topics) != 1 || s.Topics["t"].ID != now.ID || s.TopicsByID[old.ID] != nil || s.TopicsByID[now.ID] != s.Topics["t"] {
		t.Errorf("topics %v, by id %v", s.Topics, s.TopicsByID)
	}
	v.publish(withBrokers(12, nil, nil))
	if s = v.Snapshot(); len(s.Topics)+len(s.TopicsByID) != 0 {
		t.Errorf("topics %v, by id %v", s.Topics, s.TopicsByID)
	}
}

func TestViewWait(t *testing.T) {
	v := newView(nil)
	at := func(revision int64) func(*metadata.State) bool {
		return func(s *metadata.State) bool { return s.Revision() >= revision }
	}
	type answer struct {
		s   *metadata.State
		err error
	}
	done := make(chan answer, 1)
	go func() {
		s, err := v.wait(t.Context(), at(11))
		done <- answer{s, err}
	}()
	v.publish(withBrokers(10, nil, nil))
	v.publish(withBrokers(12, nil, nil))
	if got := <-done; got.err != nil || got.s.Revision() < 11 {
		t.Errorf("wait() = %v, %v", got.s.Revision(), got.err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.wait(ctx, at(13)); !errors.Is(err, context.Canceled) {
		t.Errorf("wait() after its context = %v", err)
	}
	if s, err := v.wait(ctx, at(12)); err != nil || s.Revision() != 12 {
		t.Errorf("what holds already is not waited for: %v", err)
	}
}
