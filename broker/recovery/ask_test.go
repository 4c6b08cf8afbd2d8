package recovery

import (
	"errors"
	"math"
	"testing"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/internal/ids"
)

func answer(edit func(*runnelv1.InventoryHeader, *runnelv1.InventoryLog)) replication.Inventory {
	topic, id, storage := ids.TopicID{1}, ids.LogID{2}, ids.StorageID{3}
	h := &runnelv1.InventoryHeader{ClusterId: "id", BrokerId: 4, StorageId: storage[:], EtcdClusterId: 7, Era: 2, Revision: 900}
	l := &runnelv1.InventoryLog{
		TopicId: topic[:], Partition: 5, TopicName: "orders", TopicConfig: []byte("c"), LogId: id[:], AdoptedEpoch: 9, LatestEpoch: 8, LogStart: 10, LogEnd: 20,
		MaxProducerId: 30, Health: "online", Epochs: []*runnelv1.EpochStart{{Epoch: 7, StartOffset: 10}, {Epoch: 8, StartOffset: 15}, {Epoch: 9, StartOffset: 25}},
	}
	edit(h, l)
	return replication.Inventory{Header: h, Logs: []*runnelv1.InventoryLog{l}}
}

func TestInventoryIsTakenOver(t *testing.T) {
	got, err := convert(answer(func(*runnelv1.InventoryHeader, *runnelv1.InventoryLog) {}))
	if err != nil {
		t.Fatal(err)
	}
	if got.BrokerID != 4 || got.StorageID != (ids.StorageID{3}) || got.Position != (metadata.Position{ClusterID: "id", EtcdClusterID: 7, Era: 2, Revision: 900}) {
		t.Errorf("%+v", got)
	}
	l := got.Logs[0]
	if l.TopicID != (ids.TopicID{1}) || l.Partition != 5 || l.LogID != (ids.LogID{2}) || l.AdoptedEpoch != 9 || l.LatestEpoch != 8 || l.LogStart != 10 || l.End != 20 ||
		l.MaxProducerID != 30 || l.Damaged || l.TopicName != "orders" || string(l.TopicConfig) != "c" {
		t.Errorf("%+v", l)
	}
	if len(l.Lineage) != 2 || l.Lineage[1] != (metadata.EpochStart{Epoch: 8, Start: 15}) {
		t.Errorf("lineage %+v: want what is durable", l.Lineage)
	}
	got, err = convert(answer(func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.Health, l.LogId = "quarantined", nil }))
	if err != nil || !got.Logs[0].Damaged || !got.Logs[0].LogID.IsZero() {
		t.Errorf("a damaged log: %+v, %v", got, err)
	}
}

func TestInventoryThatNoBrokerSends(t *testing.T) {
	for name, edit := range map[string]func(*runnelv1.InventoryHeader, *runnelv1.InventoryLog){
		"broker id":         func(h *runnelv1.InventoryHeader, _ *runnelv1.InventoryLog) { h.BrokerId = -1 },
		"storage id":        func(h *runnelv1.InventoryHeader, _ *runnelv1.InventoryLog) { h.StorageId = make([]byte, 16) },
		"era":               func(h *runnelv1.InventoryHeader, _ *runnelv1.InventoryLog) { h.Era = -1 },
		"revision":          func(h *runnelv1.InventoryHeader, _ *runnelv1.InventoryLog) { h.Revision = math.MinInt64 },
		"topic id":          func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.TopicId = l.TopicId[:15] },
		"log id":            func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.LogId = l.LogId[:1] },
		"partition":         func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.Partition = -1 },
		"too many":          func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.Partition = math.MaxInt32 },
		"end below start":   func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.LogEnd = l.LogStart - 1 },
		"start below zero":  func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.LogStart = -1 },
		"adopted epoch":     func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.AdoptedEpoch = math.MaxInt32 },
		"latest epoch":      func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.LatestEpoch = math.MaxInt32 },
		"epoch below none":  func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.LatestEpoch = -2 },
		"largest producers": func(_ *runnelv1.InventoryHeader, l *runnelv1.InventoryLog) { l.MaxProducerId = math.MaxInt64 },
	} {
		if _, err := convert(answer(edit)); !errors.Is(err, ErrInventory) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
