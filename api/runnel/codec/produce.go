package codec

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// TopicIDLen is the length of a topic id, bytes.
const TopicIDLen = 16

// Field numbers of runnel.v1.ProduceRequest.
const (
	produceCorrelationID protowire.Number = 1
	produceTopicID       protowire.Number = 2
	producePartition     protowire.Number = 3
	produceLeaderEpoch   protowire.Number = 4
	produceAcks          protowire.Number = 5
	produceBatch         protowire.Number = 6
)

// ProduceFrame is a runnel.v1.ProduceRequest whose batch lies in a reference-counted buffer. A frame may be reused: decoding
// into it frees what it held. Not safe for concurrent use.
type ProduceFrame struct {
	CorrelationID uint64
	// TopicID is all zeros when the message carried none, or one of a wrong length: see TopicIDLength.
	TopicID [TopicIDLen]byte
	// TopicIDLength is the length of topic_id in the decoded message; anything but TopicIDLen is a fault of the sender. Encoding
	// ignores it.
	TopicIDLength int
	Partition     int32
	LeaderEpoch   int32
	Acks          runnelv1.Acks
	// Malformed is set instead of failing the call, so that a server can answer bad bytes with an error of its own. The other
	// fields are then undefined, and there is no batch.
	Malformed *DecodeError

	payload
}

// Encoding sends the batch without copying it; the frame keeps its own reference.
func (f *ProduceFrame) marshal() mem.BufferSlice {
	out := &encoded{}
	h := out.room[:0]
	h = appendVarint(h, produceCorrelationID, f.CorrelationID)
	if f.TopicID != [TopicIDLen]byte{} {
		h = protowire.AppendTag(h, produceTopicID, protowire.BytesType)
		h = protowire.AppendBytes(h, f.TopicID[:])
	}
	h = appendInt32(h, producePartition, f.Partition)
	h = appendInt32(h, produceLeaderEpoch, f.LeaderEpoch)
	h = appendInt32(h, produceAcks, int32(f.Acks))
	return out.finish(h, produceBatch, f.buf)
}

func (f *ProduceFrame) unmarshal(c *cursor, pool *Pool) {
	f.Free()
	*f = ProduceFrame{}
	var seen uint32
	for c.more() {
		num, typ := c.tag()
		switch num {
		case produceCorrelationID:
			if c.once(&seen, num, typ, protowire.VarintType) {
				f.CorrelationID = c.varint()
			}
		case produceTopicID:
			if c.once(&seen, num, typ, protowire.BytesType) {
				f.TopicIDLength = c.topicID(&f.TopicID)
			}
		case producePartition:
			if c.once(&seen, num, typ, protowire.VarintType) {
				f.Partition = c.int32()
			}
		case produceLeaderEpoch:
			if c.once(&seen, num, typ, protowire.VarintType) {
				f.LeaderEpoch = c.int32()
			}
		case produceAcks:
			if c.once(&seen, num, typ, protowire.VarintType) {
				f.Acks = runnelv1.Acks(c.int32())
			}
		case produceBatch:
			if c.once(&seen, num, typ, protowire.BytesType) {
				f.buf, f.data = c.buffer(pool)
			}
		default:
			c.skip(typ)
		}
	}
	if c.err != nil {
		f.Free()
		*f = ProduceFrame{Malformed: c.err}
	}
}

// topicID reads a topic id, and returns its length; dst is set only when the length is right.
func (c *cursor) topicID(dst *[TopicIDLen]byte) int {
	n := c.length()
	switch {
	case c.err != nil:
	case n == TopicIDLen:
		c.copyTo(dst[:])
	default:
		c.skipBytes(n)
	}
	return n
}

// int32 reads a varint as protobuf's int32: the low 32 bits.
func (c *cursor) int32() int32 { return int32(c.varint()) }
