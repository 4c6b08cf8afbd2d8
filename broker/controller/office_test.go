package controller

import (
	"slices"
	"testing"
	"time"

	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

// three starts brokers 1, 2 and 3, of which 1 is the controller.
func three(t *testing.T) (one, two, tri *node) {
	t.Helper()
	one = startNode(t, 1, ids.NewStorageID())
	one.wait("a controller", func(s *metadata.State) bool { return s.Controller() != nil && s.Eligible(1) })
	two, tri = startNode(t, 2, ids.NewStorageID()), startNode(t, 3, ids.NewStorageID())
	tri.wait("three brokers", func(s *metadata.State) bool { return s.Eligible(1) && s.Eligible(2) && s.Eligible(3) })
	return one, two, tri
}

// nobodyLeadsOn reports whether a broker leads nothing of a topic, and everything has a leader.
func nobodyLeadsOn(s *metadata.State, topic ids.TopicID, id int32) bool {
	return s.Usable(topic) && !slices.ContainsFunc(s.Partitions(topic), func(p *metadata.Partition) bool { return p.Leader == id })
}

// TestSuspicionActsAtOnce: leaderships of a suspect move, and it leaves the ISR, although its registration lives.
func TestSuspicionActsAtOnce(t *testing.T) {
	one, _, _ := three(t)
	topic := one.create("orders", 6, 3)
	one.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	start := clock.System().Now()
	one.sees(liveness.View{Suspects: []int32{3}, Confirmed: []int32{3}, Beating: []int32{1, 2}, Hears: 1})
	s := one.wait("moved", func(s *metadata.State) bool { return nobodyLeadsOn(s, topic.ID, 3) })
	t.Logf("moved after %v", clock.System().Since(start))
	if _, alive := s.Broker(3); !alive {
		t.Error("the registration is gone: the lease moved it, not the suspicion")
	}
	for _, p := range s.Partitions(topic.ID) {
		if got := slices.Sorted(slices.Values(brokersOf(p.ISR))); !slices.Equal(got, []int32{1, 2}) {
			t.Errorf("partition %d: ISR %v", p.Partition, got)
		}
	}
}

// TestSuspicionOfEveryoneByACutOffController: what a detector does not confirm moves nothing.
func TestSuspicionOfEveryoneByACutOffController(t *testing.T) {
	one, two, _ := three(t)
	topic := one.create("orders", 6, 3)
	before := one.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	d := liveness.New(liveness.Config{Self: 1})
	d.Peers(0, []liveness.Peer{{ID: 1, Epoch: 1}, {ID: 2, Epoch: 2}, {ID: 3, Epoch: 3}})
	for now := time.Duration(0); now < 5*time.Second; now += 200 * time.Millisecond {
		d.Tick(now)
	}
	v := d.View(5 * time.Second)
	if len(v.Suspects) != 2 {
		t.Fatalf("%+v", v)
	}
	one.sees(v)
	// The two who hear each other take its office, and its leaderships.
	for _, n := range []*node{two} {
		n.sees(liveness.View{Suspects: []int32{1}, Confirmed: []int32{1}, Beating: []int32{2, 3}, Hears: 1})
	}
	s := two.wait("moved", func(s *metadata.State) bool { return nobodyLeadsOn(s, topic.ID, 1) })
	if s.Controller().BrokerID != 2 {
		t.Errorf("controller %+v", s.Controller())
	}
	for i, p := range s.Partitions(topic.ID) {
		if was := before.Partitions(topic.ID)[i]; was.Leader != 1 && (p.Leader != was.Leader || p.LeaderEpoch != was.LeaderEpoch) {
			t.Errorf("partition %d moved from %d to %d", i, was.Leader, p.Leader)
		}
	}
}

// TestWitnessesTakeTheOffice: the one with the lowest id does, and the tenure of before is worth nothing.
func TestWitnessesTakeTheOffice(t *testing.T) {
	one, two, tri := three(t)
	old, ok := one.ctl.inOffice(one.cache.Snapshot())
	if !ok {
		t.Fatal("broker 1 is not the controller")
	}
	one.wait("itself", func(s *metadata.State) bool { return s.Controller().BrokerID == 1 })
	for _, n := range []*node{two, tri} {
		n.sees(liveness.View{Suspects: []int32{1}, Confirmed: []int32{1}, Beating: []int32{2, 3}, Hears: 1})
	}
	s := tri.wait("another controller", func(s *metadata.State) bool { return s.Controller().BrokerID != 1 })
	if s.Controller().Epoch <= old.Epoch {
		t.Errorf("controller %+v after %+v", s.Controller(), old)
	}
	if _, alive := s.Broker(1); !alive {
		t.Error("the registration of broker 1 is gone")
	}
	one.wait("the old one to notice", func(s *metadata.State) bool { return s.Controller().BrokerID != 1 })
	if _, err := one.ctl.Reassignments(); err == nil {
		t.Error("the old controller still answers")
	}
}

// TestAStoppingControllerIsRelieved: first it hands its own leaderships over, then the others take the office.
func TestAStoppingControllerIsRelieved(t *testing.T) {
	one, two, tri := three(t)
	topic := one.create("orders", 6, 3)
	one.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	stopping := liveness.View{Stopping: []int32{1}, Beating: []int32{1, 2, 3}, Hears: 2}
	for _, n := range []*node{two, tri, one} {
		n.sees(stopping)
	}
	s := tri.wait("relieved", func(s *metadata.State) bool { return s.Controller().BrokerID != 1 && nobodyLeadsOn(s, topic.ID, 1) })
	if _, alive := s.Broker(1); !alive {
		t.Error("the registration of broker 1 is gone")
	}
	tri.wait("out of every ISR", func(s *metadata.State) bool {
		return !slices.ContainsFunc(s.Partitions(topic.ID), func(p *metadata.Partition) bool { _, in := p.Member(1); return in })
	})
	one.stop()
	tri.wait("nothing else moves", func(s *metadata.State) bool { _, alive := s.Broker(1); return !alive })
}

func TestPatience(t *testing.T) {
	now := time.Unix(0, 0)
	p := patience{}
	for range freeRounds - 1 {
		p.note(2, now)
	}
	if ids, wait := p.spared(now); ids != nil || wait != 0 {
		t.Errorf("spared %v for %v", ids, wait)
	}
	for _, pause := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		p.note(2, now)
		if ids, wait := p.spared(now); !ids[2] || wait != pause*time.Second {
			t.Errorf("spared %v for %v, want %v s", ids, wait, pause)
		}
		now = now.Add(pause * time.Second)
	}
	if ids, _ := p.spared(now); ids != nil {
		t.Errorf("spared %v", ids)
	}
	now = now.Add(2 * calmRounds)
	p.note(2, now)
	if ids, _ := p.spared(now); ids != nil {
		t.Errorf("spared %v after a calm time", ids)
	}
}

func TestWhoGoesFirst(t *testing.T) {
	s := metadata.NewState(cluster(5))
	v := liveness.View{Suspects: []int32{1}, Confirmed: []int32{1}, Stopping: []int32{3}}
	for id, want := range map[int32]int{2: 0, 4: 1, 5: 2} {
		if got := successorsBelow(s, v, id); got != want {
			t.Errorf("broker %d waits for %d, want %d", id, got, want)
		}
	}
	if got := successors(s, v, 3); got != 3 {
		t.Errorf("%d successors", got)
	}
}

// TestTwoThatRefuseEachOther: two brokers alone, both alive and in reach of etcd, hold each other for dead (a firewall refuses connections).
// One of them gets the office, and keeps it: who has taken the key while it was suspected lives.
func TestTwoThatRefuseEachOther(t *testing.T) {
	one := startNode(t, 1, ids.NewStorageID())
	one.wait("a controller", func(s *metadata.State) bool { return s.Controller() != nil && s.Eligible(1) })
	two := startNode(t, 2, ids.NewStorageID())
	one.wait("two brokers", func(s *metadata.State) bool { return s.Eligible(2) })
	topic := one.create("orders", 4, 2)
	one.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	first := one.cache.Snapshot().Controller().Epoch
	one.sees(liveness.View{Suspects: []int32{2}, Confirmed: []int32{2}, Beating: []int32{1}})
	two.sees(liveness.View{Suspects: []int32{1}, Confirmed: []int32{1}, Beating: []int32{2}})
	s := one.wait("2 takes over", func(s *metadata.State) bool { return s.Controller().Epoch != first })
	second := s.Controller().Epoch
	changes := 1
	deadline := time.After(500 * time.Millisecond)
	for done := false; !done; {
		if now := one.cache.Snapshot().Controller().Epoch; now != second {
			second, changes = now, changes+1
		}
		select {
		case <-one.cache.Snapshot().Changed():
		case <-deadline:
			done = true
		}
	}
	if changes > 1 {
		t.Errorf("the office changed hands %d times", changes)
	}
	for _, p := range one.cache.Snapshot().Partitions(topic.ID) {
		if p.LeaderEpoch > 3 {
			t.Errorf("partition %d: leader epoch %d", p.Partition, p.LeaderEpoch)
		}
	}
}
