package broker

import (
	"errors"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/ids"
)

var startOfLog log.StartState

// TestPlan is what a pass decides for one partition.
func TestPlan(t *testing.T) {
	f := newFixture(t)
	own := f.store.StorageID()
	foreign := ids.NewStorageID()
	tp := topic("t")
	fresh := part(tp)
	there := topic("there")
	id := f.log(part(there))
	for name, tt := range map[string]struct {
		topic *metadata.Topic
		part  *metadata.Partition
		// How many of each the plan has.
		create, confirm, marks, purge, roles, configs, remove int
	}{
		"a new partition is created": {topic: tp, part: fresh, create: 1, configs: 1},
		"another broker's is not ours": {topic: tp, part: func() *metadata.Partition {
			p := fresh.Clone()
			p.Replicas = []int32{me + 1}
			return p
		}()},
		"a directory that was not confirmed yet is confirmed": {topic: there, part: part(there), confirm: 1, roles: 1, configs: 1},
		"one that another storage had confirmed is confirmed anew": {topic: there, part: func() *metadata.Partition {
			p := part(there)
			p.ISR = []metadata.Member{{BrokerID: me, StorageID: foreign, LogID: ids.NewLogID()}}
			return p
		}(), confirm: 1, roles: 1, configs: 1},
		"what we lead is led": {topic: there, part: f.led(part(there), id), roles: 1, configs: 1},
		"under an earlier registration we lead nothing": {topic: there, part: func() *metadata.Partition {
			p := f.led(part(there), id)
			p.LeaderBrokerEpoch--
			return p
		}(), roles: 1, configs: 1},
		"with another log than the cluster counts on we lead nothing": {topic: there, part: f.led(part(there), ids.NewLogID()), roles: 1, configs: 1},
		"with another storage than the cluster counts on we lead nothing": {topic: there, part: func() *metadata.Partition {
			p := f.led(part(there), id)
			p.ISR[0].StorageID = foreign
			return p
		}(), roles: 1, configs: 1},
		"a log that the cluster counts on and that is gone is reported, never made anew": {topic: tp, part: f.led(fresh, ids.NewLogID()), marks: 1, configs: 1},
		"a replica of a partition that others lead is made empty, and follows":           {topic: tp, part: elsewhere(fresh), create: 1, configs: 1},
		"a replica whose storage was replaced begins anew beside others that are in sync": {topic: tp, part: func() *metadata.Partition {
			p := elsewhere(fresh)
			p.ISR = append(p.ISR, metadata.Member{BrokerID: me, StorageID: foreign, LogID: ids.NewLogID()})
			return p
		}(), create: 1, configs: 1},
		"what moved to others is removed": {topic: there, part: func() *metadata.Partition {
			p := elsewhere(part(there))
			p.Replicas = []int32{me + 1}
			return p
		}(), remove: 1},
		"what moved to others who are not in sync stays": {topic: there, part: func() *metadata.Partition {
			p := elsewhere(part(there))
			p.Replicas, p.ISR = []int32{me + 1}, nil
			return p
		}()},
		"a log that was led before, and that the cluster counts on no more, is neither made nor reported": {topic: tp, part: func() *metadata.Partition {
			p := f.led(fresh, ids.NewLogID())
			p.ISR, p.Leader = nil, metadata.NoLeader
			return p
		}(), configs: 1},
		"a deleted topic is purged": {topic: func() *metadata.Topic {
			d := *there
			d.State = metadata.TopicDeleting
			return &d
		}(), part: f.led(part(there), id), purge: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var w plan
			w.add(f.host, state(10, []*metadata.Topic{tt.topic}, tt.part), tt.topic)
			got := [...]int{len(w.create), len(w.confirm), len(w.marks), len(w.purge), len(w.roles), len(w.configs), len(w.remove)}
			want := [...]int{tt.create, tt.confirm, tt.marks, tt.purge, tt.roles, tt.configs, tt.remove}
			if got != want {
				t.Errorf("create, confirm, mark, purge, assign, configure, remove: %v, want %v", got, want)
			}
			for _, m := range w.marks {
				if m.Kind != metadata.MarkFailed || m.LogID != tt.part.ISR[0].LogID {
					t.Errorf("mark %+v", m)
				}
			}
		})
	}
	if own == foreign {
		t.Fatal("storage ids repeat")
	}
}

// A mark is written once: the state shows it.
func TestMarkIsNotRepeated(t *testing.T) {
	f := newFixture(t)
	tp := topic("t")
	p := f.led(part(tp), ids.NewLogID())
	s := metadata.NewState(metadata.Contents{
		Topics: []*metadata.Topic{tp}, Partitions: []*metadata.Partition{p},
		Storages: []*metadata.Storage{{BrokerID: me, StorageID: f.store.StorageID(), Marks: []metadata.Mark{{Partition: p.PartitionRef, Kind: metadata.MarkFailed}}}},
	})
	var w plan
	w.add(f.host, s, tp)
	if len(w.marks) != 0 {
		t.Errorf("marks %+v", w.marks)
	}
}

// TestPass carries decisions out, over the life of a topic.
func TestPass(t *testing.T) {
	f := newFixture(t)
	tp := topic("t")
	p := part(tp)
	if n := f.missing.Load(); n != -1 {
		t.Errorf("before the first pass %d partitions are missing", n)
	}

	// The directory is made; confirming fails, because etcd has no such partition: that is tried again.
	first := state(10, []*metadata.Topic{tp}, p)
	f.pass(t.Context(), first, nil)
	l, ok := f.store.Log(tp.ID, 0)
	if !ok {
		t.Fatal("no directory was made")
	}
	if n := f.missing.Load(); n != 1 {
		t.Errorf("%d partitions are missing before the election, want 1", n)
	}
	if f.view.Snapshot().Revision != 10 {
		t.Errorf("clients see revision %d", f.view.Snapshot().Revision)
	}

	lead := f.led(p, l.LogID())
	second := state(11, []*metadata.Topic{tp}, lead)
	if f.pass(t.Context(), second, first) {
		t.Error("nothing can have failed")
	}
	here, ok := f.lookup(p.PartitionRef)
	if !ok || !here.Role().Leading || here.Role().Epoch != 1 || f.missing.Load() != 0 {
		t.Fatalf("not led: %v, missing %d", ok, f.missing.Load())
	}
	if found, err := f.Lookup(tp.ID, 0); err != nil || found != here {
		t.Errorf("Lookup() = %v, %v", found, err)
	}

	// A new setting reaches the log and the directory.
	changed := *tp
	changed.Config, changed.Generation = &runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(2048)}, 2
	third := state(12, []*metadata.Topic{&changed}, lead)
	if f.pass(t.Context(), third, second) {
		t.Error("nothing can have failed")
	}
	if got := here.Config().MaxBatchBytes; got != 2048 {
		t.Errorf("the log takes batches of %d bytes", got)
	}

	// Leadership goes to another registration of this broker: not this process's.
	moved := lead.Clone()
	moved.LeaderEpoch, moved.LeaderBrokerEpoch = 2, f.reg.Epoch()+5
	fourth := state(13, []*metadata.Topic{&changed}, moved)
	f.pass(t.Context(), fourth, third)
	if here.Role().Leading {
		t.Error("still leading under another registration's epoch")
	}
	if _, err := here.Latest(-1); !errors.Is(err, partition.ErrNotLeader) {
		t.Errorf("Latest() = %v", err)
	}

	gone := changed
	gone.State = metadata.TopicDeleting
	fifth := state(14, []*metadata.Topic{&gone}, moved)
	f.pass(t.Context(), fifth, fourth)
	if _, ok := f.lookup(p.PartitionRef); ok {
		t.Error("a deleted partition is still served")
	}
	if _, err := f.disk.Stat(filepath.Join(f.dir, tp.ID.String(), "0")); err == nil {
		t.Error("the deleted partition's directory is still there")
	}
	if f.missing.Load() != 0 {
		t.Errorf("%d partitions are missing", f.missing.Load())
	}
}

// A position that cannot be saved holds back what is new: leading under an epoch that a restart may not remember is not safe.
func TestPassSavesThePositionFirst(t *testing.T) {
	f := newFixture(t)
	tp := topic("t")
	if f.pass(t.Context(), state(10, nil), nil) {
		t.Fatal("nothing can have failed")
	}
	f.disk.SetCapacity(1)
	if !f.pass(t.Context(), state(11, []*metadata.Topic{tp}, part(tp)), nil) {
		t.Error("the pass says that all is well")
	}
	if _, ok := f.store.Log(tp.ID, 0); ok {
		t.Error("a directory was made")
	}
	f.disk.SetCapacity(1 << 40)
	f.pass(t.Context(), state(11, []*metadata.Topic{tp}, part(tp)), nil)
	if _, ok := f.store.Log(tp.ID, 0); !ok || f.view.Snapshot().Revision != 11 {
		t.Error("the pass was not made up for")
	}
}

// A full disk does not keep a leader in office that others have replaced, and nothing new begins before the position is saved.
func TestPassOnAFullDiskEndsLeading(t *testing.T) {
	f := newFixture(t)
	var topics []*metadata.Topic
	var parts []*metadata.Partition
	for _, name := range []string{"replaced", "shrunk", "elected", "deleted"} {
		tp := topic(name)
		topics, parts = append(topics, tp), append(parts, f.led(part(tp), f.log(part(tp))))
	}
	if f.pass(t.Context(), state(10, topics, parts...), nil) {
		t.Fatal("nothing can have failed")
	}
	role := func(i int) partition.Role {
		p, ok := f.lookup(parts[i].PartitionRef)
		if !ok {
			t.Fatalf("%s is not here", topics[i].Name)
		}
		return p.Role()
	}
	replaced := elsewhere(parts[0])
	replaced.LeaderEpoch, replaced.Revision = 2, 11
	replaced.ISR = append(replaced.ISR, parts[0].ISR...)
	shrunk := parts[1].Clone()
	shrunk.Revision = 11
	elected := f.led(parts[2], parts[2].ISR[0].LogID)
	elected.LeaderEpoch, elected.Revision = 2, 11
	gone := *topics[3]
	gone.State = metadata.TopicDeleting
	now := state(11, []*metadata.Topic{topics[0], topics[1], topics[2], &gone}, replaced, shrunk, elected, parts[3])

	f.disk.SetCapacity(1)
	for range 2 {
		if !f.pass(t.Context(), now, nil) {
			t.Error("the pass says that all is well")
		}
		if r := role(0); r.Leading || r.LeaderID != me+1 {
			t.Errorf("the one that was replaced: %+v", r)
		}
		if p, _ := f.lookup(parts[0].PartitionRef); p.Status().Replication.Following != "" {
			t.Errorf("it follows in an epoch that a restart may not remember: %q", p.Status().Replication.Following)
		}
		if r := role(1); !r.Leading || r.Epoch != 1 {
			t.Errorf("a change within its epoch ends a leadership: %+v", r)
		}
		if r := role(2); !r.Leading || r.Epoch != 1 {
			t.Errorf("a new epoch: %+v", r)
		}
		if _, ok := f.store.Log(gone.ID, 0); ok {
			t.Error("a deleted topic keeps the disk full")
		}
	}
	f.disk.SetCapacity(1 << 40)
	if f.pass(t.Context(), now, nil) {
		t.Error("with space again something fails")
	}
	if r := role(2); !r.Leading || r.Epoch != 2 {
		t.Errorf("with space again: %+v", r)
	}
	if p, _ := f.lookup(parts[0].PartitionRef); p.Status().Replication.Following == "" {
		t.Error("with space again it follows nobody")
	}
}

func TestLookupSaysWhy(t *testing.T) {
	f := newFixture(t)
	_, err := f.Lookup(ids.NewTopicID(), 0)
	if _, ok := errors.AsType[*partition.UnknownError](err); !ok {
		t.Errorf("a topic that nobody knows: %v", err)
	}
}

// Storage that has ended answers nobody any more: what waits is told, and nothing new is taken.
func TestFailedStorageEndsPartitions(t *testing.T) {
	f := newFixture(t)
	tp := topic("t")
	p := part(tp)
	s := state(10, []*metadata.Topic{tp}, f.led(p, f.log(p)))
	f.pass(t.Context(), s, nil)
	here, _ := f.lookup(p.PartitionRef)
	if !here.Role().Leading {
		t.Fatal("not leading")
	}
	f.fail(errors.New("disk"))
	if _, err := here.Latest(-1); !errors.Is(err, partition.ErrClosed) {
		t.Errorf("Latest() = %v", err)
	}
	// Neither does what is made afterwards.
	later := topic("later")
	q := part(later)
	f.pass(t.Context(), state(11, []*metadata.Topic{tp, later}, f.led(p, ids.NewLogID()), f.led(q, f.log(q))), s)
	if there, ok := f.lookup(q.PartitionRef); !ok || there.Role().Leading {
		t.Errorf("a partition made afterwards: %v", ok)
	}
}

// A superseded broker leads nothing any more, although the partitions still name its registration.
func TestANewerRegistrationEndsLeading(t *testing.T) {
	f := newFixture(t)
	tp := topic("t")
	p := f.led(part(tp), f.log(part(tp)))
	l, _ := f.store.Log(p.TopicID, p.Partition)
	for epoch, usable := range map[int64]bool{f.reg.Epoch(): true, f.reg.Epoch() + 1: false} {
		s := metadata.NewState(metadata.Contents{Brokers: []*metadata.Broker{{BrokerInfo: metadata.BrokerInfo{ID: me}, Epoch: epoch}}})
		if a := f.assignment(s, p, l); a.update.Usable != usable {
			t.Errorf("registered under %d, alive under %d: usable %v", f.reg.Epoch(), epoch, a.update.Usable)
		}
	}
}

// A broker leads only under the registration, the log and the storage that the record names.
func TestOnlyWhatTheRecordNamesLeads(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*metadata.Partition)
		leads  bool
	}{
		"named":                {func(*metadata.Partition) {}, true},
		"earlier registration": {func(p *metadata.Partition) { p.LeaderBrokerEpoch-- }, false},
		"another log":          {func(p *metadata.Partition) { p.ISR[0].LogID = ids.NewLogID() }, false},
		"another storage":      {func(p *metadata.Partition) { p.ISR[0].StorageID = ids.NewStorageID() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			tp := topic("t")
			p := f.led(part(tp), f.log(part(tp)))
			tt.change(p)
			f.pass(t.Context(), state(10, []*metadata.Topic{tp}, p), nil)
			here, ok := f.lookup(p.PartitionRef)
			if !ok || here.Role().Leading != tt.leads {
				t.Errorf("leading: %v, want %v", ok && here.Role().Leading, tt.leads)
			}
		})
	}
}

// A damaged log stays as it is while the cluster counts on it, or on nobody, and is replaced once others are in sync without it.
func TestADamagedLogIsReplacedOnceOthersAreInSync(t *testing.T) {
	f := newFixture(t)
	tp := topic("t")
	p := part(tp)
	for name, tt := range map[string]struct {
		part *metadata.Partition
		want bool
	}{
		"never led":          {p, false},
		"the only member":    {f.led(p, ids.NewLogID()), false},
		"others are in sync": {elsewhere(p), true},
		"nobody is in sync":  {func() *metadata.Partition { q := elsewhere(p); q.ISR = nil; return q }(), false},
		"another storage alone": {func() *metadata.Partition {
			q := f.led(p, ids.NewLogID())
			q.ISR[0].StorageID = ids.NewStorageID()
			return q
		}(), false},
	} {
		if got := f.replaceable(tt.part); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// What nobody can take over stays led until the end; what is followed ends at once.
func TestRetire(t *testing.T) {
	f := newFixture(t)
	alone, shared := topic("alone"), topic("shared")
	p, q := f.led(part(alone), f.log(part(alone))), elsewhere(part(shared))
	f.log(part(shared))
	f.pass(t.Context(), state(10, []*metadata.Topic{alone, shared}, p, q), nil)
	if _, ok := f.lookup(q.PartitionRef); !ok {
		t.Fatal("not followed")
	}
	f.retire()
	f.pass(t.Context(), state(11, []*metadata.Topic{alone, shared}, p, q), nil)
	if _, ok := f.lookup(q.PartitionRef); ok {
		t.Error("still followed")
	}
	if here, ok := f.lookup(p.PartitionRef); !ok || !here.Role().Leading {
		t.Error("not led any more")
	}
}
