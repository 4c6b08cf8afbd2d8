package codec

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// Field numbers of runnel.v1.FetchResponse.
const (
	fetchSubscriptionID   protowire.Number = 1
	fetchOffset           protowire.Number = 2
	fetchNextOffset       protowire.Number = 3
	fetchHighWatermark    protowire.Number = 4
	fetchLogStartOffset   protowire.Number = 5
	fetchLastStableOffset protowire.Number = 6
	fetchAborted          protowire.Number = 7
	fetchLeaderEpoch      protowire.Number = 8
	fetchError            protowire.Number = 9
	fetchThrottleMS       protowire.Number = 10
	fetchBatches          protowire.Number = 15
)

// FetchFrame is a runnel.v1.FetchResponse whose batches lie in a reference-counted buffer. A frame may be reused: decoding
// into it frees what it held. Not safe for concurrent use.
type FetchFrame struct {
	SubscriptionID      uint32
	FetchOffset         int64
	NextOffset          int64
	HighWatermark       int64
	LogStartOffset      int64
	LastStableOffset    int64
	AbortedTransactions []*runnelv1.AbortedTransaction
	LeaderEpoch         int32
	Error               *runnelv1.Error
	ThrottleMS          int64

	payload
}

func (f *FetchFrame) marshal() (mem.BufferSlice, error) {
	out := &encoded{}
	h := out.room[:0]
	h = appendVarint(h, fetchSubscriptionID, uint64(f.SubscriptionID))
	h = appendInt64(h, fetchOffset, f.FetchOffset)
	h = appendInt64(h, fetchNextOffset, f.NextOffset)
	h = appendInt64(h, fetchHighWatermark, f.HighWatermark)
	h = appendInt64(h, fetchLogStartOffset, f.LogStartOffset)
	h = appendInt64(h, fetchLastStableOffset, f.LastStableOffset)
	var err error
	for _, a := range f.AbortedTransactions {
		if h, err = appendMessage(h, fetchAborted, a); err != nil {
			return nil, err
		}
	}
	h = appendInt32(h, fetchLeaderEpoch, f.LeaderEpoch)
	if f.Error != nil {
		if h, err = appendMessage(h, fetchError, f.Error); err != nil {
			return nil, err
		}
	}
	h = appendInt64(h, fetchThrottleMS, f.ThrottleMS)
	return out.finish(h, fetchBatches, f.buf), nil
}

func (f *FetchFrame) unmarshal(c *cursor, pool *Pool) error {
	f.Free()
	*f = FetchFrame{}
	var seen uint32
	for c.more() {
		num, typ := c.tag()
		switch num {
		case fetchAborted:
			a := &runnelv1.AbortedTransaction{}
			c.embedded(typ, a)
			f.AbortedTransactions = append(f.AbortedTransactions, a)
		case fetchError:
			if c.once(&seen, num, typ, protowire.BytesType) {
				f.Error = &runnelv1.Error{}
				c.embedded(typ, f.Error)
			}
		case fetchBatches:
			if c.once(&seen, num, typ, protowire.BytesType) {
				f.buf, f.data = c.buffer(pool)
			}
		default:
			f.scalar(c, &seen, num, typ)
		}
	}
	if c.err != nil {
		f.Free()
		*f = FetchFrame{}
		return c.err
	}
	return nil
}

func (f *FetchFrame) scalar(c *cursor, seen *uint32, num protowire.Number, typ protowire.Type) {
	var dst *int64
	switch num {
	case fetchSubscriptionID, fetchLeaderEpoch:
	case fetchOffset:
		dst = &f.FetchOffset
	case fetchNextOffset:
		dst = &f.NextOffset
	case fetchHighWatermark:
		dst = &f.HighWatermark
	case fetchLogStartOffset:
		dst = &f.LogStartOffset
	case fetchLastStableOffset:
		dst = &f.LastStableOffset
	case fetchThrottleMS:
		dst = &f.ThrottleMS
	default:
		c.skip(typ)
		return
	}
	if !c.once(seen, num, typ, protowire.VarintType) {
		return
	}
	v := c.varint()
	switch num {
	case fetchSubscriptionID:
		f.SubscriptionID = uint32(v)
	case fetchLeaderEpoch:
		f.LeaderEpoch = int32(v)
	default:
		*dst = int64(v)
	}
}

// embedded reads one embedded message of a cold field.
func (c *cursor) embedded(typ protowire.Type, m proto.Message) {
	if typ != protowire.BytesType {
		c.fail("wire type %d, want %d", typ, protowire.BytesType)
		return
	}
	b := c.bytes()
	if c.err != nil {
		return
	}
	if err := proto.Unmarshal(b, m); err != nil {
		c.fail("embedded message: %v", err)
	}
}
