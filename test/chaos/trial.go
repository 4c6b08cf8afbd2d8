package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/history"
	"runnel.dev/runnel/internal/workload"
)

const (
	topic      = "chaos"
	partitions = 12
	brokers    = 3
	rate       = 1500 // records per second and partition
	filler     = 150  // bytes
	// patience is how long producers go on retrying: longer than anything that is done here.
	patience  = 10 * time.Minute
	healLimit = 2 * time.Minute
	// overtime is how much longer than asked for faults go on, at most, so that each kind has its turns.
	overtime = 2 * time.Minute
	// progress is how many records of each partition have to be acknowledged once all is well again.
	progress   = 1_000
	pollPeriod = 50 * time.Millisecond
	askLimit   = 5 * time.Second
)

func (t *trial) run(ctx context.Context) (history.Report, error) {
	segment, minimum := int64(4<<20), int32(2) // small, so that faults also hit rolls
	if _, err := t.client.Admin().CreateTopic(ctx, client.TopicSpec{
		Name: topic, Partitions: partitions, Replicas: brokers, Config: client.TopicConfig{SegmentBytes: &segment, MinInSyncReplicas: &minimum},
	}); err != nil {
		return history.Report{}, err
	}
	w, err := workload.Start(ctx, t.client, workload.Options{
		Topic: topic, Partitions: partitions, Began: time.Now(), Rate: rate, Outstanding: 5_000, FillerBytes: filler,
		Acked:    func(p int32, _ time.Time) { t.acks[p].Add(1) },
		Producer: []client.ProducerOption{client.Linger(2 * time.Millisecond), client.BatchBytes(64 << 10), client.DeliveryTimeout(patience)},
	})
	if err != nil {
		return history.Report{}, err
	}
	watching, stopWatching := context.WithCancel(ctx)
	var watchers errgroup.Group
	watchers.Go(func() error { return t.watch(watching) })
	watchers.Go(func() error { return t.supervise(watching, t.cluster.Handle()) })

	err = t.strike(ctx, w)
	if err == nil {
		err = t.awaitWhole(ctx)
	}
	if err == nil {
		err = t.awaitProgress(ctx)
	}
	say("stopping producers, %d records were acknowledged", w.Acks())
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), healLimit)
	defer cancel()
	err = errors.Join(err, w.Stop(stopping))
	if err == nil {
		err = t.awaitConsumed(ctx, w)
	}
	stopWatching()
	err = errors.Join(err, watchers.Wait())
	if err != nil {
		return history.Report{}, errors.Join(append(t.ended, err)...)
	}
	say("reading everything")
	reads, err := workload.ReadAll(ctx, t.client, topic, filler)
	if err != nil {
		return history.Report{}, err
	}
	report := history.Check(w.History(), reads)
	return report, t.compareReplicas(ctx)
}

// strike lets both lanes of faults go on for the time of the run, and until enough has happened.
func (t *trial) strike(ctx context.Context, w *workload.Writer) error {
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.Go(func() error {
		for sleep(ctx, pollPeriod) == nil {
			if took := time.Since(began); took > t.options.time && t.enough(w) || took > t.options.time+overtime {
				cancel()
			}
		}
		return nil
	})
	for i, lane := range t.lanes() {
		if len(lane) == 0 {
			continue
		}
		s := &striker{t, t.cluster.Handle()}
		g.Go(func() error { return s.lane(ctx, lane, rand.New(rand.NewPCG(t.options.seed, uint64(i)))) })
	}
	return g.Wait()
}

func (t *trial) enough(w *workload.Writer) bool {
	if w.Acks() < t.options.acked {
		return false
	}
	for _, k := range t.kinds() {
		if t.struck.of(k.name) < fewest {
			return false
		}
	}
	return true
}

// lane strikes with one kind after the other, in a new order each time.
func (t *striker) lane(ctx context.Context, kinds []kind, random *rand.Rand) error {
	for ctx.Err() == nil {
		for _, i := range random.Perm(len(kinds)) {
			if err := sleep(ctx, between(random, 200*time.Millisecond, 1200*time.Millisecond)); err != nil {
				return nil //nolint:nilerr // the time is up
			}
			k := kinds[i]
			if err := k.strike(t, ctx, random); err != nil {
				if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
					return nil
				}
				return fmt.Errorf("%s: %w", k.name, err)
			}
			t.struck.add(k.name)
		}
	}
	return nil
}

func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(random.Int64N(int64(high-low)))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitWhole waits until every partition has a leader and all of its replicas in sync.
func (t *trial) awaitWhole(ctx context.Context) error {
	say("waiting until all replicas are in sync")
	return t.await(ctx, "the cluster did not heal", func() error { return t.whole(ctx) })
}

// await asks until the answer is nil.
func (t *trial) await(ctx context.Context, what string, ask func() error) error {
	began := time.Now()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Since(began) > healLimit {
			return fmt.Errorf("%s within %v: %w", what, healLimit, err)
		}
		if sleep(ctx, pollPeriod) != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}
	}
}

func (t *trial) whole(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	_, parts, err := t.client.Admin().DescribeTopic(ctx, topic)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Leader < 0 || len(p.ISR) < brokers {
			return fmt.Errorf("partition %d: leader %d, in sync %v of %v", p.Partition, p.Leader, p.ISR, p.Replicas)
		}
	}
	return nil
}

// watch consumes all along, and counts what comes out of order. A partition's records are to come at every offset, once, and their
// numbers, of which one producer sends each once, ascending.
func (t *trial) watch(ctx context.Context) (err error) {
	cs, err := t.client.NewConsumer(client.Topics(topic), client.From(client.Earliest))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cs.Close(context.WithoutCancel(ctx))) }()
	var last [partitions]history.Read
	var seen sync.Once
	for r, err := range cs.Records(ctx) {
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			if client.Retriable(err) {
				say("consumer: %v", err)
				continue
			}
			return err
		}
		read, err := workload.Parse(r, filler)
		if err != nil {
			return err
		}
		before := &last[r.Partition]
		if before.Number > 0 && (read.Offset != before.Offset+1 || read.Number <= before.Number) {
			t.nonmonotonic++
			seen.Do(func() {
				say("nonmonotonic: partition %d: record %d at offset %d came behind record %d at offset %d", r.Partition, read.Number, read.Offset,
					before.Number, before.Offset)
			})
		}
		*before = read
		t.consumed[r.Partition].Store(read.Offset + 1)
	}
	return nil
}

// awaitProgress waits until every partition has acknowledged more.
func (t *trial) awaitProgress(ctx context.Context) error {
	say("waiting until every partition makes progress")
	var from [partitions]int64
	for p := range from {
		from[p] = t.acks[p].Load()
	}
	return t.await(ctx, "not all partitions make progress", func() error {
		for p := range from {
			if n := t.acks[p].Load() - from[p]; n < progress {
				return fmt.Errorf("partition %d: %d records were acknowledged", p, n)
			}
		}
		return nil
	})
}

// awaitConsumed waits until the consumer has read all that was acknowledged.
func (t *trial) awaitConsumed(ctx context.Context, w *workload.Writer) error {
	say("waiting until the consumer has read everything")
	var ends [partitions]int64
	for _, s := range w.History() {
		if s.Outcome == history.Acked {
			ends[s.Partition] = max(ends[s.Partition], s.Offset+1)
		}
	}
	return t.await(ctx, "the consumer does not reach the end", func() error {
		for p, end := range ends {
			if at := t.consumed[p].Load(); at < end {
				return fmt.Errorf("partition %d: at offset %d of %d", p, at, end)
			}
		}
		return nil
	})
}
