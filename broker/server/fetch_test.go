package server_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/record"
)

// fetchStream receives hot frames.
type fetchStream struct {
	f *fixture
	grpc.BidiStreamingClient[runnelv1.FetchRequest, runnelv1.FetchResponse]
}

func (f *fixture) fetch(reqs ...*runnelv1.FetchRequest) *fetchStream {
	f.Helper()
	st, err := f.consumer.Fetch(f.ctx())
	if err != nil {
		f.Fatal(err)
	}
	s := &fetchStream{f, st}
	for _, r := range reqs {
		s.ask(r)
	}
	return s
}

func (s *fetchStream) ask(r *runnelv1.FetchRequest) {
	s.f.Helper()
	if err := s.Send(r); err != nil {
		s.f.Fatal(err)
	}
}

// frame is one answer, decoded.
type frame struct {
	*codec.FetchFrame
	values []string
	first  int64
}

func (s *fetchStream) frame() frame {
	s.f.Helper()
	fr := frame{FetchFrame: &codec.FetchFrame{}, first: -1}
	if err := s.RecvMsg(fr.FetchFrame); err != nil {
		s.f.Fatal(err)
	}
	for b, err := range record.Frames(fr.Batch()) {
		var r record.Reader
		if err == nil {
			err = r.Reset(b)
		}
		if err != nil {
			s.f.Fatal(err)
		}
		var rec record.Record
		for r.Next(&rec) {
			if fr.first < 0 {
				fr.first = rec.Offset
			}
			fr.values = append(fr.values, string(rec.Value))
		}
	}
	return fr
}

func (s *fetchStream) data(want ...string) frame {
	s.f.Helper()
	fr := s.frame()
	if fmt.Sprint(fr.values) != fmt.Sprint(want) || fr.Error != nil {
		s.f.Fatalf("got %v (error %v), want %v", fr.values, fr.Error, want)
	}
	return fr
}

func add(id uint32, t *server.Topic, n int32, offset, credit int64) *runnelv1.FetchAdd {
	return &runnelv1.FetchAdd{SubscriptionId: id, TopicId: t.ID[:], Partition: n, Offset: offset, LeaderEpoch: -1, CreditBytes: credit}
}

const plenty = 1 << 30

func TestFetchBackfillThenPushedAsTheHighWatermarkAdvances(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	f.put(topic, 0, "a", "b")
	s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(7, topic, 0, 1, plenty)}})
	fr := s.data("b")
	if fr.SubscriptionID != 7 || fr.FetchOffset != 1 || fr.NextOffset != 2 || fr.HighWatermark != 2 || fr.LeaderEpoch != 1 || fr.LastStableOffset != 2 {
		t.Fatalf("%+v", fr.FetchFrame)
	}
	f.put(topic, 0, "c")
	if fr := s.data("c"); fr.FetchOffset != 2 || fr.NextOffset != 3 {
		t.Fatalf("%+v", fr.FetchFrame)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&codec.FetchFrame{}); !errors.Is(err, io.EOF) {
		t.Fatalf("%v", err)
	}
}

func TestFetchTellsAReaderThatItHasCaughtUp(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, plenty)}})
	if fr := s.data(); fr.NextOffset != 0 || fr.HighWatermark != 0 {
		t.Fatalf("%+v", fr.FetchFrame)
	}
}

func TestFetchCredit(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 2)
	f.put(topic, 0, "a", "b", "c")
	f.put(topic, 1, "x")
	// One byte of credit allows one whole batch.
	s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, 1)}})
	s.data("a")
	s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{add(2, topic, 1, 0, plenty)}})
	s.data("x") // and not "b": subscription 1 has none left
	s.ask(&runnelv1.FetchRequest{Credit: []*runnelv1.FetchCredit{{SubscriptionId: 1, Bytes: plenty}}})
	s.data("b", "c")

	// The stream's cap holds for all partitions together.
	s = f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: 1, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, plenty), add(2, topic, 1, 0, plenty)}})
	s.data("a")
	s.ask(&runnelv1.FetchRequest{StreamCreditBytes: plenty})
	s.data("x")
	s.data("b", "c")
}

func TestFetchPauseResumeRemoveAndSeek(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 2)
	s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, plenty), add(2, topic, 1, 0, plenty)}})
	s.data()
	s.data()
	s.ask(&runnelv1.FetchRequest{Pause: []uint32{1}, Remove: []uint32{99}})
	s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{add(3, topic, 1, 0, plenty)}})
	s.data() // the pause has been applied by now
	f.put(topic, 0, "paused")
	f.put(topic, 1, "flows")
	for range 2 {
		if fr := s.data("flows"); fr.SubscriptionID == 1 {
			t.Fatal("a paused partition was sent")
		}
	}
	s.ask(&runnelv1.FetchRequest{Resume: []uint32{1}})
	s.data("paused")
	// A seek ends one id and adds another.
	s.ask(&runnelv1.FetchRequest{Remove: []uint32{1, 2}, Add: []*runnelv1.FetchAdd{add(4, topic, 0, 0, plenty)}})
	if fr := s.data("paused"); fr.SubscriptionID != 4 {
		t.Fatalf("%+v", fr.FetchFrame)
	}
}

func TestFetchIsFair(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 3)
	const batches = 5
	for n := range int32(3) {
		for i := range batches {
			f.put(topic, n, fmt.Sprint(i))
		}
	}
	req := &runnelv1.FetchRequest{StreamCreditBytes: plenty}
	for n := range int32(3) {
		a := add(uint32(n), topic, n, 0, plenty)
		a.MaxFrameBytes = 1 // one batch per frame
		req.Add = append(req.Add, a)
	}
	s := f.fetch(req)
	for i := range batches {
		seen := map[uint32]bool{}
		for range 3 {
			seen[s.data(fmt.Sprint(i)).SubscriptionID] = true
		}
		if len(seen) != 3 {
			t.Fatalf("round %d served %v", i, seen)
		}
	}
}

func TestASlowReaderHoldsUpNobody(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	big := string(make([]byte, 900<<10))
	f.put(topic, 0, big, big, big, big, big, big, big, big, big, big, big, big)
	slow := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, plenty)}})
	fast := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, plenty)}})
	for range 12 {
		fast.data(big) // slow reads nothing meanwhile
	}
	f.put(topic, 0, "more")
	fast.data("more")
	slow.data(big)
}

func TestFetchErrorsEndTheSubscriptionAlone(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 2)
	f.put(topic, 0, "a", "b", "c")
	if _, err := f.cluster.parts[topic.ID][0].DeleteRecords(f.ctx(), 1); err != nil {
		t.Fatal(err)
	}
	f.lead(topic, 2)
	cases := map[string]struct {
		change func(*runnelv1.FetchAdd)
		code   codes.Code
		reason string
		meta   map[string]string
	}{
		"below the log start":  {func(a *runnelv1.FetchAdd) { a.Offset = 0 }, codes.OutOfRange, "OFFSET_OUT_OF_RANGE", map[string]string{"asked": "0", "earliest": "1", "latest": "3"}},
		"beyond the log end":   {func(a *runnelv1.FetchAdd) { a.Offset = 4 }, codes.OutOfRange, "OFFSET_OUT_OF_RANGE", map[string]string{"asked": "4", "earliest": "1", "latest": "3"}},
		"offset 2^63-1":        {func(a *runnelv1.FetchAdd) { a.Offset = 1<<63 - 1 }, codes.OutOfRange, "OFFSET_OUT_OF_RANGE", nil},
		"negative offset":      {func(a *runnelv1.FetchAdd) { a.Offset = -1 }, codes.InvalidArgument, "INVALID_ARGUMENT", map[string]string{"value": "-1"}},
		"short topic id":       {func(a *runnelv1.FetchAdd) { a.TopicId = a.TopicId[:15] }, codes.InvalidArgument, "INVALID_ARGUMENT", map[string]string{"value": "15 bytes long", "limit": "16 bytes"}},
		"unknown topic id":     {func(a *runnelv1.FetchAdd) { a.TopicId = make([]byte, 16) }, codes.NotFound, "UNKNOWN_TOPIC_ID", nil},
		"unknown partition":    {func(a *runnelv1.FetchAdd) { a.Partition = 9 }, codes.NotFound, "UNKNOWN_PARTITION", map[string]string{"limit": "0 to 1"}},
		"negative partition":   {func(a *runnelv1.FetchAdd) { a.Partition = -5 }, codes.InvalidArgument, "INVALID_ARGUMENT", map[string]string{"value": "-5"}},
		"newer leader epoch":   {func(a *runnelv1.FetchAdd) { a.LeaderEpoch = 3 }, codes.Unavailable, "UNKNOWN_LEADER_EPOCH", nil},
		"error without credit": {func(a *runnelv1.FetchAdd) { a.Partition, a.CreditBytes = 9, 0 }, codes.NotFound, "UNKNOWN_PARTITION", nil},
		"older leader epoch":   {func(a *runnelv1.FetchAdd) { a.LeaderEpoch = 1 }, codes.FailedPrecondition, "NOT_LEADER", nil},
	}
	s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty})
	id := uint32(100)
	for name, tc := range cases {
		id++
		a := add(id, topic, 0, 1, plenty)
		tc.change(a)
		s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{a}})
		fr := s.frame()
		e := fr.Error
		if fr.SubscriptionID != id || codes.Code(e.GetCode()) != tc.code || e.GetReason() != tc.reason {
			t.Fatalf("%s: %+v %v", name, fr.FetchFrame, e)
		}
		for k, v := range tc.meta {
			if e.GetMetadata()[k] != v {
				t.Fatalf("%s: %s is %q, want %q", name, k, e.GetMetadata()[k], v)
			}
		}
	}
	s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{add(1, topic, 0, 1, plenty)}})
	s.data("b", "c")
}

func TestFetchProtocolFaultsEndTheStream(t *testing.T) {
	cases := map[string][]*runnelv1.FetchRequest{
		"no stream credit":       {{}},
		"negative stream credit": {{StreamCreditBytes: 1}, {StreamCreditBytes: -1}},
		"negative credit":        {{StreamCreditBytes: 1, Credit: []*runnelv1.FetchCredit{{SubscriptionId: 1, Bytes: -1}}}},
		"negative add credit":    {{StreamCreditBytes: 1, Add: []*runnelv1.FetchAdd{{CreditBytes: -1}}}},
		"negative frame size":    {{StreamCreditBytes: 1, Add: []*runnelv1.FetchAdd{{MaxFrameBytes: -1}}}},
		"same id twice":          {{StreamCreditBytes: 1, Add: []*runnelv1.FetchAdd{{SubscriptionId: 1}, {SubscriptionId: 1}}}},
		"too many subscriptions": {{StreamCreditBytes: 1, Add: []*runnelv1.FetchAdd{{SubscriptionId: 1}, {SubscriptionId: 2}, {SubscriptionId: 3}, {SubscriptionId: 4}}}},
	}
	for name, reqs := range cases {
		t.Run(name, func(t *testing.T) {
			f := setup(t, func(c *server.Config) { c.Limits.Subscriptions = 3 })
			topic := f.topic("t", 1)
			for _, r := range reqs {
				for _, a := range r.GetAdd() {
					a.TopicId = topic.ID[:]
				}
			}
			s := f.fetch(reqs...)
			for {
				var fr codec.FetchFrame
				if err := s.RecvMsg(&fr); err != nil {
					wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
					return
				}
			}
		})
	}
}

func TestFetchLearnsOfLostLeadershipEvenWithoutCredit(t *testing.T) {
	for name, credit := range map[string]int64{"idle": plenty, "no credit": 0} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			topic := f.topic("t", 1)
			s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, credit), add(2, topic, 0, 0, plenty)}})
			s.data()
			if credit > 0 {
				s.data()
			}
			partitiontest.Follow(f.cluster.parts[topic.ID][0], other, 2)
			for range 2 {
				e := s.frame().Error
				if e.GetReason() != "NOT_LEADER" || e.GetLeader().GetAddress() != "two:7650" || e.GetLeader().GetLeaderEpoch() != 2 {
					t.Fatalf("%v", e)
				}
			}
		})
	}
}

func TestListOffsets(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	f.put(topic, 0, "a", "b")
	q := func(at *runnelv1.Position) *runnelv1.OffsetQuery {
		return &runnelv1.OffsetQuery{TopicId: topic.ID[:], LeaderEpoch: -1, At: at}
	}
	resp, err := f.consumer.ListOffsets(f.ctx(), &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{
		q(&runnelv1.Position{At: &runnelv1.Position_Earliest{Earliest: true}}),
		q(&runnelv1.Position{At: &runnelv1.Position_Latest{Latest: true}}),
		q(&runnelv1.Position{At: &runnelv1.Position_Offset{Offset: 9}}),
		q(&runnelv1.Position{At: &runnelv1.Position_TimestampMs{TimestampMs: 1}}),
		q(&runnelv1.Position{At: &runnelv1.Position_TimestampMs{TimestampMs: 2}}),
		q(&runnelv1.Position{At: &runnelv1.Position_TimestampMs{TimestampMs: -2}}),
		{TopicId: []byte("short")},
		{TopicId: topic.ID[:], Partition: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		offset, ts int64
		reason     string
	}{{0, -1, ""}, {2, -1, ""}, {9, -1, ""}, {0, 1, ""}, {2, -1, ""}, {-1, -1, "INVALID_ARGUMENT"}, {-1, -1, "INVALID_ARGUMENT"}, {-1, -1, "UNKNOWN_PARTITION"}} {
		r := resp.GetResults()[i]
		if r.GetOffset() != want.offset || r.GetTimestampMs() != want.ts || r.GetError().GetReason() != want.reason {
			t.Fatalf("%d: %v, want %+v", i, r, want)
		}
		if want.reason == "" && (r.GetHighWatermark() != 2 || r.GetLeaderEpoch() != 1) {
			t.Fatalf("%d: %v", i, r)
		}
	}
	_, err = f.consumer.ListOffsets(f.ctx(), &runnelv1.ListOffsetsRequest{Queries: make([]*runnelv1.OffsetQuery, 10_001)})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
}

// A leader whose epoch has just begun does not say where the end is: clients may have read beyond what it knows to be committed.
func TestListOffsetsOfALeaderThatIsNotReady(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	p, err := f.cluster.Lookup(topic.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.appendTo(p, f.batch("a"))
	f.lead(topic, 2)
	resp, err := f.consumer.ListOffsets(f.ctx(), &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{
		{TopicId: topic.ID[:], LeaderEpoch: -1}, {TopicId: topic.ID[:], LeaderEpoch: -1, At: &runnelv1.Position{At: &runnelv1.Position_Latest{Latest: true}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if r := resp.GetResults()[0]; r.GetError() != nil || r.GetOffset() != 0 || r.GetHighWatermark() != -1 {
		t.Errorf("earliest: %v", r)
	}
	if r := resp.GetResults()[1]; r.GetError().GetReason() != "LEADER_NOT_READY" {
		t.Errorf("latest: %v", r)
	}
}

// What it knows to be committed is read; where the end is, clients are told when it is known again.
func TestFetchFromALeaderThatIsNotReady(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	f.put(topic, 0, "a")
	p, err := f.cluster.Lookup(topic.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.appendTo(p, f.batch("b"))
	f.lead(topic, 2)
	s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(7, topic, 0, 0, plenty)}})
	if fr := s.data("a"); fr.HighWatermark != -1 || fr.LastStableOffset != -1 {
		t.Fatalf("%+v", fr.FetchFrame)
	}
	f.host.Sync()
	if fr := s.data("b"); fr.HighWatermark != 2 || fr.LeaderEpoch != 2 {
		t.Fatalf("%+v", fr.FetchFrame)
	}
}
