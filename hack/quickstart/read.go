package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/client"
)

const (
	// The slow reader rests after each so many records.
	slowEvery = 20_000
	slowPause = 20 * time.Millisecond
)

// reader rebuilds all files from the topic, in a goroutine of its own.
type reader struct {
	cancel context.CancelFunc
	result chan error
}

// startReader reads until it has seen as many records as total announces, then compares each rebuilt file with the disk.
func startReader(ctx context.Context, c *client.Client, files fileSet, name string, pause time.Duration, total <-chan int) *reader {
	ctx, cancel := context.WithCancel(ctx)
	r := &reader{cancel: cancel, result: make(chan error, 1)}
	go func() {
		err := rebuild(ctx, c, files, name, pause, total)
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		r.result <- err
	}()
	return r
}

func (r *reader) wait() error {
	defer r.cancel()
	return <-r.result
}

// abort ends the reader; that it was cut short is no failure.
func (r *reader) abort() error {
	r.cancel()
	if err := <-r.result; !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func rebuild(ctx context.Context, c *client.Client, files fileSet, name string, pause time.Duration, total <-chan int) error {
	cs, err := c.NewConsumer(client.Topics(topic), client.From(client.Earliest))
	if err != nil {
		return err
	}
	began := time.Now()
	rebuilt := make(map[string]*bytes.Buffer, len(files.names))
	reading, done := context.WithCancel(ctx)
	defer done()
	// Whoever comes second, the last record or the writer's count, sees that all has been read.
	var read, want atomic.Int64
	want.Store(-1)
	go func() {
		select {
		case n := <-total:
			want.Store(int64(n))
			if read.Load() >= int64(n) {
				done()
			}
		case <-reading.Done():
		}
	}()
	for r, err := range cs.Records(reading) {
		if reading.Err() != nil {
			break // all has been read, or ctx has ended, which is looked at below
		}
		if err != nil {
			return errors.Join(err, cs.Close(ctx))
		}
		b := rebuilt[string(r.Key)]
		if b == nil {
			b = new(bytes.Buffer)
			rebuilt[string(r.Key)] = b
		}
		b.Write(r.Value)
		n := read.Add(1)
		if n == want.Load() {
			break
		}
		if pause > 0 && n%slowEvery == 0 {
			rest(reading, pause)
		}
	}
	if err := errors.Join(ctx.Err(), cs.Close(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	if read.Load() != want.Load() {
		return fmt.Errorf("read %d records, want %d", read.Load(), want.Load())
	}
	took := time.Since(began)
	if err := compare(files, rebuilt); err != nil {
		return err
	}
	step("%s: %d files rebuilt from %d records in %v, identical byte for byte", name, len(rebuilt), read.Load(), took.Round(time.Millisecond))
	return nil
}

func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func compare(files fileSet, rebuilt map[string]*bytes.Buffer) error {
	for _, name := range files.names {
		want, err := files.content(name)
		if err != nil {
			return err
		}
		got := rebuilt[name]
		if got == nil || !bytes.Equal(got.Bytes(), want) {
			return fmt.Errorf("%s came back changed", name)
		}
	}
	if len(rebuilt) != len(files.names) {
		return fmt.Errorf("%d files came back, want %d", len(rebuilt), len(files.names))
	}
	return nil
}

// replayFromOffset reads one partition from its middle to its end.
func replayFromOffset(ctx context.Context, c *client.Client, w *written) error {
	sums := w.mu.sums[0]
	from := int64(len(sums) / 2)
	cs, err := c.NewConsumer(client.Partitions(client.TopicPartition{Topic: topic}), client.From(client.At(from)), client.UntilEnd())
	if err != nil {
		return err
	}
	next := [partitions]int64{0: from}
	n, err := verify(ctx, cs, w, &next, nil)
	if err != nil {
		return err
	}
	if next[0] != int64(len(sums)) {
		return fmt.Errorf("ended at offset %d, want %d", next[0], len(sums))
	}
	step("replay of partition 0 from offset %d: %d records, all as written", from, n)
	return nil
}

// replayFromTime reads all partitions from the middle of the writing.
func replayFromTime(ctx context.Context, c *client.Client, w *written) error {
	cs, err := c.NewConsumer(client.Topics(topic), client.From(client.Since(w.middle)), client.UntilEnd())
	if err != nil {
		return err
	}
	next := [partitions]int64{-1, -1, -1, -1, -1, -1}
	n, err := verify(ctx, cs, w, &next, func(r *client.Record) error {
		if r.Timestamp.UnixMilli() < w.middle.UnixMilli() {
			return fmt.Errorf("record of %v at offset %d, asked for %v", r.Timestamp, r.Offset, w.middle)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for p, end := range next {
		if end != -1 && end != int64(len(w.mu.sums[p])) {
			return fmt.Errorf("partition %d ended at offset %d, want %d", p, end, len(w.mu.sums[p]))
		}
	}
	if n == 0 || n == w.records {
		return fmt.Errorf("%d of %d records lie behind the middle of the writing", n, w.records)
	}
	step("replay from the time %s: %d records, all as written", w.middle.Format("15:04:05.000"), n)
	return nil
}

// verify reads to the end and compares each record with what was acked for its offset. next holds the next offset per partition, -1: any.
func verify(ctx context.Context, cs *client.Consumer, w *written, next *[partitions]int64, check func(*client.Record) error) (n int, err error) {
	defer func() { err = errors.Join(err, cs.Close(context.WithoutCancel(ctx))) }()
	for r, err := range cs.Records(ctx) {
		if err != nil {
			return n, err
		}
		if next[r.Partition] == -1 {
			next[r.Partition] = r.Offset
		}
		if r.Offset != next[r.Partition] {
			return n, fmt.Errorf("offset %d of partition %d, want %d", r.Offset, r.Partition, next[r.Partition])
		}
		if sums := w.mu.sums[r.Partition]; r.Offset >= int64(len(sums)) || sums[r.Offset] != sum(r.Key, r.Value) {
			return n, fmt.Errorf("offset %d of partition %d is not what was written there", r.Offset, r.Partition)
		}
		if check != nil {
			if err := check(r); err != nil {
				return n, err
			}
		}
		next[r.Partition]++
		n++
	}
	return n, ctx.Err()
}
