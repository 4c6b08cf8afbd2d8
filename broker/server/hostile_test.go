package server

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// bare is a server without sources, for what happens before they are asked.
func bare(t *testing.T) *listener {
	t.Helper()
	s := &Server{cfg: Config{Clock: clock.NewFake(time.UnixMilli(0))}, limits: Limits{}.withDefaults(), stopping: make(chan struct{})}
	s.budget, s.unpacked = newBudget(s.limits.InFlightBytes, overhead), newUnpackBudget()
	s.validators.New = func() any { return &record.Validator{} }
	s.readers.New = func() any { r := newReader(); return &r }
	s.waits.New = func() any { return &produceWait{} }
	m, err := newMetrics(prometheus.NewRegistry(), s.budget)
	if err != nil {
		t.Fatal(err)
	}
	s.metrics = m
	return &listener{Server: s}
}

// TestUnreadAnswersUseUpTheirOwnStreamAlone: clients that send and never read their answers once kept everybody else from writing.
func TestUnreadAnswersUseUpTheirOwnStreamAlone(t *testing.T) {
	l := bare(t)
	ctx, cancel := context.WithCancel(t.Context())
	st := &produceStream{
		l: l, ctx: ctx, bytes: newBudget(l.limits.StreamInFlightBytes, answerOverhead), parts: map[partitionKey]*producePart{},
		signal: make(chan struct{}, 1),
	}
	n := int(l.limits.StreamInFlightBytes / answerOverhead)
	for range n {
		if err := st.accept(&codec.ProduceFrame{TopicIDLength: 3}); err != nil {
			t.Fatal(err)
		}
	}
	if used := l.budget.used.Load(); used != 0 {
		t.Fatalf("%d answers that nobody reads hold %d bytes of the budget of all", n, used)
	}
	cancel()
	if err := st.accept(&codec.ProduceFrame{TopicIDLength: 3}); !errors.Is(err, context.Canceled) {
		t.Fatalf("answer number %d was queued: %v", n+1, err)
	}
	st.drop()
	if used := st.bytes.used.Load(); used != 0 {
		t.Fatalf("%d bytes of the stream's budget leaked", used)
	}
}

// TestDecompressionTakesItsTurn: many streams of decompression bombs once multiplied what one of them takes.
func TestDecompressionTakesItsTurn(t *testing.T) {
	l := bare(t)
	cfg := log.Config{MaxBatchBytes: 16 << 20}
	if err := l.unpacked.acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []record.Codec{record.CodecNone, record.CodecZstd} {
		b := record.NewBuilder(c)
		b.Append(0, nil, make([]byte, 100), nil)
		batch, err := b.Build(nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.validate(gone, batch, cfg)
		if want := c != record.CodecNone; errors.Is(err, context.Canceled) != want {
			t.Errorf("%s: %v while another batch expands", c, err)
		}
	}
	l.unpacked.release(1)
	b := record.NewBuilder(record.CodecGzip)
	b.Append(0, nil, nil, nil)
	batch, err := b.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.validate(t.Context(), batch, cfg); err != nil {
		t.Fatalf("a batch that may expand to more than the whole budget: %v", err)
	}
	if used := l.unpacked.used.Load(); used != 0 {
		t.Fatalf("%d bytes leaked", used)
	}
}

// TestAddingAndRemovingWithoutEndKeepsNothing: subscriptions that have ended once stayed in the queue until the stream had credit.
func TestAddingAndRemovingWithoutEndKeepsNothing(t *testing.T) {
	st := &fetchStream{l: bare(t), signal: make(chan struct{}, 1)}
	st.mu.subs = map[uint32]*subscription{}
	for id := range uint32(10_000) {
		req := &runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{{SubscriptionId: id}}, Remove: []uint32{id}}
		if err := st.apply(req); err != nil {
			t.Fatal(err)
		}
	}
	if n := cap(st.mu.ready); n > 100 {
		t.Fatalf("room for %d subscriptions in the queue, and none is left", n)
	}
}

// sink takes what a subscriber sends, and calls f before it does.
type sink struct {
	grpc.ServerStreamingServer[runnelv1.SubscribeResponse]
	f   func()
	got []*runnelv1.SubscribedRecord
}

func (s *sink) Send(r *runnelv1.SubscribeResponse) error {
	s.f()
	s.got = append(s.got, slices.Clone(r.GetRecords())...)
	return nil
}

// TestASlowSubscriberKeepsNoBombExpanded: each subscriber that did not read once kept a whole batch expanded in memory.
func TestASlowSubscriberKeepsNoBombExpanded(t *testing.T) {
	l := bare(t)
	host := partitiontest.NewHost(t, l.cfg.Clock)
	p := &subscribed{topic: &Topic{Name: "t"}, until: -1, p: host.Leader(ids.NewTopicID(), 0, 1, log.DefaultConfig())}
	b := record.NewBuilder(record.CodecGzip)
	const records, size = 40, 512 << 10
	for range records {
		b.Append(0, nil, make([]byte, size), nil)
	}
	batch, err := b.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &subscriber{l: l, left: -1, reader: l.readers.Get().(*record.Reader)}
	out := &sink{f: func() {
		if used := l.unpacked.used.Load(); used != 0 || s.reader.Size() > smallUnpacked {
			t.Errorf("%d bytes are expanded, %d charged, while a client is waited for", s.reader.Size(), used)
		}
	}}
	s.stream = out
	passes := 0
	for whole := false; !whole; passes++ {
		if whole, err = s.batch(t.Context(), p, batch, p.p.Config().MaxBatchBytes); err != nil || passes > 2*mostPasses {
			t.Fatalf("pass %d: %v", passes, err)
		}
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	if passes < 2 || len(out.got) != records {
		t.Fatalf("%d records in %d passes", len(out.got), passes)
	}
	for i, r := range out.got {
		if r.GetOffset() != int64(i) || len(r.GetValue()) != size {
			t.Fatalf("record %d: offset %d, %d bytes", i, r.GetOffset(), len(r.GetValue()))
		}
	}
}
