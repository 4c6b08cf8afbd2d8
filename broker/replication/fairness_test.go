package replication

import (
	"testing"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

func TestSlowLogDoesNotHoldUpOthers(t *testing.T) {
	a, b := pair(t, Settings{TailStreams: 1})
	slow, quick := newSource(t, 0), newSource(t, 1)
	a.host(slow, 0)
	a.host(quick, 1)
	stuck, moving := newSink(t, b.followers, 0), newSink(t, b.followers, 1)
	stuck.hold = make(chan struct{})
	stuck.subscribe(1)
	moving.subscribe(1)
	for range 200 { // far more than a window
		slow.append(100_000)
	}
	for range 100 {
		quick.append(1000)
	}
	moving.until("the other log", func() bool { return moving.next == 100 })
	if stuck.next != 0 {
		t.Fatal("the slow log was not slow")
	}
	close(stuck.hold)
	stuck.until("the slow log, once it works", func() bool { return stuck.next == 200 })
}

func TestWindowBoundsWhatIsInFlight(t *testing.T) {
	const window, batch = 256 << 10, 10 << 10
	a, b := pair(t, Settings{Window: window, Quantum: 32 << 10})
	src := newSource(t, 0)
	a.host(src, 0)
	for range 100 {
		src.append(batch)
	}
	src.behind = 0
	r := raw(b, a, runnelv1.ReplicateStream_REPLICATE_STREAM_TAIL)
	r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 1, 0)}})
	r.hear() // granted
	got, end := 0, int64(0)
	take := func(least, most int) {
		t.Helper()
		for got < least {
			f := r.hear()
			n := len(f.Batch())
			if n > 32<<10 {
				t.Fatalf("a frame of %d bytes, more than a quantum", n)
			}
			got += n
			end += int64(n / batch)
			f.Free()
		}
		if got > most {
			t.Fatalf("%d bytes came, at most %d may be in flight", got, most)
		}
	}
	take(window, window+32<<10)
	// Nothing more comes: the next thing said is the answer to another subscription, not batches.
	r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 2, 77)}})
	if f := r.hear(); f.SubscriptionID != 2 {
		t.Fatalf("%d more bytes came without an ack", len(f.Batch()))
	}
	r.say(&codec.ReplicateRequestFrame{Acks: []codec.ReplicaAck{{SubscriptionID: 1, LeaderEpoch: 1, Flushed: end}}})
	take(2*window, 2*(window+32<<10))
}

func TestFullStreamLeavesEachPartitionItsQuantum(t *testing.T) {
	const window, quantum, batch = 256 << 10, 16 << 10, 4 << 10
	a, b := pair(t, Settings{Window: window, StreamWindow: window, Quantum: quantum})
	r := raw(b, a, runnelv1.ReplicateStream_REPLICATE_STREAM_TAIL)
	var got [3]int
	var ends [3]int64
	for number := range int32(2) {
		src := newSource(t, number)
		src.behind = 0
		a.host(src, number)
		for range 2 * window / batch {
			if n := len(src.append(batch - 70)); n != batch {
				t.Fatalf("a batch takes %d bytes, want %d", n, batch)
			}
		}
	}
	// Until all that may come has come, which the answer to another subscription proves.
	drain := func(marker uint32) {
		r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, marker, 77)}})
		for {
			f := r.hear()
			if f.SubscriptionID == marker {
				return
			}
			if n := len(f.Batch()); n > 0 {
				got[f.SubscriptionID] += n
				ends[f.SubscriptionID] += int64(n / batch)
			}
			f.Free()
		}
	}
	r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 1, 0)}})
	for round := uint32(10); got[1] < window; round++ {
		drain(round)
	}
	r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 2, 1)}})
	for round := uint32(1000); got[2] == 0; round++ {
		drain(round)
	}
	drain(5000)
	if got[1] >= window+quantum || got[2] > quantum {
		t.Fatalf("%d and %d bytes are in flight on a stream of %d", got[1], got[2], window)
	}
	// The second goes on by its own acks, whatever the first does.
	for round := uint32(6000); got[2] < 2*window; round++ {
		r.say(&codec.ReplicateRequestFrame{Acks: []codec.ReplicaAck{{SubscriptionID: 2, LeaderEpoch: 1, Flushed: ends[2]}}})
		drain(round)
	}
	if got[1] >= window+quantum {
		t.Fatalf("%d bytes of the first came without an ack", got[1])
	}
}

func TestOneWithMuchDoesNotHoldUpOneWithLittle(t *testing.T) {
	a, b := pair(t, Settings{})
	much, little := newSource(t, 0), newSource(t, 1)
	a.host(much, 0)
	a.host(little, 1)
	much.behind = 0
	for range 60 {
		much.append(100_000)
	}
	little.append(100)
	r := raw(b, a, runnelv1.ReplicateStream_REPLICATE_STREAM_TAIL)
	r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 1, 0), wish(b, 2, 1)}})
	before := 0
	for {
		f := r.hear()
		if f.SubscriptionID == 2 && len(f.Batch()) > 0 {
			break
		}
		before += len(f.Batch())
		f.Free()
	}
	// The first turn may have begun before the second subscription arrived.
	if before > 3*256<<10 {
		t.Fatalf("%d bytes of another partition came before its turn", before)
	}
}

func TestLargeBatchIsPaidFor(t *testing.T) {
	a, b := pair(t, Settings{StreamWindow: 1 << 30, Window: 1 << 29})
	large, small := newSource(t, 0), newSource(t, 1)
	a.host(large, 0)
	a.host(small, 1)
	for range 3 {
		large.append(4 << 20) // sixteen turns each
	}
	for range 80 {
		small.append(200 << 10)
	}
	large.behind, small.behind = 0, 0
	r := raw(b, a, runnelv1.ReplicateStream_REPLICATE_STREAM_TAIL)
	r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 1, 0), wish(b, 2, 1)}})
	var bytes [3]int
	for between, seen := 0, 0; seen < 3; {
		f := r.hear()
		n := len(f.Batch())
		bytes[f.SubscriptionID] += n
		switch {
		case n == 0:
		case f.SubscriptionID == 2:
			between += n
		default:
			if seen++; seen > 1 && between < 2<<20 {
				t.Fatalf("only %d bytes of the other partition came between two batches of 4 MiB", between)
			}
			between = 0
		}
		f.Free()
	}
}
