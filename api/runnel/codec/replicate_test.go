package codec

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

func (f *ReplicateFrame) message() *runnelv1.ReplicateResponse {
	m := &runnelv1.ReplicateResponse{
		SubscriptionId: f.SubscriptionID, LeaderEpoch: f.LeaderEpoch, BaseOffset: f.BaseOffset, HighWatermark: f.HighWatermark,
		LogStartWanted: f.LogStartWanted, LogStartPublished: f.LogStartPublished, Answer: f.Answer, Batches: bytes.Clone(f.Batch()),
	}
	for _, o := range f.Offsets {
		m.Offsets = append(m.Offsets, &runnelv1.ReplicateOffsets{
			SubscriptionId: o.SubscriptionID, LeaderEpoch: o.LeaderEpoch, HighWatermark: o.HighWatermark, LogStartWanted: o.LogStartWanted,
			LogStartPublished: o.LogStartPublished,
		})
	}
	return m
}

func replicateFrameOf(m *runnelv1.ReplicateResponse) *ReplicateFrame {
	f := &ReplicateFrame{
		SubscriptionID: m.GetSubscriptionId(), LeaderEpoch: m.GetLeaderEpoch(), BaseOffset: m.GetBaseOffset(), HighWatermark: m.GetHighWatermark(),
		LogStartWanted: m.GetLogStartWanted(), LogStartPublished: m.GetLogStartPublished(), Answer: m.GetAnswer(),
	}
	for _, o := range m.GetOffsets() {
		f.Offsets = append(f.Offsets, ReplicaOffsets{
			SubscriptionID: o.GetSubscriptionId(), LeaderEpoch: o.GetLeaderEpoch(), HighWatermark: o.GetHighWatermark(),
			LogStartWanted: o.GetLogStartWanted(), LogStartPublished: o.GetLogStartPublished(),
		})
	}
	if m.GetBatches() != nil {
		f.SetBatchBytes(m.GetBatches())
	}
	return f
}

func drawAnswer(t *rapid.T) *runnelv1.ReplicateAnswer {
	switch rapid.IntRange(0, 3).Draw(t, "answer") {
	case 0:
		return &runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_Granted{Granted: &runnelv1.ReplicateGranted{Offset: rapid.Int64().Draw(t, "granted")}}}
	case 1:
		return &runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_Diverging{
			Diverging: &runnelv1.ReplicateDiverging{Epoch: rapid.Int32().Draw(t, "epoch"), EndOffset: -1},
		}}
	case 2:
		return &runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_Refused{
			Refused: &runnelv1.ReplicateRefused{Reason: 3, Message: string(bytes.Repeat([]byte("m"), 200))},
		}}
	}
	return nil
}

func TestReplicateFrameIsReplicateResponseOnTheWire(t *testing.T) {
	c := New()
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.Int64()
		want := &runnelv1.ReplicateResponse{
			SubscriptionId: rapid.Uint32().Draw(t, "subscription"), LeaderEpoch: rapid.Int32().Draw(t, "epoch"), BaseOffset: offset.Draw(t, "base"),
			HighWatermark: offset.Draw(t, "hw"), LogStartWanted: offset.Draw(t, "wanted"), LogStartPublished: offset.Draw(t, "published"),
			Answer: drawAnswer(t), Batches: drawBytes(t, "batches"),
		}
		for range rapid.SampledFrom([]int{0, 1, 3, 30}).Draw(t, "offsets") {
			want.Offsets = append(want.Offsets, &runnelv1.ReplicateOffsets{
				SubscriptionId: rapid.Uint32().Draw(t, "of"), LeaderEpoch: rapid.Int32().Draw(t, "in"), HighWatermark: offset.Draw(t, "mark"),
				LogStartWanted: offset.Draw(t, "want"), LogStartPublished: offset.Draw(t, "publish"),
			})
		}
		wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.Marshal(replicateFrameOf(want))
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Materialize(); !bytes.Equal(got, wire) {
			t.Fatalf("encoded %x, want %x", got, wire)
		}
		out.Free()

		var got ReplicateFrame
		if err := c.Unmarshal(chop(t, wire), &got); err != nil {
			t.Fatal(err)
		}
		defer got.Free()
		if d := cmp.Diff(want, got.message(), protocmp.Transform()); d != "" {
			t.Fatal(d)
		}
	})
}

func (f *ReplicateRequestFrame) message() *runnelv1.ReplicateRequest {
	m := &runnelv1.ReplicateRequest{Hello: f.Hello, Unsubscribe: f.Unsubscribe, Subscribe: f.Subscribe}
	for _, a := range f.Acks {
		m.Acks = append(m.Acks, &runnelv1.ReplicateAck{SubscriptionId: a.SubscriptionID, LeaderEpoch: a.LeaderEpoch, Flushed: a.Flushed, LogStart: a.LogStart})
	}
	return m
}

func TestReplicateRequestFrameIsReplicateRequestOnTheWire(t *testing.T) {
	c := New()
	rapid.Check(t, func(t *rapid.T) {
		f := &ReplicateRequestFrame{Unsubscribe: rapid.SliceOfN(rapid.Uint32(), 0, 40).Draw(t, "unsubscribe")}
		if rapid.Bool().Draw(t, "hello") {
			f.Hello = &runnelv1.ReplicateHello{Stream: 1, LeaderBrokerId: rapid.Int32().Draw(t, "leader")}
		}
		for range rapid.IntRange(0, 3).Draw(t, "subscribe") {
			f.Subscribe = append(f.Subscribe, &runnelv1.ReplicateSubscribe{
				SubscriptionId: rapid.Uint32().Draw(t, "id"), TopicId: drawBytes(t, "topic"), FetchOffset: rapid.Int64().Draw(t, "offset"), LastEpoch: -1,
			})
		}
		for range rapid.SampledFrom([]int{0, 1, 2, 30}).Draw(t, "acks") {
			f.Acks = append(f.Acks, ReplicaAck{
				SubscriptionID: rapid.Uint32().Draw(t, "id"), LeaderEpoch: rapid.Int32().Draw(t, "epoch"), Flushed: rapid.Int64().Draw(t, "flushed"),
				LogStart: rapid.Int64().Draw(t, "start"),
			})
		}
		want := f.message()
		wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if got := out.Materialize(); !bytes.Equal(got, wire) {
			t.Fatalf("encoded %x, want %x", got, wire)
		}
		out.Free()
		var got ReplicateRequestFrame
		if err := c.Unmarshal(chop(t, wire), &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got.message(), protocmp.Transform()); d != "" {
			t.Fatal(d)
		}
	})
}

func TestReplicateRequestTakesUnpackedNumbersToo(t *testing.T) {
	wire := protowire.AppendVarint(protowire.AppendTag(nil, requestUnsubscribe, protowire.VarintType), 7)
	wire = protowire.AppendVarint(protowire.AppendTag(wire, requestUnsubscribe, protowire.VarintType), math.MaxUint32)
	var got ReplicateRequestFrame
	if err := New().Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Unsubscribe) != 2 || got.Unsubscribe[0] != 7 || got.Unsubscribe[1] != math.MaxUint32 {
		t.Fatalf("got %v", got.Unsubscribe)
	}
}

func TestReplicateFramesRefuseWhatNoEncoderWrites(t *testing.T) {
	field := func(num protowire.Number, typ protowire.Type, rest ...byte) []byte {
		return append(protowire.AppendTag(nil, num, typ), rest...)
	}
	twice := func(b []byte) []byte { return append(b, b...) }
	tests := map[string]struct {
		wire []byte
		into any
	}{
		"batches twice":                {twice(field(replicateBatches, protowire.BytesType, 1, 'a')), &ReplicateFrame{}},
		"base offset twice":            {twice(field(replicateBaseOffset, protowire.VarintType, 1)), &ReplicateFrame{}},
		"batches as a number":          {field(replicateBatches, protowire.VarintType, 1), &ReplicateFrame{}},
		"offsets as a number":          {field(replicateOffsets, protowire.VarintType, 1), &ReplicateFrame{}},
		"batches longer than message":  {field(replicateBatches, protowire.BytesType, 0xff, 0xff, 0xff, 0xff, 0x0f), &ReplicateFrame{}},
		"offsets longer than message":  {field(replicateOffsets, protowire.BytesType, 9, 8), &ReplicateFrame{}},
		"number runs over its message": {append(field(replicateOffsets, protowire.BytesType, 2, 8, 0x80), 0x01), &ReplicateFrame{}},
		"answer is no message":         {field(replicateAnswer, protowire.BytesType, 1, 0xff), &ReplicateFrame{}},
		"group":                        {field(14, protowire.StartGroupType), &ReplicateFrame{}},
		"ack with a field twice":       {field(requestAcks, protowire.BytesType, 4, 8, 1, 8, 1), &ReplicateRequestFrame{}},
		"ack over the end":             {append(field(requestAcks, protowire.BytesType, 2, 24, 0x80), 0x01), &ReplicateRequestFrame{}},
		"hello twice":                  {twice(field(requestHello, protowire.BytesType, 0)), &ReplicateRequestFrame{}},
		"packed numbers over the end":  {append(field(requestUnsubscribe, protowire.BytesType, 1, 0x80), 0x01), &ReplicateRequestFrame{}},
		"cut off":                      {field(requestAcks, protowire.BytesType), &ReplicateRequestFrame{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := New().Unmarshal(mem.BufferSlice{mem.SliceBuffer(tt.wire)}, tt.into)
			var d *DecodeError
			if !errors.As(err, &d) || d.Detail == "" {
				t.Fatalf("%x: got %v, want a DecodeError", tt.wire, err)
			}
		})
	}
}

func TestReplicateFrameReusesAndFreesWhatItHeld(t *testing.T) {
	c := New()
	pool := &countingPool{Pool: c.Pool()}
	b := pool.Get(5000)
	f := &ReplicateFrame{SubscriptionID: 1}
	f.SetBatch(mem.NewBuffer(b, pool))
	wire, err := c.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Free()
	if pool.out != 1 {
		t.Fatal("the batch was freed while gRPC still has it")
	}
	wire.Free()
	if pool.out != 0 {
		t.Fatalf("%d buffers are out after the last reference, want 0", pool.out)
	}
}

func FuzzReplicateFrame(f *testing.F) {
	for _, m := range []proto.Message{
		&runnelv1.ReplicateResponse{SubscriptionId: 1, BaseOffset: -1, Batches: []byte("abc")},
		&runnelv1.ReplicateResponse{Offsets: []*runnelv1.ReplicateOffsets{{SubscriptionId: 1, HighWatermark: 3}, {}}},
		&runnelv1.ReplicateRequest{Unsubscribe: []uint32{1, 300}, Acks: []*runnelv1.ReplicateAck{{SubscriptionId: 2, Flushed: 1}}},
	} {
		seed, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed, 3)
	}
	c := New()
	f.Fuzz(func(t *testing.T, wire []byte, at int) {
		pieces := func() mem.BufferSlice {
			if at > 0 && at < len(wire) {
				return mem.BufferSlice{mem.SliceBuffer(wire[:at]), mem.SliceBuffer(wire[at:])}
			}
			return mem.BufferSlice{mem.SliceBuffer(wire)}
		}
		var resp ReplicateFrame
		if c.Unmarshal(pieces(), &resp) == nil {
			var want runnelv1.ReplicateResponse
			if err := proto.Unmarshal(wire, &want); err != nil {
				t.Fatalf("accepted what protobuf refuses: %v", err)
			}
			forgetUnknown(&want)
			forgetUnknown(resp.Answer)
			if len(want.Batches) == 0 {
				want.Batches = nil
			}
			if d := cmp.Diff(&want, resp.message(), protocmp.Transform()); d != "" {
				t.Fatal(d)
			}
			resp.Free()
		}
		var req ReplicateRequestFrame
		if c.Unmarshal(pieces(), &req) == nil {
			var want runnelv1.ReplicateRequest
			if err := proto.Unmarshal(wire, &want); err != nil {
				t.Fatalf("accepted what protobuf refuses: %v", err)
			}
			got := req.message()
			forgetUnknown(&want)
			forgetUnknown(got)
			if d := cmp.Diff(&want, got, protocmp.Transform()); d != "" {
				t.Fatal(d)
			}
		}
	})
}

// forgetUnknown drops unknown fields, which frames skip.
func forgetUnknown(m proto.Message) {
	if m == nil || !m.ProtoReflect().IsValid() {
		return
	}
	b, err := proto.Marshal(m)
	if err == nil {
		_ = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m) // what was just encoded decodes
	}
}
