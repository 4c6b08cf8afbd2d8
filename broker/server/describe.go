package server

import (
	"errors"
	"fmt"
	"slices"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
)

// byMetadata describes a partition of t as the metadata has it: without offsets.
func (l *listener) byMetadata(t *Topic, n int32) *runnelv1.PartitionStatus {
	st := &runnelv1.PartitionStatus{
		Topic: t.Name, TopicId: t.ID[:], Partition: n, LeaderId: -1, LogStartOffset: -1, LocalStartOffset: -1, TieredEndOffset: -1,
		FlushedOffset: -1, HighWatermark: -1, LogEndOffset: -1, MinInSyncReplicas: t.Config.GetMinInSyncReplicas(),
		RecordsInPerSecond: -1, BytesInPerSecond: -1, BytesOutPerSecond: -1,
	}
	where, err := t.partition(n)
	if err != nil {
		st.Error = l.item(err)
		return st
	}
	st.LeaderId, st.LeaderEpoch, st.Replicas, st.Isr = where.LeaderID, where.LeaderEpoch, where.Replicas, where.ISR
	st.Adding, st.Removing = where.Adding, where.Removing
	st.UnderReplicated = len(where.ISR) < len(where.Replicas)
	snap := l.cfg.Metadata.Snapshot()
	ref := PartitionRef{t.ID, n}
	for _, id := range where.Replicas {
		st.ReplicaStatus = append(st.ReplicaStatus, replicaByMetadata(snap, where, ref, id))
	}
	return st
}

func replicaByMetadata(snap *Snapshot, p *Partition, ref PartitionRef, id int32) *runnelv1.ReplicaStatus {
	r := &runnelv1.ReplicaStatus{
		BrokerId: id, InSync: slices.Contains(p.ISR, id), Adding: slices.Contains(p.Adding, id), Removing: slices.Contains(p.Removing, id),
		AckedOffset: -1, Lag: -1, CaughtUpMsAgo: -1, BrokerLive: snap.broker(id) != nil, RecordsPerSecond: -1,
	}
	damaged := false
	if s := snap.Storages[id]; s != nil {
		r.BrokerState, damaged = s.State, s.Damaged[ref]
	}
	switch {
	case p.LeaderID == id && r.InSync:
		r.State = runnelv1.ReplicaState_REPLICA_STATE_LEADER
	case damaged && r.InSync:
		r.State, r.Detail = runnelv1.ReplicaState_REPLICA_STATE_DAMAGED, "its log is damaged or gone; it leaves the in-sync set first"
	case damaged:
		r.State, r.Detail = runnelv1.ReplicaState_REPLICA_STATE_STARTING, "its log is damaged or gone; a new one is made"
	case !r.BrokerLive:
		r.State, r.Detail = runnelv1.ReplicaState_REPLICA_STATE_BROKER_DOWN, "the broker is not running"
	case r.InSync:
		r.State = runnelv1.ReplicaState_REPLICA_STATE_IN_SYNC
	default:
		r.State = runnelv1.ReplicaState_REPLICA_STATE_STARTING
	}
	if r.BrokerState == runnelv1.BrokerState_BROKER_STATE_FENCED {
		r.Detail = "the broker's storage is fenced"
	}
	return r
}

// partitionStatus describes one partition: where it is by metadata, and its offsets when this broker hosts it.
func (l *listener) partitionStatus(t *Topic, n int32) *runnelv1.PartitionStatus {
	st := l.byMetadata(t, n)
	if st.GetError() != nil {
		return st
	}
	p, err := l.cfg.Partitions.Lookup(t.ID, n)
	if err != nil {
		st.Error = l.item(partitionFault(err))
		if errors.Is(err, log.ErrQuarantined) { // a directory that is missing has no log to ask
			st.Health, st.Detail = runnelv1.PartitionHealth_PARTITION_HEALTH_QUARANTINED, err.Error()
		}
		return st
	}
	s := p.Status()
	fillStatus(st, s)
	if s.Replication.Leading {
		fillReplicas(st, s)
		if l.cfg.Cluster != nil {
			l.fillSuspects(st)
			if r, ok := l.cfg.Cluster.Rates(PartitionRef{t.ID, n}); ok {
				st.RecordsInPerSecond, st.BytesInPerSecond, st.BytesOutPerSecond = r.RecordsIn, r.BytesIn, r.BytesOut
			}
		}
	}
	return st
}

func fillStatus(st *runnelv1.PartitionStatus, s partition.Status) {
	o := s.Offsets
	st.LogStartOffset, st.LocalStartOffset, st.TieredEndOffset = o.LogStart, o.LocalStart, o.TieredEnd
	st.FlushedOffset, st.HighWatermark, st.LogEndOffset = o.Flushed, o.HighWatermark, o.End
	st.SizeBytes, st.Segments = s.Size, int32(s.Segments)
	st.Detail = s.State.Detail()
	switch s.State.Health {
	case log.Online:
		st.Health = runnelv1.PartitionHealth_PARTITION_HEALTH_ONLINE
	case log.ReadOnly:
		st.Health = runnelv1.PartitionHealth_PARTITION_HEALTH_READ_ONLY
	case log.Quarantined:
		st.Health = runnelv1.PartitionHealth_PARTITION_HEALTH_QUARANTINED
	case log.Failed, log.Offline:
		st.Health = runnelv1.PartitionHealth_PARTITION_HEALTH_OFFLINE
	}
}

// fillReplicas adds what the leader, which s is of, knows of its followers.
func fillReplicas(st *runnelv1.PartitionStatus, s partition.Status) {
	if s.Replication.MinISR > 0 {
		st.MinInSyncReplicas = int32(s.Replication.MinISR)
	}
	if !s.Replication.Writable && st.GetDetail() == "" {
		st.Detail = fmt.Sprintf("produce is refused: %d in-sync replicas are needed", st.GetMinInSyncReplicas())
	}
	for _, r := range st.GetReplicaStatus() {
		if r.GetBrokerId() == st.GetLeaderId() {
			r.AckedOffset, r.Lag, r.CaughtUpMsAgo = s.Offsets.Flushed, s.Offsets.End-s.Offsets.Flushed, 0
			continue
		}
		i := slices.IndexFunc(s.Replication.Followers, func(f replica.FollowerStatus) bool { return f.Peer.BrokerID == r.GetBrokerId() })
		if i < 0 {
			continue
		}
		follower(r, &s.Replication.Followers[i], s)
	}
}

// fillSuspects says of replicas that are behind that their brokers do not answer: they are not getting on, and are not gone either.
func (l *listener) fillSuspects(st *runnelv1.PartitionStatus) {
	for _, r := range st.GetReplicaStatus() {
		if r.GetInSync() || !r.GetBrokerLive() || r.GetBrokerId() == l.cfg.BrokerID {
			continue
		}
		b := &runnelv1.BrokerStatus{Id: r.GetBrokerId()}
		if l.cfg.Cluster.BrokerStatus(b); b.GetSuspect() {
			r.Detail = "the broker does not answer"
		}
	}
}

func follower(r *runnelv1.ReplicaStatus, f *replica.FollowerStatus, s partition.Status) {
	// A follower that has not acknowledged in this epoch has never been seen caught up in it.
	if f.Acked >= 0 {
		r.AckedOffset, r.Lag = f.Acked, max(s.Offsets.End-f.Acked, 0)
		if f.CaughtUp > 0 {
			r.CaughtUpMsAgo = max(s.Now-f.CaughtUp, 0).Milliseconds()
		}
	}
	switch {
	case !r.GetBrokerLive() && !f.InSync: // what it had acknowledged is known, and it is not getting on
	case f.InSync:
		r.State, r.Detail = runnelv1.ReplicaState_REPLICA_STATE_IN_SYNC, ""
	case f.Acked < 0:
		r.State, r.Detail = runnelv1.ReplicaState_REPLICA_STATE_SUBSCRIBED, "it has acknowledged nothing in this epoch yet"
	case f.Acked < s.Offsets.HighWatermark || f.Acked < s.Replication.EpochStart:
		r.State = runnelv1.ReplicaState_REPLICA_STATE_CATCHING_UP
		r.Detail = fmt.Sprintf("copying: %d of %d", f.Acked, s.Offsets.End)
	default:
		r.State, r.Detail = runnelv1.ReplicaState_REPLICA_STATE_CAUGHT_UP, "about to be in sync"
	}
}
