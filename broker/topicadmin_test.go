package broker

import (
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
