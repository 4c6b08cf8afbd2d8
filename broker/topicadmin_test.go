package broker

import (
	"errors"
	"strings"
	"testing"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// TestRoomForReplicas: a drained broker is no place for new replicas, so a topic must not wait for it.
func TestRoomForReplicas(t *testing.T) {
	var c metadata.Contents
	for id := range int32(6) {
		disk := ids.NewStorageID()
		c.Brokers = append(c.Brokers, &metadata.Broker{BrokerInfo: metadata.BrokerInfo{ID: id, StorageID: disk}, Epoch: 10})
		c.Storages = append(c.Storages, &metadata.Storage{BrokerID: id, StorageID: disk, EligibleEpoch: 10, State: metadata.StorageActive})
	}
	c.Storages[1].State = metadata.StorageDraining
	c.Storages[2].State = metadata.StorageDecommissioned
	c.Storages[3].State = metadata.StorageFenced
	c.Storages[4].State, c.Storages[4].StorageID = metadata.StorageFenced, ids.NewStorageID() // another disk: active again in a moment
	c.Storages = c.Storages[:5]                                                               // 5 is new
	if got := room(metadata.NewState(c)); got != 3 {
		t.Errorf("room for %d", got)
	}
}

// TestDefaultReplicasDoNotMakeDo: a topic that is created while brokers are down must not lack replicas for ever.
func TestDefaultReplicasDoNotMakeDo(t *testing.T) {
	cluster := func(states map[int32]metadata.StorageState, live ...int32) *metadata.State {
		var c metadata.Contents
		disks := map[int32]ids.StorageID{}
		for id, state := range states {
			disks[id] = ids.NewStorageID()
			c.Storages = append(c.Storages, &metadata.Storage{BrokerID: id, StorageID: disks[id], EligibleEpoch: 10, State: state})
		}
		for _, id := range live {
			c.Brokers = append(c.Brokers, &metadata.Broker{BrokerInfo: metadata.BrokerInfo{ID: id, StorageID: disks[id]}, Epoch: 10})
		}
		return metadata.NewState(c)
	}
	const active, gone, draining = metadata.StorageActive, metadata.StorageDecommissioned, metadata.StorageDraining
	for name, c := range map[string]struct {
		state   *metadata.State
		asked   int32
		refused bool
	}{
		"all are there":               {cluster(map[int32]metadata.StorageState{1: active, 2: active, 3: active}, 1, 2, 3), 0, false},
		"one of three is down":        {cluster(map[int32]metadata.StorageState{1: active, 2: active, 3: active}, 1, 2), 0, true},
		"one of three, and a number":  {cluster(map[int32]metadata.StorageState{1: active, 2: active, 3: active}, 1, 2), 2, false},
		"one of four is down":         {cluster(map[int32]metadata.StorageState{1: active, 2: active, 3: active, 4: active}, 1, 2, 4), 0, false},
		"one is gone for good":        {cluster(map[int32]metadata.StorageState{1: active, 2: active, 3: gone}, 1, 2), 0, false},
		"one is drained and down":     {cluster(map[int32]metadata.StorageState{1: active, 2: active, 3: draining}, 1, 2), 0, false},
		"nobody is there":             {cluster(map[int32]metadata.StorageState{1: active}), 0, false},
		"the only one registers anew": {cluster(nil), 0, false},
	} {
		err := checkDefaultReplicas(c.asked, c.state)
		if refused := errors.Is(err, metadata.ErrInvalidArgument); refused != c.refused || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "which is 3, want a number up to 2 as long as brokers are down: [3]") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSettingsDoNotWaitForAPartitionWithoutLeader: what waits is a topic that grows.
func TestSettingsDoNotWaitForAPartitionWithoutLeader(t *testing.T) {
	topic := &metadata.Topic{Name: "t", ID: ids.NewTopicID(), State: metadata.TopicActive, Partitions: 1, ReadyPartitions: 1, Replicas: 1, Revision: 50}
	offline := &metadata.Partition{PartitionRef: metadata.PartitionRef{TopicID: topic.ID}, Leader: metadata.NoLeader, LeaderEpoch: 3, Replicas: []int32{1}}
	at := func(revision int64) *metadata.State {
		return metadata.NewState(metadata.Contents{
			Position: metadata.Position{Revision: revision}, Topics: []*metadata.Topic{topic}, Partitions: []*metadata.Partition{offline},
		})
	}
	if inEffect(at(49), topic, false) || !inEffect(at(50), topic, false) || inEffect(at(50), topic, true) {
		t.Error("wrong")
	}
	offline.Leader = 1
	if !inEffect(at(50), topic, true) {
		t.Error("all partitions are led")
	}
}
