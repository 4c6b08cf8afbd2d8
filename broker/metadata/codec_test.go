package metadata

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/ids"
)

func kv(key, value string) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: 42}
}

func TestKeys(t *testing.T) {
	k := newKeyspace("c")
	id := ids.NewTopicID()
	for key, want := range map[string]parsed{
		k.cluster():             {kind: kindCluster},
		k.controller():          {kind: kindController},
		k.broker(7):             {kind: kindBroker, id: 7},
		k.storage(0):            {kind: kindStorage},
		k.topic("a.b"):          {kind: kindTopic, name: "a.b"},
		k.partition(id, 12):     {kind: kindPartition, topic: id, partition: 12},
		k.producers():           {},
		"/runnel/c2/cluster":    {},
		k.prefix + "brokers/+1": {}, k.prefix + "brokers/-1": {}, k.prefix + "brokers/1/2": {}, k.prefix + "brokers/99999999999": {},
		k.prefix + "topics/a/b": {}, k.prefix + "topics/": {}, k.prefix + "partitions/" + id.String(): {},
		k.prefix + "partitions/" + strings.ToUpper(id.String()) + "/1": {}, k.prefix + "partitions/" + id.String() + "/100000": {},
		k.prefix + "groups/1/cluster": {},
	} {
		if got := k.parse(key); got != want {
			t.Errorf("parse(%q) = %+v, want %+v", key, got, want)
		}
	}
	// What changes all the time lies outside the ranges that brokers watch; everything that State holds lies inside.
	inside := func(key string) bool {
		for _, r := range k.ranges() {
			if key >= r[0] && key < r[1] {
				return true
			}
		}
		return false
	}
	for _, key := range []string{k.cluster(), k.controller(), k.broker(1), k.storage(1), k.topic("t"), k.topic("zzz"), k.partition(id, 1), k.prefix + "coord/1"} {
		if !inside(key) {
			t.Errorf("%q is not watched", key)
		}
	}
	for _, key := range []string{k.prefix + "groups/1/g/state", k.prefix + "offsets/1/g/0", k.prefix + "acl/x", "/runnel/d/cluster"} {
		if inside(key) {
			t.Errorf("%q is watched", key)
		}
	}
}

// TestCodecsRoundTrip over arbitrary values.
func TestCodecsRoundTrip(t *testing.T) {
	uuid := func(t *rapid.T, name string) (id [16]byte) {
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, name))
		id[0] |= 1 // the zero ID means none
		return id
	}
	numbers := rapid.SliceOfN(rapid.Int32Range(0, 9), 1, 4)
	opts := cmp.Options{
		protocmp.Transform(), cmpopts.EquateEmpty(),
		cmp.AllowUnexported(Partition{}, Topic{}, Storage{}, Broker{}),
	}
	rapid.Check(t, func(t *rapid.T) {
		members := func(name string) []Member {
			out := make([]Member, rapid.IntRange(0, 3).Draw(t, name))
			for i := range out {
				out[i] = Member{BrokerID: rapid.Int32Range(0, 9).Draw(t, "member"), StorageID: uuid(t, "storage"), LogID: uuid(t, "log")}
			}
			return out
		}
		p := &Partition{
			PartitionRef: PartitionRef{TopicID: uuid(t, "topic"), Partition: 3}, Leader: rapid.Int32Range(-1, 9).Draw(t, "leader"),
			LeaderEpoch: rapid.Int32Range(0, 1<<30).Draw(t, "epoch"), LeaderBrokerEpoch: rapid.Int64Range(0, 1<<60).Draw(t, "broker epoch"),
			Replicas: numbers.Draw(t, "replicas"), ISR: members("isr"), Adding: numbers.Draw(t, "adding"),
			Removing: numbers.Draw(t, "removing"), Purged: numbers.Draw(t, "purged"), Revision: 42,
		}
		check(t, p, opts, encodePartition, func(m *mvccpb.KeyValue) (*Partition, error) { return decodePartition(m, p.PartitionRef) })

		topic := &Topic{
			Name: "t", ID: uuid(t, "topic"), State: TopicState(rapid.Int32Range(1, 3).Draw(t, "state")), Partitions: 5,
			ReadyPartitions: rapid.Int32Range(0, 5).Draw(t, "ready"), Replicas: 2, Config: &runnelv1.TopicConfig{RetentionMs: proto.Int64(4)},
			Generation: rapid.Int64Min(1).Draw(t, "generation"), Owner: rapid.String().Draw(t, "owner"), Created: time.UnixMilli(99), Revision: 42,
		}
		check(t, topic, opts, encodeTopic, func(m *mvccpb.KeyValue) (*Topic, error) { return decodeTopic(m, "t") })

		s := &Storage{
			BrokerID: 4, StorageID: uuid(t, "storage"), EligibleEpoch: 9, State: StorageDraining, Revision: 42,
			Marks: []Mark{{Partition: p.PartitionRef, Kind: MarkFailed, LogID: uuid(t, "log")}, {Partition: p.PartitionRef, Kind: MarkQuarantined}},
		}
		check(t, s, opts, encodeStorage, func(m *mvccpb.KeyValue) (*Storage, error) { return decodeStorage(m, 4) })

		b := &Broker{
			BrokerInfo: BrokerInfo{ID: 4, StorageID: uuid(t, "storage"), Rack: "r", Version: "v", Listeners: map[string]string{"a": "b:1"}},
			Epoch:      42, BootID: uuid(t, "boot"), leaseID: 7,
		}
		check(t, b, opts, encodeBroker, func(m *mvccpb.KeyValue) (*Broker, error) { return decodeBroker(m, 4) })
	})
}

func check[V any](t *rapid.T, v *V, opts cmp.Options, enc func(*V) (string, error), dec func(*mvccpb.KeyValue) (*V, error)) {
	text, err := enc(v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := dec(kv("k", text))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(v, got, opts); d != "" {
		t.Fatal(d)
	}
}

// TestUnknownFieldsSurvive: an older broker that rewrites a newer one's value keeps what it does not understand.
func TestUnknownFieldsSurvive(t *testing.T) {
	p := &Partition{PartitionRef: PartitionRef{TopicID: ids.NewTopicID()}, Leader: NoLeader, Replicas: []int32{1}}
	text, err := encodePartition(p)
	if err != nil {
		t.Fatal(err)
	}
	future := string(protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "from the future"))
	got, err := decodePartition(kv("k", text+future), p.PartitionRef)
	if err != nil {
		t.Fatal(err)
	}
	next := got.Clone()
	next.LeaderEpoch++
	if text, err = encodePartition(next); err != nil || !strings.HasSuffix(text, future) {
		t.Errorf("the unknown field is gone: %q, %v", text, err)
	}
}

func TestDecodeRefusesNonsense(t *testing.T) {
	ref := PartitionRef{TopicID: ids.NewTopicID()}
	decoders := map[string]func(*mvccpb.KeyValue) error{
		"cluster":   func(m *mvccpb.KeyValue) error { _, err := decodeCluster(m); return err },
		"broker":    func(m *mvccpb.KeyValue) error { _, err := decodeBroker(m, 1); return err },
		"storage":   func(m *mvccpb.KeyValue) error { _, err := decodeStorage(m, 1); return err },
		"topic":     func(m *mvccpb.KeyValue) error { _, err := decodeTopic(m, "t"); return err },
		"partition": func(m *mvccpb.KeyValue) error { _, err := decodePartition(m, ref); return err },
	}
	for name, dec := range decoders {
		for _, value := range []string{"", "\xff", "\x0a\x05ab"} {
			err := dec(kv("the/key", value))
			var bad *CorruptValueError
			if !errors.As(err, &bad) || !errors.Is(err, ErrCorruptValue) || bad.Key != "the/key" || bad.Revision != 42 {
				t.Errorf("%s from %q: %v", name, value, err)
			}
		}
	}
	if _, err := decodeController(kv("k", "\xff")); !errors.Is(err, ErrCorruptValue) {
		t.Errorf("controller: %v", err)
	}
}

func FuzzApply(f *testing.F) {
	f.Add("partitions/2fcf7000-297f-4afa-9c67-c012031d4738/1", []byte{8, 1})
	f.Add("topics/a", []byte("\x0a\x01a"))
	f.Add("brokers/1", []byte{})
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		k := newKeyspace("c")
		b := newStateBuilder(newState(), k, quiet)
		b.put(&mvccpb.KeyValue{Key: []byte(k.prefix + key), Value: value, ModRevision: 5})
		b.remove(k.prefix+key, 6)
		if len(b.Topics())+len(b.Brokers())+len(b.Storages())+len(b.State.partitions) != 0 {
			t.Errorf("%q is still there after its removal", key)
		}
	})
}
