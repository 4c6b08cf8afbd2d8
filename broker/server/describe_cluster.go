package server

import (
	"cmp"
	"maps"
	"slices"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// describeCluster is the cluster as this broker knows it.
func (l *listener) describeCluster() *runnelv1.DescribeClusterResponse {
	snap := l.cfg.Metadata.Snapshot()
	resp := &runnelv1.DescribeClusterResponse{ClusterId: snap.ClusterID, ControllerId: snap.ControllerID}
	byID := map[int32]*runnelv1.BrokerStatus{}
	for _, b := range snap.Brokers {
		byID[b.ID] = &runnelv1.BrokerStatus{
			Id: b.ID, BrokerEpoch: b.Epoch, Rack: b.Rack, Version: b.Version, StorageId: b.StorageID, Listeners: b.Listeners, Live: true,
			State: runnelv1.BrokerState_BROKER_STATE_ACTIVE, Controller: b.ID == snap.ControllerID,
		}
	}
	for id, s := range snap.Storages {
		b := byID[id]
		if b == nil {
			if s.State == runnelv1.BrokerState_BROKER_STATE_DECOMMISSIONED {
				continue
			}
			b = &runnelv1.BrokerStatus{Id: id, StorageId: s.StorageID}
			byID[id] = b
		}
		b.State, b.Damaged = s.State, int32(len(s.Damaged))
		b.Eligible = b.GetLive() && s.EligibleEpoch == b.GetBrokerEpoch()
	}
	for name := range snap.Topics {
		if t, ok := snap.active(name); ok {
			resp.Topics++
			countTopic(resp, byID, t)
		}
	}
	resp.Brokers = slices.SortedFunc(maps.Values(byID), func(a, b *runnelv1.BrokerStatus) int { return cmp.Compare(a.GetId(), b.GetId()) })
	for _, b := range resp.Brokers {
		b.SizeBytes, b.FreeBytes, b.TotalBytes, b.FullInMs, b.BytesInPerSecond, b.BytesOutPerSecond = -1, -1, -1, -1, -1, -1
		if l.cfg.Cluster != nil {
			l.cfg.Cluster.BrokerStatus(b)
		}
	}
	return resp
}

func countTopic(resp *runnelv1.DescribeClusterResponse, byID map[int32]*runnelv1.BrokerStatus, t *Topic) {
	for i := range t.Partitions {
		p := &t.Partitions[i]
		resp.Partitions++
		if len(p.ISR) < len(p.Replicas) {
			resp.UnderReplicatedPartitions++
		}
		if len(p.ISR) < int(t.Config.GetMinInSyncReplicas()) {
			resp.BelowMinimumPartitions++
		}
		if p.LeaderID < 0 {
			resp.LeaderlessPartitions++
		} else if b := byID[p.LeaderID]; b != nil {
			b.Leaders++
		}
		for _, id := range p.Replicas {
			b := byID[id]
			if b == nil {
				continue
			}
			b.Replicas++
			if !slices.Contains(p.ISR, id) {
				b.UnderReplicated++
			}
		}
	}
}
