package controller

import (
	"cmp"
	"slices"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/topicconfig"
)

// Plan is everything that one State asks for, in the order in which it is carried out.
type Plan struct {
	// Update are partitions with a new leader, none, or fewer members, or whose reassignment has arrived. Elections come first.
	Update []*metadata.Partition
	// Clear are damaged logs to take out of their ISRs.
	Clear []Damage
	// Eligible are registry entries that name a registration that may lead from now on.
	Eligible []*metadata.Storage
	// Create are partitions to write.
	Create []Work
	// Finish are topics all of whose partitions exist.
	Finish []*metadata.Topic
	// Purge are partitions whose replicas are all gone.
	Purge []Work
	// Forget are deleted topics without partitions.
	Forget []*metadata.Topic
	// Reassign are partitions that begin to move: off brokers that are drained, or to another number of replicas.
	Reassign []*metadata.Partition
	// Moves are leaders that move for balance. Nobody waits for them.
	Moves []*metadata.Partition
}

// Damage is a storage with marked logs.
type Damage struct {
	Storage *metadata.Storage
	// Partitions are the next states of marked partitions, at most metadata.MaxClearMarks.
	Partitions []*metadata.Partition
	// Stale are marks of logs that are in no ISR.
	Stale []metadata.PartitionRef
}

// Work is partitions of one topic.
type Work struct {
	Topic      *metadata.Topic
	Partitions []*metadata.Partition
}

// Empty reports whether there is nothing to do.
func (plan *Plan) Empty() bool {
	return len(plan.Update)+len(plan.Clear)+len(plan.Eligible)+len(plan.Create)+len(plan.Finish)+len(plan.Purge)+len(plan.Forget)+
		len(plan.Reassign)+len(plan.Moves) == 0
}

// Decide is the controller's whole policy as a function of what it sees. defaults are the cluster-wide topic settings. What is urgent comes
// alone: replicas and leaders that merely could be elsewhere are left until everybody has a leader.
func Decide(s *metadata.State, defaults *runnelv1.TopicConfig, in Input) Plan {
	var plan Plan
	placer := newPlacer(s, &in)
	tainted := map[int32]bool{}
	for _, topic := range s.Topics() {
		if topic.State == metadata.TopicDeleting {
			plan.bury(s, topic)
			continue
		}
		minimum := newMinimum(topic, defaults)
		for _, p := range s.Partitions(topic.ID) {
			if p == nil {
				continue
			}
			for _, m := range p.ISR {
				if lost(s, m) {
					tainted[m.BrokerID] = true
				}
			}
			if next := Next(s, p, minimum.of(p), in); next != nil {
				plan.Update = append(plan.Update, next)
			}
		}
		plan.grow(s, topic, placer)
	}
	slices.SortStableFunc(plan.Update, func(a, b *metadata.Partition) int { return cmp.Compare(urgency(s, a), urgency(s, b)) })
	for _, st := range s.Storages() {
		if d := damage(s, st); len(d.Partitions)+len(d.Stale) > 0 {
			plan.Clear = append(plan.Clear, d)
		}
	}
	for _, b := range s.Brokers() {
		// The records of partitions may be older than the registrations that the same State shows, and not name yet what is tainted.
		if st := eligible(s, b); st != nil && !tainted[b.ID] && b.Epoch <= s.Revision() {
			plan.Eligible = append(plan.Eligible, st)
		}
	}
	if len(plan.Update)+len(plan.Clear)+len(plan.Eligible) > 0 {
		return plan
	}
	plan.Reassign = relocate(s, placer)
	if in.Balance && len(plan.Reassign) == 0 {
		plan.Moves = Balance(s, in)
	}
	return plan
}

// urgency: partitions that get a leader first.
func urgency(s *metadata.State, next *metadata.Partition) int {
	if p, ok := s.Partition(next.TopicID, next.Partition); ok && next.Leader != metadata.NoLeader && next.LeaderEpoch != p.LeaderEpoch {
		return 0
	}
	return 1
}

// MinISR is the minimum of in-sync replicas that applies to a partition now. While replicas are being added, a minimum that the topic
// leaves to the default goes by the number there was: growing from one replica to three must not refuse produce until the new ones have
// caught up.
func MinISR(topic *metadata.Topic, p *metadata.Partition, defaults *runnelv1.TopicConfig) int {
	return newMinimum(topic, defaults).of(p)
}

// minimum remembers the answers for one topic.
type minimum struct {
	topic    *metadata.Topic
	defaults *runnelv1.TopicConfig
	known    map[int32]int
}

func newMinimum(topic *metadata.Topic, defaults *runnelv1.TopicConfig) *minimum {
	return &minimum{topic: topic, defaults: defaults, known: map[int32]int{}}
}

func (m *minimum) of(p *metadata.Partition) int {
	return m.ofReplicas(min(m.topic.Replicas, int32(len(p.Replicas)-len(p.Adding))))
}

func (m *minimum) ofReplicas(replicas int32) int {
	if n, ok := m.known[replicas]; ok {
		return n
	}
	n := int(topicconfig.Effective(m.topic.Config, m.defaults, replicas).GetMinInSyncReplicas())
	m.known[replicas] = n
	return n
}

// eligible returns the registry entry that makes a registration eligible, or nil when it is already, or must not be.
func eligible(s *metadata.State, b *metadata.Broker) *metadata.Storage {
	st, known := s.Storage(b.ID)
	switch {
	case !known:
		return &metadata.Storage{BrokerID: b.ID, StorageID: b.StorageID, EligibleEpoch: b.Epoch, State: metadata.StorageActive}
	case barred(st) && st.StorageID == b.StorageID:
		return nil
	case st.EligibleEpoch == b.Epoch && st.StorageID == b.StorageID:
		return nil
	}
	next := *st
	next.EligibleEpoch = b.Epoch
	if barred(st) {
		next.State = metadata.StorageActive // the id is used again, with another disk
	}
	if st.StorageID != b.StorageID {
		// The marks are of logs of the storage that is gone; no ISR names it any more.
		next.StorageID, next.Marks = b.StorageID, nil
	}
	return &next
}

// barred: the storage may hold nothing that counts.
func barred(st *metadata.Storage) bool {
	return st.State == metadata.StorageFenced || st.State == metadata.StorageDecommissioned
}

// damage takes the marked logs of a storage out of their ISRs.
func damage(s *metadata.State, st *metadata.Storage) Damage {
	d := Damage{Storage: st}
	for _, mark := range st.Marks {
		p, ok := s.Partition(mark.Partition.TopicID, mark.Partition.Partition)
		if !ok {
			d.Stale = append(d.Stale, mark.Partition)
			continue
		}
		m, member := p.Member(st.BrokerID)
		if !member || m.StorageID != st.StorageID || !mark.LogID.IsZero() && mark.LogID != m.LogID {
			// (Another log has caught up in the place of the one that was marked.)
			d.Stale = append(d.Stale, mark.Partition)
			continue
		}
		if len(d.Partitions) == metadata.MaxClearMarks {
			continue
		}
		next := p.Clone()
		next.ISR = keep(next.ISR, func(m metadata.Member) bool { return m.BrokerID != st.BrokerID })
		if next.LeaderEpoch > 0 && (next.Leader == st.BrokerID || len(next.ISR) == 0) {
			// Whoever is elected next comes under a higher epoch still; this one fences the damaged leader at once.
			next.Leader, next.LeaderBrokerEpoch = metadata.NoLeader, 0
			next.LeaderEpoch++
		}
		d.Partitions = append(d.Partitions, next)
	}
	return d
}

// bury finishes a deletion: partitions whose replicas are gone, then the topic itself.
func (plan *Plan) bury(s *metadata.State, topic *metadata.Topic) {
	work := Work{Topic: topic}
	left := 0
	for _, p := range s.Partitions(topic.ID) {
		if p == nil {
			continue
		}
		left++
		if gone(s, p) {
			work.Partitions = append(work.Partitions, p)
		}
	}
	switch {
	case left == 0:
		plan.Forget = append(plan.Forget, topic)
	case len(work.Partitions) > 0:
		plan.Purge = append(plan.Purge, work)
	}
}

// gone: every replica has removed its directory, or its storage was decommissioned, or was fenced and is not attached.
func gone(s *metadata.State, p *metadata.Partition) bool {
	return !slices.ContainsFunc(p.Replicas, func(id int32) bool {
		st, known := s.Storage(id)
		_, alive := s.Broker(id)
		return !slices.Contains(p.Purged, id) && !(known && barred(st) && (st.State == metadata.StorageDecommissioned || !alive))
	})
}

// grow adds the partitions that a topic lacks, or declares it complete. With too few brokers the topic waits.
func (plan *Plan) grow(s *metadata.State, topic *metadata.Topic, placer *placer) {
	if topic.State == metadata.TopicActive && topic.ReadyPartitions >= topic.Partitions {
		return
	}
	have := s.Partitions(topic.ID)
	work := Work{Topic: topic}
	for n := range topic.Partitions {
		if int(n) >= len(have) || have[n] == nil {
			work.Partitions = append(work.Partitions, &metadata.Partition{
				PartitionRef: metadata.PartitionRef{TopicID: topic.ID, Partition: n}, Leader: metadata.NoLeader,
			})
		}
	}
	if len(work.Partitions) == 0 {
		plan.Finish = append(plan.Finish, topic)
		return
	}
	if placer.place(work.Partitions, int(topic.Replicas)) {
		plan.Create = append(plan.Create, work)
	}
}
