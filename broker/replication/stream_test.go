package replication

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replica"
)

func pair(t testing.TB, s Settings) (leader, follower *node) {
	reg := &registry{}
	return start(t, reg, 1, s), start(t, reg, 2, s)
}

func TestBatchesReachTheFollowerAsTheyAre(t *testing.T) {
	a, b := pair(t, Settings{})
	src := newSource(t, 0)
	a.host(src, 0)
	var want []byte
	for range 10 {
		want = append(want, src.append(3000)...)
	}
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("what there was", func() bool { return dst.next == 10 })
	for range 10 {
		want = append(want, src.append(70_000)...)
	}
	dst.until("what came later", func() bool { return dst.next == 20 })
	if !bytes.Equal(dst.bytes, want) {
		t.Fatal("the follower's bytes are not the leader's")
	}
	src.until("the ack of everything", func() bool { return src.acked[1] == 20 })
	src.host.Sync()
	src.log.SetHighWatermark(20)
	src.progress()
	dst.until("the high watermark without batches", func() bool { return dst.hw == 20 })
	if m := src.asked[0]; m.BrokerID != 2 || m.StorageID.IsZero() || m.LogID.IsZero() {
		t.Fatalf("the leader was asked by %+v", m)
	}
}

func TestBrokenStreamRefusesItsSessions(t *testing.T) {
	a, b := pair(t, Settings{})
	src := newSource(t, 0)
	a.host(src, 0)
	src.append(100)
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the first batch", func() bool { return dst.next == 1 })
	b.conns.Close() // whoever held the connection loses it
	dst.until("the refusal", func() bool { return len(dst.refused) == 1 })
	if dst.refused[0] != 0 {
		t.Fatalf("refused with reason %d, want none", dst.refused[0])
	}
	src.until("the end of the subscription", func() bool { return src.gone[1] == 1 })
}

func TestStreamIsOpenedAnew(t *testing.T) {
	a, b := pair(t, Settings{TailStreams: 1})
	src := newSource(t, 0)
	a.host(src, 0)
	src.append(100)
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the first batch", func() bool { return dst.next == 1 })
	p, _ := b.dir.Peer(1)
	p.Epoch++ // the leader was registered anew: the connection is replaced
	b.dir.set(p)
	b.conns.Prune()
	dst.until("the refusal", func() bool { return len(dst.refused) >= 1 })
	src.append(100)
	dst.subscribe(1)
	dst.until("the second batch", func() bool { return dst.next == 2 })
}

func TestSubscriptionUnderANewRegistrationOpensANewStream(t *testing.T) {
	a, b := pair(t, Settings{TailStreams: 1})
	src, other := newSource(t, 0), newSource(t, 1)
	a.host(src, 0)
	a.host(other, 1)
	first, second := newSink(t, b.followers, 0), newSink(t, b.followers, 1)
	first.subscribe(1)
	src.append(100)
	first.until("the first batch", func() bool { return first.next == 1 })
	p, _ := b.dir.Peer(2)
	p.Epoch++
	b.dir.set(p)
	other.append(100)
	second.subscribe(1)
	first.until("the end of the session of the old registration", func() bool { return len(first.refused) == 1 })
	second.until("the refusal with its stream", func() bool { return len(second.refused) == 1 })
	second.subscribe(1)
	second.until("the batch under the new registration", func() bool { return second.next == 1 })
}

func TestAnswersReachTheFollower(t *testing.T) {
	a, b := pair(t, Settings{})
	for name, tt := range map[string]struct {
		answer func(partition.Sender)
		want   func(*sink) bool
	}{
		"diverging":   {func(s partition.Sender) { s.Diverging(3, 7) }, func(s *sink) bool { return len(s.answers) == 3 && s.answers[1] == "3" && s.answers[2] == "7" }},
		"below start": {func(s partition.Sender) { s.BelowStart(5) }, func(s *sink) bool { return len(s.answers) == 2 && s.answers[1] == "5" }},
		"refused": {
			func(s partition.Sender) { s.Refuse(replica.ReasonUnknownEpoch) },
			func(s *sink) bool { return len(s.refused) == 1 && s.refused[0] == replica.ReasonUnknownEpoch },
		},
	} {
		t.Run(name, func(t *testing.T) {
			src := newSource(t, 0)
			src.answer = tt.answer
			a.host(src, 0)
			dst := newSink(t, b.followers, 0)
			s := dst.subscribe(1)
			dst.until("the answer", func() bool { return tt.want(dst) })
			b.followers.unsubscribe(dst, s)
			if name == "refused" { // the partition ended it by itself
				return
			}
			src.until("the end", func() bool { return src.gone[1] == 1 })
		})
	}
}

func TestPartitionThatIsNotHere(t *testing.T) {
	_, b := pair(t, Settings{})
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the refusal", func() bool { return len(dst.refused) == 1 && dst.refused[0] == replica.ReasonNotLeader })
}

func TestLeaderThatLostTheEpochSendsNothingMore(t *testing.T) {
	a, b := pair(t, Settings{})
	src := newSource(t, 0)
	a.host(src, 0)
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the grant", func() bool { return len(dst.granted) == 1 })
	src.mu.Lock()
	src.deposed = true
	src.mu.Unlock()
	src.append(100)
	dst.until("the refusal", func() bool { return len(dst.refused) == 1 && dst.refused[0] == replica.ReasonNotLeader })
	if dst.next != 0 {
		t.Fatal("a batch came after leadership was lost")
	}
	src.until("the end", func() bool { return src.gone[1] == 1 })
}

// The same without batches: what the partition says of its offsets may be those of a later epoch, which a follower of this one must not take.
func TestLeaderThatLostTheEpochSendsNoOffsets(t *testing.T) {
	a, b := pair(t, Settings{})
	src := newSource(t, 0)
	a.host(src, 0)
	src.append(100)
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	src.until("the ack", func() bool { return src.acked[1] == 1 })
	src.mu.Lock()
	src.deposed = true
	src.mu.Unlock()
	src.host.Sync()
	src.log.SetHighWatermark(1)
	src.progress()
	dst.until("the refusal", func() bool { return len(dst.refused) == 1 && dst.refused[0] == replica.ReasonNotLeader })
	if dst.hw != 0 {
		t.Fatal("a high watermark came after leadership was lost")
	}
}

func TestUnsubscribeAndSubscribeAnewOverTakes(t *testing.T) {
	a, b := pair(t, Settings{})
	src := newSource(t, 0)
	a.host(src, 0)
	dst := newSink(t, b.followers, 0)
	first := dst.subscribe(1)
	dst.until("the grant", func() bool { return len(dst.granted) == 1 })
	dst.subscribe(1)
	src.until("the end of the first", func() bool { return src.gone[1] == 1 })
	dst.until("the second grant", func() bool { return len(dst.granted) == 2 })
	b.followers.unsubscribe(dst, first) // over already: the second stays
	src.append(100)
	dst.until("batches of the second", func() bool { return dst.next == 1 })
	b.followers.unsubscribe(dst, 2)
	src.until("the end of the second", func() bool { return src.gone[2] == 1 && src.gone[1] == 1 })
}

func TestManyPartitionsShareTheStreams(t *testing.T) {
	const partitions = 2000
	a, b := pair(t, Settings{})
	src := newSource(t, 0) // stands for all of them
	src.append(100)
	sinks := make([]*sink, partitions)
	for i := range sinks {
		a.host(src, int32(i))
		sinks[i] = newSink(t, b.followers, int32(i))
		sinks[i].subscribe(1)
	}
	for _, s := range sinks {
		s.until("the batch", func() bool { return s.next == 1 })
	}
	src.append(100)
	for _, s := range sinks {
		s.until("the second batch", func() bool { return s.next == 2 })
	}
	src.until("all acks", func() bool {
		n := 0
		for _, flushed := range src.acked {
			if flushed == 2 {
				n++
			}
		}
		return n == partitions
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams != 2 {
		t.Fatalf("%d streams for %d partitions, want 2", a.streams, partitions)
	}
}

func TestHostileFollower(t *testing.T) {
	a, b := pair(t, Settings{})
	src := newSource(t, 0)
	a.host(src, 0)
	tail := runnelv1.ReplicateStream_REPLICATE_STREAM_TAIL
	ended := func(t *testing.T, r *rawStream) {
		t.Helper()
		if err := r.fails(); status.Code(err) == codes.OK {
			t.Fatal(err)
		}
	}
	t.Run("subscription id in use", func(t *testing.T) {
		r := raw(b, a, tail)
		r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 1, 0), wish(b, 1, 0)}})
		ended(t, r)
	})
	t.Run("subscription id 0", func(t *testing.T) {
		r := raw(b, a, tail)
		r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 0, 0)}})
		ended(t, r)
	})
	t.Run("second hello", func(t *testing.T) {
		r := raw(b, a, tail)
		r.say(&codec.ReplicateRequestFrame{Hello: &runnelv1.ReplicateHello{}})
		ended(t, r)
	})
	for name, spoil := range map[string]func(*runnelv1.ReplicateSubscribe){
		"short topic id":          func(s *runnelv1.ReplicateSubscribe) { s.TopicId = s.TopicId[:15] },
		"no storage id":           func(s *runnelv1.ReplicateSubscribe) { s.StorageId = nil },
		"long log id":             func(s *runnelv1.ReplicateSubscribe) { s.LogId = make([]byte, 17) },
		"another's broker epoch":  func(s *runnelv1.ReplicateSubscribe) { s.BrokerEpoch++ },
		"negative offset":         func(s *runnelv1.ReplicateSubscribe) { s.FetchOffset = -1 },
		"negative partition":      func(s *runnelv1.ReplicateSubscribe) { s.Partition = -1 },
		"an impossible epoch":     func(s *runnelv1.ReplicateSubscribe) { s.LastEpoch = -2 },
		"a negative log start":    func(s *runnelv1.ReplicateSubscribe) { s.LogStart = -5 },
		"offset beyond the world": func(s *runnelv1.ReplicateSubscribe) { s.FetchOffset = 1 << 62 },
	} {
		t.Run(name, func(t *testing.T) {
			r := raw(b, a, tail)
			bad := wish(b, 1, 0)
			spoil(bad)
			r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{bad}})
			f := r.hear()
			for f.Answer.GetGranted() != nil { // the source grants whatever is well-formed
				f = r.hear()
			}
			if f.SubscriptionID != 1 || f.Answer.GetRefused() == nil {
				t.Fatalf("got %v, want a refusal", f.Answer)
			}
			r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 2, 0)}})
			if f := r.hear(); f.SubscriptionID != 2 || f.Answer.GetGranted() == nil {
				t.Fatalf("got %v: one bad subscription ended the stream for others", f.Answer)
			}
		})
	}
	t.Run("ack of what was not sent", func(t *testing.T) {
		r := raw(b, a, tail)
		r.say(&codec.ReplicateRequestFrame{Subscribe: []*runnelv1.ReplicateSubscribe{wish(b, 1, 0)}})
		r.hear()
		src.mu.Lock()
		session := src.sessions
		src.mu.Unlock()
		r.say(&codec.ReplicateRequestFrame{Acks: []codec.ReplicaAck{{SubscriptionID: 99}, {SubscriptionID: 1, LeaderEpoch: 1, Flushed: 1}}})
		for {
			if f := r.hear(); f.Answer.GetRefused().GetReason() == runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_INVALID {
				break
			}
		}
		src.until("the end", func() bool { return src.gone[session] == 1 })
		if src.acked[session] != 0 {
			t.Fatal("the ack counted")
		}
	})
	t.Run("streams that end are told once", func(t *testing.T) {
		src.mu.Lock()
		defer src.mu.Unlock()
		for s, n := range src.gone {
			if n != 1 {
				t.Fatalf("session %d ended %d times", s, n)
			}
		}
	})
}

func TestHelloIsChecked(t *testing.T) {
	_, b := pair(t, Settings{})
	for name, hello := range map[string]*codec.ReplicateRequestFrame{
		"none":           {Unsubscribe: []uint32{1}},
		"another broker": {Hello: &runnelv1.ReplicateHello{Stream: 1, LeaderBrokerId: 7, LeaderBrokerEpoch: 100}},
		"an older self":  {Hello: &runnelv1.ReplicateHello{Stream: 1, LeaderBrokerId: 1, LeaderBrokerEpoch: 99}},
		"no kind":        {Hello: &runnelv1.ReplicateHello{LeaderBrokerId: 1, LeaderBrokerEpoch: 100}},
		"unknown kind":   {Hello: &runnelv1.ReplicateHello{Stream: 9, LeaderBrokerId: 1, LeaderBrokerEpoch: 100}},
		"with more":      {Hello: &runnelv1.ReplicateHello{Stream: 1, LeaderBrokerId: 1, LeaderBrokerEpoch: 100}, Unsubscribe: []uint32{1}},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := b.conns.Conn(1, peer.ClassData)
			if err != nil {
				t.Fatal(err)
			}
			s, err := runnelv1.NewReplicationClient(conn).Replicate(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			r := &rawStream{TB: t, ClientStream: s}
			r.say(hello)
			if err := r.fails(); err == nil {
				t.Fatal("welcomed")
			}
		})
	}
}

func TestForeignClusterIsRefused(t *testing.T) {
	a, b := pair(t, Settings{})
	src := newSource(t, 0)
	a.host(src, 0)
	b.dir.cluster = "00000000-0000-4000-8000-000000000000"
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the refusal", func() bool { return len(dst.refused) == 1 })
	src.mu.Lock()
	defer src.mu.Unlock()
	if len(src.asked) != 0 {
		t.Fatal("a broker of another cluster reached a partition")
	}
}

func TestAnotherBrokerAtTheAddressIsNotTakenForTheLeader(t *testing.T) {
	reg := &registry{}
	_, b, c := start(t, reg, 1, Settings{}), start(t, reg, 2, Settings{}), start(t, reg, 3, Settings{})
	src := newSource(t, 0)
	c.host(src, 0)
	p, _ := b.dir.Peer(1)
	p.Address = c.address // where broker 1 was, broker 3 is now
	b.dir.set(p)
	dst := newSink(t, b.followers, 0)
	dst.subscribe(1)
	dst.until("the refusal", func() bool { return len(dst.refused) == 1 })
	src.mu.Lock()
	defer src.mu.Unlock()
	if len(src.asked) != 0 {
		t.Fatal("a follower of broker 1 was served by broker 3")
	}
}
