package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/record"
)

// Producer appends records. It is idempotent: a retry never duplicates a record. Every method is safe for concurrent use; records
// that one goroutine produces to one partition keep their order.
//
// A record is encoded when it is queued, into the batch of its partition. Senders, one per broker, take batches that are full or
// have waited for the linger time, and send up to MaxInFlight per partition before the first is answered.
type Producer struct {
	c      *Client
	cfg    producerConfig
	budget budget
	timers *timers

	topics   atomic.Pointer[map[string]*producerTopic] // copied when it grows
	builders [record.CodecZstd + 1]sync.Pool           // of *record.Builder, by codec
	batches  sync.Pool                                 // of *batch

	cancel      context.CancelFunc
	ctx         context.Context //nolint:containedctx // ends what the producer has started
	unsubscribe func()
	closing     chan struct{} // closed when Close begins
	closed      atomic.Bool
	wg          sync.WaitGroup

	timeoutsArmed atomic.Bool

	mu struct {
		sync.Mutex
		topics  map[string]*producerTopic
		senders map[int32]*sender
		ended   bool
		ids     producerIDs
	}
}

// NewProducer makes a producer: idempotent, acknowledged by all in-sync replicas, linger 5 ms, batches of 1 MiB, a buffer of
// 64 MiB, and a delivery timeout of 2 min, unless options say otherwise. It starts goroutines; Close ends them.
func (c *Client) NewProducer(opts ...ProducerOption) (*Producer, error) {
	cfg, err := newProducerConfig(opts)
	if err != nil {
		return nil, err
	}
	p := &Producer{c: c, cfg: cfg, timers: newTimers(c.cfg.clock), closing: make(chan struct{})}
	p.budget.limit = cfg.bufferBytes
	p.topics.Store(&map[string]*producerTopic{})
	p.mu.topics, p.mu.senders, p.mu.ids.id = make(map[string]*producerTopic), make(map[int32]*sender), -1
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if err := c.register(p); err != nil {
		p.cancel()
		return nil, err
	}
	p.wg.Go(func() { p.timers.run(p.ctx) })
	p.unsubscribe = c.meta.subscribe(p.update)
	return p, nil
}

// recordOverhead is what a queued record costs beside its bytes; it also exceeds what encoding adds to a record without headers.
const recordOverhead = 64

// headerOverhead exceeds what encoding adds to a header.
const headerOverhead = 10

func costOf(r *Record) int64 {
	n := recordOverhead + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += headerOverhead + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}

// Produce queues r. It blocks while the buffer is full, and for a topic that is produced to for the first time until metadata
// knows it, both until ctx ends.
//
// done, which may be nil, runs exactly once, in append order per partition, on a goroutine of the client: it must not block. When
// r could not even be queued (too large, unknown topic or partition, ctx ended, closed) it runs before Produce returns. r belongs
// to the producer until then.
//
// Cancelling ctx drops r only before its batch is first sent, and then what is queued behind it in its partition fails as well,
// as after any other failure. After that the outcome is awaited, because a sent batch cannot be recalled.
func (p *Producer) Produce(ctx context.Context, r *Record, done func(*Record, error)) {
	if done == nil {
		done = ignore
	}
	if err := p.queue(ctx, r, done); err != nil {
		r.Offset = -1
		done(r, &ProduceError{TopicPartition: TopicPartition{r.Topic, r.Partition}, Outcome: ErrNotWritten, Cause: err})
	}
}

func ignore(*Record, error) {}

func (p *Producer) queue(ctx context.Context, r *Record, done func(*Record, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.closed.Load() {
		return ErrClosed
	}
	t := (*p.topics.Load())[r.Topic]
	if t == nil {
		var err error
		if t, err = p.topic(ctx, r.Topic); err != nil {
			return err
		}
	}
	cost := costOf(r)
	if !p.budget.try(cost) {
		if err := p.waitForRoom(ctx, cost); err != nil {
			return err
		}
	}
	pt, err := t.choose(r)
	if err == nil {
		err = pt.append(ctx, r, done, cost)
	}
	if err != nil {
		p.budget.give(cost)
	}
	return err
}

func (p *Producer) waitForRoom(ctx context.Context, cost int64) error {
	if cost > p.cfg.bufferBytes {
		return &RecordTooLargeError{Size: int(cost), Limit: int(p.cfg.bufferBytes)}
	}
	for _, t := range *p.topics.Load() {
		for _, pt := range t.list() {
			pt.hurry()
		}
	}
	return p.budget.wait(ctx, p.closing, cost)
}

// topic makes the producer's side of a topic, waiting until metadata knows it.
func (p *Producer) topic(ctx context.Context, name string) (*producerTopic, error) {
	if _, err := p.c.meta.topicUnless(ctx, p.closing, name); err != nil {
		return nil, err
	}
	p.mu.Lock()
	t := p.mu.topics[name]
	if t == nil {
		t = &producerTopic{p: p, name: name}
		p.mu.topics[name] = t
	}
	p.mu.Unlock()
	// Under the metadata's lock, so that no snapshot is missed or applied twice; then the topic is visible to Produce.
	p.c.meta.subscribe(func(s *snapshot) { t.update(s) })()
	p.mu.Lock()
	all := maps.Clone(p.mu.topics)
	p.mu.Unlock()
	p.topics.Store(&all)
	return t, nil
}

// update applies a snapshot; the metadata calls it in order.
func (p *Producer) update(s *snapshot) {
	p.mu.Lock()
	topics := make([]*producerTopic, 0, len(p.mu.topics))
	for _, t := range p.mu.topics {
		topics = append(topics, t)
	}
	senders := make([]*sender, 0, len(p.mu.senders))
	for _, snd := range p.mu.senders {
		senders = append(senders, snd)
	}
	p.mu.Unlock()
	for _, t := range topics {
		t.update(s)
	}
	for _, snd := range senders {
		snd.readdress(s)
	}
}

// ProduceSync produces all rs and waits for their outcomes; the error joins one *RecordError per failure. When ctx ends, what was
// not sent is dropped, and what was sent is awaited.
func (p *Producer) ProduceSync(ctx context.Context, rs ...*Record) error {
	errs := make([]error, len(rs))
	var wg sync.WaitGroup
	wg.Add(len(rs))
	for i, r := range rs {
		p.Produce(ctx, r, func(r *Record, err error) {
			if err != nil {
				errs[i] = &RecordError{Record: r, Err: err}
			}
			wg.Done()
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Flush waits for everything that was queued before the call, without lingering; nil means acknowledged, not merely sent. When
// ctx ends first, its error is returned and nothing is dropped.
func (p *Producer) Flush(ctx context.Context) error {
	f := newFlushWaiter()
	for _, t := range *p.topics.Load() {
		for _, pt := range t.everyPartition() {
			pt.flush(f)
		}
	}
	f.end(0, 0, nil)
	select {
	case <-f.done:
		return f.result()
	case <-ctx.Done():
		return fmt.Errorf("client: flush: %w", ctx.Err())
	}
}

// Close flushes and ends the producer. Records that ctx cuts off get their done with ErrClosed and with ErrNotWritten or
// ErrOutcomeUnknown. A second Close does nothing.
func (p *Producer) Close(ctx context.Context) error {
	if p.closed.Swap(true) {
		return nil
	}
	close(p.closing)
	for _, t := range *p.topics.Load() {
		for _, pt := range t.everyPartition() {
			pt.refuse(ErrClosed)
		}
	}
	err := p.Flush(ctx)
	p.unsubscribe()
	for _, t := range *p.topics.Load() {
		for _, pt := range t.everyPartition() {
			pt.end(ErrClosed)
		}
	}
	p.mu.Lock()
	p.mu.ended = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	p.c.unregister(p)
	return err
}

func (p *Producer) closedErr() error {
	if p.closed.Load() {
		return ErrClosed
	}
	return nil
}

func (p *Producer) acks() runnelv1.Acks {
	if p.cfg.acksLeader {
		return runnelv1.Acks_ACKS_LEADER
	}
	return runnelv1.Acks_ACKS_ALL
}

// codecFor is the codec for a topic whose setting is c.
func (p *Producer) codecFor(c Compression) record.Codec {
	if p.cfg.compression != CompressionTopic {
		c = p.cfg.compression
	}
	return codecOf(c)
}

// sender returns the sender of a broker; nil once the producer has ended.
func (p *Producer) sender(broker int32) *sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.ended {
		return nil
	}
	s := p.mu.senders[broker]
	if s == nil {
		s = newSender(p, broker)
		p.mu.senders[broker] = s
		p.wg.Go(func() { s.run(p.ctx) })
	}
	return s
}

func (p *Producer) newBatch(codec record.Codec) *batch {
	b, _ := p.batches.Get().(*batch)
	if b == nil {
		b = new(batch)
	}
	if b.builder, _ = p.builders[codec].Get().(*record.Builder); b.builder == nil {
		b.builder = record.NewBuilder(codec)
	}
	b.codec = codec
	return b
}

func (p *Producer) freeBuilder(b *batch) {
	b.builder.Reset()
	p.builders[b.codec].Put(b.builder)
	b.builder = nil
}

func (p *Producer) freeBatch(b *batch) {
	if b.builder != nil {
		p.freeBuilder(b)
	}
	b.recycle()
	p.batches.Put(b)
}

// deliverLater runs the partition's callbacks on the timer goroutine, for callers that hold locks.
func (p *Producer) deliverLater(pt *producerPartition) {
	p.timers.at(event{at: p.c.cfg.clock.Now(), run: func(time.Time, *batch, uint64) { pt.deliver() }})
}

// armTimeouts makes sure that timeouts are looked for while something is queued. Every new deadline lies at least the shorter
// timeout ahead, so one that is armed already comes early enough.
func (p *Producer) armTimeouts(now time.Time) {
	if p.timeoutsArmed.Swap(true) {
		return
	}
	p.timers.at(event{at: now.Add(min(p.cfg.deliveryTimeout, p.c.cfg.requestTimeout)), run: p.onTimeouts})
}

func (p *Producer) onTimeouts(now time.Time, _ *batch, _ uint64) {
	p.timeoutsArmed.Store(false)
	var next time.Time
	for _, t := range *p.topics.Load() {
		for _, pt := range t.list() {
			if due := pt.checkTimeouts(now); !due.IsZero() {
				next = earlier(next, due)
			}
		}
	}
	if !next.IsZero() && !p.timeoutsArmed.Swap(true) {
		p.timers.at(event{at: next, run: p.onTimeouts})
	}
}
