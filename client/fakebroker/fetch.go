package fakebroker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

const defaultFrameBytes = 1 << 20

// fetchSub is one subscription of a fetch stream.
type fetchSub struct {
	add    *runnelv1.FetchAdd
	name   string
	offset int64
	credit int64
	paused bool
}

// fetchStream is one Fetch call; only its own goroutine touches it.
type fetchStream struct {
	b      *broker
	grpc   grpc.BidiStreamingServer[runnelv1.FetchRequest, runnelv1.FetchResponse]
	subs   map[uint32]*fetchSub
	order  []uint32
	credit int64
}

// Fetch implements runnelv1.ConsumerServer.
func (b *broker) Fetch(stream grpc.BidiStreamingServer[runnelv1.FetchRequest, runnelv1.FetchResponse]) error {
	ctx := stream.Context()
	control := make(chan *runnelv1.FetchRequest)
	received := make(chan error, 1)
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			select {
			case control <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	s := &fetchStream{b: b, grpc: stream, subs: make(map[uint32]*fetchSub)}
	for {
		b.c.mu.Lock()
		changed := b.c.mu.changed
		b.c.mu.Unlock()
		for more := true; more; {
			var err error
			if more, err = s.push(); err != nil {
				return err
			}
		}
		select {
		case r := <-control:
			if err := s.control(r); err != nil {
				return err
			}
		case err := <-received:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *fetchStream) control(r *runnelv1.FetchRequest) error {
	s.credit += r.GetStreamCreditBytes()
	for _, id := range r.GetRemove() {
		s.end(id)
	}
	for _, id := range r.GetPause() {
		if sub := s.subs[id]; sub != nil {
			sub.paused = true
		}
	}
	for _, id := range r.GetResume() {
		if sub := s.subs[id]; sub != nil {
			sub.paused = false
		}
	}
	for _, cr := range r.GetCredit() {
		if sub := s.subs[cr.GetSubscriptionId()]; sub != nil {
			sub.credit += cr.GetBytes()
		}
	}
	for _, add := range r.GetAdd() {
		if err := s.add(add); err != nil {
			return err
		}
	}
	return nil
}

func (s *fetchStream) end(id uint32) {
	delete(s.subs, id)
	s.order = slices.DeleteFunc(s.order, func(o uint32) bool { return o == id })
}

func (s *fetchStream) add(add *runnelv1.FetchAdd) error {
	sub := &fetchSub{add: add, offset: add.GetOffset(), credit: add.GetCreditBytes(), name: s.b.nameOf(add.GetTopicId())}
	a, err := s.b.act(s.grpc.Context(), Call{Method: "Fetch", Topic: sub.name, Partition: add.GetPartition()})
	if err != nil {
		return err
	}
	if a.Error != nil {
		return s.fail(add.GetSubscriptionId(), sub, a.Error)
	}
	if a.Lose {
		return nil // never heard of again
	}
	s.subs[add.GetSubscriptionId()] = sub
	s.order = append(s.order, add.GetSubscriptionId())
	return nil
}

func (s *fetchStream) fail(id uint32, sub *fetchSub, e *Error) error {
	s.end(id)
	return s.grpc.SendMsg(&codec.FetchFrame{SubscriptionID: id, FetchOffset: sub.offset, Error: e.item()})
}

// push sends one frame per subscription that may get one, and reports whether there may be more.
func (s *fetchStream) push() (more bool, err error) {
	for _, id := range slices.Clone(s.order) {
		sub := s.subs[id]
		if sub == nil || sub.paused || sub.credit <= 0 || s.credit <= 0 {
			continue
		}
		frame, refused := s.b.frame(direct(s.grpc.Context()), sub)
		if refused != nil {
			if err := s.fail(id, sub, refused); err != nil {
				return false, err
			}
			continue
		}
		if frame == nil {
			continue
		}
		a, err := s.b.act(s.grpc.Context(), Call{Method: "FetchFrame", Topic: sub.name, Partition: sub.add.GetPartition()})
		if err != nil {
			return false, err
		}
		if a.Error != nil {
			if err := s.fail(id, sub, a.Error); err != nil {
				return false, err
			}
			continue
		}
		frame.SubscriptionID, frame.ThrottleMS = id, a.Throttle.Milliseconds()
		n := int64(len(frame.Batch()))
		sub.offset, sub.credit, s.credit = frame.NextOffset, sub.credit-n, s.credit-n
		if err := s.grpc.SendMsg(frame); err != nil {
			return false, err
		}
		if a.DisconnectAfter {
			return false, errDisconnect
		}
		more = true
	}
	return more, nil
}

// frame reads what comes next for a subscription; nil: nothing yet.
func (b *broker) frame(direct bool, sub *fetchSub) (*codec.FetchFrame, *Error) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	p, err := b.findLocked(direct, sub.add.GetTopicId(), sub.add.GetPartition(), sub.add.GetLeaderEpoch())
	if err != nil {
		return nil, err
	}
	size := defaultFrameBytes
	if n := sub.add.GetMaxFrameBytes(); n > 0 {
		size = int(n)
	}
	batches, next, err := p.read(sub.offset, size)
	if err != nil || len(batches) == 0 {
		return nil, err
	}
	f := &codec.FetchFrame{
		FetchOffset: sub.offset, NextOffset: next, HighWatermark: p.end, LogStartOffset: p.start, LastStableOffset: p.end, LeaderEpoch: p.epoch,
	}
	f.SetBatchBytes(batches)
	return f, nil
}

func (b *broker) nameOf(id []byte) string {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	for _, t := range b.c.mu.topics {
		if bytes.Equal(t.id[:], id) {
			return t.name
		}
	}
	return ""
}

// ListOffsets implements runnelv1.ConsumerServer.
func (b *broker) ListOffsets(ctx context.Context, r *runnelv1.ListOffsetsRequest) (*runnelv1.ListOffsetsResponse, error) {
	resp := &runnelv1.ListOffsetsResponse{}
	after, err := b.unary(ctx, Call{Method: "ListOffsets"})
	if err != nil {
		return nil, err
	}
	for _, q := range r.GetQueries() {
		a, err := b.act(ctx, Call{Method: "ListOffset", Topic: b.nameOf(q.GetTopicId()), Partition: q.GetPartition()})
		if err != nil {
			return nil, err
		}
		resp.Results = append(resp.Results, b.lookUp(direct(ctx), q, a))
	}
	return resp, after()
}

func (b *broker) lookUp(direct bool, q *runnelv1.OffsetQuery, a Action) *runnelv1.OffsetResult {
	res := &runnelv1.OffsetResult{TopicId: q.GetTopicId(), Partition: q.GetPartition(), TimestampMs: -1}
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	p, err := b.findLocked(direct, q.GetTopicId(), q.GetPartition(), q.GetLeaderEpoch())
	if a.Error != nil {
		err = a.Error
	}
	if err != nil {
		res.Error = err.item()
		return res
	}
	res.Offset, res.TimestampMs = p.offsetFor(q.GetAt())
	res.LeaderEpoch, res.LogStartOffset, res.HighWatermark = p.epoch, p.start, p.end
	if a.Unready {
		res.HighWatermark = -1
	}
	return res
}

// Subscribe implements runnelv1.ConsumerServer, from any broker.
func (b *broker) Subscribe(r *runnelv1.SubscribeRequest, stream grpc.ServerStreamingServer[runnelv1.SubscribeResponse]) error {
	if _, err := b.unary(stream.Context(), Call{Method: "Subscribe"}); err != nil {
		return err
	}
	c := b.c
	type place struct {
		p       *partition
		at, end int64
	}
	var places []*place
	c.mu.Lock()
	for _, name := range r.GetTopics() {
		t := c.mu.topics[name]
		if t == nil {
			c.mu.Unlock()
			return rpcError(topicNotFound(name))
		}
		for _, p := range t.partitions {
			if len(r.GetPartitions()) == 0 || slices.Contains(r.GetPartitions(), p.index) {
				at, _ := p.offsetFor(r.GetFrom())
				places = append(places, &place{p, at, p.end})
			}
		}
	}
	c.mu.Unlock()
	left := r.GetMaxRecords()
	for {
		resp, done := &runnelv1.SubscribeResponse{}, r.GetUntilEnd()
		c.mu.Lock()
		changed := c.mu.changed
		for _, pl := range places {
			pl.p.each(func(rec Record) bool {
				if rec.Offset >= pl.at && (!r.GetUntilEnd() || rec.Offset < pl.end) && (r.GetMaxRecords() == 0 || left > 0) {
					resp.Records = append(resp.Records, &runnelv1.SubscribedRecord{
						Topic: pl.p.topic.name, Partition: pl.p.index, Offset: rec.Offset, TimestampMs: rec.TimestampMS,
						Key: rec.Key, Value: rec.Value, Headers: rec.Headers,
					})
					pl.at = rec.Offset + 1
					left--
				}
				return true
			})
			done = done && pl.at >= pl.end
		}
		c.mu.Unlock()
		if len(resp.Records) > 0 {
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
		if done || (r.GetMaxRecords() > 0 && left <= 0) {
			return nil
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
