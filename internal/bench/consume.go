package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"runnel.dev/runnel/client"
)

// Consume reads a topic from its start, until it has read the records asked for, has reached the end, or the time is up.
func Consume(ctx context.Context, c *client.Client, o Options, opts ...client.ConsumerOption) (r Result, err error) {
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	run := ctx
	if o.Duration > 0 {
		var cancel context.CancelFunc
		run, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	opts = append([]client.ConsumerOption{client.Topics(o.Topic), client.From(client.Earliest), client.UntilEnd()}, opts...)
	cs, err := c.NewConsumer(opts...)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, cs.Close(context.WithoutCancel(ctx))) }()
	began := time.Now()
	err = countAll(run, cs, o.Records, &r)
	r.Took = time.Since(began)
	if errors.Is(err, io.EOF) || run.Err() != nil && errors.Is(err, run.Err()) {
		err = nil
	}
	return r, errors.Join(err, ctx.Err())
}

// countAll reads up to limit records, 0: all.
func countAll(ctx context.Context, cs *client.Consumer, limit int64, r *Result) error {
	for limit == 0 || r.Records < limit {
		batch, err := cs.Poll(ctx)
		if err != nil {
			return err
		}
		for rec, err := range batch.Records() {
			if err != nil {
				return err
			}
			r.Records++
			r.Bytes += int64(len(rec.Value))
			if r.Records == limit {
				break
			}
		}
	}
	return nil
}

// E2E sends at a rate while a consumer reads, and measures from the moment a record is due to its arrival.
func E2E(ctx context.Context, c *client.Client, o Options, opts ...client.ProducerOption) (r Result, err error) {
	if err := o.Validate(); err != nil {
		return Result{}, err
	}
	if o.BytesPerSecond == 0 {
		return Result{}, errors.New("rate 0: an end-to-end run wants one")
	}
	// The end of the topic is looked up first, so that no record slips past a reader that is not there yet.
	ends, err := c.Admin().EndOffsets(ctx, o.Topic)
	if err != nil {
		return Result{}, err
	}
	tps := make([]client.TopicPartition, 0, len(ends))
	for tp := range ends {
		tps = append(tps, tp)
	}
	cs, err := c.NewConsumer(client.Partitions(tps...))
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, cs.Close(context.WithoutCancel(ctx))) }()
	for tp, end := range ends {
		if err := cs.Seek(client.At(end), tp); err != nil {
			return Result{}, err
		}
	}

	run, cancel := context.WithCancel(ctx)
	defer cancel()
	p := &producer{opts: o}
	began := time.Now()
	var receiver sync.WaitGroup
	var receiveErr error
	sent := make(chan int64, 1)
	receiver.Go(func() {
		defer cancel()
		r, receiveErr = receive(run, cs, sent)
	})
	sendErr := p.sendStamped(run, c, began, opts, sent)
	if sendErr != nil {
		cancel()
	}
	receiver.Wait()
	r.Took = time.Since(began)
	return r, errors.Join(sendErr, receiveErr, ctx.Err())
}

// receive counts until it has seen as many records as were sent, which it learns when they have been.
func receive(ctx context.Context, cs *client.Consumer, sent <-chan int64) (Result, error) {
	l := newLatencies()
	var r Result
	want := int64(-1)
	polling, stop := context.WithCancel(ctx)
	defer stop()
	total := make(chan int64, 1)
	go func() {
		select {
		case n := <-sent:
			total <- n
			stop() // a reader that waits looks at the total
		case <-polling.Done():
		}
	}()
	for want < 0 || r.Records < want {
		batch, err := cs.Poll(polling)
		if err != nil && ctx.Err() == nil && polling.Err() != nil {
			want, polling = <-total, ctx
			continue
		}
		if err != nil {
			return r, err
		}
		now := time.Now()
		for rec, err := range batch.Records() {
			if err != nil {
				return r, err
			}
			if len(rec.Value) < minRecord {
				return r, fmt.Errorf("a record of %d bytes came, which this run has not sent", len(rec.Value))
			}
			l.add(now.Sub(stamped(rec.Value)))
			r.Records++
			r.Bytes += int64(len(rec.Value))
		}
	}
	r.Latency = l.summary()
	return r, nil
}

// sendStamped sends what the options say, each record with the time when it was due, and announces how many they were.
func (b *producer) sendStamped(ctx context.Context, c *client.Client, began time.Time, opts []client.ProducerOption, sent chan<- int64) error {
	p, err := c.NewProducer(opts...)
	if err != nil {
		return err
	}
	filler := randomBytes(b.opts.RecordBytes)
	n := int64(0)
	for b.goOn(ctx, began, n) {
		for due := b.bound(b.due(ctx, began, n), n); due > 0; due-- {
			value := append([]byte(nil), filler...)
			stamp(value, b.dueAt(began, n))
			p.Produce(ctx, &client.Record{Topic: b.opts.Topic, Value: value}, nil)
			n++
		}
	}
	err = p.Close(context.WithoutCancel(ctx))
	sent <- n
	return err
}
