package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"runnel.dev/runnel/client"
)

// interruptGrace is how long an interrupted command waits for what it has sent.
const interruptGrace = 20 * time.Second

// delivery counts what became of records. Safe for concurrent use.
type delivery struct {
	in *input
	mu struct {
		sync.Mutex
		acked, failed, unknown int64
		firstFailed            error
		firstUnknown           error
	}
	stop chan struct{} // closed with the first failure
}

// produceAll sends the input until it ends, fails, or ctx does, waits for all outcomes, and says what they were.
func (a *app) produceAll(ctx context.Context, p *client.Producer, in *input, topic string) error {
	// What has been read is written even when the command is interrupted, but not for ever.
	drain, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stopWatching := context.AfterFunc(ctx, func() { a.Clock.AfterFunc(interruptGrace, cancel) })
	defer stopWatching()

	d := &delivery{in: in, stop: make(chan struct{})}
	began := a.Clock.Now()
	inputErr := a.feed(ctx, drain, p, d)
	closeErr := p.Close(drain)
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(a.Err, "%s written to %s in %v", counted(d.mu.acked, "record"), cell(topic), a.Clock.Since(began).Round(time.Millisecond))
	if d.mu.failed+d.mu.unknown > 0 {
		fmt.Fprintf(a.Err, ", %s not written, %s unknown", groupDigits(d.mu.failed), groupDigits(d.mu.unknown))
	}
	fmt.Fprintln(a.Err)
	return d.errorLocked(inputErr, closeErr)
}

// errorLocked chooses what to say: an unknown outcome before a failure, that before a fault of the input.
func (d *delivery) errorLocked(inputErr, closeErr error) error {
	err := errors.Join(d.mu.firstUnknown, d.mu.firstFailed)
	if err == nil {
		err = errors.Join(inputErr, closeErr)
	}
	if err != nil && d.mu.acked > 0 {
		return partialError{err}
	}
	return err
}

// feed passes the input to the producer. Reading has its own goroutine, because a read of a terminal or pipe cannot be called off.
func (a *app) feed(ctx, drain context.Context, p *client.Producer, d *delivery) error {
	chunks := make(chan *chunk, 4)
	var readErr error // set before chunks is closed
	go func() {
		defer close(chunks)
		for {
			ch, err := d.in.next()
			if err != nil {
				readErr = err
				return
			}
			select {
			case chunks <- ch:
			case <-d.stop:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	bar := a.startProgress("records")
	defer bar.done()
	total := a.inputSize()
	var sent, sentBytes int64
	for {
		select {
		case <-d.stop:
			return nil
		case <-ctx.Done():
			return errors.New("interrupted: the rest of the input was not read")
		case ch, ok := <-chunks:
			if !ok {
				return ignoreEOF(readErr)
			}
			sent += int64(len(ch.records)) // before send: a chunk that is settled is used again
			sentBytes += d.send(drain, p, ch)
			bar.update(sent, sentBytes, total)
		}
	}
}

// send queues a chunk, and returns how many bytes of keys and values it has.
func (d *delivery) send(ctx context.Context, p *client.Producer, ch *chunk) (size int64) {
	ch.pending.Store(int32(len(ch.records)))
	if ch.done == nil {
		ch.done = func(r *client.Record, err error) { d.settle(ch, r, err) }
	}
	for i := range ch.records {
		r := &ch.records[i]
		size += int64(len(r.Key) + len(r.Value) + 1)
		p.Produce(ctx, r, ch.done)
		select {
		case <-d.stop:
			return size
		default:
		}
	}
	return size
}

// settle notes one outcome. Acknowledged records are counted when their chunk is complete or something has failed; the lock is not
// what bounds the speed.
func (d *delivery) settle(ch *chunk, r *client.Record, err error) {
	d.mu.Lock()
	switch {
	case err == nil:
		d.mu.acked++
	case errors.Is(err, client.ErrOutcomeUnknown):
		d.mu.unknown++
		if d.mu.firstUnknown == nil {
			d.mu.firstUnknown = ch.name(r, err)
		}
	default:
		d.mu.failed++
		if d.mu.firstFailed == nil {
			d.mu.firstFailed = ch.name(r, err)
		}
	}
	if d.mu.failed+d.mu.unknown == 1 && err != nil {
		close(d.stop)
	}
	d.mu.Unlock()
	if ch.pending.Add(-1) == 0 {
		d.in.pool.Put(ch)
	}
}

// name says which record of the input an error is about.
func (ch *chunk) name(r *client.Record, err error) error {
	for i := range ch.records {
		if &ch.records[i] == r {
			return fmt.Errorf("record %d of the input: %w", ch.first+int64(i), err)
		}
	}
	return err
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
