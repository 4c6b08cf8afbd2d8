package metadata

import (
	"maps"
	"slices"
	"testing"

	etcdserverpb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"pgregory.net/rapid"

	"runnel.dev/runnel/internal/ids"
)

// stream is a history of one topic's keys, of which a watch has delivered a part.
type stream struct {
	t      *rapid.T
	c      *Client
	topic  *Topic
	now    int64
	events []*clientv3.Event
	// values are all that were ever written to partitions: what may be pushed, whenever.
	values []PartitionValue
	live   map[int32]int64 // revision of each partition's key
}

func (h *stream) put(key, value string) {
	h.now++
	h.events = append(h.events, &clientv3.Event{Type: mvccpb.Event_PUT, Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: h.now}})
}

func (h *stream) write(n int32) {
	p := &Partition{PartitionRef: PartitionRef{TopicID: h.topic.ID, Partition: n}, Leader: NoLeader, LeaderEpoch: int32(h.now), Replicas: []int32{1, 2}}
	value, err := encodePartition(p)
	if err != nil {
		h.t.Fatal(err)
	}
	h.put(h.c.keys.partition(h.topic.ID, n), value)
	h.live[n] = h.now
	h.values = append(h.values, PartitionValue{Ref: p.PartitionRef, Era: h.c.Position().Era, Revision: h.now, Value: []byte(value)})
}

func (h *stream) remove(n int32) {
	h.now++
	key := []byte(h.c.keys.partition(h.topic.ID, n))
	h.events = append(h.events, &clientv3.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: key, ModRevision: h.now}})
	delete(h.live, n)
}

// follower is a cache whose Run is played by the test.
type follower struct {
	*Cache
	next [2]int64
}

// deliver gives the watch's next events.
func (f *follower) deliver(t *rapid.T, events []*clientv3.Event) {
	resp := clientv3.WatchResponse{Events: events, Header: &etcdserverpb.ResponseHeader{}}
	resp.Header.ClusterId, resp.Header.Revision = f.client.Position().EtcdClusterID, events[len(events)-1].Kv.ModRevision
	if _, err := f.accept(resp, true, 1, &f.next); err != nil {
		t.Fatal(err)
	}
	// The other range has nothing to tell and says so.
	resp.Events = nil
	if _, err := f.accept(resp, true, 0, &f.next); err != nil {
		t.Fatal(err)
	}
}

// relist is what a list at the newest revision makes of the State.
func (f *follower) relist(h *stream) {
	b := newStateBuilder(f.Snapshot(), f.client.keys, f.client.lg)
	current := map[string]*mvccpb.KeyValue{}
	for _, e := range h.events {
		if e.Type == mvccpb.Event_DELETE {
			delete(current, string(e.Kv.Key))
		} else {
			current[string(e.Kv.Key)] = e.Kv
		}
	}
	listed := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(current)) {
		listed[key] = true
		b.put(current[key])
	}
	b.retain(listed, h.now)
	f.publish(b, h.now)
	f.next = [2]int64{h.now + 1, h.now + 1}
}

// revisions are those of a State's partitions, by number.
func revisions(s *State, topic ids.TopicID) map[int32]int64 {
	out := map[int32]int64{}
	for _, p := range s.Partitions(topic) {
		if p != nil {
			out[p.Partition] = p.Revision
		}
	}
	return out
}

// TestPushesAndEventsInAnyOrder: pushes come at any time after their values were written, in any order, again, and of keys that were
// deleted since. No partition ever goes back, none is older than the watch alone would have it, none comes back from the dead, and in the
// end the State is the watch's.
func TestPushesAndEventsInAnyOrder(t *testing.T) {
	c := client(t, nil)
	const partitions = 3
	rapid.Check(t, func(t *rapid.T) {
		h := &stream{t: t, c: c, topic: &Topic{Name: "t", ID: ids.NewTopicID(), State: TopicActive, Partitions: partitions}, live: map[int32]int64{}}
		value, err := encodeTopic(h.topic)
		if err != nil {
			t.Fatal(err)
		}
		h.put(c.keys.topic("t"), value)
		for n := range int32(partitions) {
			h.write(n)
		}
		pushed, alone := &follower{Cache: NewCache(c)}, &follower{Cache: NewCache(c)}
		pushed.relist(h)
		alone.relist(h)
		delivered := len(h.events)
		pushes := 0
		// check compares with the State before.
		before := revisions(pushed.Snapshot(), h.topic.ID)
		check := func() {
			s, w := pushed.Snapshot(), alone.Snapshot()
			now, reference := revisions(s, h.topic.ID), revisions(w, h.topic.ID)
			for n, r := range reference {
				if now[n] < r {
					t.Fatalf("partition %d is at %d, the watch alone has it at %d", n, now[n], r)
				}
			}
			for n, r := range now {
				if r < before[n] {
					t.Fatalf("partition %d went back from %d to %d", n, before[n], r)
				}
				if _, known := reference[n]; !known && r <= w.Revision() {
					t.Fatalf("partition %d at %d: the watch has deleted it", n, r)
				}
				if r > s.Seen().Revision {
					t.Fatalf("partition %d at %d, and only %d was seen", n, r, s.Seen().Revision)
				}
			}
			if s.Revision() != w.Revision() {
				t.Fatalf("revision %d, the watch alone %d", s.Revision(), w.Revision())
			}
			before = now
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"write", "write", "delete", "deliver", "push", "push", "push", "list"}).Draw(t, "step") {
			case "write":
				h.write(rapid.Int32Range(0, partitions-1).Draw(t, "partition"))
			case "delete":
				if n := rapid.Int32Range(0, partitions-1).Draw(t, "partition"); h.live[n] != 0 {
					h.remove(n)
				}
			case "deliver":
				if left := len(h.events) - delivered; left > 0 {
					more := h.events[delivered : delivered+rapid.IntRange(1, left).Draw(t, "events")]
					alone.deliver(t, more)
					pushed.deliver(t, more)
					delivered += len(more)
				}
			case "push":
				some := rapid.SliceOfN(rapid.SampledFrom(h.values), 1, 4).Draw(t, "values")
				old := pushed.Snapshot()
				pushed.takePushed(some)
				if pushed.Snapshot() != old {
					pushes++
					select {
					case <-old.Changed():
					default:
						t.Fatal("whoever follows is not told")
					}
				}
			case "list":
				alone.relist(h)
				pushed.relist(h)
				delivered = len(h.events)
			}
			check()
		}
		if left := h.events[delivered:]; len(left) > 0 {
			alone.deliver(t, left)
			pushed.deliver(t, left)
		}
		check()
		if got := revisions(pushed.Snapshot(), h.topic.ID); !maps.Equal(got, h.live) {
			t.Fatalf("in the end %v, want %v", got, h.live)
		}
		for _, p := range pushed.Snapshot().Partitions(h.topic.ID) {
			if p == nil {
				continue
			}
			if q, _ := alone.Snapshot().Partition(p.TopicID, p.Partition); q.LeaderEpoch != p.LeaderEpoch || q.Revision != p.Revision {
				t.Fatalf("%+v, the watch alone: %+v", p, q)
			}
		}
	})
}

// TestPushesThatAreNotTaken: what is of another era, of a partition that is not known, unreadable or out of all proportion changes nothing.
func TestPushesThatAreNotTaken(t *testing.T) {
	c := client(t, nil)
	cache := NewCache(c)
	cache.takePushed([]PartitionValue{{Era: 1, Revision: 5}}) // before the first list
	if cache.Snapshot().Loaded() {
		t.Error("a push is taken for a list")
	}
	register(t, c, 1, ids.NewStorageID())
	topic := create(t, c, "t", 1)
	if _, err := c.CreatePartitions(t.Context(), office(t, c, 1), topic, partitions(topic, 1)); err != nil {
		t.Fatal(err)
	}
	stop := start(t, cache.Run)
	wait(t, cache, func(s *State) bool { _, ok := s.Partition(topic.ID, 0); return ok })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s := cache.Snapshot()
	p, _ := s.Partition(topic.ID, 0)
	value, err := encodePartition(p)
	if err != nil {
		t.Fatal(err)
	}
	good := PartitionValue{Ref: p.PartitionRef, Era: s.Position().Era, Revision: p.Revision + 5, Value: []byte(value)}
	for name, change := range map[string]func(*PartitionValue){
		"another era":        func(v *PartitionValue) { v.Era++ },
		"the same revision":  func(v *PartitionValue) { v.Revision = p.Revision },
		"an older revision":  func(v *PartitionValue) { v.Revision-- },
		"no revision":        func(v *PartitionValue) { v.Revision = 0 },
		"a revision too far": func(v *PartitionValue) { v.Revision = s.Revision() + maxLead + 1 },
		"another topic":      func(v *PartitionValue) { v.Ref.TopicID = ids.NewTopicID() },
		"another partition":  func(v *PartitionValue) { v.Ref.Partition = 1 << 30 },
		"a negative one":     func(v *PartitionValue) { v.Ref.Partition = -1 },
		"garbage":            func(v *PartitionValue) { v.Value = []byte("\xff\xff") },
	} {
		if name == "an older revision" {
			good.Revision = p.Revision
		}
		bad := good
		change(&bad)
		cache.takePushed([]PartitionValue{bad})
		if cache.Snapshot() != s {
			t.Errorf("%s: taken", name)
			s = cache.Snapshot()
		}
		good.Revision = p.Revision + 5
	}
	cache.takePushed([]PartitionValue{good})
	if now, _ := cache.Snapshot().Partition(topic.ID, 0); now.Revision != good.Revision || cache.Snapshot().Revision() != s.Revision() ||
		cache.Snapshot().Seen().Revision != max(good.Revision, s.Revision()) {
		t.Errorf("%+v at revision %d", now, cache.Snapshot().Revision())
	}
}

// TestWhatIsWrittenIsPushed: an update says what it wrote and where, and another cache, whose watch is away, takes that for the truth.
func TestWhatIsWrittenIsPushed(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	tenure := office(t, c, 1)
	topic := create(t, c, "t", BulkSize+3)
	if _, err := c.CreatePartitions(t.Context(), tenure, topic, partitions(topic, 1)); err != nil {
		t.Fatal(err)
	}
	cache := follow(t, c)
	behind := NewCache(c)
	stop := start(t, behind.Run)
	wait(t, behind, func(s *State) bool { return len(s.Partitions(topic.ID)) == BulkSize+3 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	s := wait(t, cache, func(s *State) bool { return len(s.Partitions(topic.ID)) == BulkSize+3 })
	var next []*Partition
	for _, p := range s.Partitions(topic.ID) {
		n := p.Clone()
		n.LeaderEpoch = 7
		next = append(next, n)
	}
	next[1].Revision-- // overtaken
	r, err := c.UpdatePartitions(t.Context(), tenure, next)
	if err != nil || len(r.Written) != BulkSize+2 || r.Count() != BulkSize+2 {
		t.Fatalf("%d written, %d applied, %v", len(r.Written), r.Count(), err)
	}
	old := behind.Snapshot()
	behind.Offer(r.Written)
	behind.takePushed(<-behind.pushed)
	s, err = cache.WaitRevision(t.Context(), r.Revision)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range s.Partitions(topic.ID) {
		q, ok := behind.Snapshot().Partition(topic.ID, int32(i))
		if !ok || q.Revision != p.Revision || q.LeaderEpoch != p.LeaderEpoch {
			t.Fatalf("partition %d: the watch has %+v, the push %+v", i, p, q)
		}
	}
	if behind.Snapshot().Revision() != old.Revision() || behind.Snapshot().Seen().Revision != r.Written[len(r.Written)-1].Revision {
		t.Errorf("revision %d, seen %d", behind.Snapshot().Revision(), behind.Snapshot().Seen().Revision)
	}
	for range 10 * pushQueue {
		behind.Offer(r.Written) // nobody takes them: they do not pile up, and Offer does not block
	}
	stop = start(t, behind.Run) // it is taken in beside the watch, and changes nothing
	if s, err = behind.WaitRevision(t.Context(), r.Revision); err != nil || !maps.Equal(revisions(s, topic.ID), revisions(cache.Snapshot(), topic.ID)) {
		t.Errorf("%v", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
