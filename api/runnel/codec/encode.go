package codec

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// payload is the batch bytes of a frame.
type payload struct {
	buf  mem.Buffer
	data []byte
}

// Batch returns the batch bytes, nil when there are none. They are valid until Free, and after a decode the receiver may
// write to them: nobody else sees them.
func (p *payload) Batch() []byte { return p.data }

// SetBatch makes b the frame's batch and takes over the caller's reference; what the frame held before is freed.
func (p *payload) SetBatch(b mem.Buffer) {
	p.Free()
	if b != nil {
		p.buf, p.data = b, b.ReadOnlyData()
	}
}

// SetBatchBytes makes b, which the garbage collector owns, the frame's batch.
func (p *payload) SetBatchBytes(b []byte) { p.SetBatch(mem.SliceBuffer(b)) }

// TakeBatch returns the batch's buffer with the frame's reference, which the caller has to Free; the frame is left without.
// It is nil when there is no batch.
func (p *payload) TakeBatch() mem.Buffer {
	b := p.buf
	p.buf, p.data = nil, nil
	return b
}

// Free gives the frame's reference to the batch back. Freeing twice is harmless.
func (p *payload) Free() {
	if p.buf != nil {
		p.buf.Free()
		p.buf, p.data = nil, nil
	}
}

// headerRoom holds every frame's header without an error in it.
const headerRoom = 96

// encoded is everything one message needs in one allocation: the header's bytes, its buffer, and the slice of buffers that
// gRPC gets. It is not pooled, because gRPC does not say when it is done with the slice itself.
type encoded struct {
	room   [headerRoom]byte
	header headerBuffer
	bufs   [2]mem.Buffer
}

// headerBuffer is a mem.Buffer behind a pointer, so that making it an interface allocates nothing.
type headerBuffer struct{ mem.SliceBuffer }

// finish appends the batch's tag and length, and returns header and batch. The batch gets a reference of its own.
func (e *encoded) finish(h []byte, num protowire.Number, batch mem.Buffer) mem.BufferSlice {
	if batch == nil || batch.Len() == 0 {
		e.header.SliceBuffer = h
		e.bufs[0] = &e.header
		return e.bufs[:1]
	}
	h = protowire.AppendTag(h, num, protowire.BytesType)
	h = protowire.AppendVarint(h, uint64(batch.Len()))
	batch.Ref()
	e.header.SliceBuffer = h
	e.bufs[0], e.bufs[1] = &e.header, batch
	return e.bufs[:2]
}

func appendVarint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

// appendInt64 writes negative numbers as ten bytes, as protobuf's int64 does.
func appendInt64(b []byte, num protowire.Number, v int64) []byte {
	return appendVarint(b, num, uint64(v))
}

// appendInt32 sign-extends, as protobuf's int32 does.
func appendInt32(b []byte, num protowire.Number, v int32) []byte {
	return appendInt64(b, num, int64(v))
}

func appendMessage(b []byte, num protowire.Number, m proto.Message) ([]byte, error) {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	size := proto.Size(m)
	b = protowire.AppendVarint(b, uint64(size))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("encode field %d: %w", num, err)
	}
	return b, nil
}
