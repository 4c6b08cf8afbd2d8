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
	// Update are partitions with a new leader, none, or fewer members; leader moves come first.
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
	return len(plan.Update)+len(plan.Clear)+len(plan.Eligible)+len(plan.Create)+len(plan.Finish)+len(plan.Purge)+len(plan.Forget) == 0
}

// Decide is the controller's whole policy as a function of what it sees. defaults are the cluster-wide topic settings.
func Decide(s *metadata.State, defaults *runnelv1.TopicConfig) Plan {
	var plan Plan
	placer := newPlacer(s)
	tainted := map[int32]bool{}
	for _, topic := range s.Topics() {
		if topic.State == metadata.TopicDeleting {
			plan.bury(s, topic)
			continue
		}
		minISR := int(topicconfig.Effective(topic.Config, defaults, topic.Replicas).GetMinInSyncReplicas())
		for _, p := range s.Partitions(topic.ID) {
			if p == nil {
				continue
			}
			for _, m := range slices.Concat(p.ISR, p.Pending) {
				tainted[m.BrokerID] = tainted[m.BrokerID] || replaced(s, m)
			}
			if next := Next(s, p, minISR); next != nil {
				plan.Update = append(plan.Update, next)
			}
		}
		plan.grow(s, topic, placer)
	}
	slices.SortStableFunc(plan.Update, func(a, b *metadata.Partition) int { return cmp.Compare(urgency(a), urgency(b)) })
	for _, st := range s.Storages() {
		if d := damage(s, st); len(d.Partitions)+len(d.Stale) > 0 {
			plan.Clear = append(plan.Clear, d)
		}
	}
	for _, b := range s.Brokers() {
		if st := eligible(s, b); st != nil && !tainted[b.ID] {
			plan.Eligible = append(plan.Eligible, st)
		}
	}
	return plan
}

// urgency: partitions that get a leader first.
func urgency(p *metadata.Partition) int {
	if p.Leader != metadata.NoLeader {
		return 0
	}
	return 1
}

// eligible returns the registry entry that makes a registration eligible, or nil when it is already, or must not be.
func eligible(s *metadata.State, b *metadata.Broker) *metadata.Storage {
	st, known := s.Storage(b.ID)
	switch {
	case !known:
		return &metadata.Storage{BrokerID: b.ID, StorageID: b.StorageID, EligibleEpoch: b.Epoch, State: metadata.StorageActive}
	case st.State == metadata.StorageFenced || st.State == metadata.StorageDecommissioned:
		return nil
	case st.EligibleEpoch == b.Epoch && st.StorageID == b.StorageID:
		return nil
	}
	next := *st
	next.EligibleEpoch = b.Epoch
	if st.StorageID != b.StorageID {
		// The marks are of logs of the storage that is gone; no ISR names it any more.
		next.StorageID, next.Marks = b.StorageID, nil
	}
	return &next
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
		if m, member := p.Member(st.BrokerID); !member || m.StorageID != st.StorageID {
			d.Stale = append(d.Stale, mark.Partition)
			continue
		}
		if len(d.Partitions) == metadata.MaxClearMarks {
			continue
		}
		next := p.Clone()
		next.ISR = keep(next.ISR, func(m metadata.Member) bool { return m.BrokerID != st.BrokerID })
		if next.Leader == st.BrokerID || len(next.ISR) == 0 {
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

// gone: every replica has removed its directory, or its storage was decommissioned.
func gone(s *metadata.State, p *metadata.Partition) bool {
	return !slices.ContainsFunc(p.Replicas, func(id int32) bool {
		st, known := s.Storage(id)
		return !slices.Contains(p.Purged, id) && !(known && st.State == metadata.StorageDecommissioned)
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

// placer counts the load when the first topic needs it, which is rare.
type placer struct {
	s       *metadata.State
	brokers []int32
	load    Load
}

func newPlacer(s *metadata.State) *placer { return &placer{s: s} }

func (pl *placer) place(partitions []*metadata.Partition, replicas int) bool {
	if pl.brokers == nil {
		pl.count()
	}
	if replicas > len(pl.brokers) {
		return false
	}
	for i, replicas := range Place(pl.brokers, pl.load, len(partitions), replicas) {
		partitions[i].Replicas = replicas
	}
	return true
}

func (pl *placer) count() {
	pl.load = Load{Leaders: map[int32]int{}, Replicas: map[int32]int{}}
	for _, b := range pl.s.Brokers() {
		if st, ok := pl.s.Storage(b.ID); ok && pl.s.Eligible(b.ID) && st.State == metadata.StorageActive {
			pl.brokers = append(pl.brokers, b.ID)
		}
	}
	for _, topic := range pl.s.Topics() {
		for _, p := range pl.s.Partitions(topic.ID) {
			if p == nil || topic.State == metadata.TopicDeleting {
				continue
			}
			// The preferred leader counts: a leader that is elsewhere for the moment goes back.
			pl.load.Leaders[p.Replicas[0]]++
			for _, id := range p.Replicas {
				pl.load.Replicas[id]++
			}
		}
	}
}
