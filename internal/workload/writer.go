// Package workload sends numbered records to every partition of a topic, keeps the history of what became of them, and reads them back,
// for tests and benchmarks that do bad things to a cluster meanwhile. Package history judges the outcome.
package workload

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

// Options say what to send.
type Options struct {
	Topic      string
	Partitions int32
	// First numbers records from First+1, so that several writers, one after the other, share a history.
	First uint64
	// Began is what all writers of a history count times from.
	Began time.Time
	// Rate is records per second and partition; 0: as fast as Outstanding allows.
	Rate int
	// Outstanding is how many records of a partition may wait for their outcome. Default 1,000.
	Outstanding int
	// FillerBytes is the largest filler behind a record's number, 0 or more.
	FillerBytes int
	// Acked is told of each acknowledgement, in append order per partition, and must not block. Nil: nobody.
	Acked func(partition int32, at time.Time)
	// Producer is added to ManualPartitioner.
	Producer []client.ProducerOption
}

// Writer sends until it is stopped.
type Writer struct {
	opts     Options
	producer *client.Producer
	acks     atomic.Int64
	changed  chan struct{} // holds a token after each outcome
	cancel   context.CancelFunc
	sending  sync.WaitGroup
	parts    []part
	failed   atomic.Pointer[error]
}

// part is the history of one partition.
type part struct {
	mu    sync.Mutex
	sends []history.Send
}

// Start starts a goroutine per partition; Stop ends them. ctx ending also does.
func Start(ctx context.Context, c *client.Client, o Options) (*Writer, error) {
	p, err := c.NewProducer(append([]client.ProducerOption{client.ManualPartitioner()}, o.Producer...)...)
	if err != nil {
		return nil, err
	}
	if o.Outstanding == 0 {
		o.Outstanding = 1_000
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Writer{opts: o, producer: p, changed: make(chan struct{}, 1), cancel: cancel, parts: make([]part, o.Partitions)}
	for partition := range o.Partitions {
		w.sending.Go(func() { w.send(ctx, partition) })
	}
	return w, nil
}

func (w *Writer) send(ctx context.Context, partition int32) {
	slots := make(chan struct{}, w.opts.Outstanding)
	var pace <-chan time.Time
	if w.opts.Rate > 0 {
		tick := time.NewTicker(time.Second / time.Duration(w.opts.Rate))
		defer tick.Stop()
		pace = tick.C
	}
	q := &w.parts[partition]
	for number := w.opts.First + 1; ; number++ {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		if pace != nil {
			select {
			case <-pace:
			case <-ctx.Done():
				return
			}
		}
		q.mu.Lock()
		index := len(q.sends)
		q.sends = append(q.sends, history.Send{Partition: partition, Number: number, Began: w.since(time.Now())})
		q.mu.Unlock()
		r := &client.Record{Topic: w.opts.Topic, Partition: partition, Value: payload(number, w.opts.FillerBytes)}
		// The record is not bound to ctx: once it is in the history its outcome is wanted.
		w.producer.Produce(context.WithoutCancel(ctx), r, func(r *client.Record, err error) {
			w.settle(partition, index, r.Offset, err)
			<-slots
		})
	}
}

// since is never 0, which would mean unknown.
func (w *Writer) since(now time.Time) int64 { return int64(now.Sub(w.opts.Began)) + 1 }

func (w *Writer) settle(partition int32, index int, offset int64, err error) {
	now := time.Now()
	q := &w.parts[partition]
	q.mu.Lock()
	s := &q.sends[index]
	switch s.Ended = w.since(now); {
	case err == nil:
		s.Outcome, s.Offset = history.Acked, offset
	case errors.Is(err, client.ErrNotWritten):
		s.Outcome = history.NotWritten
	case errors.Is(err, client.ErrOutcomeUnknown):
	default:
		err = fmt.Errorf("neither not written nor unknown: %w", err)
	}
	q.mu.Unlock()
	if err != nil {
		w.failed.CompareAndSwap(nil, &err)
	} else {
		w.acks.Add(1)
		if w.opts.Acked != nil {
			w.opts.Acked(partition, now)
		}
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Acks is how many records were acknowledged.
func (w *Writer) Acks() int64 { return w.acks.Load() }

// WaitAcks returns once n more records were acknowledged, or a send has failed.
func (w *Writer) WaitAcks(ctx context.Context, n int64) error {
	target := w.acks.Load() + n
	for w.acks.Load() < target {
		select {
		case <-w.changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := w.Failure(); err != nil {
			return err
		}
	}
	return nil
}

// Failure is the first failure of a send, nil without one.
func (w *Writer) Failure() error {
	if p := w.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Stop ends sending, waits for every outcome, and returns the first failure of a send.
func (w *Writer) Stop(ctx context.Context) error {
	w.cancel()
	w.sending.Wait()
	err := w.producer.Close(ctx)
	return errors.Join(w.Failure(), err)
}

// History is what became of all records, after Stop.
func (w *Writer) History() []history.Send {
	var all []history.Send
	for i := range w.parts {
		w.parts[i].mu.Lock()
		all = append(all, w.parts[i].sends...)
		w.parts[i].mu.Unlock()
	}
	return all
}

// payload is the number and a filler that only it has, so that damage shows.
func payload(number uint64, most int) []byte {
	b := binary.BigEndian.AppendUint64(nil, number)
	if most == 0 {
		return b
	}
	filler := binary.BigEndian.AppendUint64(nil, number*0x9e3779b97f4a7c15)
	return append(b, bytes.Repeat(filler, int(number*2654435761%uint64(most))/len(filler))...)
}
