package codec

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

func drawBytes(t *rapid.T, label string) []byte {
	n := rapid.SampledFrom([]int{0, 1, 3, 100, 1023, 1024, 1025, 4096, 70000}).Draw(t, label+" length")
	seed := rapid.Byte().Draw(t, label+" seed")
	if n == 0 {
		return nil
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i*7)
	}
	return b
}

// chop cuts wire bytes into buffers as a transport may deliver them.
func chop(t *rapid.T, b []byte) mem.BufferSlice {
	var out mem.BufferSlice
	size := rapid.SampledFrom([]int{1, 2, 5, 60, 1500, 16384, 1 << 20}).Draw(t, "piece")
	size = max(size, len(b)/100)
	for len(b) > 0 {
		n := min(len(b), size)
		out = append(out, mem.SliceBuffer(bytes.Clone(b[:n])))
		b = b[n:]
	}
	return out
}

func drawProduce(t *rapid.T) *runnelv1.ProduceRequest {
	m := &runnelv1.ProduceRequest{
		CorrelationId: rapid.Uint64().Draw(t, "correlation"),
		Partition:     rapid.Int32().Draw(t, "partition"),
		LeaderEpoch:   rapid.Int32Min(-1).Draw(t, "epoch"),
		Acks:          runnelv1.Acks(rapid.Int32Range(0, 2).Draw(t, "acks")),
		Batch:         drawBytes(t, "batch"),
	}
	if rapid.Bool().Draw(t, "has topic") {
		id := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "topic")
		id[0] |= 1
		m.TopicId = id
	}
	return m
}

func frameOf(m *runnelv1.ProduceRequest) *ProduceFrame {
	f := &ProduceFrame{CorrelationID: m.GetCorrelationId(), Partition: m.GetPartition(), LeaderEpoch: m.GetLeaderEpoch(), Acks: m.GetAcks()}
	copy(f.TopicID[:], m.GetTopicId())
	if m.GetBatch() != nil {
		f.SetBatchBytes(m.GetBatch())
	}
	return f
}

func TestProduceFrameIsProduceRequestOnTheWire(t *testing.T) {
	c := New()
	rapid.Check(t, func(t *rapid.T) {
		want := drawProduce(t)
		wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.Marshal(frameOf(want))
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Materialize(); !bytes.Equal(got, wire) {
			t.Fatalf("encoded %x, want %x", got, wire)
		}
		out.Free()

		var got ProduceFrame
		if err := c.Unmarshal(chop(t, wire), &got); err != nil || got.Malformed != nil {
			t.Fatalf("decode: %v, %v", err, got.Malformed)
		}
		defer got.Free()
		if d := cmp.Diff(frameOf(want).message(), got.message(), protocmp.Transform()); d != "" {
			t.Fatal(d)
		}
		if got.TopicIDLength != len(want.GetTopicId()) {
			t.Fatalf("topic id length %d, want %d", got.TopicIDLength, len(want.GetTopicId()))
		}
	})
}

func (f *ProduceFrame) message() *runnelv1.ProduceRequest {
	m := &runnelv1.ProduceRequest{CorrelationId: f.CorrelationID, Partition: f.Partition, LeaderEpoch: f.LeaderEpoch, Acks: f.Acks}
	if f.TopicID != [TopicIDLen]byte{} {
		m.TopicId = f.TopicID[:]
	}
	m.Batch = bytes.Clone(f.Batch())
	return m
}

func (f *FetchFrame) message() *runnelv1.FetchResponse {
	return &runnelv1.FetchResponse{
		SubscriptionId: f.SubscriptionID, FetchOffset: f.FetchOffset, NextOffset: f.NextOffset, HighWatermark: f.HighWatermark,
		LogStartOffset: f.LogStartOffset, LastStableOffset: f.LastStableOffset, AbortedTransactions: f.AbortedTransactions,
		LeaderEpoch: f.LeaderEpoch, Error: f.Error, ThrottleMs: f.ThrottleMS, Batches: bytes.Clone(f.Batch()),
	}
}

func fetchFrameOf(m *runnelv1.FetchResponse) *FetchFrame {
	f := &FetchFrame{
		SubscriptionID: m.GetSubscriptionId(), FetchOffset: m.GetFetchOffset(), NextOffset: m.GetNextOffset(),
		HighWatermark: m.GetHighWatermark(), LogStartOffset: m.GetLogStartOffset(), LastStableOffset: m.GetLastStableOffset(),
		AbortedTransactions: m.GetAbortedTransactions(), LeaderEpoch: m.GetLeaderEpoch(), Error: m.GetError(), ThrottleMS: m.GetThrottleMs(),
	}
	if m.GetBatches() != nil {
		f.SetBatchBytes(m.GetBatches())
	}
	return f
}

func TestFetchFrameIsFetchResponseOnTheWire(t *testing.T) {
	c := New()
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.Int64()
		want := &runnelv1.FetchResponse{
			SubscriptionId: rapid.Uint32().Draw(t, "subscription"), FetchOffset: offset.Draw(t, "fetch"), NextOffset: offset.Draw(t, "next"),
			HighWatermark: offset.Draw(t, "hw"), LogStartOffset: offset.Draw(t, "start"), LastStableOffset: offset.Draw(t, "stable"),
			LeaderEpoch: rapid.Int32().Draw(t, "epoch"), ThrottleMs: offset.Draw(t, "throttle"), Batches: drawBytes(t, "batches"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "aborted") {
			want.AbortedTransactions = append(want.AbortedTransactions, &runnelv1.AbortedTransaction{ProducerId: offset.Draw(t, "pid")})
		}
		if rapid.Bool().Draw(t, "error") {
			want.Error = &runnelv1.Error{Code: 5, Reason: "X", Message: strings.Repeat("m", 300), Metadata: map[string]string{"value": "1"}}
		}
		wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.Marshal(fetchFrameOf(want))
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Materialize(); !bytes.Equal(got, wire) {
			t.Fatalf("encoded %x, want %x", got, wire)
		}
		out.Free()
		var got FetchFrame
		if err := c.Unmarshal(chop(t, wire), &got); err != nil {
			t.Fatal(err)
		}
		defer got.Free()
		if d := cmp.Diff(want, got.message(), protocmp.Transform()); d != "" {
			t.Fatal(d)
		}
	})
}

func TestUnknownFieldsAreSkipped(t *testing.T) {
	c := New()
	want := &runnelv1.ProduceRequest{CorrelationId: 7, TopicId: bytes.Repeat([]byte{9}, 16), Batch: []byte("batch")}
	wire, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var unknown []byte
	unknown = protowire.AppendVarint(protowire.AppendTag(unknown, 100, protowire.VarintType), 5)
	unknown = protowire.AppendBytes(protowire.AppendTag(unknown, 101, protowire.BytesType), []byte("later"))
	unknown = protowire.AppendFixed32(protowire.AppendTag(unknown, 102, protowire.Fixed32Type), 1)
	unknown = protowire.AppendFixed64(protowire.AppendTag(unknown, 103, protowire.Fixed64Type), 1)
	for name, msg := range map[string][]byte{
		"before": append(bytes.Clone(unknown), wire...),
		"after":  append(bytes.Clone(wire), unknown...),
	} {
		var got ProduceFrame
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(msg)}, &got); err != nil || got.Malformed != nil {
			t.Fatalf("%s: %v %v", name, err, got.Malformed)
		}
		if d := cmp.Diff(want, got.message(), protocmp.Transform()); d != "" {
			t.Fatalf("%s: %s", name, d)
		}
	}
}

func TestHostileProduceIsMalformed(t *testing.T) {
	tag := func(n protowire.Number, typ protowire.Type) []byte { return protowire.AppendTag(nil, n, typ) }
	cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	huge := protowire.AppendVarint(nil, math.MaxUint64)
	cases := map[string]struct {
		wire   []byte
		detail string
	}{
		"huge batch length in a tiny frame": {cat(tag(6, protowire.BytesType), protowire.AppendVarint(nil, 1<<30), []byte("x")), "declared length 1073741824 exceeds the 1 bytes"},
		"length overflows int":              {cat(tag(6, protowire.BytesType), huge), "exceeds the 0 bytes"},
		"truncated varint":                  {cat(tag(1, protowire.VarintType), []byte{0x80}), "ends inside a varint"},
		"endless varint":                    {cat(tag(1, protowire.VarintType), bytes.Repeat([]byte{0xff}, 11)), "overflows 64 bits"},
		"truncated batch":                   {cat(tag(6, protowire.BytesType), []byte{5, 'a'}), "declared length 5 exceeds the 1 bytes"},
		"duplicated batch":                  {cat(tag(6, protowire.BytesType), []byte{1, 'a'}, tag(6, protowire.BytesType), []byte{1, 'b'}), "occurs twice"},
		"duplicated partition":              {cat(tag(3, protowire.VarintType), []byte{1}, tag(3, protowire.VarintType), []byte{2}), "occurs twice"},
		"batch as varint":                   {cat(tag(6, protowire.VarintType), []byte{1}), "wire type 0, want 2"},
		"correlation id as bytes":           {cat(tag(1, protowire.BytesType), []byte{1, 'a'}), "wire type 2, want 0"},
		"field number 0":                    {[]byte{0x00, 0x01}, "field number 0"},
		"group":                             {tag(50, protowire.StartGroupType), "groups"},
		"wire type 7":                       {[]byte{15<<3 | 7, 0}, "unknown wire type 7"},
		"short fixed64":                     {cat(tag(50, protowire.Fixed64Type), []byte{1}), "8 bytes wanted, 1 left"},
		"topic id longer than the message":  {cat(tag(2, protowire.BytesType), []byte{17}, bytes.Repeat([]byte{1}, 16)), "declared length 17 exceeds the 16"},
	}
	c := New()
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			for _, pieces := range []mem.BufferSlice{{mem.SliceBuffer(tc.wire)}, {mem.SliceBuffer(tc.wire[:1]), mem.SliceBuffer(tc.wire[1:])}} {
				f := ProduceFrame{CorrelationID: 3}
				if err := c.Unmarshal(pieces, &f); err != nil {
					t.Fatal(err)
				}
				if f.Malformed == nil || !strings.Contains(f.Malformed.Error(), tc.detail) {
					t.Fatalf("got %v, want %q", f.Malformed, tc.detail)
				}
				if f.CorrelationID != 0 || f.Batch() != nil {
					t.Fatalf("a malformed frame carries content: %+v", f)
				}
			}
		})
	}
}

func TestHostileFetchResponseFailsTheCall(t *testing.T) {
	c := New()
	var f FetchFrame
	wire := protowire.AppendVarint(protowire.AppendTag(nil, 15, protowire.BytesType), 1<<40)
	err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &f)
	var de *DecodeError
	if !errors.As(err, &de) || de.Field != 15 || de.Message != "runnel.v1.FetchResponse" {
		t.Fatalf("got %v", err)
	}
}

func TestTopicIDOfWrongLengthIsReported(t *testing.T) {
	c := New()
	for _, n := range []int{1, 15, 17, 4096} {
		wire, err := proto.Marshal(&runnelv1.ProduceRequest{CorrelationId: 1, TopicId: bytes.Repeat([]byte{1}, n)})
		if err != nil {
			t.Fatal(err)
		}
		var f ProduceFrame
		if err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &f); err != nil || f.Malformed != nil {
			t.Fatalf("%v %v", err, f.Malformed)
		}
		if f.TopicIDLength != n || f.TopicID != [16]byte{} || f.CorrelationID != 1 {
			t.Fatalf("length %d: %+v", n, f)
		}
	}
}

// countingPool counts buffers that are out.
type countingPool struct {
	*Pool
	out int
}

func (p *countingPool) Get(n int) *[]byte { p.out++; return p.Pool.Get(n) }
func (p *countingPool) Put(b *[]byte)     { p.out--; p.Pool.Put(b) }

func TestBatchOutlivesTheMessageAndIsFreedOnce(t *testing.T) {
	c := New()
	pool := &countingPool{Pool: NewPool()}
	wire, err := proto.Marshal(&runnelv1.ProduceRequest{CorrelationId: 1, Batch: bytes.Repeat([]byte{7}, 5000)})
	if err != nil {
		t.Fatal(err)
	}
	b := pool.Get(len(wire))
	copy(*b, wire)
	msg := mem.BufferSlice{mem.NewBuffer(b, pool)}
	var f ProduceFrame
	if err := c.Unmarshal(msg, &f); err != nil {
		t.Fatal(err)
	}
	msg.Free() // as gRPC does after Unmarshal
	if pool.out != 1 {
		t.Fatalf("the received buffer went back to its pool while the batch is in use")
	}
	if len(f.Batch()) != 5000 || f.Batch()[4999] != 7 {
		t.Fatal("batch content")
	}
	if &f.Batch()[0] != &(*b)[len(wire)-5000] {
		t.Fatal("the batch was copied although it lay together")
	}
	out, err := c.Marshal(&f)
	if err != nil {
		t.Fatal(err)
	}
	f.Free()
	f.Free()
	if pool.out != 1 {
		t.Fatal("encoding took no reference")
	}
	out.Free()
	if pool.out != 0 {
		t.Fatalf("%d buffers leaked", pool.out)
	}
}

func TestColdMessages(t *testing.T) {
	c := New()
	for _, size := range []int{0, 10, 5000} {
		want := &runnelv1.WatchRequest{Topics: []string{strings.Repeat("t", size)}}
		out, err := c.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got runnelv1.WatchRequest
		if err := c.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		out.Free()
		if d := cmp.Diff(want, &got, protocmp.Transform()); d != "" {
			t.Fatal(d)
		}
	}
	if _, err := c.Marshal(42); err == nil {
		t.Fatal("encoded an int")
	}
	if err := c.Unmarshal(nil, 42); err == nil {
		t.Fatal("decoded into an int")
	}
}

func TestPoolTiers(t *testing.T) {
	p := NewPool()
	for _, n := range []int{0, 1, 2048, 2049, 1 << 20, 1<<20 + 1, 32 << 20, 32<<20 + 1} {
		b := p.Get(n)
		if len(*b) != n || (n <= 32<<20 && n > 2048 && cap(*b) >= 2*n) {
			t.Fatalf("Get(%d): len %d cap %d", n, len(*b), cap(*b))
		}
		p.Put(b)
	}
	odd := make([]byte, 3000)
	p.Put(&odd)
	if b := p.Get(3000); cap(*b) != 4096 {
		t.Fatalf("a foreign slice entered the pool: cap %d", cap(*b))
	}
}

func FuzzProduceFrame(f *testing.F) {
	seed, err := proto.Marshal(&runnelv1.ProduceRequest{CorrelationId: 1, TopicId: make([]byte, 16), Partition: -1, Batch: []byte("abc")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, 3)
	f.Add([]byte{0x32, 0xff, 0xff, 0xff, 0xff, 0x0f}, 1)
	c := New()
	f.Fuzz(func(t *testing.T, wire []byte, cut int) {
		pieces := mem.BufferSlice{mem.SliceBuffer(wire)}
		if cut > 0 && cut < len(wire) {
			pieces = mem.BufferSlice{mem.SliceBuffer(wire[:cut]), mem.SliceBuffer(wire[cut:])}
		}
		var got ProduceFrame
		if err := c.Unmarshal(pieces, &got); err != nil {
			t.Fatal(err)
		}
		defer got.Free()
		if got.Malformed != nil {
			return
		}
		// What we accept, the generated code accepts, with the same meaning.
		var want runnelv1.ProduceRequest
		if err := proto.Unmarshal(wire, &want); err != nil {
			t.Fatalf("accepted what protobuf refuses: %v", err)
		}
		if got.CorrelationID != want.GetCorrelationId() || got.Partition != want.GetPartition() || got.LeaderEpoch != want.GetLeaderEpoch() ||
			got.Acks != want.GetAcks() || !bytes.Equal(got.Batch(), want.GetBatch()) || got.TopicIDLength != len(want.GetTopicId()) {
			t.Fatalf("got %+v, want %v", got, &want)
		}
	})
}

func FuzzFetchFrame(f *testing.F) {
	seed, err := proto.Marshal(&runnelv1.FetchResponse{SubscriptionId: 1, NextOffset: -1, Error: &runnelv1.Error{Reason: "R"}, Batches: []byte("abc")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	c := New()
	f.Fuzz(func(t *testing.T, wire []byte) {
		var got FetchFrame
		if c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &got) != nil {
			return
		}
		defer got.Free()
		var want runnelv1.FetchResponse
		if err := proto.Unmarshal(wire, &want); err != nil {
			t.Fatalf("accepted what protobuf refuses: %v", err)
		}
		want.ProtoReflect().SetUnknown(nil)
		if len(want.Batches) == 0 {
			want.Batches = nil
		}
		if d := cmp.Diff(&want, got.message(), protocmp.Transform()); d != "" {
			t.Fatal(d)
		}
	})
}

func BenchmarkProduceFrame(b *testing.B) {
	for name, size := range map[string]int{"100B": 100, "64KiB": 64 << 10, "1MiB": 1 << 20} {
		b.Run("encode/"+name, func(b *testing.B) {
			c := New()
			f := &ProduceFrame{CorrelationID: 1 << 40, TopicID: [16]byte{1}, Partition: 3, LeaderEpoch: 9, Acks: 1}
			buf, _ := c.Pool().Buffer(size)
			f.SetBatch(buf)
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				out, err := c.Marshal(f)
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
		b.Run("decode/"+name, func(b *testing.B) {
			c := New()
			wire, err := proto.Marshal(&runnelv1.ProduceRequest{CorrelationId: 1 << 40, TopicId: make([]byte, 16), Partition: 3, Batch: make([]byte, size)})
			if err != nil {
				b.Fatal(err)
			}
			var msg mem.BufferSlice
			for len(wire) > 0 {
				n := min(len(wire), 16384)
				msg = append(msg, mem.SliceBuffer(wire[:n]))
				wire = wire[n:]
			}
			var f ProduceFrame
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := c.Unmarshal(msg, &f); err != nil {
					b.Fatal(err)
				}
				f.Free()
			}
		})
	}
}

func TestAllocationsPerBatch(t *testing.T) {
	c := New()
	f := &ProduceFrame{CorrelationID: 1 << 40, TopicID: [16]byte{1}, Partition: 3, LeaderEpoch: 9, Acks: 1}
	buf, _ := c.Pool().Buffer(100_000)
	f.SetBatch(buf)
	if n := testing.AllocsPerRun(100, func() {
		out, err := c.Marshal(f)
		if err != nil {
			t.Error(err)
		}
		out.Free()
	}); n > 1 {
		t.Errorf("encode: %v allocations, want at most 1", n)
	}
	out, err := c.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	var got ProduceFrame
	// sync.Pool may be emptied by a collection during the run, hence the slack below one.
	if n := testing.AllocsPerRun(100, func() {
		if err := c.Unmarshal(out, &got); err != nil {
			t.Error(err)
		}
		got.Free()
	}); n > 1 {
		t.Errorf("decode: %v allocations, want at most 1", n)
	}
}
