package broker

import (
	"context"
	"errors"
	"fmt"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/internal/ids"
)

// Lookup implements server.Partitions.
func (h *host) Lookup(id ids.TopicID, number int32) (*partition.Partition, error) {
	if p, ok := h.lookup(metadata.PartitionRef{TopicID: id, Partition: number}); ok {
		return p, nil
	}
	if st, ok := h.store.State(id, number); ok && st.Err != nil {
		return nil, st.Err
	}
	s := h.cache.Snapshot()
	t, ok := s.TopicByID(id)
	if !ok {
		return nil, &partition.UnknownError{TopicID: id, Partition: number}
	}
	p, ok := s.Partition(id, number)
	if !ok || number >= t.ReadyPartitions {
		return nil, &partition.UnknownError{TopicID: id, Partition: number, Partitions: t.ReadyPartitions}
	}
	return nil, &partition.NotLeaderError{LeaderID: p.Leader, LeaderEpoch: p.LeaderEpoch}
}

// Recover implements server.Partitions: storage brings back what is intact, then the cluster is told to count on that log.
func (h *host) Recover(ctx context.Context, id ids.TopicID, number int32, accept bool) (server.RecoverPlan, error) {
	plan, err := h.store.Recover(ctx, id, number, accept)
	if errors.Is(err, storage.ErrNotDamaged) && accept && h.forsaken(id, number) {
		// An earlier call has recovered the log and failed to tell the cluster.
		return server.RecoverPlan{Applied: true, Detail: "the partition's log was recovered before"}, h.acceptLog(ctx, id, number)
	}
	if err != nil {
		return server.RecoverPlan{}, err
	}
	out := server.RecoverPlan{KeptEnd: plan.KeepTo, LostEnd: max(plan.LostTo, plan.KeepTo), Applied: plan.Applied}
	if plan.Damage != nil {
		out.Detail = plan.Damage.Error()
	}
	missing := plan.SetAside == ""
	if missing {
		out.KeptEnd = 0 // the log begins anew behind what is lost, so that no offset is given twice
	}
	if !plan.Applied {
		return out, nil
	}
	if !missing {
		out.Detail += "; the damaged files are in " + plan.SetAside
	}
	return out, h.acceptLog(ctx, id, number)
}

// forsaken reports whether this broker has a log of the partition that the cluster does not count on.
func (h *host) forsaken(id ids.TopicID, number int32) bool {
	l, ok := h.store.Log(id, number)
	p, known := h.cache.Snapshot().Partition(id, number)
	return ok && known && !h.counted(p, l)
}

// acceptLog makes this broker's log the partition's only in-sync replica, if the cluster counts on no other, and returns once this broker
// leads with it.
func (h *host) acceptLog(ctx context.Context, id ids.TopicID, number int32) error {
	l, ok := h.store.Log(id, number)
	if !ok {
		return storage.ErrLogNotFound
	}
	p, ok := h.cache.Snapshot().Partition(id, number)
	if !ok {
		return &partition.UnknownError{TopicID: id, Partition: number}
	}
	if !h.counted(p, l) {
		r, err := h.client.AcceptReplica(ctx, h.reg, p, l.LogID())
		if err == nil && r.Count() == 0 {
			err = fmt.Errorf("partition %d changed meanwhile: %w", number, metadata.ErrConflict)
		}
		if err != nil {
			return err
		}
	}
	_, err := h.view.wait(ctx, func(s *metadata.State) bool {
		p, ok := s.Partition(id, number)
		return !ok || h.counted(p, l) && p.Leader == h.reg.BrokerID() && p.LeaderBrokerEpoch == h.reg.Epoch()
	})
	if err != nil {
		return fmt.Errorf("the log was recovered and is not in use yet: %w", err)
	}
	return nil
}

// counted reports whether the cluster counts on l as this broker's log of p.
func (h *host) counted(p *metadata.Partition, l *log.Log) bool {
	m, member := p.Member(h.reg.BrokerID())
	return member && m.LogID == l.LogID() && m.StorageID == h.store.StorageID()
}
