package metadata

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/internal/ids"
)

// lostEtcd is a cluster's remains, and a client of an etcd that has nothing of it.
func lostEtcd(t *testing.T, f *faults) (remains, RecoveryInput, *Client) {
	t.Helper()
	rm := remains{t}
	orders := rm.topic("orders", 1, TopicActive, 300)
	s := rm.snapshot(500, 3, orders)
	in := RecoveryInput{Snapshots: [][]byte{rm.bytes(s)}}
	for b := int32(1); b <= 3; b++ {
		inv := rm.broker(b)
		for n := range int32(300) {
			inv.Logs = append(inv.Logs, rm.log(orders, n, b, 4, int64(10*n+b)))
		}
		in.Inventories = append(in.Inventories, inv)
	}
	return rm, in, open(t, testConfig(t, f))
}

func planFrom(t *testing.T, c *Client, in RecoveryInput) *Recovery {
	t.Helper()
	var err error
	if in.Etcd, err = c.ReadPrefix(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := PlanRecovery(in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// holds reports whether etcd has exactly what a recovery says.
func holds(t *testing.T, c *Client, r *Recovery) bool {
	t.Helper()
	s, err := c.ReadPrefix(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(c.difference(r, s)) == 0
}

// knownAs is a client of a broker that had seen the cluster before.
func knownAs(t *testing.T, known Position) *Client {
	cfg := testConfig(t, nil)
	cfg.Known = known
	return open(t, cfg)
}

func TestRestoreIntoAnEmptyEtcd(t *testing.T) {
	rm, in, c := lostEtcd(t, nil)
	known := rm.broker(1).Position
	if _, err := knownAs(t, known).Bootstrap(t.Context()); !errors.Is(err, ErrOlderEtcd) {
		t.Fatalf("before the recovery: %v", err)
	}
	r := planFrom(t, c, in)
	for range 2 { // the second time there is nothing to do
		if err := c.Restore(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if !holds(t, c, r) {
		t.Error("etcd does not have what was planned")
	}
	broker := knownAs(t, known)
	cluster, err := broker.Bootstrap(t.Context())
	if err != nil || cluster.ID != "id" || cluster.Era != 2 || cluster.Recovery != nil || cluster.FeatureLevel != 3 {
		t.Fatalf("%+v, %v", cluster, err)
	}
	reg, _ := register(t, broker, 1, rm.storage(1))
	s, err := follow(t, broker).WaitRevision(t.Context(), reg.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := s.Partition(ids.TopicID{1}, 299); !ok || p.LeaderEpoch <= 4 || p.ISR[0].BrokerID != 3 || s.Eligible(1) || !ControllerFree(s) {
		t.Errorf("%+v", p)
	}
	if now := broker.Position(); now.Era != 2 || now.Before(known) {
		t.Errorf("position %+v", now)
	}
	// A broker that had seen the new era does not go back to the old one, nor does an old plan.
	next := planFrom(t, c, in)
	if next.Era != 3 {
		t.Errorf("the next recovery begins era %d", next.Era)
	}
}

// TestRestoreStopsInTheMiddle: brokers wait, and the same plan goes on; what is there meanwhile is no source.
func TestRestoreStopsInTheMiddle(t *testing.T) {
	for _, after := range []int64{1, 2, 4} {
		f := &faults{}
		t.Run(itoa(int32(after)), func(t *testing.T) {
			rm, in, c := lostEtcd(t, f)
			r := planFrom(t, c, in)
			ctx, cancel := context.WithCancel(t.Context())
			cfg := testConfig(t, nil)
			var seen int64
			cfg.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				if method == "/etcdserverpb.KV/Txn" {
					if seen++; seen == after {
						cancel() // killed
					}
				}
				return err
			})}
			if err := open(t, cfg).Restore(ctx, r); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("Restore = %v", err)
			}
			known := rm.broker(2).Position
			if _, err := knownAs(t, known).Bootstrap(t.Context()); !errors.Is(err, ErrRecovering) || !errors.Is(err, ErrUnavailable) {
				t.Errorf("a broker meanwhile: %v", err)
			}
			half, err := c.ReadPrefix(t.Context())
			if err != nil || !half.Recovering || half.Position.Era != 1 {
				t.Errorf("meanwhile: %+v, %v", half.Position, err)
			}
			// Planned again from the same snapshots: the same, but for epochs that the unfinished recovery may have given out.
			again := planFrom(t, c, in)
			if !slices.Equal(again.Topics, r.Topics) || again.Era != r.Era || again.Partitions[7].LeaderEpoch < r.Partitions[7].LeaderEpoch {
				t.Error("what the unfinished recovery has left changed the plan")
			}
			for _, plan := range []*Recovery{r, again}[after%2:] {
				mark, _, err := c.markRecovery(t.Context(), plan)
				if err != nil || mark == 0 {
					t.Fatal(mark, err)
				}
			}
			if after%2 == 0 { // the mark is the other plan's by now: this one starts over
				again = r
			}
			if err := c.Restore(t.Context(), again); err != nil || !holds(t, c, again) {
				t.Fatal("resumed:", err)
			}
			if _, err := knownAs(t, known).Bootstrap(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRestoreWithLostAnswers: late attempts of the restore change nothing after the new era has begun.
func TestRestoreWithLostAnswers(t *testing.T) {
	f := &faults{}
	_, in, c := lostEtcd(t, f)
	r := planFrom(t, c, in)
	f.next(lost, delayed, fine, delayed, lost, delayed, delayed)
	if err := c.Restore(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	other := client(t, nil)
	key := other.keys.topic("orders")
	v, revision := value(t, other, key)
	if _, err := other.put(t.Context(), key, v+"\x50\x01", revision); err != nil {
		t.Fatal(err)
	}
	if n := f.deliver(t); n != 4 {
		t.Errorf("%d late attempts", n)
	}
	if now, _ := value(t, other, key); now == v {
		t.Error("a late attempt of the recovery undid a later change")
	}
}

// TestRestoreBesideBrokers: nothing is mixed with what registered brokers do.
func TestRestoreBesideBrokers(t *testing.T) {
	rm, in, c := lostEtcd(t, nil)
	r := planFrom(t, c, in)
	// A fresh broker founds a cluster of its own in the empty etcd first.
	founder := client(t, nil)
	if err := c.Restore(t.Context(), r); !errors.Is(err, ErrForeignEtcd) {
		t.Errorf("into another cluster: %v", err)
	}
	if _, err := founder.etcd.Delete(t.Context(), founder.keys.cluster()); err != nil {
		t.Fatal(err)
	}
	if err := c.Restore(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	broker := knownAs(t, rm.broker(1).Position)
	if _, err := broker.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, stop := register(t, broker, 1, rm.storage(1))
	next := planFrom(t, c, in)
	var alive *BrokersAliveError
	if err := c.Restore(t.Context(), next); !errors.As(err, &alive) || !slices.Equal(alive.Brokers, []int32{1}) {
		t.Errorf("beside a registered broker: %v", err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	// It bootstrapped before the mark, and registers after it; then in another era than it started in.
	mark, _, err := c.markRecovery(t.Context(), next)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := broker.Register(t.Context(), BrokerInfo{ID: 1, StorageID: rm.storage(1)}); !errors.Is(err, ErrRecovering) {
		t.Errorf("registering while the metadata is recovered: %v", err)
	}
	late, err := broker.build.Register(0, BrokerInfo{ID: 1, StorageID: rm.storage(1)}, BootID{}, 0, broker.build.ClusterUnchanged(mark-1))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := broker.commit(t.Context(), late); err != nil || out.Applied {
		t.Errorf("a registration that was under way: %+v, %v", out, err)
	}
	if err := c.Restore(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.Register(t.Context(), BrokerInfo{ID: 1, StorageID: rm.storage(1)}); !errors.Is(err, ErrForeignEtcd) {
		t.Errorf("registering in another era: %v", err)
	}
	if err := c.Restore(t.Context(), r); !errors.Is(err, ErrConflict) {
		t.Errorf("an old plan: %v", err)
	}
}

// TestTwoRecoveries: the one that takes the mark over ends the other.
func TestTwoRecoveries(t *testing.T) {
	_, in, c := lostEtcd(t, nil)
	first := planFrom(t, c, in)
	in.Inventories = in.Inventories[:2]
	second := planFrom(t, c, in)
	mark, _, err := c.markRecovery(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Restore(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	tx := Tx{Op: "restore", Compares: []Compare{c.build.ClusterUnchanged(mark), c.nobody()}, Then: []Put{{Key: c.keys.topic("late"), Value: "x"}}, Reads: []string{c.keys.cluster()}}
	if err := c.restoreTx(t.Context(), tx); !errors.Is(err, ErrConflict) || !holds(t, c, second) {
		t.Errorf("the first recovery went on: %v", err)
	}
}

// TestEraRaisedUnderARunningBroker: it ends, and starts anew in the new era.
func TestEraRaisedUnderARunningBroker(t *testing.T) {
	c := client(t, nil)
	cache := NewCache(c)
	ended := make(chan error, 1)
	start(t, func(ctx context.Context) error { err := cache.Run(ctx); ended <- err; return err })
	s := wait(t, cache, func(*State) bool { return true })
	next := *s.Cluster()
	next.Era++
	text, err := encodeCluster(&next)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.put(t.Context(), c.keys.cluster(), text, next.Revision); err != nil || !out.Applied {
		t.Fatal(out, err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, ErrForeignEtcd) {
			t.Errorf("Run = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the cache goes on")
	}
	if cache.Snapshot().Cluster().Era != 1 {
		t.Error("a process saw two eras")
	}
}
