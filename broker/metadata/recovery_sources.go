package metadata

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"runnel.dev/runnel/internal/ids"
)

// source is metadata as it was at one time.
type source struct {
	name     string
	snap     *Snapshot
	contents Contents
	// revision orders sources of one era.
	revision int64
	topics   map[ids.TopicID]*Topic
	// partitions by reference.
	partitions map[PartitionRef]*Partition
	storages   map[int32]*Storage
}

// relative builds and reads keys without a prefix.
var relative = Builder{}

// identify checks that the inventories belong together, and finds out what they know.
func (pl *planner) identify() error {
	if len(pl.in.Inventories) == 0 {
		return invalid("inventories", 0, "at least one data directory")
	}
	brokers, storages := map[int32]ids.StorageID{}, map[ids.StorageID]int32{}
	for _, inv := range pl.in.Inventories {
		at := inv.Position
		if at.ClusterID == "" {
			return invalid("inventory", fmt.Sprintf("broker %d without a cluster id", inv.BrokerID), "one that belongs to a cluster")
		}
		if pl.known.ClusterID == "" {
			pl.known.ClusterID = at.ClusterID
		}
		if at.ClusterID != pl.known.ClusterID {
			return &ForeignEtcdError{What: fmt.Sprintf("cluster id of broker %d", inv.BrokerID), Want: pl.known.ClusterID, Got: at.ClusterID}
		}
		if other, ok := brokers[inv.BrokerID]; ok {
			return invalid("inventories", fmt.Sprintf("storages %s and %s of broker %d", other, inv.StorageID, inv.BrokerID),
				"one storage per broker id")
		}
		if other, ok := storages[inv.StorageID]; ok {
			return invalid("inventories", fmt.Sprintf("storage %s of brokers %d and %d", inv.StorageID, other, inv.BrokerID),
				"one broker per storage: a copied disk is not a second replica")
		}
		brokers[inv.BrokerID], storages[inv.StorageID] = inv.StorageID, inv.BrokerID
		if pl.known.Before(at) {
			pl.known = at
		}
		pl.era = max(pl.era, at.Era)
		pl.brokers = append(pl.brokers, inv.BrokerID)
	}
	slices.Sort(pl.brokers)
	return nil
}

// gather reads all sources, the newest first.
func (pl *planner) gather() error {
	if e := pl.in.Etcd; e != nil && e.Position.ClusterID != "" {
		if e.Position.ClusterID != pl.known.ClusterID {
			return &ForeignEtcdError{What: "cluster id in etcd", Want: pl.known.ClusterID, Got: e.Position.ClusterID}
		}
		pl.add(fmt.Sprintf("etcd (era %d, revision %d)", e.Position.Era, e.Position.Revision), e)
	}
	for i, b := range pl.in.Snapshots {
		s, err := DecodeSnapshot(b)
		switch {
		case err != nil:
			pl.find(SeverityWarning, "", -1, "snapshot %d of %d cannot be used: %v", i+1, len(pl.in.Snapshots), err)
		case s.Position.ClusterID != pl.known.ClusterID:
			pl.find(SeverityWarning, "", -1, "snapshot %d of %d is of cluster %q, not of %q",
				i+1, len(pl.in.Snapshots), s.Position.ClusterID, pl.known.ClusterID)
		default:
			taken := s.Taken.UTC().Format("2006-01-02 15:04:05Z")
			pl.add(fmt.Sprintf("snapshot of %s (era %d, revision %d)", taken, s.Position.Era, s.Position.Revision), s)
		}
	}
	if pl.in.Etcd != nil && len(pl.sources) > 0 && pl.sources[0].snap == pl.in.Etcd {
		pl.compareWithEtcd(pl.sources[0], pl.sources[1:])
	}
	slices.SortStableFunc(pl.sources, func(a, b *source) int {
		return cmp.Or(cmp.Compare(b.snap.Position.Era, a.snap.Position.Era), cmp.Compare(b.revision, a.revision))
	})
	return nil
}

// compareWithEtcd finds an etcd that was older than a snapshot and has been written to since, maybe beyond the snapshot's revision: in one
// history no key goes back.
func (pl *planner) compareWithEtcd(etcd *source, snapshots []*source) {
	now := map[string]int64{}
	for _, kv := range etcd.snap.Keys {
		now[kv.Key] = kv.Revision
	}
	for _, s := range snapshots {
		if s.snap.Position.Era != etcd.snap.Position.Era {
			continue
		}
		for _, kv := range s.snap.Keys {
			if at, ok := now[kv.Key]; ok && at < kv.Revision {
				pl.find(SeverityWarning, "", -1, "%s is older than the %s: %s was written at revision %d there, at %d here. What was written to it since it went "+
					"back is not used", etcd.name, s.name, kv.Key, kv.Revision, at)
				etcd.revision = 0
				return
			}
		}
	}
}

func (pl *planner) add(name string, snap *Snapshot) {
	pl.era = max(pl.era, snap.Position.Era)
	contents, err := relative.Decode(snap.Position, snap.Keys)
	if err != nil {
		pl.find(SeverityWarning, "", -1, "%s has values that cannot be read, they are left out: %s",
			name, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	s := &source{
		name: name, snap: snap, contents: contents, revision: snap.Position.Revision,
		topics: map[ids.TopicID]*Topic{}, partitions: map[PartitionRef]*Partition{}, storages: map[int32]*Storage{},
	}
	for _, p := range contents.Partitions {
		s.partitions[p.PartitionRef] = p
		pl.recorded[p.PartitionRef] = max(pl.recorded[p.PartitionRef], p.LeaderEpoch)
	}
	if snap.Recovering {
		pl.find(SeverityWarning, "", -1, "%s was left by a recovery that did not finish: what it says is not used", name)
		return
	}
	if snap.Position.EtcdClusterID != pl.known.EtcdClusterID {
		// Another etcd than the one that the brokers knew: restored from a backup, maybe with its revision raised on purpose. What it holds
		// is as old as the newest thing in it.
		s.revision = 0
		for _, kv := range snap.Keys {
			s.revision = max(s.revision, kv.Revision)
		}
	}
	for _, t := range contents.Topics {
		s.topics[t.ID] = t
		pl.ever[t.ID] = true
	}
	for _, st := range contents.Storages {
		s.storages[st.BrokerID] = st
	}
	pl.sources = append(pl.sources, s)
}

// missing are brokers that the sources know, not decommissioned, without an inventory.
func (pl *planner) missing() []int32 {
	known := map[int32]bool{}
	for _, s := range pl.sources {
		for id := range s.storages {
			known[id] = true
		}
		for _, p := range s.partitions {
			for _, id := range p.Replicas {
				known[id] = true
			}
		}
	}
	var out []int32
	for id := range known {
		if !slices.Contains(pl.brokers, id) && !pl.decommissioned(id) {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

func (pl *planner) decommissioned(id int32) bool {
	st, ok := pl.newest.storages[id]
	return ok && st.State == StorageDecommissioned
}
