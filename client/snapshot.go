package client

import (
	"cmp"
	"maps"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// snapshot is the cluster as metadata describes it. It is immutable: a change makes a new one.
type snapshot struct {
	clusterID  string
	revision   int64
	controller int32
	brokers    map[int32]string // id to address, of those that are listed
	lapsed     map[int32]string // the last address of those that are not, and that a partition still names as its leader
	topics     map[string]*topicMeta
	missing    map[string]bool
	complete   bool // all of the cluster's topics are in topics: others are missing
}

// topicMeta is one topic of a snapshot, immutable.
type topicMeta struct {
	name          string
	id            TopicID
	partitions    []partitionMeta // by number
	maxBatchBytes int
	compression   Compression
}

type partitionMeta struct {
	leader      int32 // -1: none
	leaderEpoch int32
	replicas    []int32
}

// address returns where a broker is reached, "" when it is not known.
func (s *snapshot) address(broker int32) string {
	if a := s.brokers[broker]; a != "" {
		return a
	}
	return s.lapsed[broker]
}

// isMissing reports whether metadata has said that a topic does not exist; not knowing is not the same.
func (s *snapshot) isMissing(name string) bool {
	return s.missing[name] || s.complete && s.topics[name] == nil
}

// listed reports whether a broker's lease is alive, as far as metadata says.
func (s *snapshot) listed(broker int32) bool { return s.brokers[broker] != "" }

// merge is pure: the snapshot that follows from old and an answer. all: it answers a watch of all topics.
// Unless via is empty, every broker is reached there.
func merge(old *snapshot, r *runnelv1.WatchResponse, all bool, via string) *snapshot {
	next := &snapshot{
		clusterID: old.clusterID, revision: max(old.revision, r.GetRevision()), controller: r.GetControllerId(),
		brokers: old.brokers, topics: make(map[string]*topicMeta, len(old.topics)), missing: make(map[string]bool),
		complete: all,
	}
	if r.GetClusterId() != "" {
		next.clusterID = r.GetClusterId()
	}
	if !r.GetSnapshot() {
		maps.Copy(next.topics, old.topics)
		maps.Copy(next.missing, old.missing)
	} else {
		next.revision = r.GetRevision()
	}
	if r.GetBrokersChanged() || r.GetSnapshot() {
		next.brokers = make(map[int32]string, len(r.GetBrokers()))
		for _, b := range r.GetBrokers() {
			next.brokers[b.GetId()] = cmp.Or(via, b.GetAddress())
		}
	}
	for _, t := range r.GetTopics() {
		next.topics[t.GetName()] = topicFrom(t)
		delete(next.missing, t.GetName())
	}
	for _, name := range r.GetMissingTopics() {
		delete(next.topics, name)
		if !all {
			next.missing[name] = true
		}
	}
	if r.GetBrokersChanged() || r.GetSnapshot() || len(old.lapsed) > 0 {
		next.lapsed = lapsedLeaders(old, next, via)
	}
	return next
}

// lapsedLeaders are the brokers that lead something in next without being listed, as far as old knows where they are. A lapsed
// lease alone ends nothing: such a broker leads until a partition names another.
func lapsedLeaders(old, next *snapshot, via string) map[int32]string {
	var out map[int32]string
	for _, t := range next.topics {
		for i := range t.partitions {
			leader := t.partitions[i].leader
			if leader < 0 || next.listed(leader) || old.address(leader) == "" {
				continue
			}
			if out == nil {
				out = make(map[int32]string)
			}
			out[leader] = cmp.Or(via, old.address(leader))
		}
	}
	return out
}

const defaultMaxBatchBytes = 1 << 20

func topicFrom(t *runnelv1.TopicMetadata) *topicMeta {
	m := &topicMeta{name: t.GetName(), maxBatchBytes: defaultMaxBatchBytes, compression: compressionFrom(t.GetConfig().GetCompression())}
	copy(m.id[:], t.GetTopicId())
	if n := t.GetConfig().GetMaxBatchBytes(); n > 0 {
		m.maxBatchBytes = int(n)
	}
	for _, p := range t.GetPartitions() {
		n := int(p.GetPartition())
		for n >= len(m.partitions) {
			m.partitions = append(m.partitions, partitionMeta{leader: -1, leaderEpoch: -1})
		}
		if n >= 0 {
			m.partitions[n] = partitionMeta{leader: p.GetLeaderId(), leaderEpoch: p.GetLeaderEpoch(), replicas: p.GetReplicas()}
		}
	}
	return m
}

func compressionFrom(c runnelv1.Compression) Compression {
	if c == runnelv1.Compression_COMPRESSION_UNSPECIFIED {
		return CompressionNone
	}
	return Compression(c)
}
