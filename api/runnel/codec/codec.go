package codec

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Name is the content subtype, the one that every gRPC library uses for protobuf.
const Name = "proto"

// Codec implements encoding.CodecV2. Safe for concurrent use; one per process is enough, and shares its buffers.
type Codec struct {
	pool *Pool
}

var _ encoding.CodecV2 = (*Codec)(nil)

// New returns a codec with a pool of its own.
func New() *Codec { return &Codec{pool: NewPool()} }

// Pool is where the codec takes buffers from; fetch paths fill buffers of it and hand them to a FetchFrame.
func (c *Codec) Pool() *Pool { return c.pool }

// Name implements encoding.CodecV2.
func (c *Codec) Name() string { return Name }

// Marshal implements encoding.CodecV2. A frame keeps its own reference to its batch, whose bytes must stay as they are until
// gRPC has written them.
func (c *Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *ProduceFrame:
		return m.marshal(), nil
	case *FetchFrame:
		return m.marshal()
	case *ReplicateFrame:
		return m.marshal(c.pool)
	case *ReplicateRequestFrame:
		return m.marshal(c.pool)
	case proto.Message:
		return c.marshalProto(m)
	}
	return nil, fmt.Errorf("encode %T: not a protobuf message", v)
}

func (c *Codec) marshalProto(m proto.Message) (mem.BufferSlice, error) {
	size := proto.Size(m)
	opts := proto.MarshalOptions{UseCachedSize: true}
	if size <= headerRoom { // answers, mostly: one allocation for all that gRPC gets
		e := new(encoded)
		b, err := opts.MarshalAppend(e.room[:0], m)
		if err != nil {
			return nil, err
		}
		return e.finish(b, 0, nil), nil
	}
	if mem.IsBelowBufferPoolingThreshold(size) {
		b, err := opts.Marshal(m)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	b := c.pool.Get(size)
	if _, err := opts.MarshalAppend((*b)[:0], m); err != nil {
		c.pool.Put(b)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(b, c.pool)}, nil
}

// Unmarshal implements encoding.CodecV2. A malformed ProduceFrame is not an error of the call: see ProduceFrame.Malformed.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *ProduceFrame:
		var cur cursor
		cur.reset("runnel.v1.ProduceRequest", data)
		m.unmarshal(&cur, c.pool)
		return nil
	case *FetchFrame:
		var cur cursor
		cur.reset("runnel.v1.FetchResponse", data)
		return m.unmarshal(&cur, c.pool)
	case *ReplicateFrame:
		var cur cursor
		cur.reset("runnel.v1.ReplicateResponse", data)
		return m.unmarshal(&cur, c.pool)
	case *ReplicateRequestFrame:
		var cur cursor
		cur.reset("runnel.v1.ReplicateRequest", data)
		return m.unmarshal(&cur)
	case proto.Message:
		buf := data.MaterializeToBuffer(c.pool)
		defer buf.Free()
		return proto.Unmarshal(buf.ReadOnlyData(), m)
	}
	return fmt.Errorf("decode %T: not a protobuf message", v)
}
