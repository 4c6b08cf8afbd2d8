package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/history"
)

const (
	failoverRecord = 100 // bytes
	// settled is how many acknowledgements in a row, each less than steadyGap behind the one before, end a partition's outage.
	settled     = 40
	steadyGap   = 100 * time.Millisecond
	roundPeriod = 20 * time.Millisecond
	roundLimit  = time.Minute
	healLimit   = 2 * time.Minute
)

// Faults does something bad to a broker, and takes it back.
type Faults interface {
	// Inflict returns once the fault is in effect.
	Inflict(ctx context.Context, broker int32) error
	// Heal returns once the broker could work again; it may still have to catch up.
	Heal(ctx context.Context, broker int32) error
}

// FailoverOptions say how to measure.
type FailoverOptions struct {
	// Topic has to exist, with at least two replicas and no other producers.
	Topic  string
	Rounds int
	// Rate is records per second and partition, 10 to 10,000.
	Rate int
	// ControllerEvery makes every such round strike the controller's broker if it leads anything; 0: never on purpose.
	ControllerEvery int
	// Progress is told of each round; nil: nobody.
	Progress func(Round)
}

// Validate reports all faults.
func (o FailoverOptions) Validate() error {
	var errs []error
	if o.Topic == "" {
		errs = append(errs, errors.New("topic: want a name"))
	}
	if o.Rounds < 1 || o.Rounds > 10_000 {
		errs = append(errs, fmt.Errorf("rounds %d: want 1 to 10,000", o.Rounds))
	}
	if o.Rate < 10 || o.Rate > 10_000 {
		errs = append(errs, fmt.Errorf("rate %d: want 10 to 10,000 records per second and partition", o.Rate))
	}
	return errors.Join(errs...)
}

// Round is one fault and what it came to.
type Round struct {
	Number, Broker int32
	// Controller: the broker controlled the cluster.
	Controller bool
	// Gaps are the longest times between two acknowledgements of each partition that the broker led.
	Gaps []time.Duration
}

// FailoverResult is what all rounds came to.
type FailoverResult struct {
	Rounds []Round
	// Unavailability summarises the gaps of all rounds, one per affected partition.
	Unavailability Latency
	// History is the verdict over all records that were sent.
	History history.Report
}

// Failover produces to every partition at a steady rate, strikes leaders, and measures for how long the partitions that they led had no
// acknowledgements. Afterwards it reads everything and judges it.
func Failover(ctx context.Context, c *client.Client, faults Faults, o FailoverOptions) (FailoverResult, error) {
	if err := o.Validate(); err != nil {
		return FailoverResult{}, err
	}
	_, parts, err := c.Admin().DescribeTopic(ctx, o.Topic)
	if err != nil {
		return FailoverResult{}, err
	}
	f := &failover{client: c, faults: faults, opts: o, partitions: make([]paced, len(parts))}
	p, err := c.NewProducer(client.ManualPartitioner(), client.Linger(0))
	if err != nil {
		return FailoverResult{}, err
	}
	sending, stop := context.WithCancel(ctx)
	var senders sync.WaitGroup
	for i := range f.partitions {
		senders.Go(func() { f.send(sending, p, int32(i)) })
	}
	var result FailoverResult
	result.Rounds, err = f.rounds(ctx)
	stop()
	senders.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if closeErr := p.Close(closing); closeErr != nil && ctx.Err() == nil {
		err = errors.Join(err, closeErr)
	}
	if err != nil {
		return result, err
	}
	l := newLatencies()
	for _, r := range result.Rounds {
		for _, gap := range r.Gaps {
			l.add(gap)
		}
	}
	result.Unavailability = *l.summary()
	result.History, err = f.judge(ctx)
	return result, err
}

type failover struct {
	client     *client.Client
	faults     Faults
	opts       FailoverOptions
	partitions []paced
}

// paced is one partition's load.
type paced struct {
	mu sync.Mutex
	// sends are in the order of sending; acks the times of acknowledgements.
	sends []history.Send
	acks  []time.Time
}

func (f *failover) send(ctx context.Context, p *client.Producer, partition int32) {
	tick := time.NewTicker(time.Second / time.Duration(f.opts.Rate))
	defer tick.Stop()
	q := &f.partitions[partition]
	for number := uint64(1); ; number++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		value := make([]byte, failoverRecord)
		binary.BigEndian.PutUint64(value, number)
		q.mu.Lock()
		i := len(q.sends)
		q.sends = append(q.sends, history.Send{Partition: partition, Number: number, Began: time.Now().UnixNano()})
		q.mu.Unlock()
		// What was queued is awaited even when ctx has ended: its outcome counts.
		p.Produce(context.WithoutCancel(ctx), &client.Record{Topic: f.opts.Topic, Partition: partition, Value: value}, func(r *client.Record, err error) {
			q.settle(i, r.Offset, err)
		})
	}
}

func (q *paced) settle(i int, offset int64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s, now := &q.sends[i], time.Now()
	s.Ended = now.UnixNano()
	switch {
	case err == nil:
		s.Outcome, s.Offset = history.Acked, offset
		q.acks = append(q.acks, now)
	case errors.Is(err, client.ErrNotWritten):
		s.Outcome = history.NotWritten
	}
}

// gap returns the longest time without an acknowledgement from shortly before since, and whether acknowledgements come steadily again.
func (q *paced) gap(since time.Time) (longest time.Duration, steady bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first, _ := slices.BinarySearchFunc(q.acks, since, time.Time.Compare)
	last, run := since, 0
	if first > 0 {
		last = q.acks[first-1]
	}
	for _, at := range q.acks[first:] {
		d := at.Sub(last)
		longest, last = max(longest, d), at
		if run++; d > steadyGap {
			run = 0
		}
	}
	return longest, run >= settled && time.Since(last) < steadyGap
}

func (f *failover) rounds(ctx context.Context) ([]Round, error) {
	var done []Round
	for n := range int32(f.opts.Rounds) {
		r, err := f.round(ctx, n+1)
		if err != nil {
			return done, fmt.Errorf("round %d: %w", n+1, err)
		}
		done = append(done, r)
		if f.opts.Progress != nil {
			f.opts.Progress(r)
		}
	}
	return done, nil
}

func (f *failover) round(ctx context.Context, number int32) (Round, error) {
	leaders, err := f.awaitWhole(ctx)
	if err != nil {
		return Round{}, err
	}
	cluster, err := f.client.Admin().DescribeCluster(ctx)
	if err != nil {
		return Round{}, err
	}
	onPurpose := f.opts.ControllerEvery > 0 && int(number)%f.opts.ControllerEvery == 0
	victim := choose(leaders, cluster.Controller, onPurpose, number)
	r := Round{Number: number, Broker: victim, Controller: victim == cluster.Controller}
	began := time.Now()
	if err := f.faults.Inflict(ctx, victim); err != nil {
		return r, err
	}
	r.Gaps, err = f.awaitSteady(ctx, leaders, victim, began)
	return r, errors.Join(err, f.faults.Heal(context.WithoutCancel(ctx), victim))
}

// choose picks the controller's broker if that is wanted and it leads anything, else the leaders in turn.
func choose(leaders []int32, controller int32, controllerWanted bool, number int32) int32 {
	distinct := map[int32]bool{}
	for _, id := range leaders {
		distinct[id] = true
	}
	if controllerWanted && distinct[controller] {
		return controller
	}
	ids := slices.Sorted(maps.Keys(distinct))
	return ids[int(number)%len(ids)]
}

// awaitWhole waits until every partition has all its replicas in sync and its acknowledgements come steadily, and returns the leaders.
func (f *failover) awaitWhole(ctx context.Context) ([]int32, error) {
	began := time.Now()
	var leaders []int32
	err := f.poll(ctx, healLimit, func() error {
		_, parts, err := f.client.Admin().DescribeTopic(ctx, f.opts.Topic)
		if err != nil {
			return err
		}
		slices.SortFunc(parts, func(a, b client.PartitionInfo) int { return cmp.Compare(a.Partition, b.Partition) })
		leaders = leaders[:0]
		for i, p := range parts {
			if p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
				return fmt.Errorf("partition %d: leader %d, in sync %v of %v", p.Partition, p.Leader, p.ISR, p.Replicas)
			}
			if _, steady := f.partitions[i].gap(began); !steady {
				return fmt.Errorf("partition %d: acknowledgements do not come steadily", p.Partition)
			}
			leaders = append(leaders, p.Leader)
		}
		return nil
	})
	return leaders, err
}

// awaitSteady waits until the partitions that the victim led are acknowledged steadily, by another leader, and returns their gaps.
func (f *failover) awaitSteady(ctx context.Context, leaders []int32, victim int32, since time.Time) ([]time.Duration, error) {
	var gaps []time.Duration
	err := f.poll(ctx, roundLimit, func() error {
		_, parts, err := f.client.Admin().DescribeTopic(ctx, f.opts.Topic)
		if err != nil {
			return err
		}
		gaps = gaps[:0]
		for _, p := range parts {
			if leaders[p.Partition] != victim {
				continue
			}
			if p.Leader == victim {
				return fmt.Errorf("partition %d is still led by broker %d", p.Partition, victim)
			}
			gap, steady := f.partitions[p.Partition].gap(since)
			if !steady {
				return fmt.Errorf("partition %d: acknowledgements do not come steadily", p.Partition)
			}
			gaps = append(gaps, gap)
		}
		return nil
	})
	return gaps, err
}

// poll asks until the answer is nil, and returns the last one otherwise.
func (f *failover) poll(ctx context.Context, limit time.Duration, ask func() error) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(roundPeriod)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("not within %v: %w", limit, err)
		case <-tick.C:
		}
	}
}

// judge reads the whole topic and compares it with what was sent.
func (f *failover) judge(ctx context.Context) (_ history.Report, err error) {
	cs, err := f.client.NewConsumer(client.Topics(f.opts.Topic), client.From(client.Earliest), client.UntilEnd())
	if err != nil {
		return history.Report{}, err
	}
	defer func() { err = errors.Join(err, cs.Close(context.WithoutCancel(ctx))) }()
	var reads []history.Read
	for r, err := range cs.Records(ctx) {
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return history.Report{}, err
		}
		if len(r.Value) != failoverRecord {
			return history.Report{}, fmt.Errorf("partition %d, offset %d: a record of %d bytes, sent were %d", r.Partition, r.Offset, len(r.Value), failoverRecord)
		}
		reads = append(reads, history.Read{Partition: r.Partition, Offset: r.Offset, Number: binary.BigEndian.Uint64(r.Value)})
	}
	slices.SortStableFunc(reads, func(a, b history.Read) int { return cmp.Compare(a.Partition, b.Partition) })
	var sends []history.Send
	for i := range f.partitions {
		sends = append(sends, f.partitions[i].sends...)
	}
	return history.Check(sends, reads), nil
}
