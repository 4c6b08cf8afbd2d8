package fakebroker

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/record"
)

// Produce implements runnelv1.ProducerServer. Batches are taken and answered one after the other.
func (b *broker) Produce(stream grpc.BidiStreamingServer[runnelv1.ProduceRequest, runnelv1.ProduceResponse]) error {
	var f codec.ProduceFrame
	var v record.Validator
	silent := make(map[string]bool) // partitions with a lost answer: later answers would overtake it
	defer f.Free()
	for {
		if err := stream.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if f.Malformed != nil {
			return rpcError(refuse(codes.InvalidArgument, "MALFORMED_MESSAGE", false, "%v", f.Malformed))
		}
		call := b.describe(&f)
		a, err := b.act(stream.Context(), call)
		if err != nil {
			return err
		}
		resp := &runnelv1.ProduceResponse{CorrelationId: f.CorrelationID, Partition: f.Partition, TopicId: f.TopicID[:], ThrottleMs: a.Throttle.Milliseconds()}
		b.take(direct(stream.Context()), &f, &v, a, resp)
		key := string(f.TopicID[:]) + string(rune(f.Partition))
		if a.DisconnectAfter {
			return errDisconnect
		}
		if a.Lose || silent[key] {
			silent[key] = true
			continue
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func (b *broker) describe(f *codec.ProduceFrame) Call {
	call := Call{Method: "Produce", Partition: f.Partition, ProducerID: -1, Sequence: -1}
	if h, err := record.ParseHeader(f.Batch()); err == nil {
		call.Records, call.ProducerID, call.Sequence = int(h.Count), h.ProducerID, h.BaseSequence
	}
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	for _, t := range b.c.mu.topics {
		if t.id == f.TopicID {
			call.Topic = t.name
		}
	}
	return call
}

// take appends a batch, unless the action says otherwise, and fills the answer.
func (b *broker) take(direct bool, f *codec.ProduceFrame, v *record.Validator, a Action, resp *runnelv1.ProduceResponse) {
	resp.BaseOffset, resp.LogAppendTimeMs = -1, -1
	if a.Error != nil {
		resp.Error = a.Error.item()
		return
	}
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	p, err := b.findLocked(direct, f.TopicID[:], f.Partition, f.LeaderEpoch)
	if err == nil {
		appendTime := int64(-1)
		if p.topic.config.GetTimestampType() == runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME {
			appendTime = c.cfg.clock.Now().UnixMilli()
		}
		if resp.BaseOffset, resp.Duplicate, err = p.append(v, f.Batch(), appendTime); err == nil {
			resp.LogAppendTimeMs, resp.LogStartOffset = appendTime, p.start
			c.changeLocked()
		}
	}
	if err != nil {
		resp.BaseOffset, resp.Error = -1, err.item()
	}
}

// InitProducer implements runnelv1.ProducerServer.
func (b *broker) InitProducer(ctx context.Context, _ *runnelv1.InitProducerRequest) (*runnelv1.InitProducerResponse, error) {
	after, err := b.unary(ctx, Call{Method: "InitProducer"})
	if err != nil {
		return nil, err
	}
	b.c.mu.Lock()
	b.c.mu.nextID++
	id := b.c.mu.nextID
	b.c.mu.Unlock()
	return &runnelv1.InitProducerResponse{ProducerId: id}, after()
}

// Publish implements runnelv1.ProducerServer: every record becomes a batch.
func (b *broker) Publish(ctx context.Context, r *runnelv1.PublishRequest) (*runnelv1.PublishResponse, error) {
	after, err := b.unary(ctx, Call{Method: "Publish", Topic: r.GetTopic(), Records: len(r.GetRecords())})
	if err != nil {
		return nil, err
	}
	c, resp := b.c, &runnelv1.PublishResponse{}
	c.mu.Lock()
	t := c.mu.topics[r.GetTopic()]
	for _, rec := range r.GetRecords() {
		if t != nil {
			resp.Results = append(resp.Results, c.publishLocked(t, rec))
		}
	}
	c.changeLocked()
	c.mu.Unlock()
	if t == nil {
		return nil, rpcError(topicNotFound(r.GetTopic()))
	}
	return resp, after()
}

func (c *Cluster) publishLocked(t *topic, rec *runnelv1.PublishRecord) *runnelv1.PublishResult {
	key, value := rec.GetKey(), rec.GetValue()
	if k, ok := rec.GetKeyKind().(*runnelv1.PublishRecord_KeyText); ok {
		key = []byte(k.KeyText)
	}
	if v, ok := rec.GetValueKind().(*runnelv1.PublishRecord_Text); ok {
		value = []byte(v.Text)
	}
	n := int32(0)
	switch {
	case rec.Partition != nil:
		n = rec.GetPartition()
	case key != nil:
		n = record.PartitionForKey(key, int32(len(t.partitions)))
	}
	if n < 0 || int(n) >= len(t.partitions) {
		return &runnelv1.PublishResult{Partition: n, Offset: -1, Error: unknownPartition(t.name, n, len(t.partitions)).item()}
	}
	ts := c.cfg.clock.Now().UnixMilli()
	if rec.TimestampMs != nil {
		ts = rec.GetTimestampMs()
	}
	headers := make([]record.HeaderKV, 0, len(rec.GetHeaders()))
	for _, h := range rec.GetHeaders() {
		headers = append(headers, record.HeaderKV{Key: []byte(h.GetKey()), Value: h.GetValue()})
	}
	builder := record.NewBuilder(record.CodecNone)
	builder.Append(ts, key, value, headers)
	batch, err := builder.Build(nil)
	if err != nil {
		return &runnelv1.PublishResult{Partition: n, Offset: -1, Error: refuse(codes.InvalidArgument, "INVALID_BATCH", false, "%v", err).item()}
	}
	base, _, refused := t.partitions[n].append(&c.mu.validator, batch, -1)
	if refused != nil {
		return &runnelv1.PublishResult{Partition: n, Offset: -1, Error: refused.item()}
	}
	return &runnelv1.PublishResult{Partition: n, Offset: base, TimestampMs: ts}
}

func topicNotFound(name string) *Error {
	return refuse(codes.NotFound, "TOPIC_NOT_FOUND", false, "topic %q", name)
}
