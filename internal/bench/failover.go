package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/history"
	"runnel.dev/runnel/internal/workload"
)

const (
	failoverFiller      = 200 // bytes
	failoverOutstanding = 100_000
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
// acknowledgements. Afterwards it reads everything and judges it, also when a record was not acknowledged, which is an error.
func Failover(ctx context.Context, c *client.Client, faults Faults, o FailoverOptions) (FailoverResult, error) {
	if err := o.Validate(); err != nil {
		return FailoverResult{}, err
	}
	_, parts, err := c.Admin().DescribeTopic(ctx, o.Topic)
	if err != nil {
		return FailoverResult{}, err
	}
	f := &failover{client: c, faults: faults, opts: o, partitions: make([]outage, len(parts))}
	w, err := workload.Start(ctx, c, workload.Options{
		Topic: o.Topic, Partitions: int32(len(parts)), Began: time.Now(), Rate: o.Rate, Outstanding: failoverOutstanding,
		FillerBytes: failoverFiller, Acked: func(partition int32, at time.Time) { f.partitions[partition].acked(at) },
		Producer: []client.ProducerOption{client.Linger(0)},
	})
	if err != nil {
		return FailoverResult{}, err
	}
	var result FailoverResult
	result.Rounds, err = f.rounds(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	stopErr := w.Stop(closing)
	if err != nil || ctx.Err() != nil {
		return result, errors.Join(err, ctx.Err())
	}
	l := newLatencies()
	for _, r := range result.Rounds {
		for _, gap := range r.Gaps {
			l.add(gap)
		}
	}
	result.Unavailability = *l.summary()
	reads, err := workload.ReadAll(ctx, c, o.Topic, failoverFiller)
	result.History = history.Check(w.History(), reads)
	return result, errors.Join(stopErr, err)
}

type failover struct {
	client     *client.Client
	faults     Faults
	opts       FailoverOptions
	partitions []outage
}

// outage watches the acknowledgements of one partition.
type outage struct {
	mu   sync.Mutex
	acks []time.Time
}

func (q *outage) acked(at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.acks = append(q.acks, at)
}

// gap returns the longest time without an acknowledgement from shortly before since, and whether acknowledgements come steadily again.
func (q *outage) gap(since time.Time) (longest time.Duration, steady bool) {
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
