package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/etcdserver"
	"runnel.dev/runnel/internal/ids"
)

var (
	quiet  = slog.New(slog.DiscardHandler)
	shared []string
)

// TestMain runs one etcd for the package; each test has a cluster of its own in it.
func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "controller-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := etcdserver.New(etcdserver.Config{
		DataDir: dir, ClientURLs: []string{"http://127.0.0.1:0"}, PeerURLs: []string{"http://127.0.0.1:0"},
		HeartbeatInterval: 20 * time.Millisecond, ElectionTimeout: 200 * time.Millisecond,
	}, quiet)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	code := 1
	select {
	case <-server.Ready():
		shared = server.ClientURLs()
		code = m.Run()
	case err := <-done:
		done <- err
	}
	cancel()
	if err := <-done; err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		return 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

var clusters struct {
	sync.Mutex
	names map[*testing.T]string
}

// clusterOf returns a name that no other run of any test has.
func clusterOf(t *testing.T) string {
	clusters.Lock()
	defer clusters.Unlock()
	name, ok := clusters.names[t]
	if !ok {
		name = fmt.Sprintf("test-%d", len(clusters.names))
		if clusters.names == nil {
			clusters.names = map[*testing.T]string{}
		}
		clusters.names[t] = name
	}
	return name
}

// node is a broker as far as metadata is concerned: it registers, campaigns, confirms directories and purges them.
type node struct {
	t       *testing.T
	storage ids.StorageID
	client  *metadata.Client
	cache   *metadata.Cache
	reg     *metadata.Registration
	ctl     *Controller
	view    atomic.Pointer[liveness.View]
	wake    chan struct{}
	// grow lets the replicas of partitions that this broker leads catch up.
	grow atomic.Bool
	// pushes are what was pushed, as far as there is room.
	pushes chan []metadata.PartitionValue
	// stop ends everything and revokes the lease.
	stop func()
}

// openClient returns a bootstrapped client of the test's cluster; the caller closes it.
func openClient(t *testing.T) *metadata.Client {
	t.Helper()
	c, err := metadata.New(metadata.Config{
		Endpoints: shared, Cluster: clusterOf(t), LeaseTTL: 2 * time.Second, ProgressInterval: time.Second,
	}, clock.System(), quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func startNode(t *testing.T, id int32, storage ids.StorageID) *node {
	t.Helper()
	n := &node{t: t, storage: storage, client: openClient(t), wake: make(chan struct{}, 1), pushes: make(chan []metadata.PartitionValue, 1000)}
	n.sees(liveness.View{})
	var err error
	if n.reg, err = n.client.Register(t.Context(), metadata.BrokerInfo{ID: id, StorageID: storage}); err != nil {
		t.Fatal(err)
	}
	n.cache = metadata.NewCache(n.client)
	if n.ctl, err = New(Config{
		Client: n.client, Cache: n.cache, Registration: n.reg, Clock: clock.System(), Logger: quiet, Registerer: prometheus.NewRegistry(),
		Health: func() liveness.View { return *n.view.Load() }, Wake: n.wake,
		Push: func(written []metadata.PartitionValue) {
			select {
			case n.pushes <- written:
			default:
			}
		},
	}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{n.reg.Run, n.cache.Run, n.ctl.Run, n.host} {
		wg.Go(func() {
			if err := run(ctx); err != nil && !errors.Is(err, metadata.ErrSuperseded) {
				t.Errorf("broker %d: %v", id, err)
			}
		})
	}
	n.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
		if err := n.client.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(n.stop)
	return n
}

// sees makes a broker's failure detector say something.
func (n *node) sees(v liveness.View) {
	n.view.Store(&v)
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// grown returns the change by which a leader takes all its replicas into the ISR, if there is one.
func (n *node) grown(s *metadata.State, p *metadata.Partition) (metadata.ISRChange, bool) {
	ch := metadata.ISRChange{Partition: p, ISR: slices.Clone(p.ISR)}
	if !n.grow.Load() || p.Leader != n.reg.BrokerID() || p.LeaderBrokerEpoch != n.reg.Epoch() {
		return ch, false
	}
	for _, id := range p.Replicas {
		if _, in := p.Member(id); !in && s.Eligible(id) {
			b, _ := s.Broker(id)
			ch.ISR = append(ch.ISR, metadata.Member{BrokerID: id, StorageID: b.StorageID, LogID: ids.NewLogID()})
			ch.Added = append(ch.Added, metadata.AddedMember{BrokerID: id, BrokerEpoch: b.Epoch})
		}
	}
	return ch, len(ch.Added) > 0
}

// host does what a broker's storage would do.
func (n *node) host(ctx context.Context) error {
	for ctx.Err() == nil {
		s := n.cache.Snapshot()
		var confirm []metadata.Confirmation
		var purge []*metadata.Partition
		var grown []metadata.ISRChange
		for _, topic := range s.Topics() {
			for _, p := range s.Partitions(topic.ID) {
				if p != nil {
					if ch, ok := n.grown(s, p); ok {
						grown = append(grown, ch)
					}
				}
				switch {
				case p == nil || !p.HasReplica(n.reg.BrokerID()):
				case topic.State == metadata.TopicDeleting && len(p.Purged) == 0:
					purge = append(purge, p)
				case topic.State != metadata.TopicDeleting && metadata.NeedsConfirmation(p, n.reg):
					confirm = append(confirm, metadata.Confirmation{Partition: p, LogID: ids.NewLogID()})
				}
			}
		}
		var err error
		var revision int64
		if len(confirm) > 0 {
			r, e := n.client.ConfirmReplicas(ctx, n.reg, confirm)
			revision, err = r.Revision, e
		}
		if len(purge) > 0 {
			r, e := n.client.ConfirmPurged(ctx, n.reg, purge)
			revision, err = max(revision, r.Revision), errors.Join(err, e)
		}
		if len(grown) > 0 {
			results, e := n.client.ChangeISRs(ctx, n.reg, s, grown)
			err = errors.Join(err, e)
			for _, r := range results {
				if r.Partition != nil {
					revision = max(revision, r.Partition.Revision)
				}
			}
		}
		if err != nil && ctx.Err() == nil && !errors.Is(err, metadata.ErrNotRegistered) && !errors.Is(err, metadata.ErrUnavailable) {
			return err
		}
		if revision > 0 {
			_, _ = n.cache.WaitRevision(ctx, revision)
			continue
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
		}
	}
	return nil
}

func (n *node) create(name string, partitions, replicas int32) *metadata.Topic {
	n.t.Helper()
	topic, err := n.client.CreateTopic(n.t.Context(), metadata.NewTopic{Name: name, Partitions: partitions, Replicas: replicas})
	if err != nil {
		n.t.Fatal(err)
	}
	return topic
}

func (n *node) wait(what string, cond func(*metadata.State) bool) *metadata.State {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	s, err := n.cache.Wait(ctx, cond)
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
	return s
}

// ledBy reports whether all partitions of a topic are led under a registration, at an epoch.
func ledBy(s *metadata.State, id ids.TopicID, brokerEpoch int64, leaderEpoch int32) bool {
	if !s.Usable(id) {
		return false
	}
	for _, p := range s.Partitions(id) {
		if p.LeaderBrokerEpoch != brokerEpoch || p.LeaderEpoch != leaderEpoch {
			return false
		}
	}
	return true
}

func TestLifeOfATopic(t *testing.T) {
	n := startNode(t, 1, ids.NewStorageID())
	topic := n.create("orders", 3, 0)
	s := n.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	if !ledBy(s, topic.ID, n.reg.Epoch(), 1) {
		t.Errorf("partitions %+v", s.Partitions(topic.ID)[0])
	}
	if now, _ := s.TopicByID(topic.ID); now.ReadyPartitions != 3 || now.Generation != 1 {
		t.Errorf("topic %+v", now)
	}
	first := s.Partitions(topic.ID)[0]
	if m, ok := first.Member(1); !ok || m.StorageID != n.storage || m.LogID.IsZero() {
		t.Errorf("member %+v", m)
	}

	if _, _, err := n.client.UpdateTopic(t.Context(), metadata.TopicUpdate{Name: "orders", Partitions: 5}); err != nil {
		t.Fatal(err)
	}
	s = n.wait("grown", func(s *metadata.State) bool {
		now, _ := s.TopicByID(topic.ID)
		return now.ReadyPartitions == 5 && ledBy(s, topic.ID, n.reg.Epoch(), 1)
	})
	if s.Partitions(topic.ID)[0] != first {
		t.Error("growing has touched an old partition")
	}

	if _, err := n.client.DeleteTopic(t.Context(), "orders", topic.ID, "", false); err != nil {
		t.Fatal(err)
	}
	n.wait("gone", func(s *metadata.State) bool {
		_, ok := s.Topic("orders")
		return !ok && len(s.Partitions(topic.ID)) == 0
	})
	again := n.create("orders", 1, 1)
	if again.ID == topic.ID {
		t.Error("a recreated topic has the old ID")
	}
	n.wait("usable again", func(s *metadata.State) bool { return s.Usable(again.ID) })
}

// TestRestartOfTwoThousand: all partitions of a broker that registers anew are elected anew, and quickly.
func TestRestartOfTwoThousand(t *testing.T) {
	const many = 2000
	storage := ids.NewStorageID()
	n := startNode(t, 1, storage)
	start := clock.System().Now()
	topic := n.create("wide", many, 1)
	n.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	t.Logf("created, confirmed and led: %v", clock.System().Since(start))
	n.stop()

	start = clock.System().Now()
	n = startNode(t, 1, storage)
	s := n.wait("led again", func(s *metadata.State) bool { return ledBy(s, topic.ID, n.reg.Epoch(), 2) })
	took := clock.System().Since(start)
	t.Logf("elected anew: %v", took)
	if len(s.Partitions(topic.ID)) != many {
		t.Errorf("%d partitions", len(s.Partitions(topic.ID)))
	}
	if took > 2*time.Second {
		t.Errorf("%d elections took %v, want less than 2s", many, took)
	}
	pushed := 0
	for timeout := clock.System().After(10 * time.Second); pushed < many; {
		select {
		case written := <-n.pushes:
			if len(written) > metadata.BulkSize {
				t.Errorf("a push of %d partitions: the first of them had to wait for the last", len(written))
			}
			for _, v := range written {
				if p, _ := s.Partition(v.Ref.TopicID, v.Ref.Partition); p.Revision != v.Revision {
					t.Fatalf("partition %d was written at %d, and pushed at %d", p.Partition, p.Revision, v.Revision)
				}
				pushed++
			}
		case <-timeout:
			t.Fatalf("%d of %d elections were pushed", pushed, many)
		}
	}
}

// TestLapseIsANewEpoch: the lease ends under a live process; the same broker leads again, under a higher epoch.
func TestLapseIsANewEpoch(t *testing.T) {
	n := startNode(t, 1, ids.NewStorageID())
	topic := n.create("orders", 2, 1)
	n.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	before := n.reg.Epoch()
	n.revoke()
	s := n.wait("led again", func(s *metadata.State) bool { return ledBy(s, topic.ID, n.reg.Epoch(), 2) })
	if ctl := s.Controller(); n.reg.Epoch() <= before || ctl.BrokerEpoch != n.reg.Epoch() {
		t.Errorf("broker epoch %d → %d, controller %+v: every registration has to take the key over", before, n.reg.Epoch(), ctl)
	}
}

// TestControllerFailover: the other broker takes the key and the leaderships, and the old tenure is worth nothing.
func TestControllerFailover(t *testing.T) {
	one := startNode(t, 1, ids.NewStorageID())
	one.wait("a controller", func(s *metadata.State) bool { return s.Controller() != nil && s.Eligible(1) })
	two := startNode(t, 2, ids.NewStorageID())
	two.wait("two brokers", func(s *metadata.State) bool { return s.Eligible(1) && s.Eligible(2) })
	topic := two.create("orders", 4, 2)
	s := two.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	leaders := map[int32]int{}
	for _, p := range s.Partitions(topic.ID) {
		leaders[p.Leader]++
		if len(p.ISR) != 2 {
			t.Errorf("ISR %+v", p.ISR)
		}
	}
	if leaders[1] != 2 || leaders[2] != 2 {
		t.Errorf("leaders %v", leaders)
	}
	old := metadata.Tenure{BrokerID: 1, BrokerEpoch: s.Controller().BrokerEpoch, Epoch: s.Controller().Epoch}
	if old.BrokerID != s.Controller().BrokerID {
		t.Fatalf("controller %+v", s.Controller())
	}
	one.stop()
	s = two.wait("all led by 2", func(s *metadata.State) bool {
		for _, p := range s.Partitions(topic.ID) {
			if p.Leader != 2 {
				return false
			}
		}
		return s.Controller().BrokerID == 2
	})
	p := s.Partitions(topic.ID)[0].Clone()
	p.LeaderEpoch += 10
	if r, err := two.client.UpdatePartitions(t.Context(), old, []*metadata.Partition{p}); !errors.Is(err, metadata.ErrNotController) || r.Count() != 0 {
		t.Errorf("a write of the old controller: %+v, %v", r, err)
	}
}

// TestCreationResumes: a controller wrote one chunk of a wide topic's partitions and died.
func TestCreationResumes(t *testing.T) {
	storage := ids.NewStorageID()
	c := openClient(t)
	defer c.Close()
	reg, err := c.Register(t.Context(), metadata.BrokerInfo{ID: 1, StorageID: storage})
	if err != nil {
		t.Fatal(err)
	}
	tenure, ok, err := c.AcquireController(t.Context(), 1, reg.Epoch())
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	topic, err := c.CreateTopic(t.Context(), metadata.NewTopic{Name: "wide", Partitions: 300})
	if err != nil {
		t.Fatal(err)
	}
	var chunk []*metadata.Partition
	for i := range int32(126) {
		chunk = append(chunk, &metadata.Partition{
			PartitionRef: metadata.PartitionRef{TopicID: topic.ID, Partition: i}, Leader: metadata.NoLeader, Replicas: []int32{1},
		})
	}
	if r, err := c.CreatePartitions(t.Context(), tenure, topic, chunk); err != nil || r.Count() != 126 {
		t.Fatal(r.Count(), err)
	}
	if now, err := c.GetTopic(t.Context(), "wide", topic.ID); err != nil || now.State != metadata.TopicCreating {
		t.Fatalf("topic %+v, %v", now, err)
	}
	n := startNode(t, 1, storage)
	s := n.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	if got := len(s.Partitions(topic.ID)); got != 300 {
		t.Errorf("%d partitions", got)
	}
	if r, err := c.CreatePartitions(t.Context(), tenure, topic, chunk); !errors.Is(err, metadata.ErrNotController) || r.Count() != 0 {
		t.Errorf("the dead controller creates: %d, %v", r.Count(), err)
	}
}

// revoke ends the lease under the running process.
func (n *node) revoke() {
	n.t.Helper()
	revoke(n.t, n.reg.LeaseID())
}
