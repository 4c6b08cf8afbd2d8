package broker

import (
	"context"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/broker/storage"
)

// leaderStates implements startStates over the connections to other brokers.
type leaderStates struct{ conns *peer.Conns }

// StartState implements startStates.
func (l leaderStates) StartState(ctx context.Context, leader int32, ref metadata.PartitionRef, epoch int32, offset int64) (log.StartState, error) {
	conn, err := l.conns.Conn(leader, peer.ClassCatchup)
	if err != nil {
		return log.StartState{}, err
	}
	return replication.ReadStartState(ctx, conn, ref, epoch, offset)
}

// inventory is what the data directory holds, for a metadata store that has to be rebuilt.
func (b *Broker) inventory(ctx context.Context, store *storage.Store) (replication.Inventory, error) {
	logs, err := store.Inventory(ctx)
	if err != nil {
		return replication.Inventory{}, err
	}
	at, err := storage.LoadPosition(b.deps.FS, b.cfg.Storage.DataDir)
	if err != nil {
		return replication.Inventory{}, err
	}
	snapshot, err := storage.LoadSnapshot(b.deps.FS, b.cfg.Storage.DataDir)
	if err != nil {
		b.lg.Warn("the cluster snapshot cannot be read", "error", err)
		snapshot = nil
	}
	id := store.StorageID()
	out := replication.Inventory{Snapshot: snapshot, Header: &runnelv1.InventoryHeader{
		ClusterId: store.ClusterID(), BrokerId: b.cfg.BrokerID, StorageId: id[:], MetadataClusterId: at.ClusterID, EtcdClusterId: at.EtcdClusterID,
		Era: at.Era, Revision: at.Revision, ClusterName: b.cfg.Cluster,
	}}
	for _, l := range logs {
		entry := &runnelv1.InventoryLog{
			TopicId: l.Ref.TopicID[:], Partition: l.Ref.Partition, TopicName: l.TopicName, TopicConfig: l.TopicConfig, LogId: l.LogID[:],
			AdoptedEpoch: l.AdoptedEpoch, LatestEpoch: l.LatestEpoch, LogStart: l.LogStart, LogEnd: l.Flushed, MaxProducerId: l.MaxProducerID,
			Health: l.Health.String(),
		}
		for _, e := range l.Epochs {
			entry.Epochs = append(entry.Epochs, &runnelv1.EpochStart{Epoch: e.Epoch, StartOffset: e.Start})
		}
		out.Logs = append(out.Logs, entry)
	}
	return out, nil
}
