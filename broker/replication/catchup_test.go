package replication

import (
	"testing"
	"time"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/peer"
)

func TestFarBehindUsesTheCatchUpStreamUntilItIsClose(t *testing.T) {
	const window = 64 << 10
	a, b := pair(t, Settings{Window: window, StreamWindow: 1 << 20, Quantum: 16 << 10, TailStreams: 1})
	src := newSource(t, 0)
	a.host(src, 0)
	src.mu.Lock()
	src.behind = 4*window + 1
	src.mu.Unlock()
	for range 100 {
		src.append(10_000)
	}
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the move to catch-up", func() bool { return len(dst.refused) == 1 })
	if len(dst.granted) != 0 || dst.next != 0 {
		t.Fatalf("granted at %v although it is far behind", dst.granted)
	}
	dst.subscribe(1)
	dst.until("everything", func() bool { return dst.next == 100 })
	a.mu.Lock()
	streams := a.streams
	a.mu.Unlock()
	if streams != 2 {
		t.Fatalf("%d streams, want a tail and a catch-up stream", streams)
	}
	if len(dst.refused) != 1 {
		t.Fatal("moved although it is still behind")
	}
	src.mu.Lock()
	src.behind = window / 4
	src.mu.Unlock()
	src.append(100)
	dst.until("the move to the tail", func() bool { return len(dst.refused) == 2 })
	dst.subscribe(1)
	dst.until("the grant on the tail", func() bool { return len(dst.granted) == 2 })
	src.append(100)
	dst.until("what comes on the tail", func() bool { return dst.next == 102 })
	src.until("one subscription left", func() bool { return src.gone[1] == 1 && src.gone[2] == 1 && src.gone[3] == 0 })
}

func TestInSyncMemberStaysOnTheTail(t *testing.T) {
	a, b := pair(t, Settings{Window: 64 << 10, StreamWindow: 1 << 20, Quantum: 16 << 10, CatchUpRate: 1})
	src := newSource(t, 0)
	src.behind, src.isr = 1<<30, []int32{2}
	a.host(src, 0)
	for range 20 {
		src.append(10_000)
	}
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("everything", func() bool { return dst.next == 20 })
	if len(dst.refused) != 0 {
		t.Fatal("a member of the in-sync set was sent to the throttled stream")
	}
}

func TestFollowerThatFallsBehindLeavesTheTail(t *testing.T) {
	const window = 64 << 10
	a, b := pair(t, Settings{Window: window, StreamWindow: 1 << 20, Quantum: 16 << 10})
	src := newSource(t, 0)
	src.behind = 0
	a.host(src, 0)
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the grant", func() bool { return len(dst.granted) == 1 })
	src.mu.Lock()
	src.behind = 8*window + 1
	src.mu.Unlock()
	src.append(100) // small: no reason to move
	dst.until("the small batch", func() bool { return dst.next == 1 })
	src.append(10_000)
	dst.until("the move to catch-up", func() bool { return len(dst.refused) == 1 })
	src.append(100)
	dst.subscribe(1)
	dst.until("the rest on the catch-up stream", func() bool { return dst.next == 3 && len(dst.granted) == 2 })
}

func TestThrottledCatchUpDoesNotHoldUpTails(t *testing.T) {
	const window = 64 << 10
	a, b := pair(t, Settings{Window: window, StreamWindow: 1 << 20, Quantum: 16 << 10, TailStreams: 1, CatchUpRate: 1})
	old, young := newSource(t, 0), newSource(t, 1)
	a.host(old, 0)
	a.host(young, 1)
	old.behind, young.behind = 4*window+1, 0
	for range 100 {
		old.append(10_000)
	}
	late, tail := newSink(t, b.followers, 0), newSink(t, b.followers, 1)
	late.subscribe(1)
	late.until("the move to catch-up", func() bool { return len(late.refused) == 1 })
	late.subscribe(1)
	tail.subscribe(1)
	late.until("a first frame, which is free", func() bool { return late.next > 0 })
	for range 100 {
		young.append(10_000)
	}
	tail.until("the tail", func() bool { return tail.next == 100 })
	late.mu.Lock()
	frames := late.frames
	late.mu.Unlock()
	if frames != 1 {
		t.Fatalf("%d frames came at one byte per second", frames)
	}
	a.leaders.SetCatchUpRate(0)
	late.until("the rest, unthrottled", func() bool { return late.next == 100 })
}

func TestPartitionGoesBackToTheTailAtAnotherLeader(t *testing.T) {
	reg := &registry{}
	s := Settings{Window: 64 << 10, StreamWindow: 1 << 20, Quantum: 16 << 10, TailStreams: 1}
	a, b, c := start(t, reg, 1, s), start(t, reg, 2, s), start(t, reg, 3, s)
	far, near := newSource(t, 0), newSource(t, 0)
	far.behind = 1 << 30
	a.host(far, 0)
	c.host(near, 0)
	near.append(100)
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the move to catch-up", func() bool { return len(dst.refused) == 1 })
	dst.subscribe(3)
	dst.until("the batch of the other leader", func() bool { return dst.next == 1 })
}

// TestHungFollowerHoldsUpNobody: a follower that has subscribed and does not read any more.
func TestHungFollowerHoldsUpNobody(t *testing.T) {
	reg := &registry{}
	// Windows so large that only the transport stops the leader.
	s := Settings{Window: 1 << 30, StreamWindow: 1 << 30, TailStreams: 1}
	a, hung, well := start(t, reg, 1, s), start(t, reg, 2, s), start(t, reg, 3, s)
	src := newSource(t, 0)
	src.behind = 0
	a.host(src, 0)
	r := raw(hung, a, runnelv1.ReplicateStream_REPLICATE_STREAM_TAIL)
	r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(hung, 1, 0)}})
	src.until("the first", func() bool { return len(src.senders) == 1 })
	dst := newSink(t, well.followers, 0)
	dst.subscribe(1)
	src.until("both", func() bool { return len(src.senders) == 2 })
	for range 60 { // more than any buffer on the way to it
		src.append(1 << 20)
	}
	dst.until("everything at the other follower", func() bool { return dst.next == 60 })
	src.mu.Lock()
	defer src.mu.Unlock()
	if src.acked[1] != 0 || len(src.senders) != 2 {
		t.Fatal("the hung follower was not hung")
	}
}

// TestLeaderThatDoesNotReadHoldsUpNobody: acks to one leader cannot be sent, those to another can.
func TestLeaderThatDoesNotReadHoldsUpNobody(t *testing.T) {
	reg := &registry{}
	s := Settings{TailStreams: 1}
	b, c := start(t, reg, 2, s), start(t, reg, 3, s)
	deaf := listenDeaf(t)
	reg.set(peer.Peer{ID: 1, Epoch: 100, Address: deaf})
	src := newSource(t, 1)
	c.host(src, 1)
	stuck, well := newSink(t, b.followers, 0), newSink(t, b.followers, 1)
	stuck.subscribe(1)
	for range 1000 { // the partition asks again and again
		stuck.subscribe(1)
	}
	src.append(100)
	well.subscribe(3)
	well.until("the other leader's batch", func() bool { return well.next == 1 })
	src.until("its ack", func() bool { return src.acked[1] == 1 })
}

func TestLeaderThatDoesNotAnswerIsGivenUp(t *testing.T) {
	reg := &registry{}
	b := start(t, reg, 2, Settings{TailStreams: 1, OpenTimeout: 50 * time.Millisecond})
	reg.set(peer.Peer{ID: 1, Epoch: 100, Address: listenDeaf(t)})
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the refusal", func() bool { return len(dst.refused) == 1 })
}

func TestIdleStreamIsClosedAndOpenedAgain(t *testing.T) {
	a, b := pair(t, Settings{TailStreams: 1, IdleTimeout: 10 * time.Millisecond})
	src := newSource(t, 0)
	a.host(src, 0)
	dst := newSink(t, b.followers, 0)
	s := dst.subscribe(1)
	src.append(100)
	dst.until("the first batch", func() bool { return dst.next == 1 })
	b.followers.unsubscribe(dst, s)
	st := b.followers.mu.links[1].tails[0]
	for open := true; open; { // the stream's own goroutine is the only one that knows
		st.mu.Lock()
		open = st.mu.active
		st.mu.Unlock()
	}
	src.append(100)
	dst.subscribe(1)
	dst.until("the second batch", func() bool { return dst.next == 2 })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams != 2 {
		t.Fatalf("%d streams were opened, want 2", a.streams)
	}
}
