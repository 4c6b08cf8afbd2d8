package server_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

func TestProducePipelinesAndAcksInOrderAfterTheSync(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 2)
	s := f.produce(f.ctx())
	for i := range 10 {
		s.send(topic, int32(i%2), f.batch("a", "b"))
	}
	waitFor(t, func() bool {
		return f.cluster.parts[topic.ID][0].Waiting() == 5 && f.cluster.parts[topic.ID][1].Waiting() == 5
	})
	f.host.Sync()
	last := map[int32]uint64{}
	for range 10 {
		r := s.answer()
		if r.GetError() != nil || r.GetCorrelationId() <= last[r.GetPartition()] || r.GetBaseOffset() != int64((r.GetCorrelationId()-1)/2)*2 ||
			r.GetLogAppendTimeMs() != -1 || !bytes.Equal(r.GetTopicId(), topic.ID[:]) {
			t.Fatalf("%v", r)
		}
		last[r.GetPartition()] = r.GetCorrelationId()
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the client's end: %v", err)
	}
}

func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); <-clock.System().After(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatal("condition did not come true")
		}
	}
}

func TestClosedSendStillGetsItsAnswers(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	s := f.produce(f.ctx())
	s.send(topic, 0, f.batch("a"))
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return f.cluster.parts[topic.ID][0].Waiting() == 1 })
	f.host.Sync()
	if r := s.answer(); r.GetError() != nil {
		t.Fatal(r.GetError())
	}
}

func TestProduceLogAppendTimeDuplicateAndLeaderAcks(t *testing.T) {
	f := setup(t)
	topic := f.cluster.create("t", 1, &runnelv1.TopicConfig{TimestampType: runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME.Enum()})
	s := f.produce(f.ctx())
	b, _ := partitiontest.Idempotent(t, 7, 0, "x")
	leader := func(fr *codec.ProduceFrame) { fr.Acks = runnelv1.Acks_ACKS_LEADER }
	s.send(topic, 0, bytes.Clone(b), leader)
	first := s.answer()
	if first.GetError() != nil || first.GetLogAppendTimeMs() <= 1 {
		t.Fatalf("%v", first)
	}
	s.send(topic, 0, bytes.Clone(b), leader)
	if r := s.answer(); !r.GetDuplicate() || r.GetBaseOffset() != 0 || r.GetLogAppendTimeMs() != first.GetLogAppendTimeMs() {
		t.Fatalf("%v", r)
	}
}

func TestHostileBatchesAreRefusedOneByOne(t *testing.T) {
	f := setup(t)
	f.syncing()
	topic := f.cluster.create("t", 2, &runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(4096)})
	f.lead(topic, 2)
	good := f.batch("good")
	corrupt := bytes.Clone(good)
	corrupt[len(corrupt)-1] ^= 1
	control := bytes.Clone(good)
	control[22] |= 0x20
	zip := record.NewBuilder(record.CodecZstd)
	zip.Append(1, nil, make([]byte, 4096*record.MaxExpansion+1), nil)
	bomb, err := zip.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	future, _ := partitiontest.Batch(t, time.Now().Add(48*time.Hour).UnixMilli(), "x")
	gap, _ := partitiontest.Idempotent(t, 9, 5, "x")
	cases := []struct {
		name   string
		batch  []byte
		change func(*codec.ProduceFrame)
		code   codes.Code
		reason string
		value  string
		limit  string
	}{
		{"empty batch", nil, nil, codes.InvalidArgument, "CORRUPT_BATCH", "", ""},
		{"truncated header", good[:30], nil, codes.InvalidArgument, "CORRUPT_BATCH", "30", ""},
		{"truncated body", good[:len(good)-1], nil, codes.InvalidArgument, "CORRUPT_BATCH", "", ""},
		{"trailing bytes", append(bytes.Clone(good), 0), nil, codes.InvalidArgument, "CORRUPT_BATCH", "", ""},
		{"two batches in one", append(bytes.Clone(good), good...), nil, codes.InvalidArgument, "CORRUPT_BATCH", "", ""},
		{"bad CRC, good length", corrupt, nil, codes.InvalidArgument, "CORRUPT_BATCH", "", ""},
		{"too large", f.batch(strings.Repeat("x", 5000)), nil, codes.InvalidArgument, "BATCH_TOO_LARGE", "", "4096"},
		{"decompression bomb", bomb, nil, codes.InvalidArgument, "BATCH_TOO_LARGE", "", ""},
		{"timestamp too far ahead", future, nil, codes.InvalidArgument, "INVALID_BATCH", "", ""},
		{"unknown producer", gap, nil, codes.FailedPrecondition, "UNKNOWN_PRODUCER", "", ""},
		{"unknown topic id", good, func(p *codec.ProduceFrame) { p.TopicID = ids.NewTopicID() }, codes.NotFound, "UNKNOWN_TOPIC_ID", "", ""},
		{"no topic id", good, func(p *codec.ProduceFrame) { p.TopicID = ids.TopicID{} }, codes.InvalidArgument, "INVALID_ARGUMENT", "0 bytes long", "16 bytes"},
		{"unknown partition", good, func(p *codec.ProduceFrame) { p.Partition = 2 }, codes.NotFound, "UNKNOWN_PARTITION", "2", "0 to 1"},
		{"negative partition", good, func(p *codec.ProduceFrame) { p.Partition = -1 }, codes.InvalidArgument, "INVALID_ARGUMENT", "-1", "0 or more"},
		{"unknown acks", good, func(p *codec.ProduceFrame) { p.Acks = 9 }, codes.InvalidArgument, "INVALID_ARGUMENT", "9", "0 (all), 1 (all) or 2 (leader)"},
		{"newer epoch", good, func(p *codec.ProduceFrame) { p.LeaderEpoch = 3 }, codes.Unavailable, "UNKNOWN_LEADER_EPOCH", "", ""},
		{"older epoch", good, func(p *codec.ProduceFrame) { p.LeaderEpoch = 1 }, codes.FailedPrecondition, "NOT_LEADER", "", ""},
	}
	s := f.produce(f.ctx())
	for _, tc := range cases {
		change := tc.change
		if change == nil {
			change = func(*codec.ProduceFrame) {}
		}
		id := s.send(topic, 1, bytes.Clone(tc.batch), change)
		r := s.answer()
		e := r.GetError()
		if r.GetCorrelationId() != id || codes.Code(e.GetCode()) != tc.code || e.GetReason() != tc.reason || r.GetBaseOffset() != -1 {
			t.Fatalf("%s: %v", tc.name, r)
		}
		if tc.value != "" && e.GetMetadata()["value"] != tc.value || tc.limit != "" && e.GetMetadata()["limit"] != tc.limit {
			t.Fatalf("%s: metadata %v", tc.name, e.GetMetadata())
		}
		if e.GetMessage() == "" {
			t.Fatalf("%s: no message", tc.name)
		}
	}
	// The stream and the partition are none the worse, and nothing was written.
	s.send(topic, 1, good)
	if r := s.answer(); r.GetError() != nil || r.GetBaseOffset() != 0 {
		t.Fatalf("%v", r)
	}
}

func TestRefusalsKeepTheirPlace(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	s := f.produce(f.ctx())
	s.send(topic, 0, f.batch("a"))
	s.send(topic, 0, []byte("junk"))
	s.send(topic, 0, f.batch("b"), func(p *codec.ProduceFrame) { p.Acks = runnelv1.Acks_ACKS_LEADER })
	s.send(topic, 0, f.batch("c"), func(p *codec.ProduceFrame) { p.LeaderEpoch = 0 })
	waitFor(t, func() bool { return f.cluster.parts[topic.ID][0].Waiting() == 4 })
	f.host.Sync()
	for want := uint64(1); want <= 4; want++ {
		if r := s.answer(); r.GetCorrelationId() != want {
			t.Fatalf("answer %d came before %d", r.GetCorrelationId(), want)
		}
	}
}

func TestNotLeaderNamesTheLeadersAddressOnThisListener(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	f.cluster.mu.Lock()
	f.cluster.parts[topic.ID][0] = nil
	f.cluster.mu.Unlock()
	s := f.produce(f.ctx())
	s.send(topic, 0, f.batch("a"))
	e := s.answer().GetError()
	if e.GetReason() != "NOT_LEADER" || !e.GetRetriable() || e.GetLeader().GetBrokerId() != other || e.GetLeader().GetAddress() != "two:7650" || e.GetLeader().GetLeaderEpoch() != 4 {
		t.Fatalf("%v", e)
	}
}

func TestLostLeadershipAnswersOutcomeUnknown(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	p := f.cluster.parts[topic.ID][0]
	s := f.produce(f.ctx())
	s.send(topic, 0, f.batch("a"))
	waitFor(t, func() bool { return p.Waiting() == 1 })
	partitiontest.Follow(p, other, 2)
	e := s.answer().GetError()
	if e.GetReason() != "OUTCOME_UNKNOWN" || !e.GetRetriable() || e.GetLeader() != nil {
		t.Fatalf("%v", e)
	}
}

func TestMalformedFrameEndsTheStream(t *testing.T) {
	f := setup(t)
	s := f.produce(f.ctx())
	// A valid FetchResponse whose field 2 is a varint where ProduceRequest has the topic id.
	if err := s.SendMsg(&runnelv1.FetchResponse{FetchOffset: 5}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Recv()
	wantReason(t, err, codes.InvalidArgument, "MALFORMED_MESSAGE")
}

func TestOversizedMessageIsRefused(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	s := f.produce(f.ctx())
	fr := &codec.ProduceFrame{CorrelationID: 1, TopicID: topic.ID}
	fr.SetBatchBytes(make([]byte, server.MaxMessageBytes))
	if err := s.SendMsg(fr); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	_, err := s.Recv()
	if c, _, _ := reasonOf(err); c != codes.ResourceExhausted {
		t.Fatalf("%v", err)
	}
	f.put(topic, 0, "still here")
}

func TestInFlightBytesAreBounded(t *testing.T) {
	f := setup(t, func(c *server.Config) { c.Limits.StreamInFlightBytes = 1 << 20 })
	topic := f.topic("t", 1)
	p := f.cluster.parts[topic.ID][0]
	s := f.produce(f.ctx())
	value := strings.Repeat("x", 300<<10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 12 {
			s.send(topic, 0, f.batch(value))
		}
	}()
	waitFor(t, func() bool { return p.Waiting() == 3 })
	f.syncing()
	for range 12 {
		if r := s.answer(); r.GetError() != nil {
			t.Fatal(r.GetError())
		}
		if n := p.Waiting(); n > 3 {
			t.Fatalf("%d batches of 300 KiB in flight, the limit is 1 MiB", n)
		}
	}
	<-done
}

func TestADeadStreamGivesItsBudgetBack(t *testing.T) {
	f := setup(t, func(c *server.Config) { c.Limits.InFlightBytes = 16 << 20; c.Limits.StreamInFlightBytes = 16 << 20 })
	topic := f.cluster.create("t", 1, &runnelv1.TopicConfig{MaxBatchBytes: proto.Int32(16 << 20)})
	p := f.cluster.parts[topic.ID][0]
	big := strings.Repeat("x", 12<<20)
	ctx, cancel := contextWithCancel(f)
	s := f.produce(ctx)
	s.send(topic, 0, f.batch(big))
	waitFor(t, func() bool { return p.Waiting() == 1 })
	cancel()
	if _, err := s.Recv(); err == nil {
		t.Fatal("answered")
	}
	f.host.Sync()
	s2 := f.produce(f.ctx())
	s2.send(topic, 0, f.batch(big))
	waitFor(t, func() bool { return p.Waiting() == 1 })
	f.host.Sync()
	if r := s2.answer(); r.GetError() != nil {
		t.Fatal(r.GetError())
	}
}
