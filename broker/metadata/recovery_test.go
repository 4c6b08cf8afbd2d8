package metadata

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	metadatav1 "runnel.dev/runnel/api/runnel/metadata/v1"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/ids"
)

// remains builds inputs of a recovery: three brokers with storage IDs made of their ids.
type remains struct{ t *testing.T }

func (rm remains) storage(b int32) ids.StorageID { return ids.StorageID{1, byte(b)} }

func (rm remains) topic(name string, id byte, state TopicState, n int32) *Topic {
	return &Topic{Name: name, ID: ids.TopicID{id}, State: state, Partitions: n, ReadyPartitions: n, Replicas: 3, Config: &runnelv1.TopicConfig{}, Generation: 4}
}

// snapshot is metadata at a revision: brokers 1 to 3, topics, and a record per partition that broker 1 leads in an epoch.
func (rm remains) snapshot(revision int64, epoch int32, topics ...*Topic) *Snapshot {
	s := &Snapshot{Cluster: "c", Position: Position{ClusterID: "id", EtcdClusterID: 7, Era: 1, Revision: revision}, Taken: time.UnixMilli(revision)}
	put := func(key, value string, err error) {
		if err != nil {
			rm.t.Fatal(err)
		}
		s.Keys = append(s.Keys, KV{Key: key, Value: value, Revision: revision})
	}
	value, err := encodeCluster(&Cluster{ID: "id", Era: 1, FormatVersion: 1, FeatureLevel: 3, Created: time.UnixMilli(5)})
	put("cluster", value, err)
	put("controller", "", nil)
	put("offsets/1/g/0", "a page", nil)
	for b := int32(1); b <= 3; b++ {
		value, err = encodeStorage(&Storage{BrokerID: b, StorageID: rm.storage(b), EligibleEpoch: 99, State: StorageActive, Marks: []Mark{{Partition: PartitionRef{TopicID: ids.TopicID{1}}, Kind: MarkFailed}}})
		put(relative.keys.storage(b), value, err)
	}
	value, err = encode(&metadatav1.ProducerIds{Next: 5000})
	put(relative.keys.producers(), value, err)
	for _, t := range topics {
		value, err = encodeTopic(t)
		put(relative.keys.topic(t.Name), value, err)
		for n := range t.Partitions {
			p := &Partition{
				PartitionRef: PartitionRef{TopicID: t.ID, Partition: n}, Leader: 1, LeaderEpoch: epoch, LeaderBrokerEpoch: 99,
				Replicas: []int32{3, 1, 2}, Removing: []int32{2}, ISR: []Member{{BrokerID: 1, StorageID: rm.storage(1), LogID: ids.LogID{1}}},
			}
			value, err = encodePartition(p)
			put(relative.keys.partition(t.ID, n), value, err)
		}
	}
	slices.SortFunc(s.Keys, func(a, b KV) int { return strings.Compare(a.Key, b.Key) })
	return s
}

func (rm remains) bytes(s *Snapshot) []byte {
	b, err := EncodeSnapshot(s)
	if err != nil {
		rm.t.Fatal(err)
	}
	return b
}

// log is a log of broker b with records up to end; its log ID is the broker's id.
func (rm remains) log(t *Topic, n int32, b int32, epoch int32, end int64) LogInventory {
	return LogInventory{
		TopicID: t.ID, Partition: n, TopicName: t.Name, LogID: ids.LogID{byte(b)}, AdoptedEpoch: epoch, LatestEpoch: epoch, End: end, MaxProducerID: -1,
	}
}

func (rm remains) broker(b int32, logs ...LogInventory) BrokerInventory {
	return BrokerInventory{BrokerID: b, StorageID: rm.storage(b), Logs: logs, Position: Position{ClusterID: "id", EtcdClusterID: 7, Era: 1, Revision: 900}}
}

func (rm remains) plan(in RecoveryInput) (*Recovery, *State) {
	rm.t.Helper()
	r, err := PlanRecovery(in)
	if err != nil {
		rm.t.Fatal(err)
	}
	c, err := relative.Decode(Position{}, r.Keys)
	if err != nil {
		rm.t.Fatal(err)
	}
	return r, NewState(c)
}

func said(r *Recovery, s Severity, part string) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity == s && strings.Contains(f.Message, part) })
}

func TestRecoveryFromASnapshot(t *testing.T) {
	rm := remains{t}
	orders := rm.topic("orders", 1, TopicActive, 1)
	old, now := rm.snapshot(100, 9, orders), rm.snapshot(500, 4, orders)
	r, s := rm.plan(RecoveryInput{
		Inventories: []BrokerInventory{rm.broker(1, rm.log(orders, 0, 1, 5, 10)), rm.broker(2, rm.log(orders, 0, 2, 6, 8)), rm.broker(3)},
		Snapshots:   [][]byte{rm.bytes(old), []byte("rubbish"), rm.bytes(now)},
	})
	p, _ := s.Partition(orders.ID, 0)
	if p == nil || p.LeaderEpoch <= 9 || p.Leader != NoLeader || p.LeaderBrokerEpoch != 0 || !slices.Equal(p.Replicas, []int32{3, 1, 2}) ||
		len(p.Removing) != 0 || len(p.ISR) != 1 || p.ISR[0] != (Member{2, rm.storage(2), ids.LogID{2}}) {
		t.Errorf("partition %+v: want the log of the newest epoch, above every epoch that any source knows", p)
	}
	if got, ok := s.Topic("orders"); !ok || got.Generation != 4 || got.State != TopicActive {
		t.Errorf("topic %+v", got)
	}
	for b := int32(1); b <= 3; b++ {
		if st, ok := s.Storage(b); !ok || st.EligibleEpoch != 0 || st.StorageID != rm.storage(b) || len(st.Marks) != 0 {
			t.Errorf("storage %+v: none may be eligible by a broker epoch of another era", st)
		}
	}
	if r.Era != 2 || r.ClusterID != "id" || r.cluster.FeatureLevel != 3 || len(s.Brokers()) != 0 || s.Controller() != nil || s.Cluster() != nil {
		t.Errorf("era %d, %+v", r.Era, r.cluster)
	}
	if !slices.ContainsFunc(r.Keys, func(kv KV) bool { return kv.Key == "offsets/1/g/0" && kv.Value == "a page" }) {
		t.Error("the offsets are gone")
	}
	if !said(r, SeverityWarning, "snapshot 2 of 3 cannot be used") || !strings.Contains(r.Source, "revision 500") {
		t.Errorf("source %q, findings %+v", r.Source, r.Findings)
	}
}

func TestRecoveryOfTopics(t *testing.T) {
	rm := remains{t}
	kept, deleting, gone, fresh := rm.topic("kept", 1, TopicActive, 2), rm.topic("deleting", 2, TopicDeleting, 1), rm.topic("gone", 3, TopicActive, 1), rm.topic("fresh", 4, TopicActive, 2)
	grown := rm.log(kept, 3, 1, 2, 5)
	config, err := proto.Marshal(&runnelv1.TopicConfig{RetentionMs: proto.Int64(77)})
	if err != nil {
		t.Fatal(err)
	}
	new1 := rm.log(fresh, 1, 2, 3, 9)
	new1.TopicConfig, new1.MaxProducerID = config, 123456
	r, s := rm.plan(RecoveryInput{
		Inventories: []BrokerInventory{
			rm.broker(1, rm.log(kept, 0, 1, 2, 5), grown, rm.log(deleting, 0, 1, 2, 5), rm.log(gone, 0, 1, 2, 5)),
			rm.broker(2, rm.log(kept, 1, 2, 2, 5), new1), rm.broker(3),
		},
		Etcd: rm.snapshot(900, 2, kept, deleting), Snapshots: [][]byte{rm.bytes(rm.snapshot(400, 2, kept, deleting, gone))},
	})
	outcomes := map[string]TopicOutcome{}
	for _, x := range r.Topics {
		outcomes[x.Name] = x.Outcome
	}
	if outcomes["kept"] != TopicKept || outcomes["deleting"] != TopicKept || outcomes["gone"] != TopicDropped || outcomes["fresh"] != TopicRebuilt {
		t.Errorf("topics %+v", r.Topics)
	}
	if x, _ := s.Topic("deleting"); x == nil || x.State != TopicDeleting {
		t.Errorf("a topic that was being deleted is %+v", x)
	}
	if p, _ := s.Partition(deleting.ID, 0); p == nil || len(p.ISR) != 0 || !p.HasReplica(1) {
		t.Errorf("its partition: %+v", p)
	}
	if _, ok := s.Topic("gone"); ok {
		t.Error("a topic that was deleted between the sources is back")
	}
	x, _ := s.Topic("fresh")
	if x == nil || x.ID != fresh.ID || x.Partitions != 2 || x.ReadyPartitions != 2 || x.State != TopicActive || x.Config.GetRetentionMs() != 77 || x.Replicas != 1 {
		t.Errorf("rebuilt: %+v", x)
	}
	if p, _ := s.Partition(kept.ID, 3); p == nil || len(p.ISR) != 1 || p.ISR[0].BrokerID != 1 {
		t.Errorf("a partition that was added later: %+v", p)
	}
	if x, _ := s.Topic("kept"); x.Partitions != 4 {
		t.Errorf("kept: %+v", x)
	}
	var next metadatav1.ProducerIds
	i := slices.IndexFunc(r.Keys, func(kv KV) bool { return kv.Key == "producers/next" })
	if err := proto.Unmarshal([]byte(r.Keys[i].Value), &next); err != nil || next.GetNext() <= 123456+maxBlock {
		t.Errorf("next producer id %d, %v", next.GetNext(), err)
	}
	again, _ := rm.plan(RecoveryInput{Inventories: []BrokerInventory{rm.broker(1)}, Etcd: rm.snapshot(500, 2, kept)})
	if again.Plan == r.Plan {
		t.Error("two different plans have one id")
	}
}

// TestRecoveryFromDirectoriesAlone: nothing else is left.
func TestRecoveryFromDirectoriesAlone(t *testing.T) {
	rm := remains{t}
	orders := rm.topic("orders", 1, TopicActive, 1)
	namesake := rm.topic("orders", 2, TopicActive, 1)
	nameless := rm.log(rm.topic("../evil", 3, TopicActive, 1), 0, 1, 1, 1)
	r, s := rm.plan(RecoveryInput{Inventories: []BrokerInventory{
		rm.broker(1, rm.log(orders, 0, 1, 5, 10), rm.log(namesake, 0, 1, 5, 10), nameless), rm.broker(2, rm.log(orders, 0, 2, 5, 8)),
	}})
	if x, ok := s.Topic("orders"); !ok || x.ID != orders.ID || x.Replicas != 2 {
		t.Errorf("the topic with more logs: %+v", x)
	}
	if x, ok := s.TopicByID(namesake.ID); !ok || !strings.HasPrefix(x.Name, "orders-recovered-02") {
		t.Errorf("its namesake: %+v", x)
	}
	if x, ok := s.TopicByID(ids.TopicID{3}); !ok || x.Name != "recovered-"+x.ID.String() {
		t.Errorf("a name that is none: %+v", x)
	}
	if !said(r, SeverityLoss, "neither etcd nor a snapshot") || r.Era != 2 || len(s.Storages()) != 2 {
		t.Errorf("findings %+v, era %d", r.Findings, r.Era)
	}
}

// TestRecoveryChoosesLogs, and says what it could not know.
func TestRecoveryChoosesLogs(t *testing.T) {
	rm := remains{t}
	orders := rm.topic("orders", 1, TopicActive, 1)
	logs := func(first, second, third func(*LogInventory)) []BrokerInventory {
		var out []BrokerInventory
		for i, f := range []func(*LogInventory){first, second, third} {
			b := int32(i + 1)
			l := rm.log(orders, 0, b, 5, 10)
			l.Lineage = []EpochStart{{1, 0}, {5, 7}}
			if f == nil {
				continue
			}
			f(&l)
			out = append(out, rm.broker(b, l))
		}
		return out
	}
	as := func(*LogInventory) {}
	for name, tc := range map[string]struct {
		logs     []BrokerInventory
		isr      []int32
		severity Severity
		finding  string
	}{
		"equal logs are all members":       {logs(as, as, as), []int32{3, 1, 2}, "", ""},
		"an adopted epoch beats records":   {logs(as, func(l *LogInventory) { l.AdoptedEpoch, l.LatestEpoch, l.End = 6, 1, 3 }, as), []int32{2}, "", ""},
		"another lineage is another log":   {logs(as, func(l *LogInventory) { l.Lineage = []EpochStart{{5, 0}} }, func(l *LogInventory) { l.End-- }), []int32{1}, "", ""},
		"unknown lineage":                  {logs(as, func(l *LogInventory) { l.Lineage = nil }, func(l *LogInventory) { l.End-- }), []int32{1}, "", ""},
		"a damaged log is not chosen":      {logs(func(l *LogInventory) { l.Damaged, l.End = true, 50 }, as, func(l *LogInventory) { l.End-- }), []int32{2}, SeverityWarning, "broker 1 (adopted epoch 5, latest epoch 5, end 50, damaged) may have records"},
		"only damaged ones":                {logs(func(l *LogInventory) { l.Damaged = true }, func(l *LogInventory) { l.Damaged = true }, func(l *LogInventory) { l.Damaged = true }), nil, SeverityLoss, "all 3 logs are damaged"},
		"a broker is missing":              {logs(nil, as, func(l *LogInventory) { l.AdoptedEpoch, l.LatestEpoch, l.End = 6, 1, 3 }), []int32{3}, SeverityWarning, "brokers [1] are known"},
		"longer, and perhaps acknowledged": {logs(nil, as, func(l *LogInventory) { l.AdoptedEpoch, l.LatestEpoch, l.End = 6, 1, 3 }), []int32{3}, SeverityWarning, "the log on broker 2 (adopted epoch 5, latest epoch 5, end 10) may have records"},
		"a member whose log is not here":   {logs(nil, as, func(l *LogInventory) { l.End-- }), []int32{2}, SeverityWarning, "broker 1 was in sync (leader epoch 4"},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := remains{t}.plan(RecoveryInput{Inventories: tc.logs, Etcd: rm.snapshot(500, 4, orders)})
			p, _ := s.Partition(orders.ID, 0)
			var isr []int32
			for _, m := range p.ISR {
				isr = append(isr, m.BrokerID)
			}
			if !slices.Equal(isr, tc.isr) {
				t.Errorf("isr %d, want %d", isr, tc.isr)
			}
			if tc.finding != "" && !said(r, tc.severity, tc.finding) || tc.finding == "" && len(r.Findings) > 0 {
				t.Errorf("findings %+v, want %q", r.Findings, tc.finding)
			}
		})
	}
	r, s := rm.plan(RecoveryInput{Inventories: []BrokerInventory{rm.broker(1), rm.broker(2), rm.broker(3)}, Etcd: rm.snapshot(500, 4, orders)})
	if p, _ := s.Partition(orders.ID, 0); len(p.ISR) != 0 || p.LeaderEpoch <= 4 || !said(r, SeverityLoss, "no directory has a log") {
		t.Errorf("all logs lost: %+v, %+v", p, r.Findings)
	}
	_, s = rm.plan(RecoveryInput{Inventories: []BrokerInventory{rm.broker(1), rm.broker(2), rm.broker(3)}, Etcd: rm.snapshot(500, 0, orders)})
	if p, _ := s.Partition(orders.ID, 0); p.LeaderEpoch != 0 || len(p.ISR) != 0 {
		t.Errorf("never led: %+v, want one that replicas confirm", p)
	}
}

// TestRecoveryOrdersSources: by era, then by revision; of an etcd that the brokers did not know, the revision says nothing.
func TestRecoveryOrdersSources(t *testing.T) {
	rm := remains{t}
	a, b := rm.topic("a", 1, TopicActive, 1), rm.topic("b", 2, TopicActive, 1)
	all := []BrokerInventory{rm.broker(1), rm.broker(2), rm.broker(3)}
	restored := rm.snapshot(300, 1, a)
	restored.Position.EtcdClusterID, restored.Position.Revision = 8, 1<<40 // raised on purpose when the backup was restored
	_, s := rm.plan(RecoveryInput{Inventories: all, Etcd: restored, Snapshots: [][]byte{rm.bytes(rm.snapshot(400, 1, b))}})
	if _, ok := s.Topic("b"); !ok {
		t.Error("a restored backup with a raised revision was taken for the newest source")
	}
	later := rm.snapshot(10, 1, a)
	later.Position.Era = 2
	r, s := rm.plan(RecoveryInput{Inventories: all, Etcd: later, Snapshots: [][]byte{rm.bytes(rm.snapshot(400, 1, b))}})
	if _, ok := s.Topic("a"); !ok || r.Era != 3 {
		t.Errorf("era %d: an older era was taken for the newest source", r.Era)
	}
	half := rm.snapshot(500, 1, a)
	half.Recovering = true
	r, s = rm.plan(RecoveryInput{Inventories: all, Etcd: half, Snapshots: [][]byte{rm.bytes(rm.snapshot(400, 1, b))}})
	if _, ok := s.Topic("b"); !ok || !said(r, SeverityWarning, "did not finish") {
		t.Error("what an unfinished recovery has left was taken for a source")
	}
}

func TestRecoveryRefusesWhatDoesNotBelongTogether(t *testing.T) {
	rm := remains{t}
	foreign := rm.broker(2)
	foreign.Position.ClusterID = "other"
	copied := rm.broker(2)
	copied.StorageID = rm.storage(1)
	none := rm.broker(1)
	none.Position = Position{}
	otherEtcd := rm.snapshot(5, 1)
	otherEtcd.Position.ClusterID = "other"
	for name, tc := range map[string]struct {
		in   RecoveryInput
		want error
	}{
		"nothing at all":               {RecoveryInput{}, ErrInvalidArgument},
		"directories of two clusters":  {RecoveryInput{Inventories: []BrokerInventory{rm.broker(1), foreign}}, ErrForeignEtcd},
		"a copied disk":                {RecoveryInput{Inventories: []BrokerInventory{rm.broker(1), copied}}, ErrInvalidArgument},
		"one broker id, two disks":     {RecoveryInput{Inventories: []BrokerInventory{rm.broker(1), {BrokerID: 1, StorageID: rm.storage(9), Position: rm.broker(1).Position}}}, ErrInvalidArgument},
		"no cluster id":                {RecoveryInput{Inventories: []BrokerInventory{none}}, ErrInvalidArgument},
		"another cluster in this etcd": {RecoveryInput{Inventories: []BrokerInventory{rm.broker(1)}, Etcd: otherEtcd}, ErrForeignEtcd},
	} {
		if _, err := PlanRecovery(tc.in); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	strange := rm.snapshot(5, 1)
	strange.Position.ClusterID = "other"
	if r, _ := rm.plan(RecoveryInput{Inventories: []BrokerInventory{rm.broker(1)}, Snapshots: [][]byte{rm.bytes(strange)}}); !said(r, SeverityWarning, `of cluster "other"`) {
		t.Errorf("findings %+v", r.Findings)
	}
}

// TestRecoveryCountsEveryStorageThatIsThere: a source can call a broker's storage fenced or decommissioned that is here all the same, by
// another disk under the same id or because it came back. Its log may be the one that has everything, so it must be able to lead.
func TestRecoveryCountsEveryStorageThatIsThere(t *testing.T) {
	rm := remains{t}
	orders := rm.topic("orders", 1, TopicActive, 1)
	for state, want := range map[StorageState]StorageState{
		StorageFenced: StorageActive, StorageDecommissioned: StorageActive, StorageDraining: StorageDraining,
	} {
		source := rm.snapshot(500, 4, orders)
		for i, kv := range source.Keys {
			if kv.Key == relative.keys.storage(2) {
				value, err := encodeStorage(&Storage{BrokerID: 2, StorageID: ids.StorageID{9}, State: state})
				if err != nil {
					t.Fatal(err)
				}
				source.Keys[i].Value = value
			}
		}
		_, s := rm.plan(RecoveryInput{
			Inventories: []BrokerInventory{rm.broker(1, rm.log(orders, 0, 1, 5, 10)), rm.broker(2, rm.log(orders, 0, 2, 6, 8)), rm.broker(3)},
			Snapshots:   [][]byte{rm.bytes(source)},
		})
		p, _ := s.Partition(orders.ID, 0)
		st, _ := s.Storage(2)
		if p == nil || len(p.ISR) != 1 || p.ISR[0].BrokerID != 2 || st.StorageID != rm.storage(2) {
			t.Fatalf("state %d: %+v, %+v", state, p, st)
		}
		if st.State != want {
			t.Errorf("state %d becomes %d, want %d", state, st.State, want)
		}
	}
}
