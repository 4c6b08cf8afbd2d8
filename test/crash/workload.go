package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/history"
)

const (
	// How many records of a partition may wait for their ack.
	outstanding = 1_000
	maxFiller   = 2_000
)

// writer sends numbered records to every partition until it is stopped, and keeps the history.
type writer struct {
	producer *client.Producer
	began    time.Time
	acks     atomic.Int64
	changed  chan struct{} // holds a token after each ack
	cancel   context.CancelFunc
	sending  sync.WaitGroup
	mu       struct {
		sync.Mutex
		sends [partitions][]history.Send
		fatal error
	}
}

// startWriter numbers records from first+1. patience is how long an unanswered record is retried. Times count from began, which all
// writers of a history share.
func startWriter(ctx context.Context, c *client.Client, began time.Time, first uint64, patience time.Duration) (*writer, error) {
	p, err := c.NewProducer(client.ManualPartitioner(), client.Linger(time.Millisecond), client.BatchBytes(64<<10), client.DeliveryTimeout(patience))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &writer{producer: p, began: began, changed: make(chan struct{}, 1), cancel: cancel}
	for partition := range int32(partitions) {
		w.sending.Go(func() { w.send(ctx, partition, first) })
	}
	return w, nil
}

func (w *writer) send(ctx context.Context, partition int32, first uint64) {
	slots := make(chan struct{}, outstanding)
	for number := first + 1; ; number++ {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		w.mu.Lock()
		index := len(w.mu.sends[partition])
		w.mu.sends[partition] = append(w.mu.sends[partition], history.Send{Partition: partition, Number: number, Began: w.now()})
		w.mu.Unlock()
		r := &client.Record{Topic: topic, Partition: partition, Value: payload(number)}
		// The record is not bound to ctx: once it is in the history its outcome is wanted.
		w.producer.Produce(context.WithoutCancel(ctx), r, func(r *client.Record, err error) {
			w.settle(partition, index, r.Offset, err)
			<-slots
		})
	}
}

func (w *writer) now() int64 { return int64(time.Since(w.began)) + 1 }

func (w *writer) settle(partition int32, index int, offset int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.mu.sends[partition][index]
	switch s.Ended = w.now(); {
	case err == nil:
		s.Outcome, s.Offset = history.Acked, offset
		w.acks.Add(1)
	case errors.Is(err, client.ErrNotWritten):
		s.Outcome = history.NotWritten
	case errors.Is(err, client.ErrOutcomeUnknown):
	default:
		err = fmt.Errorf("neither not written nor unknown: %w", err)
	}
	if err != nil && w.mu.fatal == nil {
		w.mu.fatal = err
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// waitAcks returns once n more records were acked, or a send has failed.
func (w *writer) waitAcks(ctx context.Context, n int64) error {
	target := w.acks.Load() + n
	for w.acks.Load() < target {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := w.failure(); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.fatal
}

// stop ends sending, waits for every outcome, and returns the first failure of a send: retries should have hidden every kill.
func (w *writer) stop(ctx context.Context) error {
	w.cancel()
	w.sending.Wait()
	err := w.producer.Close(ctx)
	return errors.Join(w.failure(), err)
}

func (w *writer) history() []history.Send {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []history.Send
	for _, s := range w.mu.sends {
		all = append(all, s...)
	}
	return all
}

// payload is the number and a filler that only it has, so that damage shows.
func payload(number uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, number)
	filler := binary.BigEndian.AppendUint64(nil, number*0x9e3779b97f4a7c15)
	return append(b, bytes.Repeat(filler, int(number*2654435761%maxFiller)/len(filler))...)
}

// readAll reads each partition from its start to the end that it has now.
func readAll(ctx context.Context, c *client.Client) (reads []history.Read, err error) {
	cs, err := c.NewConsumer(client.Topics(topic), client.From(client.Earliest), client.UntilEnd())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cs.Close(context.WithoutCancel(ctx))) }()
	for r, err := range cs.Records(ctx) {
		if err != nil {
			return reads, err
		}
		if len(r.Value) < 8 {
			return reads, fmt.Errorf("offset %d of partition %d holds %d bytes", r.Offset, r.Partition, len(r.Value))
		}
		number := binary.BigEndian.Uint64(r.Value)
		if !bytes.Equal(r.Value, payload(number)) {
			return reads, fmt.Errorf("offset %d of partition %d is damaged", r.Offset, r.Partition)
		}
		reads = append(reads, history.Read{Partition: r.Partition, Offset: r.Offset, Number: number})
	}
	return reads, ctx.Err()
}
