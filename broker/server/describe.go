package server

import (
	"errors"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
)

// partitionStatus describes one partition: where it is by metadata, and its offsets when this broker hosts it.
func (l *listener) partitionStatus(t *Topic, n int32) *runnelv1.PartitionStatus {
	st := &runnelv1.PartitionStatus{
		Topic: t.Name, TopicId: t.ID[:], Partition: n, LeaderId: -1, LogStartOffset: -1, LocalStartOffset: -1, TieredEndOffset: -1,
		FlushedOffset: -1, HighWatermark: -1, LogEndOffset: -1,
	}
	where, err := t.partition(n)
	if err != nil {
		st.Error = l.item(err)
		return st
	}
	st.LeaderId, st.LeaderEpoch, st.Replicas, st.Isr = where.LeaderID, where.LeaderEpoch, where.Replicas, where.ISR
	p, err := l.cfg.Partitions.Lookup(t.ID, n)
	if err != nil {
		st.Error = l.item(partitionFault(err))
		if errors.Is(err, log.ErrQuarantined) { // a directory that is missing has no log to ask
			st.Health, st.Detail = runnelv1.PartitionHealth_PARTITION_HEALTH_QUARANTINED, err.Error()
		}
		return st
	}
	fillStatus(st, p.Status())
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
