package codec

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Field numbers of runnel.v1.ReplicateResponse.
const (
	replicateSubscriptionID    protowire.Number = 1
	replicateLeaderEpoch       protowire.Number = 2
	replicateBaseOffset        protowire.Number = 3
	replicateHighWatermark     protowire.Number = 4
	replicateLogStartWanted    protowire.Number = 5
	replicateLogStartPublished protowire.Number = 6
	replicateAnswer            protowire.Number = 7
	replicateOffsets           protowire.Number = 8
	replicateBatches           protowire.Number = 15
)

// Field numbers of runnel.v1.ReplicateOffsets.
const (
	offsetsSubscriptionID    protowire.Number = 1
	offsetsLeaderEpoch       protowire.Number = 2
	offsetsHighWatermark     protowire.Number = 3
	offsetsLogStartWanted    protowire.Number = 4
	offsetsLogStartPublished protowire.Number = 5
)

// ReplicaOffsets is a runnel.v1.ReplicateOffsets.
type ReplicaOffsets struct {
	SubscriptionID    uint32
	LeaderEpoch       int32
	HighWatermark     int64
	LogStartWanted    int64
	LogStartPublished int64
}

// ReplicateFrame is a runnel.v1.ReplicateResponse whose batches lie in a reference-counted buffer. A frame may be reused: decoding
// into it frees what it held, and reuses Offsets. Not safe for concurrent use.
type ReplicateFrame struct {
	SubscriptionID    uint32
	LeaderEpoch       int32
	BaseOffset        int64
	HighWatermark     int64
	LogStartWanted    int64
	LogStartPublished int64
	Answer            *runnelv1.ReplicateAnswer
	Offsets           []ReplicaOffsets

	payload
}

func (f *ReplicateFrame) marshal(pool *Pool) (mem.BufferSlice, error) {
	out := &encoded{}
	h := out.room[:0]
	h = appendVarint(h, replicateSubscriptionID, uint64(f.SubscriptionID))
	h = appendInt32(h, replicateLeaderEpoch, f.LeaderEpoch)
	h = appendInt64(h, replicateBaseOffset, f.BaseOffset)
	h = appendInt64(h, replicateHighWatermark, f.HighWatermark)
	h = appendInt64(h, replicateLogStartWanted, f.LogStartWanted)
	h = appendInt64(h, replicateLogStartPublished, f.LogStartPublished)
	var err error
	if f.Answer != nil {
		if h, err = appendMessage(h, replicateAnswer, f.Answer); err != nil {
			return nil, err
		}
	}
	if len(f.Offsets) > 0 {
		return out.list(h, pool, len(f.Offsets), func(b []byte, i int) []byte { return f.Offsets[i].append(b) }, f.buf), nil
	}
	return out.finish(h, replicateBatches, f.buf), nil
}

// maxOffsets is the most bytes that one entry of a list takes: its tag and length, five fields of a tag and ten bytes.
const maxOffsets = 2 + 5*11

// list appends n entries to the header, in a pooled buffer, and the batch behind them.
func (e *encoded) list(h []byte, pool *Pool, n int, entry func([]byte, int) []byte, batch mem.Buffer) mem.BufferSlice {
	b := pool.Get(len(h) + n*maxOffsets + maxOffsets)
	buf := (*b)[:copy(*b, h)]
	for i := range n {
		buf = entry(buf, i)
	}
	var tail mem.Buffer
	if batch != nil && batch.Len() > 0 {
		buf = protowire.AppendTag(buf, replicateBatches, protowire.BytesType)
		buf = protowire.AppendVarint(buf, uint64(batch.Len()))
		batch.Ref()
		tail = batch
	}
	*b = buf
	e.bufs[0] = mem.NewBuffer(b, pool)
	if tail == nil {
		return e.bufs[:1]
	}
	e.bufs[1] = tail
	return e.bufs[:2]
}

func (o *ReplicaOffsets) append(b []byte) []byte {
	var room [maxOffsets]byte
	m := appendVarint(room[:0], offsetsSubscriptionID, uint64(o.SubscriptionID))
	m = appendInt32(m, offsetsLeaderEpoch, o.LeaderEpoch)
	m = appendInt64(m, offsetsHighWatermark, o.HighWatermark)
	m = appendInt64(m, offsetsLogStartWanted, o.LogStartWanted)
	m = appendInt64(m, offsetsLogStartPublished, o.LogStartPublished)
	b = protowire.AppendTag(b, replicateOffsets, protowire.BytesType)
	return protowire.AppendBytes(b, m)
}

func (f *ReplicateFrame) unmarshal(c *cursor, pool *Pool) error {
	f.Free()
	*f = ReplicateFrame{Offsets: f.Offsets[:0]}
	var seen uint32
	for c.more() {
		num, typ := c.tag()
		switch num {
		case replicateAnswer:
			if c.once(&seen, num, typ, protowire.BytesType) {
				f.Answer = &runnelv1.ReplicateAnswer{}
				c.embedded(typ, f.Answer)
			}
		case replicateOffsets:
			var o ReplicaOffsets
			c.offsets(typ, &o)
			f.Offsets = append(f.Offsets, o)
		case replicateBatches:
			if c.once(&seen, num, typ, protowire.BytesType) {
				f.buf, f.data = c.buffer(pool)
			}
		case replicateSubscriptionID:
			if c.once(&seen, num, typ, protowire.VarintType) {
				f.SubscriptionID = uint32(c.varint())
			}
		case replicateLeaderEpoch:
			if c.once(&seen, num, typ, protowire.VarintType) {
				f.LeaderEpoch = c.int32()
			}
		default:
			c.int64Field(&seen, num, typ, f.int64Of(num))
		}
	}
	if c.err != nil {
		f.Free()
		*f = ReplicateFrame{}
		return c.err
	}
	return nil
}

func (f *ReplicateFrame) int64Of(num protowire.Number) *int64 {
	switch num { //nolint:exhaustive // field numbers, not an enumeration
	case replicateBaseOffset:
		return &f.BaseOffset
	case replicateHighWatermark:
		return &f.HighWatermark
	case replicateLogStartWanted:
		return &f.LogStartWanted
	case replicateLogStartPublished:
		return &f.LogStartPublished
	}
	return nil
}

// int64Field reads a field into dst, or skips it when dst is nil.
func (c *cursor) int64Field(seen *uint32, num protowire.Number, typ protowire.Type, dst *int64) {
	if dst == nil {
		c.skip(typ)
		return
	}
	if c.once(seen, num, typ, protowire.VarintType) {
		*dst = int64(c.varint())
	}
}

// within reads a length-delimited message, and returns where in the whole it ends.
func (c *cursor) within(typ protowire.Type) (end int) {
	if typ != protowire.BytesType {
		c.fail("wire type %d, want %d", typ, protowire.BytesType)
		return c.pos
	}
	n := c.length()
	return c.pos + n
}

// ended checks that a message inside another did not reach over its end.
func (c *cursor) ended(end int) {
	if c.err == nil && c.pos != end {
		c.fail("embedded message ends %d bytes behind its length", c.pos-end)
	}
}

func (c *cursor) offsets(typ protowire.Type, o *ReplicaOffsets) {
	var seen uint32
	end := c.within(typ)
	for c.err == nil && c.pos < end {
		num, typ := c.tag()
		switch num {
		case offsetsSubscriptionID:
			if c.once(&seen, num, typ, protowire.VarintType) {
				o.SubscriptionID = uint32(c.varint())
			}
		case offsetsLeaderEpoch:
			if c.once(&seen, num, typ, protowire.VarintType) {
				o.LeaderEpoch = c.int32()
			}
		case offsetsHighWatermark:
			c.int64Field(&seen, num, typ, &o.HighWatermark)
		case offsetsLogStartWanted:
			c.int64Field(&seen, num, typ, &o.LogStartWanted)
		case offsetsLogStartPublished:
			c.int64Field(&seen, num, typ, &o.LogStartPublished)
		default:
			c.skip(typ)
		}
	}
	c.ended(end)
}
