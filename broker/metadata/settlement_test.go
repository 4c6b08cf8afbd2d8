package metadata

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"runnel.dev/runnel/internal/ids"
)

// store is a model of etcd: keys with mod revisions, and nothing else.
type store struct {
	revision int64
	kvs      map[string]KV
}

func newStore() *store { return &store{revision: 1, kvs: map[string]KV{}} }

func (s *store) holds(c Compare) bool {
	keys := []string{c.Key}
	if c.Prefix {
		keys = slices.DeleteFunc(s.keys(), func(k string) bool { return !strings.HasPrefix(k, c.Key) })
	}
	for _, k := range keys {
		if (s.kvs[k].Revision == c.Revision) == c.Not {
			return false
		}
	}
	return true
}

func (s *store) keys() []string {
	var out []string
	for k := range s.kvs {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func (s *store) list() []KV {
	var out []KV
	for _, k := range s.keys() {
		out = append(out, s.kvs[k])
	}
	return out
}

// apply carries a transaction out.
func (s *store) apply(tx Tx) Answer {
	next := s.revision + 1
	wrote := false
	a := s.step(tx, next, &wrote)
	if wrote {
		s.revision = next
	}
	set(&a, s.revision)
	return a
}

func set(a *Answer, revision int64) {
	a.Revision = revision
	for i := range a.Nested {
		set(&a.Nested[i], revision)
	}
}

func (s *store) step(tx Tx, next int64, wrote *bool) Answer {
	var a Answer
	if slices.ContainsFunc(tx.Compares, func(c Compare) bool { return !s.holds(c) }) {
		for _, key := range tx.Reads {
			kv := s.kvs[key]
			kv.Key = key
			a.Reads = append(a.Reads, kv)
		}
		return a
	}
	a.Succeeded = true
	for _, p := range tx.Then {
		*wrote = true
		if p.Delete {
			delete(s.kvs, p.Key)
		} else {
			s.kvs[p.Key] = KV{Key: p.Key, Value: p.Value, Revision: next}
		}
	}
	for _, n := range tx.Nested {
		a.Nested = append(a.Nested, s.step(n, next, wrote))
	}
	return a
}

// TestSettlement: whatever becomes of the attempts, and whoever else writes meanwhile, what is settled stays settled: no attempt that is
// still on its way changes anything, and Applied is said exactly when the value was written by this transaction.
func TestSettlement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStore()
		first := s.apply(write("test", "k", "before", absent("k")))
		tx := write("test", "k", "mine", unchanged("k", first.Revision))
		if rapid.Bool().Draw(t, "nested") {
			tx = nest("test", []Compare{absent("other")}, []Tx{tx})[0]
		}
		settlement := Settle(&tx)
		late, written := 0, false
		arrive := func() {
			before := s.kvs["k"].Revision
			s.apply(tx)
			written = written || s.kvs["k"].Value == "mine" && s.kvs["k"].Revision != before
		}
		for {
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0:
				arrive() // and the answer is lost
				settlement.Step(Unanswered, Answer{})
			case 1:
				late++
				settlement.Step(Unanswered, Answer{})
			case 2:
				if late > 0 {
					late--
					arrive()
				}
			case 3:
				if verdict, _ := settlement.Step(Unsent, Answer{}); verdict != Repeat {
					t.Fatalf("an attempt that never left: %v", verdict)
				}
			case 4:
				if rapid.Bool().Draw(t, "rival") {
					kv := s.kvs["k"]
					s.apply(write("rival", "k", fmt.Sprint("theirs ", s.revision), unchanged("k", kv.Revision)))
				}
				overwritten := s.kvs["k"].Value != "mine"
				before := s.kvs["k"].Revision
				answer := s.apply(tx)
				verdict, out := settlement.Step(Answered, answer)
				if verdict != Settled || settlement.Open() {
					t.Fatalf("an answer settles everything: %v", verdict)
				}
				if len(tx.Nested) > 0 {
					out = out.Nested[0]
				}
				took := s.kvs["k"].Revision != before
				if out.Applied != (took || written && !overwritten) {
					t.Fatalf("applied %v; this attempt took effect: %v, an earlier one did: %v, and was overwritten: %v", out.Applied, took, written, overwritten)
				}
				if out.Applied && out.Revision != s.kvs["k"].Revision {
					t.Fatalf("revision %d, the store has %+v", out.Revision, s.kvs["k"])
				}
				settled := s.kvs["k"]
				for range late {
					s.apply(tx)
				}
				if s.kvs["k"] != settled {
					t.Fatalf("a late attempt changed %+v to %+v", settled, s.kvs["k"])
				}
				return
			}
		}
	})
}

func TestRefusalIsFinalOnlyWhileNothingIsOpen(t *testing.T) {
	tx := write("test", "k", "v", absent("k"))
	s := Settle(&tx)
	if verdict, _ := s.Step(Refused, Answer{}); verdict != Failed {
		t.Errorf("refused at once: %v", verdict)
	}
	s = Settle(&tx)
	s.Step(Unanswered, Answer{})
	if verdict, _ := s.Step(Refused, Answer{}); verdict != Repeat || !s.Open() {
		t.Errorf("refused while an attempt is under way: %v, open %v", verdict, s.Open())
	}
}

// TestCreationIsRecognisedByItsTopicID, in whatever state the controller has put it meanwhile.
func TestCreationIsRecognisedByItsTopicID(t *testing.T) {
	b, s := NewBuilder("c"), newStore()
	topic := &Topic{Name: "t", ID: ids.NewTopicID(), State: TopicCreating, Partitions: 1, Replicas: 1, Generation: 1}
	tx, err := b.CreateTopic(topic)
	if err != nil {
		t.Fatal(err)
	}
	settlement := Settle(&tx)
	made := s.apply(tx)
	settlement.Step(Unanswered, Answer{})
	topic.Revision = made.Revision
	finish, err := b.FinishTopic(Tenure{}, topic)
	if err != nil || !s.apply(finish).Succeeded {
		t.Fatal("the topic could not be finished", err)
	}
	if verdict, out := settlement.Step(Answered, s.apply(tx)); verdict != Settled || !out.Applied || out.Revision != s.revision {
		t.Errorf("%v, %+v", verdict, out)
	}
	other := *topic
	other.ID = ids.NewTopicID()
	tx, err = b.CreateTopic(&other)
	if err != nil {
		t.Fatal(err)
	}
	settlement = Settle(&tx)
	settlement.Step(Unanswered, Answer{})
	if _, out := settlement.Step(Answered, s.apply(tx)); out.Applied {
		t.Error("a namesake was taken for one's own")
	}
}

// TestBuilderReadsWhatItWrites: what transactions leave in a store decodes into the contents of a State.
func TestBuilderReadsWhatItWrites(t *testing.T) {
	b, s := NewBuilder("c"), newStore()
	do := func(tx Tx, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		a := s.apply(tx)
		if !a.Succeeded {
			t.Fatalf("%s did not apply: %+v", tx.Op, a)
		}
		return a.Revision
	}
	do(b.CreateCluster(&Cluster{ID: "id", Era: 1, FormatVersion: FormatVersion}))
	info := BrokerInfo{ID: 1, StorageID: ids.NewStorageID()}
	reg := RegRef{BrokerID: 1, StorageID: info.StorageID, Epoch: do(b.Register(0, info, BootID{1}, 7))}
	tenure := Tenure{BrokerID: 1, BrokerEpoch: reg.Epoch, Epoch: do(b.AcquireController(nil, reg))}
	do(b.DeclareEligible(tenure, &Storage{BrokerID: 1, StorageID: info.StorageID, EligibleEpoch: reg.Epoch, State: StorageActive}))
	topic := &Topic{Name: "t", ID: ids.NewTopicID(), State: TopicCreating, Partitions: 1, Replicas: 1, Generation: 1}
	topic.Revision = do(b.CreateTopic(topic))
	ref := PartitionRef{TopicID: topic.ID}
	txs, err := b.CreatePartitions(tenure, topic, []*Partition{{PartitionRef: ref, Leader: NoLeader, Replicas: []int32{1}}})
	do(txs[0], err)
	c, err := b.Decode(Position{Era: 1, Revision: s.revision}, s.list())
	if err != nil {
		t.Fatal(err)
	}
	state := NewState(c)
	p, ok := state.Partition(topic.ID, 0)
	if !ok || p.Revision != s.kvs[b.PartitionKey(ref)].Revision || !state.Eligible(1) || state.Controller().Epoch != tenure.Epoch ||
		state.Cluster().ID != "id" || len(state.Topics()) != 1 || state.Brokers()[0].BootID != (BootID{1}) {
		t.Errorf("decoded %+v", c)
	}
	s.kvs[b.PartitionKey(ref)] = KV{Key: b.PartitionKey(ref), Value: "\xff", Revision: 99}
	if c, err = b.Decode(Position{}, s.list()); err == nil || len(c.Partitions) != 0 || len(c.Topics) != 1 {
		t.Errorf("a corrupt value: %+v, %v", c, err)
	}
}

// TestWideItemsStayWithinEtcdsLimit: etcd counts nested transactions together with the compares of the widest of them.
func TestWideItemsStayWithinEtcdsLimit(t *testing.T) {
	c := client(t, nil)
	var items []Tx
	for i := range 300 {
		key := c.keys.prefix + "wide/" + itoa(int32(i))
		item := write("test", key, "v", absent(key))
		for j := range i % 9 {
			item.Compares = append(item.Compares, absent(c.keys.prefix+"none/"+itoa(int32(j))))
		}
		items = append(items, item)
	}
	result, err := c.bulk(t.Context(), nest("test", nil, items), ErrNotController)
	if err != nil || result.Count() != len(items) {
		t.Errorf("%d of %d applied, %v", result.Count(), len(items), err)
	}
}

func TestBootIDIsNeverPrinted(t *testing.T) {
	boot := BootID{0xde, 0xad, 0xbe, 0xef}
	b := Broker{BootID: boot}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "boot", boot, "broker", b)
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{
		fmt.Sprint(boot), fmt.Sprintf("%x %v %+v %#v %d", boot, boot, b, b, boot), fmt.Sprintf("%+v", &b), log.String(), string(text),
	} {
		if !strings.Contains(shown, "hidden") || strings.Contains(shown, "dead") || strings.Contains(shown, "222") || strings.Contains(shown, "de, 0xad") {
			t.Errorf("shown: %s", shown)
		}
	}
}
