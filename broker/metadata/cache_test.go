package metadata

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"runnel.dev/runnel/internal/ids"
)

func gauge(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	out := &dto.Metric{}
	if err := m.Write(out); err != nil {
		t.Fatal(err)
	}
	if out.GetCounter() != nil {
		return out.GetCounter().GetValue()
	}
	return out.GetGauge().GetValue()
}

func TestCacheFollows(t *testing.T) {
	c := client(t, nil)
	early, _ := register(t, c, 1, ids.NewStorageID())
	empty := NewCache(c).Snapshot()
	if empty.Loaded() || len(empty.Brokers()) != 0 {
		t.Error("a cache that has not listed says something")
	}
	cache := follow(t, c)
	s, err := cache.WaitRevision(t.Context(), early.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	b, ok := s.Broker(1)
	if !ok || b.Epoch != early.Epoch() || b.Listeners["client"] != "host:7650" || s.Cluster() == nil || s.Cluster().Era != 1 {
		t.Fatalf("broker %+v, cluster %+v", b, s.Cluster())
	}
	topic, err := c.CreateTopic(t.Context(), NewTopic{Name: "orders", Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	later, err := cache.WaitRevision(t.Context(), topic.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if d := later.Since(s); len(d.Topics) != 1 || d.Topics[0] != topic.ID || d.Brokers {
		t.Errorf("Since = %+v", d)
	}
	if same, _ := later.Broker(1); same != b {
		t.Error("an unchanged value has a new pointer")
	}
	if _, ok := s.Topic("orders"); ok {
		t.Error("an old State has changed")
	}
	closed(t, s.Changed(), "the announcement of a newer State")
	if got, ok := later.TopicByID(topic.ID); !ok || got.Name != "orders" || got.State != TopicCreating {
		t.Errorf("topic %+v", got)
	}
	if later.Position().Revision < topic.Revision || c.Position().Revision < topic.Revision || later.Position().ClusterID != s.Cluster().ID {
		t.Errorf("positions %+v, %+v", later.Position(), c.Position())
	}
}

// TestCacheListsManyAtOneRevision: several pages, then a deletion and a change in the gap before the watch.
func TestCacheListsManyAtOneRevision(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	tenure := office(t, c, 1)
	topic, err := c.CreateTopic(t.Context(), NewTopic{Name: "wide", Partitions: 2500})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.CreatePartitions(t.Context(), tenure, topic, partitions(topic, 1)); err != nil || r.Count() != 2500 {
		t.Fatalf("%d created, %v", r.Count(), err)
	}
	s := follow(t, c).Snapshot()
	list := s.Partitions(topic.ID)
	if len(list) != 2500 {
		t.Fatalf("%d partitions", len(list))
	}
	for i, p := range list {
		if p == nil || int(p.Partition) != i || p.Leader != NoLeader {
			t.Fatalf("partition %d is %+v", i, p)
		}
	}
}

// TestCacheListsAgainAfterCompaction: what was changed and deleted while the watch was away is there, what was not keeps its pointer.
func TestCacheListsAgainAfterCompaction(t *testing.T) {
	urls, _ := ownEtcd(t, serverConfig(t.TempDir()))
	cfg := testConfig(t, nil)
	cfg.Endpoints = urls
	c := open(t, cfg)
	if _, err := c.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	register(t, c, 1, ids.NewStorageID())
	kept := create(t, c, "kept", 1)
	gone := create(t, c, "gone", 1)
	cache := NewCache(c)
	stop := start(t, cache.Run)
	before := wait(t, cache, func(*State) bool { return true })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	late := create(t, c, "late", 1)
	gone, err := c.DeleteTopic(t.Context(), "gone", gone.ID, "", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ForgetTopic(t.Context(), office(t, c, 1), gone); err != nil {
		t.Fatal(err)
	}
	resp, err := c.get(t.Context(), "test", "x")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.etcd.Compact(t.Context(), resp.Header.Revision); err != nil {
		t.Fatal(err)
	}
	// The watch goes on from a place that is compacted.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	next := [2]int64{before.Revision() + 1, before.Revision() + 1}
	if _, err := cache.watch(ctx, &next); err == nil || ctx.Err() != nil {
		t.Fatalf("a watch from a compacted revision ended with %v", err)
	}
	start(t, cache.Run)
	s := wait(t, cache, func(s *State) bool { _, ok := s.Topic("late"); return ok })
	if got, _ := s.Topic("late"); got.ID != late.ID {
		t.Errorf("topic %+v", got)
	}
	if _, ok := s.Topic("gone"); ok {
		t.Error("a deletion was missed")
	}
	if _, ok := s.TopicByID(gone.ID); ok {
		t.Error("a deletion was missed")
	}
	was, _ := before.Topic("kept")
	if is, ok := s.Topic("kept"); !ok || is != was || is.ID != kept.ID {
		t.Error("an unchanged topic has a new pointer")
	}
	if n := gauge(t, c.metrics.relists); n != 1 {
		t.Errorf("%v lists after the first, want 1", n)
	}
}

// TestEtcdStopsAndComesBack: writes fail with a clear error, the cache keeps its last State, and all goes on by itself.
func TestEtcdStopsAndComesBack(t *testing.T) {
	dir := serverConfig(t.TempDir())
	urls, stop := ownEtcd(t, dir)
	cfg := testConfig(t, nil)
	cfg.Endpoints = urls
	cfg.RequestTimeout = 300 * time.Millisecond
	c := open(t, cfg)
	if _, err := c.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, _ := register(t, c, 1, ids.NewStorageID())
	create(t, c, "before", 1)
	cache := follow(t, c)
	wait(t, cache, func(s *State) bool { _, ok := s.Topic("before"); return ok })
	stop()
	_, err := c.CreateTopic(t.Context(), NewTopic{Name: "during", Partitions: 1})
	var unavailable *UnavailableError
	if !errors.As(err, &unavailable) || !errors.Is(err, ErrUnavailable) || unavailable.Unsettled {
		t.Errorf("without etcd: %v", err)
	}
	if _, ok := cache.Snapshot().Topic("before"); !ok {
		t.Error("the cache forgot what it knew")
	}
	select {
	case <-r.Lost():
		t.Error("a stopped etcd ended the registration")
	default:
	}
	dir.ClientURLs = urls
	ownEtcd(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		if _, err = c.CreateTopic(ctx, NewTopic{Name: "after", Partitions: 1}); !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("after etcd came back: %v", err)
	}
	s := wait(t, cache, func(s *State) bool { _, ok := s.Topic("after"); return ok })
	if _, ok := s.Topic("before"); !ok {
		t.Error("an old topic is gone")
	}
	if n := gauge(t, c.metrics.relists); n != 0 {
		t.Errorf("%v lists after the first: the watch should have gone on from its place", n)
	}
}

// TestCacheLeavesOutWhatItCannotRead, and keeps the previous value.
func TestCacheLeavesOutWhatItCannotRead(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	topic := create(t, c, "orders", 1)
	for _, key := range []string{"topics/broken", "topics/../x", "partitions/x/1", "brokers/01", "brokers/x", "storage/9", "other/1"} {
		if _, err := c.put(t.Context(), c.keys.prefix+key, "\xff\xff", 0); err != nil {
			t.Fatal(err)
		}
	}
	cache := follow(t, c)
	if _, err := c.put(t.Context(), c.keys.topic("orders"), "garbage", topic.Revision); err != nil {
		t.Fatal(err)
	}
	last := create(t, c, "last", 1)
	s, err := cache.WaitRevision(t.Context(), last.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := s.Topic("orders"); !ok || got.Revision != topic.Revision {
		t.Errorf("the previous value is gone: %+v", got)
	}
	if len(s.Topics()) != 2 || len(s.Brokers()) != 1 || len(s.Storages()) != 0 {
		t.Errorf("%d topics, %d brokers, %d storages", len(s.Topics()), len(s.Brokers()), len(s.Storages()))
	}
	if n := gauge(t, c.metrics.corrupt); n != 3 {
		t.Errorf("%v corrupt values counted, want topics/broken, storage/9 and the overwritten topic", n)
	}
	if _, err := c.GetTopic(t.Context(), "orders", ids.TopicID{}); !errors.Is(err, ErrCorruptValue) {
		t.Errorf("GetTopic = %v", err)
	}
}

// office makes a registered broker the controller.
func office(t *testing.T, c *Client, id int32) Tenure {
	t.Helper()
	_, epoch := value(t, c, c.keys.broker(id))
	tenure, ok, err := c.AcquireController(t.Context(), id, epoch)
	if err != nil || !ok {
		t.Fatalf("AcquireController = %v, %v", ok, err)
	}
	return tenure
}

func create(t *testing.T, c *Client, name string, n int32) *Topic {
	t.Helper()
	topic, err := c.CreateTopic(t.Context(), NewTopic{Name: name, Partitions: n})
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// partitions are new ones of a topic, all on one broker.
func partitions(topic *Topic, broker int32) []*Partition {
	out := make([]*Partition, topic.Partitions)
	for i := range out {
		out[i] = &Partition{
			PartitionRef: PartitionRef{TopicID: topic.ID, Partition: int32(i)}, Leader: NoLeader, Replicas: []int32{broker},
		}
	}
	return out
}

// TestQuietEtcdTellsThatNothingHappens: etcd answers no progress request on a stream with a watch that begins in the future. A registration
// that is watched from behind its own write would keep the cache from learning that it has seen everything, until somebody writes.
func TestQuietEtcdTellsThatNothingHappens(t *testing.T) {
	urls, _ := ownEtcd(t, serverConfig(t.TempDir())) // in which nobody else writes
	cfg := testConfig(t, nil)
	cfg.Endpoints, cfg.LeaseTTL = urls, time.Minute
	c := open(t, cfg)
	if _, err := c.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	cache := follow(t, c)
	for id := range int32(20) {
		r, _ := register(t, c, id, ids.NewStorageID())
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := cache.WaitRevision(ctx, r.Epoch()); err != nil {
			t.Fatalf("registration %d: %v", id, err)
		}
		cancel()
	}
}

// One of the two ranges is quiet, so Revision stays behind until etcd tells of its progress. Who acts on what the other shows has seen it.
func TestWhatIsShownHasBeenSeen(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	cache := follow(t, c)
	wait(t, cache, (*State).Loaded)
	for range 20 {
		topic, err := c.CreateTopic(t.Context(), NewTopic{Name: "t" + ids.NewTopicID().String(), Partitions: 1, Replicas: 1})
		if err != nil {
			t.Fatal(err)
		}
		s := wait(t, cache, func(s *State) bool { _, ok := s.TopicByID(topic.ID); return ok })
		if got, _ := s.TopicByID(topic.ID); s.Seen().Revision < got.Revision {
			t.Fatalf("a topic of revision %d is shown, and only %d was seen", got.Revision, s.Seen().Revision)
		}
	}
}
