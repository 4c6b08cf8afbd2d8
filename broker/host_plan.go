package broker

import (
	"runnel.dev/runnel/broker/controller"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/ids"
)

// plan is the work of one pass.
type plan struct {
	create  []creation
	roles   []assignment
	purge   []*metadata.Partition
	remove  []metadata.PartitionRef
	confirm []metadata.Confirmation
	marks   []metadata.Mark
	configs []*metadata.Topic
}

// creation is a directory to be made. replace: a log that is damaged, and that the cluster does not count on, is set aside first.
type creation struct {
	state   *metadata.State
	topic   *metadata.Topic
	part    *metadata.Partition
	replace bool
}

type assignment struct {
	log    *log.Log
	ref    metadata.PartitionRef
	update partition.RecordUpdate
}

// add looks at this broker's share of one topic.
func (w *plan) add(h *host, s *metadata.State, t *metadata.Topic) {
	hosted := false
	for _, p := range s.Partitions(t.ID) {
		switch {
		case p == nil:
		case !p.HasReplica(h.reg.BrokerID()):
			w.addRemoval(h, s, t, p)
		case t.State == metadata.TopicDeleting:
			w.purge = append(w.purge, p)
		default:
			hosted = true
			w.addPartition(h, s, t, p)
		}
	}
	if hosted {
		w.configs = append(w.configs, t)
	}
}

// addRemoval removes what this broker still has of a partition that lives elsewhere.
//
// Invariant: nothing is deleted because metadata looks as if it were absent. The record is there, it belongs to a topic that exists, and it
// names others, who are in sync without this broker.
func (w *plan) addRemoval(h *host, s *metadata.State, t *metadata.Topic, p *metadata.Partition) {
	if !s.Loaded() || t.State != metadata.TopicActive || len(p.Replicas) == 0 || len(p.ISR) == 0 {
		return
	}
	if _, member := p.Member(h.reg.BrokerID()); member {
		return
	}
	if _, known := h.store.State(p.TopicID, p.Partition); known {
		w.remove = append(w.remove, p.PartitionRef)
	}
}

func (w *plan) addPartition(h *host, s *metadata.State, t *metadata.Topic, p *metadata.Partition) {
	l, ok := h.store.Log(p.TopicID, p.Partition)
	if !ok {
		switch st, known := h.store.State(p.TopicID, p.Partition); {
		case known && h.replaceable(p):
			w.create = append(w.create, creation{s, t, p, true})
		case known:
			w.mark(h, s, p, st, ids.LogID{})
		case metadata.NeedsConfirmation(p, h.reg), h.replaceable(p):
			w.create = append(w.create, creation{s, t, p, false})
		default:
			// The cluster counts on a log that is not here: the storage was lost or replaced.
			w.mark(h, s, p, log.State{Health: log.Failed, Err: errNoDirectory}, ids.LogID{})
		}
		return
	}
	// A failed log is no lost one: its sync failed, this process stops, and the next finds everything that was acknowledged.
	switch st := l.State(); {
	case st.Health == log.Quarantined && h.replaceable(p):
		w.create = append(w.create, creation{s, t, p, true})
		return
	case st.Health == log.Quarantined:
		w.mark(h, s, p, st, l.LogID())
	case st.Health != log.Failed && metadata.NeedsConfirmation(p, h.reg):
		w.confirm = append(w.confirm, metadata.Confirmation{Partition: p, LogID: l.LogID()})
	}
	w.roles = append(w.roles, h.assignment(s, p, l))
}

// replaceable reports whether this broker's log of p may begin anew: the partition was led, others are in sync, and the cluster does not
// count on anything of this storage. With nobody else in sync the files are what is left, and a human decides.
func (h *host) replaceable(p *metadata.Partition) bool {
	m, member := p.Member(h.reg.BrokerID())
	return p.LeaderEpoch > 0 && len(p.ISR) > 0 && (!member || m.StorageID != h.store.StorageID() && len(p.ISR) > 1)
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

// assignment says what p means for this broker with log l.
func (h *host) assignment(s *metadata.State, p *metadata.Partition, l *log.Log) assignment {
	u := partition.RecordUpdate{
		Record: replicaRecord(p, h.minISR(s, p)), BrokerEpoch: h.reg.Epoch(), StorageID: h.store.StorageID(), Usable: true,
	}
	if b, alive := s.Broker(h.reg.BrokerID()); alive && b.Epoch > h.reg.Epoch() {
		u.Usable = false // somebody else has the id now; this process is about to end
	}
	switch st := l.State(); st.Health {
	case log.Quarantined:
		u.Usable, u.Damage = false, st.Err
	case log.Failed, log.Offline:
		u.Usable = false
	case log.Online, log.ReadOnly:
	}
	return assignment{log: l, ref: p.PartitionRef, update: u}
}

// minISR is the min_in_sync_replicas in force for one partition; 1 for a topic that is not known.
func (h *host) minISR(s *metadata.State, p *metadata.Partition) int {
	t, ok := s.TopicByID(p.TopicID)
	if !ok {
		return 1
	}
	return controller.MinISR(t, p, h.defaults)
}
