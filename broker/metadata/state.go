package metadata

import (
	"maps"
	"slices"

	"runnel.dev/runnel/internal/ids"
)

// State is an immutable view of the cluster's metadata. It is safe for concurrent use and stays valid for ever; unchanged values
// keep their pointers from one State to the next, so pointer comparison tells what changed.
//
// Per key it is never older than any earlier State. Across keys: topics, partitions and storages are of one revision, and so are
// brokers, controller and cluster; one group may be ahead of the other, and single partitions, which were pushed, ahead of both. Revision is
// what both groups have reached, Seen the highest of all. Decisions are therefore
// made by transactions that compare the keys they depend on.
type State struct {
	cluster    *Cluster
	controller *ControllerInfo
	brokers    map[int32]*Broker
	storages   map[int32]*Storage
	byName     map[string]*Topic
	byID       map[ids.TopicID]*Topic
	partitions map[ids.TopicID][]*Partition
	position   Position
	// seen is the highest mod revision of anything that this State or one before it has shown, at least position.Revision.
	seen    int64
	changed chan struct{}
}

func newState() *State {
	return &State{
		brokers: map[int32]*Broker{}, storages: map[int32]*Storage{}, byName: map[string]*Topic{}, byID: map[ids.TopicID]*Topic{},
		partitions: map[ids.TopicID][]*Partition{}, changed: make(chan struct{}),
	}
}

// Contents is what NewState puts into a State.
type Contents struct {
	Position   Position
	Cluster    *Cluster
	Controller *ControllerInfo
	Brokers    []*Broker
	Storages   []*Storage
	Topics     []*Topic
	Partitions []*Partition
}

// NewState makes a State out of values, for decisions on something else than etcd: tests and simulations. Its Changed never closes.
func NewState(c Contents) *State {
	s := newState()
	s.position, s.cluster, s.controller = c.Position, c.Cluster, c.Controller
	s.seen = c.Position.Revision
	for _, b := range c.Brokers {
		s.brokers[b.ID] = b
	}
	for _, st := range c.Storages {
		s.storages[st.BrokerID] = st
	}
	for _, t := range c.Topics {
		s.byName[t.Name], s.byID[t.ID] = t, t
	}
	for _, p := range c.Partitions {
		list := s.partitions[p.TopicID]
		for len(list) <= int(p.Partition) {
			list = append(list, nil)
		}
		list[p.Partition] = p
		s.partitions[p.TopicID] = list
	}
	return s
}

// Changed is closed when a newer State has been published.
func (s *State) Changed() <-chan struct{} { return s.changed }

// Loaded is false for the State before the first list: it says nothing about the cluster.
func (s *State) Loaded() bool { return s.position.Revision > 0 }

// Position is the point in the metadata's history that the whole State has reached.
func (s *State) Position() Position { return s.position }

// Seen is Position with the highest revision of anything in the State: an etcd that is older has lost something that was acted on.
func (s *State) Seen() Position {
	p := s.position
	p.Revision = max(p.Revision, s.seen)
	return p
}

// Revision is Position().Revision.
func (s *State) Revision() int64 { return s.position.Revision }

// Cluster is the cluster's record, nil before the first list.
func (s *State) Cluster() *Cluster { return s.cluster }

// Controller is who controls, nil when nobody ever did. It may have died since.
func (s *State) Controller() *ControllerInfo { return s.controller }

// Broker returns a live registration.
func (s *State) Broker(id int32) (*Broker, bool) {
	b, ok := s.brokers[id]
	return b, ok
}

// Brokers returns all live registrations by ascending id.
func (s *State) Brokers() []*Broker { return sorted(s.brokers) }

// Storage returns a registry entry.
func (s *State) Storage(id int32) (*Storage, bool) {
	st, ok := s.storages[id]
	return st, ok
}

// Storages returns all registry entries by ascending broker id.
func (s *State) Storages() []*Storage { return sorted(s.storages) }

// Eligible reports whether a broker may lead and may be in an ISR now: it is alive, its storage is the registered one and is neither
// fenced nor decommissioned, and the controller has declared this very registration eligible.
func (s *State) Eligible(id int32) bool {
	b, alive := s.brokers[id]
	st, known := s.storages[id]
	return alive && known && st.EligibleEpoch == b.Epoch && st.StorageID == b.StorageID &&
		(st.State == StorageActive || st.State == StorageDraining)
}

// Topic returns the topic of that name, in whatever state it is.
func (s *State) Topic(name string) (*Topic, bool) {
	t, ok := s.byName[name]
	return t, ok
}

// TopicByID returns the topic with that ID, in whatever state it is.
func (s *State) TopicByID(id ids.TopicID) (*Topic, bool) {
	t, ok := s.byID[id]
	return t, ok
}

// Topics returns all topics by name.
func (s *State) Topics() []*Topic { return sorted(s.byName) }

// Partitions returns the partitions of a topic by number. Entries are nil where the key does not exist (yet), and trailing absent
// ones are left out. The slice is shared: it must not be changed.
func (s *State) Partitions(id ids.TopicID) []*Partition { return s.partitions[id] }

// Partition returns one partition.
func (s *State) Partition(id ids.TopicID, partition int32) (*Partition, bool) {
	all := s.partitions[id]
	if partition < 0 || int(partition) >= len(all) || all[partition] == nil {
		return nil, false
	}
	return all[partition], true
}

// Usable reports whether a topic is active and all its ready partitions have a leader. It is false for a topic that does not exist.
func (s *State) Usable(id ids.TopicID) bool {
	t, ok := s.byID[id]
	if !ok || t.State != TopicActive || len(s.partitions[id]) < int(t.ReadyPartitions) {
		return false
	}
	for _, p := range s.partitions[id][:t.ReadyPartitions] {
		if p == nil || p.Leader == NoLeader {
			return false
		}
	}
	return true
}

// Delta is what differs between two States.
type Delta struct {
	// Brokers is true when a registration, the registry or the controller changed.
	Brokers bool
	// Topics lists topics whose record or any partition is new or changed, or that are gone (then TopicByID does not know them).
	Topics []ids.TopicID
}

// Empty reports whether nothing differs.
func (d Delta) Empty() bool { return !d.Brokers && len(d.Topics) == 0 }

// Since returns what changed from an older State to this one. It costs one pass over the topics, and no pass over partitions.
func (s *State) Since(old *State) Delta {
	d := Delta{
		Brokers: s.controller != old.controller || !maps.Equal(s.brokers, old.brokers) || !maps.Equal(s.storages, old.storages),
	}
	for id, t := range s.byID {
		if old.byID[id] != t || !same(s.partitions[id], old.partitions[id]) {
			d.Topics = append(d.Topics, id)
		}
	}
	for id := range old.byID {
		if _, ok := s.byID[id]; !ok {
			d.Topics = append(d.Topics, id)
		}
	}
	return d
}

// same reports whether two partition lists are the same list: a changed list is always a new one.
func same(a, b []*Partition) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func sorted[K interface{ ~int32 | ~string }, V any](m map[K]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}
