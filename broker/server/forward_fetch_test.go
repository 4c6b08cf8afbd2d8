package server_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/server"
)

// putAt appends values to a partition at the broker that leads it.
func (p *pair) putAt(t *server.Topic, n int32, values ...string) {
	if n%2 == 1 {
		p.b.put(t, n, values...)
		return
	}
	p.a.put(t, n, values...)
}

func TestFetchReachesEveryLeaderThroughAnyBroker(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 4)
	for n := range int32(4) {
		p.putAt(topic, n, "a", "b")
	}
	s := p.a.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty})
	for n := range int32(4) {
		s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{add(uint32(100+n), topic, n, 1, plenty)}})
	}
	next := map[uint32]int64{100: 1, 101: 1, 102: 1, 103: 1}
	more := func(until int64) {
		for slices.Min(slices.Collect(maps.Values(next))) < until {
			fr := s.frame()
			if at, known := next[fr.SubscriptionID]; !known || fr.Error != nil || fr.FetchOffset != at {
				t.Fatalf("want %d: %+v", at, fr.FetchFrame)
			}
			next[fr.SubscriptionID] = fr.NextOffset
		}
	}
	more(2)
	for n := range int32(4) {
		p.putAt(topic, n, "c", "d", "e")
	}
	more(5)
}

func TestForwardedFetchKeepsToTheCreditsOfTheClient(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 2)
	batch := int64(len(p.b.batch("0000")))
	var values []string
	for i := range 20 {
		values = append(values, fmt.Sprintf("%04d", i))
	}
	p.putAt(topic, 1, values...)
	// Room for three batches and a bit: the fourth is allowed, because credit is left, and the fifth is not.
	s := p.a.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 1, 0, 3*batch+1)}})
	got := int64(0)
	for got < 4 {
		fr := s.frame()
		if fr.Error != nil {
			t.Fatal(fr.Error)
		}
		got = fr.NextOffset
	}
	if got != 4 {
		t.Fatalf("%d records on credit for four", got)
	}
	// The stream's own credit counts for all partitions: what is granted to one that has none is not sent.
	s.ask(&runnelv1.FetchRequest{Credit: []*runnelv1.FetchCredit{{SubscriptionId: 1, Bytes: 2 * batch}}})
	for got < 5 {
		got = s.frame().NextOffset
	}
	s.ask(&runnelv1.FetchRequest{Credit: []*runnelv1.FetchCredit{{SubscriptionId: 1, Bytes: plenty}}})
	for got < 20 {
		fr := s.frame()
		if fr.Error != nil || len(fr.values) > 0 && fr.first != got {
			t.Fatalf("at %d: %+v", got, fr.FetchFrame)
		}
		got = fr.NextOffset
	}
}

// TestAPausedForwardedPartitionHoldsUpNobody: what was fetched for it must not use up the window of the others.
func TestAPausedForwardedPartitionHoldsUpNobody(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 4)
	large := string(make([]byte, 700<<10))
	p.putAt(topic, 1, large, large, large, large, large, large)
	p.putAt(topic, 3, "small")
	s := p.a.fetch(&runnelv1.FetchRequest{StreamCreditBytes: 1, Add: []*runnelv1.FetchAdd{add(1, topic, 1, 0, plenty)}})
	fr := s.frame() // one whole batch for one byte of credit
	next := fr.NextOffset
	s.ask(&runnelv1.FetchRequest{Pause: []uint32{1}})
	s.ask(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(3, topic, 3, 0, plenty)}})
	for {
		fr := s.frame()
		if fr.SubscriptionID == 3 && len(fr.values) == 1 {
			break
		}
		if fr.SubscriptionID == 1 {
			next = fr.NextOffset // was on its way
		}
	}
	s.ask(&runnelv1.FetchRequest{Resume: []uint32{1}})
	for next < 6 {
		fr := s.frame()
		if fr.SubscriptionID != 1 {
			continue
		}
		if fr.Error != nil || len(fr.values) > 0 && fr.first != next {
			t.Fatalf("at %d: first %d, error %v", next, fr.first, fr.Error)
		}
		next = fr.NextOffset
	}
}

func TestForwardedFetchErrorsEndOneSubscription(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 4)
	p.putAt(topic, 1, "a")
	p.putAt(topic, 3, "b")
	s := p.a.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 1, 99, plenty)}})
	if fr := s.frame(); fr.SubscriptionID != 1 || fr.Error.GetReason() != "OFFSET_OUT_OF_RANGE" || fr.Error.GetMetadata()["latest"] != "1" {
		t.Fatalf("%+v", fr.FetchFrame)
	}
	// The number is free again, and a removed one is silent.
	s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{add(1, topic, 1, 0, plenty)}})
	s.data("a")
	s.ask(&runnelv1.FetchRequest{Remove: []uint32{1}, Add: []*runnelv1.FetchAdd{add(2, topic, 3, 0, plenty)}})
	s.data("b")
	p.putAt(topic, 1, "unseen")
	p.putAt(topic, 3, "seen")
	s.data("seen")
}

func TestForwardedFetchEndsWhenTheLeaderMoves(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 2)
	p.putAt(topic, 1, "a")
	s := p.a.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 1, 0, plenty)}})
	s.data("a")
	// The old leader says nothing: it hangs, or does not know yet.
	p.a.move(topic, 1, self, 2, p.a.host.Leader(topic.ID, 1, self, log.DefaultConfig()))
	if fr := s.frame(); fr.Error.GetReason() != "NOT_LEADER" || fr.Error.GetLeader().GetBrokerId() != self {
		t.Fatalf("%+v", fr.FetchFrame)
	}
}

func TestForwardedFetchOfABrokerThatStops(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 2)
	p.putAt(topic, 0, "a")
	p.putAt(topic, 1, "a")
	s := p.a.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 1, 0, plenty)}})
	s.data("a")
	p.b.conn.Close()
	if fr := s.frame(); fr.Error.GetReason() != "BROKER_UNREACHABLE" || !fr.Error.GetRetriable() {
		t.Fatalf("%+v", fr.FetchFrame)
	}
	s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{add(2, topic, 0, 0, plenty)}})
	s.data("a")
}

func (f *fixture) subscribe(req *runnelv1.SubscribeRequest) runnelv1.Consumer_SubscribeClient {
	f.Helper()
	st, err := f.consumer.Subscribe(f.ctx(), req)
	if err != nil {
		f.Fatal(err)
	}
	return st
}

func TestSubscribeReadsWholeTopicsFromAnyBroker(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 4)
	for n := range int32(4) {
		p.putAt(topic, n, "a", "b", "c")
	}
	st := p.a.subscribe(&runnelv1.SubscribeRequest{Topics: []string{"t"}, UntilEnd: true})
	next := map[int32]int64{}
	for {
		r, err := st.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || r.GetError() != nil {
			t.Fatalf("%v %v", r, err)
		}
		for _, rec := range r.GetRecords() {
			if rec.GetOffset() != next[rec.GetPartition()] || rec.GetLeaderEpoch() != 1 {
				t.Fatalf("want %d: %v", next[rec.GetPartition()], rec)
			}
			next[rec.GetPartition()]++
		}
	}
	for n := range int32(4) {
		if next[n] != 3 {
			t.Errorf("partition %d: %d records", n, next[n])
		}
	}
}

// TestSubscribeFollowsALeaderThatMoves: plain clients cannot find the new leader themselves.
func TestSubscribeFollowsALeaderThatMoves(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 2)
	p.putAt(topic, 1, "a", "b")
	st := p.a.subscribe(&runnelv1.SubscribeRequest{Topics: []string{"t"}, Partitions: []int32{1}})
	want := int64(0)
	read := func(until int64) {
		t.Helper()
		for want < until {
			r, err := st.Recv()
			if err != nil || r.GetError() != nil {
				t.Fatalf("%v %v", r, err)
			}
			for _, rec := range r.GetRecords() {
				if rec.GetOffset() != want {
					t.Fatalf("want %d: %v", want, rec)
				}
				want++
			}
		}
	}
	read(2)
	// A replica with the same records leads from now on, here.
	here := p.a.host.Leader(topic.ID, 1, self, log.DefaultConfig())
	for _, v := range []string{"a", "b", "c"} {
		p.a.appendTo(here, p.a.batch(v))
	}
	p.a.move(topic, 1, self, 2, here)
	read(3)
	// And back, at the broker that has it all.
	p.putAt(topic, 1, "c", "d")
	p.a.move(topic, 1, other, 3, nil)
	here.Close()
	read(4)
}

func TestSubscribeReportsWhatNoBrokerCanAnswer(t *testing.T) {
	p := setupPair(t)
	p.syncing()
	topic := p.topic("t", 2)
	p.putAt(topic, 0, "a")
	p.putAt(topic, 1, "a", "b")
	if _, err := p.a.admin.DeleteRecords(p.a.ctx(), &runnelv1.DeleteRecordsRequest{Topic: "t", Targets: []*runnelv1.DeleteRecordsTarget{{Partition: 1, BeforeOffset: 2}}}); err != nil {
		t.Fatal(err)
	}
	st := p.a.subscribe(&runnelv1.SubscribeRequest{Topics: []string{"t"}, From: &runnelv1.Position{At: &runnelv1.Position_Offset{Offset: 0}}})
	failed, records := 0, 0
	for failed+records < 2 {
		r, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		records += len(r.GetRecords())
		if r.GetFailed() != nil {
			failed++
			if r.GetFailed().GetPartition() != 1 || r.GetError().GetReason() != "OFFSET_OUT_OF_RANGE" {
				t.Fatalf("%v", r)
			}
		}
	}
	_, err := p.a.subscribe(&runnelv1.SubscribeRequest{Topics: []string{"t"}, From: &runnelv1.Position{At: &runnelv1.Position_Offset{Offset: -1}}}).Recv()
	if _, reason, _ := reasonOf(err); reason != "INVALID_ARGUMENT" {
		t.Fatalf("%v", err)
	}
}
