package metadata

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	metadatav1 "runnel.dev/runnel/api/runnel/metadata/v1"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/ids"
)

const (
	// epochGap is how far leader epochs move beyond every one that is known: elections after the newest source that no directory here took part
	// in have used some as well, clients have been told of them, and an epoch must never be led twice.
	epochGap = 1024
	// producerGap is left in producer ids for those that were given out and never wrote anything that is left.
	producerGap = 1 << 30
)

// planner is one PlanRecovery.
type planner struct {
	in  RecoveryInput
	out *Recovery
	// known is the highest position of any broker.
	known   Position
	era     int64
	brokers []int32
	sources []*source
	// newest is sources[0], or empty.
	newest *source
	// ever are topics of any source.
	ever map[ids.TopicID]bool
	// recorded is the highest leader epoch of a partition in any source.
	recorded map[PartitionRef]int32
	// logs are all logs by partition.
	logs map[PartitionRef][]holder
	// complete: nobody that the sources know is missing.
	complete bool
	keys     map[string]string
}

// holder is a log and whose it is.
type holder struct {
	LogInventory
	member Member
}

// PlanRecovery decides what the metadata has to be. It is a pure function. Errors: ErrInvalidArgument and ErrForeignEtcd for inputs that do
// not belong together; everything else is in the Findings.
func PlanRecovery(in RecoveryInput) (*Recovery, error) {
	pl := &planner{
		in: in, out: &Recovery{}, ever: map[ids.TopicID]bool{}, recorded: map[PartitionRef]int32{}, logs: map[PartitionRef][]holder{},
		keys: map[string]string{}, newest: &source{name: "data directories alone", snap: &Snapshot{}},
	}
	if err := pl.identify(); err != nil {
		return nil, err
	}
	if err := pl.gather(); err != nil {
		return nil, err
	}
	if len(pl.sources) > 0 {
		pl.newest = pl.sources[0]
	}
	for _, inv := range in.Inventories {
		for _, l := range inv.Logs {
			ref := PartitionRef{TopicID: l.TopicID, Partition: l.Partition}
			pl.logs[ref] = append(pl.logs[ref], holder{l, Member{BrokerID: inv.BrokerID, StorageID: inv.StorageID, LogID: l.LogID}})
		}
	}
	out := pl.out
	out.ClusterID, out.Source, out.Era, out.Missing = pl.known.ClusterID, pl.newest.name, max(pl.era, 1)+1, pl.missing()
	pl.complete = len(out.Missing) == 0 && len(pl.sources) > 0
	if len(out.Missing) > 0 {
		pl.find(SeverityWarning, "", -1, "brokers %d are known and their data directories are not here: records that only they have are lost, "+
			"and they come back as followers", out.Missing)
	}
	if len(pl.sources) == 0 {
		pl.find(SeverityLoss, "", -1, "neither etcd nor a snapshot says anything: groups, offsets, owners and policies are lost, "+
			"topics are rebuilt from directories")
	}
	pl.carry()
	for _, step := range []func() error{pl.recoverTopics, pl.recoverStorages, pl.recoverProducers} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	pl.seal()
	return out, nil
}

func (pl *planner) find(s Severity, topic string, partition int32, format string, args ...any) {
	pl.out.Findings = append(pl.out.Findings, Finding{Severity: s, Topic: topic, Partition: partition, Message: fmt.Sprintf(format, args...)})
}

// carry takes over what recovery does not look into: groups, offsets, policies. The controller's key is nobody's any more.
func (pl *planner) carry() {
	for _, kv := range pl.newest.snap.Keys {
		if relative.keys.parse(kv.Key).kind == kindOther && kv.Key != relative.keys.producers() {
			pl.keys[kv.Key] = kv.Value
		}
	}
}

// recoverStorages enters every storage that is there or known. None is eligible before the controller has looked at its registration. Marks
// of storages that are here are dropped: their damaged logs are in no ISR any more. What is here is neither lost nor forgotten, whatever was
// known of it or of another disk under the id: its logs are chosen from, and who is chosen has to be able to lead.
func (pl *planner) recoverStorages() error {
	entries := map[int32]*Storage{}
	for id, st := range pl.newest.storages {
		next := *st
		next.EligibleEpoch = 0
		entries[id] = &next
	}
	for _, inv := range pl.in.Inventories {
		st, ok := entries[inv.BrokerID]
		if !ok {
			st = &Storage{BrokerID: inv.BrokerID, State: StorageActive}
			entries[inv.BrokerID] = st
		}
		st.StorageID, st.Marks = inv.StorageID, nil
		if st.State == StorageFenced || st.State == StorageDecommissioned {
			st.State = StorageActive
			pl.find(SeverityWarning, "", -1, "broker %d was fenced or decommissioned; its storage %s is here, so it counts again", inv.BrokerID, inv.StorageID)
		}
	}
	for id, st := range entries {
		value, err := encodeStorage(st)
		if err != nil {
			return err
		}
		pl.keys[relative.keys.storage(id)] = value
	}
	return nil
}

// recoverProducers moves producer ids beyond every one that was ever seen.
func (pl *planner) recoverProducers() error {
	next := int64(1)
	for _, s := range pl.sources {
		i := slices.IndexFunc(s.snap.Keys, func(kv KV) bool { return kv.Key == relative.keys.producers() })
		if i < 0 {
			continue
		}
		var m metadatav1.ProducerIds
		if err := proto.Unmarshal([]byte(s.snap.Keys[i].Value), &m); err != nil {
			pl.find(SeverityWarning, "", -1, "%s: the next producer id cannot be read: %v", s.name, err)
			continue
		}
		next = max(next, m.GetNext())
	}
	for _, logs := range pl.logs {
		for _, l := range logs {
			next = max(next, l.MaxProducerID+1)
		}
	}
	if next > math.MaxInt64-producerGap-maxBlock {
		return invalid("next producer id", next, fmt.Sprintf("at most %d", int64(math.MaxInt64-producerGap-maxBlock)))
	}
	value, err := encode(&metadatav1.ProducerIds{Next: next + producerGap})
	pl.keys[relative.keys.producers()] = value
	return err
}

// seal sorts the result and gives it its identity.
func (pl *planner) seal() {
	out := pl.out
	out.cluster = Cluster{ID: out.ClusterID, Era: out.Era, FormatVersion: FormatVersion, FeatureLevel: 1, Created: pl.in.Now}
	if c := pl.newest.contents.Cluster; c != nil {
		out.cluster.FeatureLevel, out.cluster.Created = c.FeatureLevel, c.Created
	}
	h := sha256.New()
	text := func(s string) { _, _ = h.Write(appendText(nil, s)) }
	text(out.ClusterID)
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(out.Era)))
	for _, key := range slices.Sorted(maps.Keys(pl.keys)) {
		out.Keys = append(out.Keys, KV{Key: key, Value: pl.keys[key]})
		text(key)
		text(pl.keys[key])
	}
	copy(out.Plan[:], h.Sum(nil))
	slices.SortFunc(out.Topics, func(a, b TopicRecovery) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), strings.Compare(a.ID.String(), b.ID.String()))
	})
	slices.SortStableFunc(out.Partitions, func(a, b PartitionRecovery) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	slices.SortStableFunc(out.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
}

// decodeConfig reads the settings that a directory keeps.
func decodeConfig(b []byte) (*runnelv1.TopicConfig, error) {
	config := &runnelv1.TopicConfig{}
	return config, proto.Unmarshal(b, config)
}
