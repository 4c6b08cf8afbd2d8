package codec

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Field numbers of runnel.v1.ReplicateRequest and runnel.v1.ReplicateAck.
const (
	requestHello       protowire.Number = 1
	requestUnsubscribe protowire.Number = 2
	requestSubscribe   protowire.Number = 3
	requestAcks        protowire.Number = 4

	ackSubscriptionID protowire.Number = 1
	ackLeaderEpoch    protowire.Number = 2
	ackFlushed        protowire.Number = 3
	ackLogStart       protowire.Number = 4
)

// ReplicaAck is a runnel.v1.ReplicateAck.
type ReplicaAck struct {
	SubscriptionID uint32
	LeaderEpoch    int32
	Flushed        int64
	LogStart       int64
}

// ReplicateRequestFrame is a runnel.v1.ReplicateRequest. A frame may be reused: decoding into it reuses Acks and Unsubscribe. Not safe
// for concurrent use.
type ReplicateRequestFrame struct {
	Hello       *runnelv1.ReplicateHello
	Unsubscribe []uint32
	Subscribe   []*runnelv1.ReplicateSubscribe
	Acks        []ReplicaAck
}

func (f *ReplicateRequestFrame) marshal(pool *Pool) (mem.BufferSlice, error) {
	size := len(f.Acks)*maxOffsets + len(f.Unsubscribe)*protowire.SizeVarint(1<<32-1) + 16
	if f.Hello != nil {
		size += proto.Size(f.Hello) + 16
	}
	for _, s := range f.Subscribe {
		size += proto.Size(s) + 16
	}
	out := &encoded{}
	h, b := out.room[:0], (*[]byte)(nil)
	if size > len(out.room) {
		b = pool.Get(size)
		h = (*b)[:0]
	}
	h, err := f.append(h)
	if err != nil {
		if b != nil {
			pool.Put(b)
		}
		return nil, err
	}
	if b == nil {
		return out.finish(h, 0, nil), nil
	}
	*b = h
	out.bufs[0] = mem.NewBuffer(b, pool)
	return out.bufs[:1], nil
}

func (f *ReplicateRequestFrame) append(h []byte) ([]byte, error) {
	var err error
	if f.Hello != nil {
		if h, err = appendMessage(h, requestHello, f.Hello); err != nil {
			return nil, err
		}
	}
	if len(f.Unsubscribe) > 0 { // packed
		n := 0
		for _, id := range f.Unsubscribe {
			n += protowire.SizeVarint(uint64(id))
		}
		h = protowire.AppendTag(h, requestUnsubscribe, protowire.BytesType)
		h = protowire.AppendVarint(h, uint64(n))
		for _, id := range f.Unsubscribe {
			h = protowire.AppendVarint(h, uint64(id))
		}
	}
	for _, s := range f.Subscribe {
		if h, err = appendMessage(h, requestSubscribe, s); err != nil {
			return nil, err
		}
	}
	for i := range f.Acks {
		a := &f.Acks[i]
		var room [maxOffsets]byte
		m := appendVarint(room[:0], ackSubscriptionID, uint64(a.SubscriptionID))
		m = appendInt32(m, ackLeaderEpoch, a.LeaderEpoch)
		m = appendInt64(m, ackFlushed, a.Flushed)
		m = appendInt64(m, ackLogStart, a.LogStart)
		h = protowire.AppendBytes(protowire.AppendTag(h, requestAcks, protowire.BytesType), m)
	}
	return h, nil
}

func (f *ReplicateRequestFrame) unmarshal(c *cursor) error {
	*f = ReplicateRequestFrame{Unsubscribe: f.Unsubscribe[:0], Acks: f.Acks[:0]}
	var seen uint32
	for c.more() {
		num, typ := c.tag()
		switch num {
		case requestHello:
			if c.once(&seen, num, typ, protowire.BytesType) {
				f.Hello = &runnelv1.ReplicateHello{}
				c.embedded(typ, f.Hello)
			}
		case requestUnsubscribe:
			c.unsubscribe(typ, f)
		case requestSubscribe:
			s := &runnelv1.ReplicateSubscribe{}
			c.embedded(typ, s)
			f.Subscribe = append(f.Subscribe, s)
		case requestAcks:
			var a ReplicaAck
			c.ack(typ, &a)
			f.Acks = append(f.Acks, a)
		default:
			c.skip(typ)
		}
	}
	if c.err != nil {
		*f = ReplicateRequestFrame{}
		return c.err
	}
	return nil
}

// unsubscribe reads repeated numbers in either form, as every protobuf parser has to.
func (c *cursor) unsubscribe(typ protowire.Type, f *ReplicateRequestFrame) {
	if typ == protowire.VarintType {
		f.Unsubscribe = append(f.Unsubscribe, uint32(c.varint()))
		return
	}
	end := c.within(typ)
	for c.err == nil && c.pos < end {
		f.Unsubscribe = append(f.Unsubscribe, uint32(c.varint()))
	}
	c.ended(end)
}

func (c *cursor) ack(typ protowire.Type, a *ReplicaAck) {
	var seen uint32
	end := c.within(typ)
	for c.err == nil && c.pos < end {
		num, typ := c.tag()
		switch num {
		case ackSubscriptionID:
			if c.once(&seen, num, typ, protowire.VarintType) {
				a.SubscriptionID = uint32(c.varint())
			}
		case ackLeaderEpoch:
			if c.once(&seen, num, typ, protowire.VarintType) {
				a.LeaderEpoch = c.int32()
			}
		case ackFlushed:
			c.int64Field(&seen, num, typ, &a.Flushed)
		case ackLogStart:
			c.int64Field(&seen, num, typ, &a.LogStart)
		default:
			c.skip(typ)
		}
	}
	c.ended(end)
}
