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

// unmeasured are the other brokers that are well and whose sizes and rates an answer lacks.
func (l *listener) unmeasured(resp *runnelv1.DescribeClusterResponse) map[int32][]int {
	out := map[int32][]int{}
	for i, b := range resp.GetBrokers() {
		if b.GetLive() && !b.GetSuspect() && b.GetSizeBytes() < 0 && b.GetId() != l.cfg.BrokerID {
			out[b.GetId()] = []int{i}
		}
	}
	return out
}

// measured takes the sizes and rates of a broker over from another answer.
func measured(to, from *runnelv1.DescribeClusterResponse, id int32) {
	with := func(b *runnelv1.BrokerStatus) bool { return b.GetId() == id }
	i, j := slices.IndexFunc(to.GetBrokers(), with), slices.IndexFunc(from.GetBrokers(), with)
	if i < 0 || j < 0 {
		return
	}
	b, m := to.GetBrokers()[i], from.GetBrokers()[j]
	b.SizeBytes, b.FreeBytes, b.TotalBytes, b.FullInMs = m.GetSizeBytes(), m.GetFreeBytes(), m.GetTotalBytes(), m.GetFullInMs()
	b.BytesInPerSecond, b.BytesOutPerSecond = m.GetBytesInPerSecond(), m.GetBytesOutPerSecond()
}

// countTopic counts a topic's partitions. Below their minimum are also those whose in-sync set would have shrunk further if it might: what is
// in sync on a broker that is gone cannot acknowledge anything.
func countTopic(resp *runnelv1.DescribeClusterResponse, byID map[int32]*runnelv1.BrokerStatus, t *Topic) {
	for i := range t.Partitions {
		p := &t.Partitions[i]
		resp.Partitions++
		if len(p.ISR) < len(p.Replicas) {
			resp.UnderReplicatedPartitions++
		}
		alive := 0
		for _, id := range p.ISR {
			if byID[id].GetLive() {
				alive++
			}
		}
		if alive < int(t.Config.GetMinInSyncReplicas()) {
			resp.BelowMinimumPartitions++
		}
		if !byID[p.LeaderID].GetLive() { // the record names the last leader for as long as nobody can follow it
			resp.LeaderlessPartitions++
		} else {
			byID[p.LeaderID].Leaders++
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
