package controller

import (
	"slices"
	"testing"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

var (
	disk1, disk2, disk3 = ids.NewStorageID(), ids.NewStorageID(), ids.NewStorageID()
	log1, log2          = ids.NewLogID(), ids.NewLogID()
	topicID             = ids.NewTopicID()
)

func alive(id int32, epoch int64, disk ids.StorageID) *metadata.Broker {
	return &metadata.Broker{BrokerInfo: metadata.BrokerInfo{ID: id, StorageID: disk}, Epoch: epoch}
}

func stored(id int32, epoch int64, disk ids.StorageID) *metadata.Storage {
	return &metadata.Storage{BrokerID: id, StorageID: disk, EligibleEpoch: epoch, State: metadata.StorageActive}
}

func member(id int32, disk ids.StorageID, l ids.LogID) metadata.Member {
	return metadata.Member{BrokerID: id, StorageID: disk, LogID: l}
}

// pair is a partition of brokers 1 and 2, led by 1 under broker epoch 10.
func pair() *metadata.Partition {
	return &metadata.Partition{
		PartitionRef: metadata.PartitionRef{TopicID: topicID}, Leader: 1, LeaderEpoch: 5, LeaderBrokerEpoch: 10, Replicas: []int32{1, 2},
		ISR: []metadata.Member{member(1, disk1, log1), member(2, disk2, log2)},
	}
}

func single() *metadata.Partition {
	p := pair()
	p.Replicas, p.ISR = p.Replicas[:1], p.ISR[:1]
	return p
}

func changed(p *metadata.Partition, f func(*metadata.Partition)) *metadata.Partition {
	f(p)
	return p
}

func TestNext(t *testing.T) {
	quarantined := stored(1, 10, disk1)
	quarantined.Marks = []metadata.Mark{{Partition: metadata.PartitionRef{TopicID: topicID}, Kind: metadata.MarkQuarantined}}
	draining := stored(1, 11, disk1)
	draining.State = metadata.StorageDraining
	fenced := stored(2, 20, disk2)
	fenced.State = metadata.StorageFenced
	type want struct {
		leader, epoch int32
		brokerEpoch   int64
		isr           []int32
	}
	unchanged := want{leader: -2}
	for name, tc := range map[string]struct {
		p        *metadata.Partition
		brokers  []*metadata.Broker
		storages []*metadata.Storage
		want     want
	}{
		"the leader is well": {
			pair(), []*metadata.Broker{alive(1, 10, disk1), alive(2, 20, disk2)}, []*metadata.Storage{stored(1, 10, disk1), stored(2, 20, disk2)}, unchanged,
		},
		"the leader has restarted and is eligible: the same broker under a higher epoch": {
			pair(),
			[]*metadata.Broker{alive(1, 11, disk1), alive(2, 20, disk2)},
			[]*metadata.Storage{stored(1, 11, disk1), stored(2, 20, disk2)},
			want{1, 6, 11, []int32{1, 2}},
		},
		"the leader has restarted and is not eligible yet": {
			pair(),
			[]*metadata.Broker{alive(1, 11, disk1), alive(2, 20, disk2)},
			[]*metadata.Storage{stored(1, 10, disk1), stored(2, 20, disk2)},
			want{2, 6, 20, []int32{1, 2}},
		},
		"the leader is gone: another one leads, and the ISR is down to the minimum in the same record": {
			pair(), []*metadata.Broker{alive(2, 20, disk2)}, []*metadata.Storage{stored(1, 10, disk1), stored(2, 20, disk2)}, want{2, 6, 20, []int32{2}},
		},
		"the leader is gone and nobody can follow: a lapsed lease alone ends nothing": {
			single(), nil, []*metadata.Storage{stored(1, 10, disk1)}, unchanged,
		},
		"the other is alive but not in the ISR": {
			changed(pair(), func(p *metadata.Partition) { p.ISR = p.ISR[:1] }),
			[]*metadata.Broker{alive(2, 20, disk2)},
			[]*metadata.Storage{stored(2, 20, disk2)},
			unchanged,
		},
		"the leader is gone and the other is fenced: its storage counts as lost, nobody leads": {
			pair(), []*metadata.Broker{alive(2, 20, disk2)}, []*metadata.Storage{fenced}, want{-1, 6, 0, []int32{1}},
		},
		"the leader came back with another disk: out of the ISR, below the minimum, no leader": {
			single(), []*metadata.Broker{alive(1, 11, disk3)}, []*metadata.Storage{stored(1, 10, disk1)}, want{-1, 6, 0, nil},
		},
		"the leader came back with another disk, the other takes over": {
			pair(),
			[]*metadata.Broker{alive(1, 11, disk3), alive(2, 20, disk2)},
			[]*metadata.Storage{stored(1, 10, disk1), stored(2, 20, disk2)},
			want{2, 6, 20, []int32{2}},
		},
		"a follower came back with another disk": {
			pair(),
			[]*metadata.Broker{alive(1, 10, disk1), alive(2, 21, disk3)},
			[]*metadata.Storage{stored(1, 10, disk1), stored(2, 20, disk2)},
			want{1, 5, 10, []int32{1}},
		},
		"the leader is gone and its log would be damaged anyway": {
			pair(), []*metadata.Broker{alive(1, 11, disk1)}, []*metadata.Storage{changedStorage(quarantined, 11)}, unchanged,
		},
		"a draining broker leads when nobody else can": {
			single(), []*metadata.Broker{alive(1, 11, disk1)}, []*metadata.Storage{draining}, want{1, 6, 11, []int32{1}},
		},
		"a draining broker gives way": {
			pair(),
			[]*metadata.Broker{alive(1, 11, disk1), alive(2, 20, disk2)},
			[]*metadata.Storage{draining, stored(2, 20, disk2)},
			want{2, 6, 20, []int32{1, 2}},
		},
		"never led, nobody confirmed": {
			changed(pair(), func(p *metadata.Partition) { p.Leader, p.LeaderEpoch, p.ISR = -1, 0, nil }),
			[]*metadata.Broker{alive(1, 10, disk1), alive(2, 20, disk2)},
			[]*metadata.Storage{stored(1, 10, disk1), stored(2, 20, disk2)},
			unchanged,
		},
		"never led, one of two that live confirmed": {
			changed(pair(), func(p *metadata.Partition) { p.Leader, p.LeaderEpoch, p.ISR = -1, 0, p.ISR[:1] }),
			[]*metadata.Broker{alive(1, 10, disk1), alive(2, 20, disk2)},
			[]*metadata.Storage{stored(1, 10, disk1), stored(2, 20, disk2)},
			unchanged,
		},
		"never led, all confirmed: the first epoch is 1": {
			changed(pair(), func(p *metadata.Partition) { p.Leader, p.LeaderEpoch = -1, 0 }),
			[]*metadata.Broker{alive(1, 10, disk1), alive(2, 20, disk2)},
			[]*metadata.Storage{stored(1, 10, disk1), stored(2, 20, disk2)},
			want{1, 1, 10, []int32{1, 2}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := metadata.NewState(metadata.Contents{Brokers: tc.brokers, Storages: tc.storages})
			before := tc.p.Clone()
			next := Next(s, tc.p, 1, Input{})
			if !slices.Equal(before.ISR, tc.p.ISR) || before.LeaderEpoch != tc.p.LeaderEpoch {
				t.Error("the argument was changed")
			}
			if next == nil {
				if tc.want.leader != unchanged.leader {
					t.Fatal("unchanged")
				}
				return
			}
			got := want{leader: next.Leader, epoch: next.LeaderEpoch, brokerEpoch: next.LeaderBrokerEpoch}
			for _, m := range next.ISR {
				got.isr = append(got.isr, m.BrokerID)
			}
			if got.leader != tc.want.leader || got.epoch != tc.want.epoch || got.brokerEpoch != tc.want.brokerEpoch || !slices.Equal(got.isr, tc.want.isr) {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if Next(s, next, 1, Input{}) != nil {
				t.Error("a decision that was carried out asks for more")
			}
		})
	}
}

func changedStorage(s *metadata.Storage, epoch int64) *metadata.Storage {
	next := *s
	next.EligibleEpoch = epoch
	return &next
}

func topic(state metadata.TopicState, partitions, ready int32) *metadata.Topic {
	return &metadata.Topic{
		Name: "t", ID: topicID, State: state, Partitions: partitions, ReadyPartitions: ready, Replicas: 1, Config: &runnelv1.TopicConfig{}, Generation: 1,
	}
}

func TestDecideEligibilityWaitsForRemovals(t *testing.T) {
	c := metadata.Contents{
		Position: metadata.Position{Revision: 1000},
		Brokers:  []*metadata.Broker{alive(1, 11, disk3)}, Storages: []*metadata.Storage{stored(1, 10, disk1)},
		Topics: []*metadata.Topic{topic(metadata.TopicActive, 1, 1)}, Partitions: []*metadata.Partition{single()},
	}
	plan := Decide(metadata.NewState(c), nil, Input{})
	if len(plan.Update) != 1 || len(plan.Eligible) != 0 {
		t.Fatalf("plan %+v", plan)
	}
	c.Partitions = plan.Update
	plan = Decide(metadata.NewState(c), nil, Input{})
	if len(plan.Update) != 0 || len(plan.Eligible) != 1 || plan.Eligible[0].StorageID != disk3 || plan.Eligible[0].EligibleEpoch != 11 {
		t.Fatalf("plan %+v", plan)
	}
	c.Storages = plan.Eligible
	if plan = Decide(metadata.NewState(c), nil, Input{}); !plan.Empty() {
		t.Errorf("plan %+v: a disk that was lost leads nothing", plan)
	}
}

func TestDecideTopics(t *testing.T) {
	c := metadata.Contents{
		Brokers: []*metadata.Broker{alive(1, 10, disk1)}, Storages: []*metadata.Storage{stored(1, 10, disk1)},
		Topics: []*metadata.Topic{topic(metadata.TopicCreating, 3, 0)},
	}
	c.Partitions = []*metadata.Partition{changed(single(), func(p *metadata.Partition) { p.Partition = 1 })}
	plan := Decide(metadata.NewState(c), nil, Input{})
	if len(plan.Create) != 1 || len(plan.Create[0].Partitions) != 2 || len(plan.Finish) != 0 {
		t.Fatalf("plan %+v", plan)
	}
	for i, p := range plan.Create[0].Partitions {
		if want := int32(2 * i); p.Partition != want || !slices.Equal(p.Replicas, []int32{1}) || p.Leader != metadata.NoLeader || p.LeaderEpoch != 0 {
			t.Errorf("partition %+v", p)
		}
	}
	c.Partitions = append(c.Partitions, plan.Create[0].Partitions...)
	plan = Decide(metadata.NewState(c), nil, Input{})
	if len(plan.Create) != 0 || len(plan.Finish) != 1 {
		t.Fatalf("plan %+v", plan)
	}

	c.Topics = []*metadata.Topic{topic(metadata.TopicDeleting, 3, 3)}
	if plan = Decide(metadata.NewState(c), nil, Input{}); !plan.Empty() {
		t.Errorf("nobody has purged anything: %+v", plan)
	}
	c.Partitions[0].Purged = []int32{1}
	plan = Decide(metadata.NewState(c), nil, Input{})
	if len(plan.Purge) != 1 || len(plan.Purge[0].Partitions) != 1 || len(plan.Forget) != 0 {
		t.Fatalf("plan %+v", plan)
	}
	c.Partitions = nil
	if plan = Decide(metadata.NewState(c), nil, Input{}); len(plan.Forget) != 1 {
		t.Errorf("plan %+v", plan)
	}
}

func TestDecideWaitsForBrokers(t *testing.T) {
	want := topic(metadata.TopicCreating, 1, 0)
	want.Replicas = 2
	s := metadata.NewState(metadata.Contents{
		Position: metadata.Position{Revision: 1000},
		Brokers:  []*metadata.Broker{alive(1, 10, disk1), alive(2, 20, disk2)}, Storages: []*metadata.Storage{stored(1, 10, disk1)},
		Topics: []*metadata.Topic{want},
	})
	if plan := Decide(s, nil, Input{}); len(plan.Create) != 0 || len(plan.Eligible) != 1 {
		t.Errorf("plan %+v", plan)
	}
}

func TestDecideDamage(t *testing.T) {
	st := stored(1, 10, disk1)
	ref := metadata.PartitionRef{TopicID: topicID}
	gone := metadata.PartitionRef{TopicID: ids.NewTopicID(), Partition: 3}
	st.Marks = []metadata.Mark{{Partition: ref, Kind: metadata.MarkQuarantined}, {Partition: gone, Kind: metadata.MarkFailed}}
	s := metadata.NewState(metadata.Contents{
		Brokers: []*metadata.Broker{alive(1, 10, disk1)}, Storages: []*metadata.Storage{st},
		Topics: []*metadata.Topic{topic(metadata.TopicActive, 1, 1)}, Partitions: []*metadata.Partition{single()},
	})
	plan := Decide(s, nil, Input{})
	if len(plan.Clear) != 1 || !slices.Equal(plan.Clear[0].Stale, []metadata.PartitionRef{gone}) || len(plan.Clear[0].Partitions) != 1 {
		t.Fatalf("plan %+v", plan)
	}
	if p := plan.Clear[0].Partitions[0]; p.Leader != metadata.NoLeader || p.LeaderEpoch != 6 || len(p.ISR) != 0 {
		t.Errorf("partition %+v", p)
	}
}
