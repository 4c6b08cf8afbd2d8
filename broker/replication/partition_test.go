package replication

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
)

var (
	_ LeaderPartition   = (*partition.Partition)(nil)
	_ FollowerPartition = (*partition.Partition)(nil)
	_ StartStater       = (*partition.Partition)(nil)
)

// replicas are one partition on three real brokers: logs, machines and transport; the test is the metadata.
type replicas struct {
	testing.TB
	nodes    []*node // ids 1 to 3
	parts    []*partition.Partition
	members  []replica.Member
	isr      []replica.Member
	epoch    int32
	revision int64
}

func newReplicas(t testing.TB, n int) *replicas {
	r := &replicas{TB: t}
	reg := &registry{}
	for i := range n {
		x := start(t, reg, int32(i+1), Settings{})
		h := partitiontest.NewHost(t, clock.System())
		t.Cleanup(h.StartSyncing())
		p := partition.New(partition.Config{
			Context: t.Context(),
			Log:     h.Log(topic, 0, log.DefaultConfig()), Clock: clock.System(), Replica: replica.Config{BrokerID: x.id}, Transport: x.followers,
		})
		x.host(p, 0)
		r.nodes, r.parts = append(r.nodes, x), append(r.parts, p)
		r.members = append(r.members, replica.Member{BrokerID: x.id, StorageID: partitiontest.StorageID, LogID: p.Log().LogID()})
	}
	r.isr = r.members
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() { // as the host does
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				for _, p := range r.parts {
					p.Tick()
				}
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() { close(stop); ticking.Wait() })
	return r
}

// elect makes a broker the leader of the next epoch.
func (r *replicas) elect(leader int32) {
	r.epoch++
	r.revision++
	for i, p := range r.parts {
		p.SetRecord(partition.RecordUpdate{
			Record: &replica.Record{
				Revision: r.revision, Leader: leader, LeaderEpoch: r.epoch, LeaderBrokerEpoch: r.nodes[leader-1].dir.Self().Epoch,
				Replicas: []int32{1, 2, 3}[:len(r.parts)], ISR: r.isr, MinISR: 2,
			},
			BrokerEpoch: r.nodes[i].dir.Self().Epoch, StorageID: partitiontest.StorageID, Usable: true,
		})
	}
}

// waiter collects acks.
type waiter struct {
	results chan partition.Result
}

func (w waiter) Acked(r partition.Result) { w.results <- r }

// produce appends a record at a leader and waits for its ack; refusals are tried again, as a client does.
func (r *replicas) produce(leader int32, value string) partition.Result {
	r.Helper()
	timeout := time.After(patience)
	for {
		batch, h := partitiontest.Batch(r, 1, value)
		w := waiter{make(chan partition.Result, 1)}
		r.parts[leader-1].Produce(&partition.Produce{Batch: batch, Header: h, LeaderEpoch: -1, Waiter: w})
		select {
		case res := <-w.results:
			if res.Err == nil {
				return res
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-timeout:
				r.Fatalf("produce %q: %v", value, res.Err)
			}
		case <-timeout:
			r.Fatalf("produce %q: no ack; leader %+v, log end %d, high watermark %d", value, r.parts[leader-1].Role(),
				r.parts[leader-1].Log().End(), r.parts[leader-1].Log().HighWatermark())
		}
	}
}

// same waits until all logs hold the same bytes up to end.
func (r *replicas) same(end int64) {
	r.Helper()
	deadline := time.After(patience)
	for {
		var all [][]byte
		for _, p := range r.parts {
			var got []byte
			buf := make([]byte, 1<<20)
			for at := p.Log().LogStart(); at < end; {
				n, next, err := p.Log().Read(at, len(buf), p.Log().End(), buf)
				if err != nil || n == 0 {
					break
				}
				got = append(got, buf[:n]...)
				at = next
			}
			all = append(all, got)
		}
		equal := r.parts[0].Log().End() >= end
		for i, b := range all {
			equal = equal && bytes.Equal(b, all[0]) && r.parts[i].Log().End() == r.parts[0].Log().End()
		}
		if equal {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			r.Fatalf("replicas differ: ends %d, %d", r.parts[0].Log().End(), r.parts[1].Log().End())
		}
	}
}

func TestRealPartitionsReplicateAndChangeLeaders(t *testing.T) {
	r := newReplicas(t, 3)
	n := 0
	for round := range 4 {
		leader := int32(round%3 + 1)
		r.elect(leader)
		for range 50 {
			if res := r.produce(leader, fmt.Sprint("record ", n)); res.Base < int64(n) {
				t.Fatalf("record %d got offset %d", n, res.Base)
			}
			n++
		}
	}
	r.same(int64(n))
}

func TestRealPartitionsKeepWhatWasAckedWhenTheLeaderIsCutOff(t *testing.T) {
	r := newReplicas(t, 3)
	r.elect(1)
	var acked atomic.Int64
	for i := range 20 {
		r.produce(1, fmt.Sprint(i))
		acked.Add(1)
	}
	// Broker 1 loses all connections in both directions and does not learn of its successor at first.
	r.nodes[0].grpc.Stop()
	r.epoch++
	r.revision++
	for i := 1; i < 3; i++ {
		r.parts[i].SetRecord(partition.RecordUpdate{
			Record: &replica.Record{
				Revision: r.revision, Leader: 2, LeaderEpoch: r.epoch, LeaderBrokerEpoch: r.nodes[1].dir.Self().Epoch, Replicas: []int32{1, 2, 3},
				ISR: r.members[1:], MinISR: 2,
			},
			BrokerEpoch: r.nodes[i].dir.Self().Epoch, StorageID: partitiontest.StorageID, Usable: true,
		})
	}
	// What the old leader still takes is never acknowledged, and goes.
	lost := waiter{make(chan partition.Result, 1)}
	batch, h := partitiontest.Batch(t, 1, "lost")
	r.parts[0].Produce(&partition.Produce{Batch: batch, Header: h, LeaderEpoch: -1, Waiter: lost})
	for i := range 20 {
		if res := r.produce(2, fmt.Sprint("after ", i)); res.Base < acked.Load() {
			t.Fatalf("offset %d was given away twice", res.Base)
		}
	}
	select {
	case res := <-lost.results:
		if res.Err == nil {
			t.Fatal("a leader that is cut off acknowledged")
		}
	default:
	}
	r.isr = r.members[1:]
	r.epoch--
	r.revision--
	r.elect(2) // broker 1 learns of it
	r.same(40)
	if res := <-lost.results; res.Err == nil {
		t.Fatal("what was truncated was acknowledged")
	}
}

func BenchmarkRealProduce(b *testing.B) {
	r := newReplicas(b, 3)
	r.elect(1)
	r.produce(1, "first")
	b.ReportAllocs()
	for b.Loop() {
		r.produce(1, "x")
	}
}
