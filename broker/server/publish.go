package server

import (
	"context"
	"fmt"
	"math"
	"slices"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/record"
)

// InitProducer implements runnelv1.ProducerServer.
func (l *listener) InitProducer(ctx context.Context, _ *runnelv1.InitProducerRequest) (*runnelv1.InitProducerResponse, error) {
	id, epoch, err := l.cfg.ProducerIDs.NextProducerID(ctx)
	if err != nil {
		return nil, err
	}
	return &runnelv1.InitProducerResponse{ProducerId: id, ProducerEpoch: int32(epoch), ThrottleMs: l.budget.throttleMS()}, nil
}

// publish is one Publish call: records sorted into batches, and what became of them.
type publish struct {
	l       *listener
	req     *runnelv1.PublishRequest
	topic   *Topic
	resp    *runnelv1.PublishResponse
	spread  int32 // where records without key and partition go
	batches []*publishBatch
	times   []int64 // of the records, ms
	done    chan *publishBatch
}

// publishBatch is one batch of a Publish call.
type publishBatch struct {
	l         *listener
	partition int32
	builder   *record.Builder
	bytes     []byte
	records   []int   // indexes into the request
	times     []int64 // their timestamps, ms
	result    partition.Result
	done      chan<- *publishBatch // never blocks: there is room for every batch
}

// Acked implements partition.Waiter.
func (b *publishBatch) Acked(r partition.Result) {
	b.result = r
	b.l.budget.release(len(b.bytes))
	b.done <- b
}

// Publish implements runnelv1.ProducerServer.
func (l *listener) Publish(ctx context.Context, req *runnelv1.PublishRequest) (*runnelv1.PublishResponse, error) {
	l = l.forClient(ctx)
	p := &publish{l: l, req: req, resp: &runnelv1.PublishResponse{}}
	if n := len(req.GetRecords()); n < 1 || n > maxItems {
		return nil, invalid("records", fmt.Sprintf("%d items long", n), fmt.Sprintf("1 to %d items", maxItems))
	}
	if a := req.GetAcks(); a < runnelv1.Acks_ACKS_UNSPECIFIED || a > runnelv1.Acks_ACKS_LEADER {
		return nil, invalid("acks", int32(a), "0 (all), 1 (all) or 2 (leader)")
	}
	var err error
	if p.topic, err = l.cfg.Metadata.Snapshot().topic(req.GetTopic(), req.GetTopicId()); err != nil {
		return nil, err
	}
	if len(p.topic.Partitions) == 0 {
		return nil, fmt.Errorf("%w: topic %s is still being created", partition.ErrNotReady, req.GetTopic())
	}
	p.spread = int32(l.spread.Add(1) % uint32(len(p.topic.Partitions)))
	if err := p.checkProducer(); err != nil {
		return nil, err
	}
	p.times = make([]int64, len(req.GetRecords()))
	for i := range req.GetRecords() {
		p.resp.Results = append(p.resp.Results, &runnelv1.PublishResult{Partition: -1, Offset: -1, TimestampMs: -1})
		if err := p.place(i); err != nil {
			if p.idempotent() {
				return nil, err // part of a sequence cannot be left out
			}
			p.resp.Results[i].Error = l.item(err)
		}
	}
	if p.idempotent() && len(p.batches) != 1 {
		return nil, invalid("records", fmt.Sprintf("%d batches", len(p.batches)), "one batch of one partition, when a producer id is given")
	}
	wait := p.publishElsewhere(ctx)
	p.send(ctx)
	wait()
	p.resp.ThrottleMs = l.budget.throttleMS()
	return p.resp, nil
}

func (p *publish) idempotent() bool { return p.req.ProducerId != nil }

func (p *publish) checkProducer() error {
	id, epoch, seq := p.req.ProducerId, p.req.ProducerEpoch, p.req.Sequence
	if (id == nil) != (epoch == nil) || (id == nil) != (seq == nil) {
		return invalid("producer_id, producer_epoch, sequence", "partly set", "all three or none")
	}
	switch {
	case id == nil:
		return nil
	case *id < 0:
		return invalid("producer_id", *id, "0 or more")
	case *epoch < 0 || *epoch > math.MaxInt16:
		return invalid("producer_epoch", *epoch, fmt.Sprintf("0 to %d", math.MaxInt16))
	case *seq < 0:
		return invalid("sequence", *seq, "0 or more")
	}
	return nil
}

// place puts a record into the batch of its partition.
func (p *publish) place(i int) error {
	r := p.req.GetRecords()[i]
	key, value := plainKey(r), plainValue(r)
	n, err := p.partitionOf(r, key)
	if err != nil {
		return err
	}
	p.resp.Results[i].Partition = n
	now := p.l.cfg.Clock.Now().UnixMilli()
	ts := now
	if r.TimestampMs != nil {
		ts = *r.TimestampMs
	}
	ahead := p.topic.Config.GetMaxTimestampAheadMs()
	if ts < 0 || ahead > 0 && ts > now+ahead {
		return invalid("timestamp_ms", ts, fmt.Sprintf("0 to %d", now+ahead))
	}
	headers := make([]record.HeaderKV, 0, len(r.GetHeaders()))
	for _, h := range r.GetHeaders() {
		headers = append(headers, record.HeaderKV{Key: []byte(h.GetKey()), Value: h.GetValue()})
	}
	limit := int(p.topic.Config.GetMaxBatchBytes())
	b := p.open(n)
	if b == nil || b.builder.SizeWith(ts, key, value, headers) > limit {
		b = &publishBatch{l: p.l, partition: n, builder: record.NewBuilder(record.CodecNone)}
		if size := b.builder.SizeWith(ts, key, value, headers); size > limit {
			return &log.BatchTooLargeError{Size: size, Limit: limit}
		}
		p.batches = append(p.batches, b)
	}
	b.builder.Append(ts, key, value, headers)
	p.times[i] = ts
	b.records, b.times = append(b.records, i), append(b.times, ts)
	return nil
}

// open returns the newest batch of a partition.
func (p *publish) open(n int32) *publishBatch {
	for _, b := range slices.Backward(p.batches) {
		if b.partition == n {
			return b
		}
	}
	return nil
}

func (p *publish) partitionOf(r *runnelv1.PublishRecord, key []byte) (int32, error) {
	partitions := int32(len(p.topic.Partitions))
	switch {
	case r.Partition != nil:
		if _, err := p.topic.partition(*r.Partition); err != nil {
			return 0, err
		}
		return *r.Partition, nil
	case key != nil:
		return record.PartitionForKey(key, partitions), nil
	case p.idempotent():
		return 0, invalid("records.partition", "not set", "a partition or a key, when a producer id is given")
	}
	return p.spread, nil
}

func plainKey(r *runnelv1.PublishRecord) []byte {
	switch k := r.GetKeyKind().(type) {
	case *runnelv1.PublishRecord_Key:
		return notNil(k.Key)
	case *runnelv1.PublishRecord_KeyText:
		return notNil([]byte(k.KeyText))
	}
	return nil
}

func plainValue(r *runnelv1.PublishRecord) []byte {
	switch v := r.GetValueKind().(type) {
	case *runnelv1.PublishRecord_Value:
		return notNil(v.Value)
	case *runnelv1.PublishRecord_Text:
		return notNil([]byte(v.Text))
	}
	return nil
}

// notNil keeps what is present but empty apart from what is absent.
func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// send appends all batches and waits for their outcomes. Those that have none when ctx ends are unknown.
func (p *publish) send(ctx context.Context) {
	p.done = make(chan *publishBatch, len(p.batches))
	for _, b := range p.batches {
		if err := p.produce(ctx, b); err != nil {
			b.result = partition.Result{Base: -1, AppendTimeMS: -1, Err: err}
			p.done <- b
		}
	}
	settled := make(map[*publishBatch]bool, len(p.batches))
	for range p.batches {
		select {
		case b := <-p.done:
			settled[b] = true
			p.settle(b, b.result)
		case <-ctx.Done():
			for _, b := range p.batches {
				if !settled[b] {
					p.settle(b, partition.Result{Err: fmt.Errorf("%w: no acknowledgement in time: %w", partition.ErrOutcomeUnknown, ctx.Err())})
				}
			}
			return
		}
	}
}

func (p *publish) produce(ctx context.Context, b *publishBatch) error {
	b.done = p.done
	if p.idempotent() {
		b.builder.SetProducer(p.req.GetProducerId(), int16(p.req.GetProducerEpoch()), p.req.GetSequence())
	}
	var err error
	if b.bytes, err = b.builder.Build(nil); err != nil {
		return err
	}
	host, err := p.l.cfg.Partitions.Lookup(p.topic.ID, b.partition)
	if err != nil {
		return partitionFault(err)
	}
	h, err := p.l.validate(ctx, b.bytes, host.Config())
	if err != nil {
		return err
	}
	if err := p.l.budget.acquire(ctx, len(b.bytes)); err != nil {
		return err
	}
	p.l.metrics.producedBytes.Add(float64(len(b.bytes)))
	host.Produce(&partition.Produce{
		Batch: b.bytes, Header: h, LeaderEpoch: -1, AcksLeader: p.req.GetAcks() == runnelv1.Acks_ACKS_LEADER, InOrder: true, Waiter: b,
	})
	return nil
}

// settle writes r, a batch's outcome, into the results of its records.
func (p *publish) settle(b *publishBatch, r partition.Result) {
	if r.Err != nil {
		p.l.metrics.refusedBatches.Inc()
		e := p.l.item(r.Err)
		for _, i := range b.records {
			p.resp.Results[i].Error = e
		}
		return
	}
	p.l.metrics.producedBatches.Inc()
	p.l.metrics.producedRecords.Add(float64(len(b.records)))
	for n, i := range b.records {
		out := p.resp.Results[i]
		out.Offset, out.TimestampMs = r.Base+int64(n), b.times[n]
		if r.AppendTimeMS >= 0 {
			out.TimestampMs = r.AppendTimeMS
		}
	}
}
