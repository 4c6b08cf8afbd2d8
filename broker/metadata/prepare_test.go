package metadata

import (
	"errors"
	"testing"
	"time"
)

// TestBeginRecoveryStopsBrokers: those that run end, those that start wait, and what is in etcd is still the source of a plan.
func TestBeginRecoveryStopsBrokers(t *testing.T) {
	c := open(t, testConfig(t, nil))
	if _, err := c.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	rm := remains{t}
	reg, _ := register(t, c, 1, rm.storage(1))
	cache := NewCache(c)
	ended := make(chan error, 1)
	go func() { ended <- cache.Run(t.Context()) }()
	if _, err := cache.WaitRevision(t.Context(), reg.Epoch()); err != nil {
		t.Fatal(err)
	}
	alive, err := c.Registered(t.Context())
	if err != nil || len(alive) != 1 || alive[0].ID != 1 || alive[0].StorageID != rm.storage(1) {
		t.Fatalf("registered: %+v, %v", alive, err)
	}
	id := c.Position().ClusterID
	for range 2 { // the second time there is nothing to do
		if err := c.BeginRecovery(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; !errors.Is(err, ErrRecovering) {
		t.Errorf("the cache ended with %v", err)
	}
	if _, err := c.Bootstrap(t.Context()); !errors.Is(err, ErrRecovering) {
		t.Errorf("a broker that starts: %v", err)
	}
	s, err := c.ReadPrefix(t.Context())
	if err != nil || s.Recovering || s.Position.ClusterID != id {
		t.Errorf("%+v, %v", s, err)
	}
	if err := c.BeginRecovery(t.Context(), "another", ""); !errors.Is(err, ErrForeignEtcd) {
		t.Errorf("for another cluster: %v", err)
	}
}

// TestBeginRecoveryWithoutAUsableCluster: in an empty etcd, and where a broker with an empty disk has founded a cluster of its own.
func TestBeginRecoveryWithoutAUsableCluster(t *testing.T) {
	rm, in, c := lostEtcd(t, nil)
	if _, err := c.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	founded := c.Position().ClusterID
	if err := c.BeginRecovery(t.Context(), "id", ""); !errors.Is(err, ErrForeignEtcd) {
		t.Fatalf("another cluster is there: %v", err)
	}
	if err := c.BeginRecovery(t.Context(), "id", founded); err != nil {
		t.Fatal(err)
	}
	s, err := c.ReadPrefix(t.Context())
	if err != nil || !s.Recovering || s.Position.ClusterID != "id" {
		t.Fatalf("%+v, %v", s, err)
	}
	r := planFrom(t, c, in)
	if err := c.Restore(t.Context(), r); err != nil || !holds(t, c, r) {
		t.Fatalf("%v", err)
	}
	if _, err := knownAs(t, rm.broker(1).Position).Bootstrap(t.Context()); err != nil {
		t.Errorf("a broker after it: %v", err)
	}

	empty := open(t, testConfig(t, nil))
	if err := empty.BeginRecovery(t.Context(), "id", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := empty.Bootstrap(t.Context()); !errors.Is(err, ErrRecovering) {
		t.Errorf("a broker with an empty disk: %v", err)
	}
	r = planFrom(t, empty, in)
	if err := empty.Restore(t.Context(), r); err != nil || !holds(t, empty, r) {
		t.Fatalf("%v", err)
	}
}

// TestRecoveryFromAnEtcdThatWentOn: written to since it was restored, it may have come further than a snapshot, and is older all the same.
func TestRecoveryFromAnEtcdThatWentOn(t *testing.T) {
	rm := remains{t}
	a, b := rm.topic("a", 1, TopicActive, 1), rm.topic("b", 2, TopicActive, 1)
	etcd, snapshot := rm.snapshot(300, 1, a), rm.snapshot(400, 1, a, b)
	etcd.Position.Revision, etcd.Taken = 450, time.UnixMilli(450)
	for i := range etcd.Keys {
		if etcd.Keys[i].Key == "controller" {
			etcd.Keys[i].Revision = 450
		}
	}
	in := RecoveryInput{Inventories: []BrokerInventory{rm.broker(1), rm.broker(2), rm.broker(3)}, Etcd: etcd, Snapshots: [][]byte{rm.bytes(snapshot)}}
	r, s := rm.plan(in)
	if _, ok := s.Topic("b"); !ok || !said(r, SeverityWarning, "is older than the snapshot") {
		t.Errorf("source %s, findings %+v", r.Source, r.Findings)
	}
	// Nor is it known to have deleted what it does not have.
	etcd = rm.snapshot(450, 1, a)
	in.Etcd, in.Inventories[0] = etcd, rm.broker(1, rm.log(b, 0, 1, 2, 10))
	if r, s = rm.plan(in); r.Source != "etcd (era 1, revision 450)" {
		t.Errorf("source %s", r.Source)
	}
	if x, ok := s.Topic("b"); !ok || x.ID != b.ID {
		t.Errorf("a topic that a directory has: %+v, findings %+v", x, r.Findings)
	}
	etcd, snapshot = rm.snapshot(400, 1, b), rm.snapshot(300, 1, a)
	in.Etcd, in.Snapshots = etcd, [][]byte{rm.bytes(snapshot)}
	if r, s := rm.plan(in); said(r, SeverityWarning, "is older") {
		t.Errorf("a newer etcd: %+v, %+v", r.Findings, s)
	}
}
