package broker

import (
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/ids"
)

// plan is the work of one pass.
type plan struct {
	create  []creation
	roles   []assignment
	purge   []*metadata.Partition
	confirm []metadata.Confirmation
	marks   []metadata.Mark
	configs []*metadata.Topic
}

type creation struct {
	topic *metadata.Topic
	part  *metadata.Partition
}

type assignment struct {
	log  *log.Log
	ref  metadata.PartitionRef
	role partition.Role
}

// add looks at this broker's share of one topic.
func (w *plan) add(h *host, s *metadata.State, t *metadata.Topic) {
	hosted := false
	for _, p := range s.Partitions(t.ID) {
		if p == nil || !p.HasReplica(h.reg.BrokerID()) {
			continue
		}
		if t.State == metadata.TopicDeleting {
			w.purge = append(w.purge, p)
			continue
		}
		hosted = true
		w.addPartition(h, s, t, p)
	}
	if hosted {
		w.configs = append(w.configs, t)
	}
}

func (w *plan) addPartition(h *host, s *metadata.State, t *metadata.Topic, p *metadata.Partition) {
	l, ok := h.store.Log(p.TopicID, p.Partition)
	if !ok {
		switch st, known := h.store.State(p.TopicID, p.Partition); {
		case known:
			w.mark(h, s, p, st, ids.LogID{})
		case metadata.NeedsConfirmation(p, h.reg):
			w.create = append(w.create, creation{t, p})
		default:
			// The cluster counts on a log that is not here: the storage was lost or replaced.
			w.mark(h, s, p, log.State{Health: log.Failed, Err: errNoDirectory}, ids.LogID{})
		}
		return
	}
	// A failed log is no lost one: its sync failed, this process stops, and the next finds everything that was acknowledged.
	if st := l.State(); st.Health == log.Quarantined {
		w.mark(h, s, p, st, l.LogID())
	} else if st.Health != log.Failed && metadata.NeedsConfirmation(p, h.reg) {
		w.confirm = append(w.confirm, metadata.Confirmation{Partition: p, LogID: l.LogID()})
	}
	w.roles = append(w.roles, assignment{log: l, ref: p.PartitionRef, role: h.role(s, t, p, l)})
}

// mark reports a log that lost what it had acknowledged, as long as the cluster counts on it. A zero id is that of the ISR's entry.
func (w *plan) mark(h *host, s *metadata.State, p *metadata.Partition, st log.State, id ids.LogID) {
	m, member := p.Member(h.reg.BrokerID())
	if !member || !id.IsZero() && m.LogID != id || m.StorageID != h.store.StorageID() {
		return
	}
	if r, ok := s.Storage(h.reg.BrokerID()); ok && r.Marked(p.PartitionRef) {
		return
	}
	kind := metadata.MarkQuarantined
	if st.Health == log.Failed {
		kind = metadata.MarkFailed
	}
	h.lg.Error("partition is damaged", "topic_id", p.TopicID, "partition", p.Partition, "health", st.Health.String(), "error", st.Err)
	w.marks = append(w.marks, metadata.Mark{Partition: p.PartitionRef, Kind: kind, LogID: m.LogID})
}

// role says what p means for this broker. It leads only under the registration that the partition names, and only with the log that
// the cluster counts on (DESIGN: an epoch is led by one incarnation).
func (h *host) role(s *metadata.State, t *metadata.Topic, p *metadata.Partition, l *log.Log) partition.Role {
	isr := make([]int32, 0, len(p.ISR))
	for _, m := range p.ISR {
		isr = append(isr, m.BrokerID)
	}
	me := h.reg.BrokerID()
	usable := h.counted(p, l)
	if b, alive := s.Broker(me); alive && b.Epoch > h.reg.Epoch() {
		usable = false // somebody else has the id now; this process is about to end
	}
	var damage error
	if st := l.State(); st.Health == log.Quarantined {
		usable, damage = false, st.Err
	}
	return partition.Role{
		Damage:   damage,
		Leading:  usable && p.Leader == me && p.LeaderBrokerEpoch == h.reg.Epoch(),
		LeaderID: p.Leader,
		Epoch:    p.LeaderEpoch,
		Replicas: p.Replicas,
		ISR:      isr,
		MinISR:   topicconfig.Effective(t.Config, h.defaults, t.Replicas).GetMinInSyncReplicas(),
	}
}
