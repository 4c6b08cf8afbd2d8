package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/client"
)

const (
	// Records are handed out in chunks that are used again, so that the load does not measure the garbage collector.
	chunkRecords = 1024
	// Latency is taken of one record in so many when nothing paces the run.
	sampleEvery = 256
	paceTick    = time.Millisecond
	// closeTimeout bounds the wait for the last acks of a run that was cut short.
	closeTimeout = time.Minute
)

// chunk is a block of records in flight.
type chunk struct {
	records []client.Record
	pending atomic.Int32
}

type producer struct {
	opts  Options
	value []byte
	pool  sync.Pool
	mu    struct {
		sync.Mutex
		latencies latencies
		err       error
	}
}

// Produce sends records without keys, spread over all partitions, and waits for every ack. With a rate, each record's latency counts
// from when it was due, so that a stall is not hidden by the sender having waited too.
func Produce(ctx context.Context, c *client.Client, o Options, opts ...client.ProducerOption) (Result, error) {
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	p, err := c.NewProducer(opts...)
	if err != nil {
		return Result{}, err
	}
	b := &producer{opts: o, value: randomBytes(o.RecordBytes)}
	b.pool.New = func() any { return &chunk{records: make([]client.Record, chunkRecords)} }
	b.mu.latencies = newLatencies()

	began := time.Now()
	sent := b.send(ctx, p, began)
	// Also a run that was cut short waits for what it has sent, but not for ever.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err = p.Close(closing)
	took := time.Since(began)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.err != nil {
		err = b.mu.err // what Close says then is the same, less exactly
	}
	return Result{Records: sent, Bytes: sent * int64(o.RecordBytes), Took: took, Latency: b.mu.latencies.summary()}, errors.Join(err, ctx.Err())
}

// send runs until the records or the time are used up.
func (b *producer) send(ctx context.Context, p *client.Producer, began time.Time) (sent int64) {
	for b.goOn(ctx, began, sent) {
		n := int64(chunkRecords)
		if b.opts.BytesPerSecond > 0 {
			n = min(n, b.due(ctx, began, sent))
		}
		n = b.bound(n, sent)
		b.sendChunk(ctx, p, int(n), began, sent)
		sent += n
	}
	return sent
}

// goOn says whether there is more to send.
func (b *producer) goOn(ctx context.Context, began time.Time, sent int64) bool {
	return ctx.Err() == nil && (b.opts.Records == 0 || sent < b.opts.Records) &&
		(b.opts.Duration == 0 || time.Since(began) < b.opts.Duration)
}

// bound keeps n within the records asked for.
func (b *producer) bound(n, sent int64) int64 {
	if b.opts.Records > 0 {
		n = min(n, b.opts.Records-sent)
	}
	return n
}

// due waits until at least one record is due and says how many are.
func (b *producer) due(ctx context.Context, began time.Time, sent int64) int64 {
	tick := time.NewTicker(paceTick)
	defer tick.Stop()
	for {
		n := int64(time.Since(began).Seconds()*float64(b.opts.BytesPerSecond))/int64(b.opts.RecordBytes) - sent
		if n > 0 || ctx.Err() != nil {
			return max(n, 1)
		}
		<-tick.C
	}
}

// dueAt is when a paced record should be sent.
func (b *producer) dueAt(began time.Time, number int64) time.Time {
	return began.Add(time.Duration(float64(number) * float64(b.opts.RecordBytes) / float64(b.opts.BytesPerSecond) * 1e9))
}

func (b *producer) sendChunk(ctx context.Context, p *client.Producer, n int, began time.Time, first int64) {
	ch := b.pool.Get().(*chunk)
	ch.pending.Store(int32(n))
	paced := b.opts.BytesPerSecond > 0
	begin := time.Now()
	plain := func(_ *client.Record, err error) { b.settle(ch, err, -1) }
	for i := range n {
		r := &ch.records[i]
		*r = client.Record{Topic: b.opts.Topic, Value: b.value}
		done := plain
		if paced || i%sampleEvery == 0 {
			at := begin
			if paced {
				at = b.dueAt(began, first+int64(i))
			}
			done = func(_ *client.Record, err error) { b.settle(ch, err, time.Since(at)) }
		}
		p.Produce(ctx, r, done)
	}
}

// settle notes an outcome; a latency below 0 is none.
func (b *producer) settle(ch *chunk, err error, latency time.Duration) {
	if err != nil || latency >= 0 {
		b.mu.Lock()
		if err != nil && b.mu.err == nil {
			b.mu.err = err
		}
		if err == nil {
			b.mu.latencies.add(latency)
		}
		b.mu.Unlock()
	}
	if ch.pending.Add(-1) == 0 {
		b.pool.Put(ch)
	}
}

// stamp puts the time of sending into a value.
func stamp(value []byte, t time.Time) { binary.BigEndian.PutUint64(value, uint64(t.UnixNano())) }

// stamped reads it back.
func stamped(value []byte) time.Time { return time.Unix(0, int64(binary.BigEndian.Uint64(value))) }
