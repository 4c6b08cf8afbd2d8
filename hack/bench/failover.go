package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/bench"
	"runnel.dev/runnel/internal/devcluster"
)

const (
	failoverRounds = 20
	// fewReplicas is how many replicas each broker has when one is killed, manyReplicas how many all three have for the row on memory.
	fewReplicas  = 2_000
	manyReplicas = 10_000
	killRounds   = 3
	wholeLimit   = 3 * time.Minute
	wholePoll    = time.Second
)

// kills are brokers of a cluster that are killed and started again.
type kills struct{ cluster *devcluster.Cluster }

// Inflict implements bench.Faults.
func (k kills) Inflict(ctx context.Context, broker int32) error {
	return k.cluster.Kill(ctx, strconv.Itoa(int(broker)))
}

// Heal implements bench.Faults.
func (k kills) Heal(ctx context.Context, broker int32) error {
	return k.cluster.StartProcess(ctx, strconv.Itoa(int(broker)))
}

// failoverSection kills brokers under a steady load.
func (r *run) failoverSection(ctx context.Context) (err error) {
	l, err := r.start(ctx, "failover", replicas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop(context.WithoutCancel(ctx))) }()
	if _, err := l.replicatedTopic(ctx, mainTopic, partitions); err != nil {
		return err
	}
	o := bench.FailoverOptions{Topic: mainTopic, Rounds: int(max(failoverRounds/r.shrink, 2)), Rate: 200, ControllerEvery: 4}
	res, err := bench.Failover(ctx, l.client, kills{l.cluster}, o)
	if err == nil && !res.History.OK() {
		err = errors.New(res.History.First)
	}
	if err != nil {
		return err
	}
	u := res.Unavailability
	r.add(row{
		what: "three replicas: unavailability after kill -9, p99", unit: "s", target: 1, measured: u.P99.Seconds(), atMost: true,
		note: fmt.Sprintf("%d outages in %d rounds; p50 %v, max %v; lost=%d duplicated=%d", u.Samples, o.Rounds, u.P50.Round(time.Millisecond),
			u.Max.Round(time.Millisecond), res.History.Lost, res.History.Duplicated),
	})
	return nil
}

// replicasSection kills a broker with many leaderships, and measures the memory of three brokers with many replicas.
func (r *run) replicasSection(ctx context.Context) (err error) {
	l, err := r.start(ctx, "replicas", replicas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop(context.WithoutCancel(ctx))) }()
	few := int32(fewReplicas / r.shrink)
	if _, err := l.replicatedTopic(ctx, manyTopic, few); err != nil {
		return err
	}
	if err := l.awaitWhole(ctx, few); err != nil {
		return err
	}
	var worst time.Duration
	moved := 0
	for range killRounds {
		took, n, err := l.killLeader(ctx)
		if err != nil {
			return err
		}
		worst, moved = max(worst, took), moved+n
		if err := l.awaitWhole(ctx, few); err != nil {
			return err
		}
	}
	r.add(row{
		what: fmt.Sprintf("%d replicas per broker: kill -9 to the last partition's first ack", few), unit: "s", target: 1, measured: worst.Seconds(), atMost: true,
		note: fmt.Sprintf("worst of %d kills; %d leaderships moved in all", killRounds, moved),
	})
	many := int32(manyReplicas / replicas / r.shrink)
	if _, err := l.client.Admin().UpdateTopic(ctx, manyTopic, client.TopicChange{Partitions: many}); err != nil {
		return err
	}
	if err := l.awaitWhole(ctx, many); err != nil {
		return err
	}
	if err := writeSome(ctx, l.client, many, 10); err != nil {
		return err
	}
	var total float64
	for _, name := range l.cluster.Brokers() {
		memory, err := residentMB(l, name)
		if err != nil {
			return err
		}
		total += memory
	}
	r.add(row{
		what: fmt.Sprintf("%d replicas on three brokers: resident memory in total", many*replicas), unit: "MB", target: 2000, measured: total, atMost: true,
		note: "after 10 records to each partition",
	})
	return nil
}

// awaitWhole waits until a topic has n partitions with all replicas in sync.
func (l *loaded) awaitWhole(ctx context.Context, n int32) error {
	ctx, cancel := context.WithTimeout(ctx, wholeLimit)
	defer cancel()
	tick := time.NewTicker(wholePoll)
	defer tick.Stop()
	for {
		whole := 0
		_, parts, err := l.client.Admin().DescribeTopic(ctx, manyTopic)
		for _, p := range parts {
			if p.Leader >= 0 && len(p.ISR) == replicas {
				whole++
			}
		}
		if err == nil && whole == int(n) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d partitions have all replicas in sync: %w", whole, n, errors.Join(ctx.Err(), err))
		}
	}
}

// killLeader kills the broker that leads most, sends a record to each partition that it led, and returns how long after the kill the last of
// them was acknowledged.
func (l *loaded) killLeader(ctx context.Context) (took time.Duration, moved int, err error) {
	_, parts, err := l.client.Admin().DescribeTopic(ctx, manyTopic)
	if err != nil {
		return 0, 0, err
	}
	led := map[int32][]int32{}
	for _, p := range parts {
		led[p.Leader] = append(led[p.Leader], p.Partition)
	}
	var victim int32
	for id, all := range led {
		if len(all) > len(led[victim]) {
			victim = id
		}
	}
	slices.Sort(led[victim])
	// The producer knows the old leaders, as one does that has been at it for a while.
	p, err := l.client.NewProducer(client.ManualPartitioner(), client.Linger(0))
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	if _, err := sendTo(ctx, p, led[victim]); err != nil {
		return 0, 0, err
	}
	name := strconv.Itoa(int(victim))
	began := time.Now()
	if err := l.cluster.Kill(ctx, name); err != nil {
		return 0, 0, err
	}
	last, err := sendTo(ctx, p, led[victim])
	return last.Sub(began), len(led[victim]), errors.Join(err, l.cluster.StartProcess(ctx, name))
}

// sendTo sends a record to each partition and returns when the last was acknowledged.
func sendTo(ctx context.Context, p *client.Producer, to []int32) (last time.Time, err error) {
	var mu sync.Mutex
	for _, partition := range to {
		p.Produce(ctx, &client.Record{Topic: manyTopic, Partition: partition, Value: []byte("x")}, func(_ *client.Record, e error) {
			mu.Lock()
			defer mu.Unlock()
			err = errors.Join(err, e)
			if now := time.Now(); now.After(last) {
				last = now
			}
		})
	}
	flushed := p.Flush(ctx)
	mu.Lock()
	defer mu.Unlock()
	return last, errors.Join(err, flushed)
}
