package metadata

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/ids"
)

// recoverTopics decides which topics there are, and what becomes of their partitions.
//
// Invariant: what the newest source shows as being deleted, or does not show any more although an older one did, is not brought back. But of
// an etcd that went back in time nobody knows whether it ever had seen what it does not show: then what directories hold is kept.
func (pl *planner) recoverTopics() error {
	byTopic := map[ids.TopicID][]holder{}
	for _, ref := range pl.refs() {
		byTopic[ref.TopicID] = append(byTopic[ref.TopicID], pl.logs[ref]...)
	}
	rebuilt := pl.rebuild(byTopic)
	taken := map[string]ids.TopicID{}
	for _, id := range sortedIDs(pl.newest.topics) {
		t := pl.newest.topics[id]
		if rival := namesake(rebuilt, t.Name); rival != nil && len(byTopic[id]) == 0 && pl.complete {
			pl.out.Topics = append(pl.out.Topics, TopicRecovery{Name: t.Name, ID: id, Outcome: TopicDropped})
			pl.find(SeverityWarning, t.Name, -1, "topic %s is dropped: no directory has anything of it, and topic %s has its name", id, rival.ID)
			continue
		}
		taken[t.Name] = id
		if err := pl.topic(t, byTopic[id], TopicKept); err != nil {
			return err
		}
	}
	for _, t := range rebuilt {
		logs := byTopic[t.ID]
		if other, ok := taken[t.Name]; ok {
			was := t.Name
			t.Name = freeName(t, taken)
			pl.find(SeverityWarning, t.Name, -1, "topic %s was called %q, which is the name of topic %s", t.ID, was, other)
		}
		taken[t.Name] = t.ID
		pl.find(SeverityWarning, t.Name, -1, "topic %s is rebuilt from %d logs: it is newer than what the source knows", t.ID, len(logs))
		if err := pl.topic(t, logs, TopicRebuilt); err != nil {
			return err
		}
	}
	for _, id := range sortedIDs(byTopic) {
		if pl.deleted(id) {
			name := best(byTopic[id]).TopicName
			pl.out.Topics = append(pl.out.Topics, TopicRecovery{Name: name, ID: id, Outcome: TopicDropped})
			pl.find(SeverityWarning, name, -1, "topic %s was deleted before %s: its %d logs stay where they are, and nothing serves them",
				id, pl.newest.name, len(byTopic[id]))
		}
	}
	return nil
}

// deleted reports whether the newest source does not have a topic any more.
func (pl *planner) deleted(id ids.TopicID) bool {
	return pl.ever[id] && pl.newest.topics[id] == nil && !pl.wentBack()
}

// wentBack reports whether the newest source is an etcd that is older than what brokers have seen. It may have been written to since, and
// so be ahead of snapshots that it knows nothing of.
func (pl *planner) wentBack() bool {
	at := pl.newest.snap.Position
	return pl.in.Etcd != nil && pl.newest.snap == pl.in.Etcd && (at.Before(pl.known) || at.EtcdClusterID != pl.known.EtcdClusterID)
}

// rebuild makes records of topics that only directories know, those with most logs first.
func (pl *planner) rebuild(byTopic map[ids.TopicID][]holder) []*Topic {
	var out []*Topic
	for _, id := range sortedIDs(byTopic) {
		if pl.newest.topics[id] != nil || pl.deleted(id) {
			continue
		}
		logs := byTopic[id]
		top := best(logs)
		if named := slices.DeleteFunc(slices.Clone(logs), func(l holder) bool { return ValidateTopicName(l.TopicName) != nil }); len(named) > 0 {
			top = best(named)
		}
		t := &Topic{Name: top.TopicName, ID: id, State: TopicActive, Config: &runnelv1.TopicConfig{}, Generation: 1, Created: pl.in.Now}
		if ValidateTopicName(t.Name) != nil {
			t.Name = "recovered-" + id.String()
		}
		if config, err := decodeConfig(top.TopicConfig); err == nil {
			t.Config = config
		} else {
			pl.find(SeverityWarning, t.Name, -1, "the settings of topic %s cannot be read, the defaults apply: %v", id, err)
		}
		held := map[int32]int32{}
		for _, l := range logs {
			held[l.Partition]++
			t.Partitions = max(t.Partitions, l.Partition+1)
			t.Replicas = max(t.Replicas, min(held[l.Partition], MaxReplicas))
		}
		t.ReadyPartitions = t.Partitions
		out = append(out, t)
	}
	slices.SortStableFunc(out, func(a, b *Topic) int { return cmp.Compare(len(byTopic[b.ID]), len(byTopic[a.ID])) })
	return out
}

// topic enters a topic and its partitions.
func (pl *planner) topic(record *Topic, logs []holder, outcome TopicOutcome) error {
	t := *record
	for _, l := range logs {
		if t.State != TopicDeleting && l.Partition >= t.Partitions {
			pl.find(SeverityWarning, t.Name, -1, "the topic has at least %d partitions, %s says %d", l.Partition+1, pl.newest.name, t.Partitions)
			t.Partitions = l.Partition + 1
			t.ReadyPartitions = t.Partitions
		}
	}
	value, err := encodeTopic(&t)
	if err != nil {
		return err
	}
	pl.keys[relative.keys.topic(t.Name)] = value
	pl.out.Topics = append(pl.out.Topics, TopicRecovery{Name: t.Name, ID: t.ID, Outcome: outcome})
	for n := range t.Partitions {
		ref := PartitionRef{TopicID: t.ID, Partition: n}
		record := pl.newest.partitions[ref]
		if record == nil && len(pl.logs[ref]) == 0 && (n >= t.ReadyPartitions || t.State == TopicDeleting) {
			continue // never made, or purged already
		}
		p := pl.partition(&t, ref, record, logs)
		value, err := encodePartition(p)
		if err != nil {
			return err
		}
		pl.keys[relative.keys.partition(t.ID, n)] = value
		pl.out.Partitions = append(pl.out.Partitions, PartitionRecovery{
			PartitionRef: ref, Topic: t.Name, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR, End: pl.end(p),
		})
	}
	return nil
}

// end is where the chosen logs of a partition end; 0 when there are none.
func (pl *planner) end(p *Partition) int64 {
	for _, l := range pl.logs[p.PartitionRef] {
		if slices.Contains(p.ISR, l.member) {
			return l.End
		}
	}
	return 0
}

func (pl *planner) refs() []PartitionRef {
	return slices.SortedFunc(maps.Keys(pl.logs), func(a, b PartitionRef) int {
		return cmp.Or(strings.Compare(a.TopicID.String(), b.TopicID.String()), cmp.Compare(a.Partition, b.Partition))
	})
}

func namesake(topics []*Topic, name string) *Topic {
	if i := slices.IndexFunc(topics, func(t *Topic) bool { return t.Name == name }); i >= 0 {
		return topics[i]
	}
	return nil
}

// freeName is a name for a topic whose own is taken.
func freeName(t *Topic, taken map[string]ids.TopicID) string {
	for n := 8; ; n += 4 {
		suffix := fmt.Sprintf("-recovered-%s", t.ID.String()[:min(n, 36)])
		name := t.Name[:min(len(t.Name), MaxNameLength-len(suffix))] + suffix
		if _, ok := taken[name]; !ok {
			return name
		}
	}
}

func sortedIDs[V any](m map[ids.TopicID]V) []ids.TopicID {
	return slices.SortedFunc(maps.Keys(m), func(a, b ids.TopicID) int { return strings.Compare(a.String(), b.String()) })
}
