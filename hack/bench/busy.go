package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/bench"
)

// busySection keeps all cores busy beside a steady load: no leadership may move, since nothing has failed.
func (r *run) busySection(ctx context.Context) (err error) {
	l, err := r.start(ctx, "busy", replicas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop(context.WithoutCancel(ctx))) }()
	if _, err := l.replicatedTopic(ctx, mainTopic, partitions); err != nil {
		return err
	}
	before, err := l.epochs(ctx)
	if err != nil {
		return err
	}
	stop, err := burn(ctx, 2*runtime.NumCPU())
	if err != nil {
		return err
	}
	res, err := bench.Produce(ctx, l.client, bench.Options{Topic: mainTopic, RecordBytes: 1 << 10, BytesPerSecond: 5_000_000, Duration: r.busy}, client.Linger(0))
	stop()
	if err != nil {
		return err
	}
	after, err := l.epochs(ctx)
	if err != nil {
		return err
	}
	moved := 0
	for p := range before {
		moved += int(after[p] - before[p])
	}
	r.add(row{
		what: fmt.Sprintf("three replicas: leaders moved in %v of 100 %% CPU load", r.busy), unit: "moves", measured: float64(moved), atMost: true,
		note: fmt.Sprintf("want 0; %d processes compute beside it; ack latency p50 %v, p99 %v", 2*runtime.NumCPU(), res.Latency.P50, res.Latency.P99),
	})
	if moved > 0 {
		return fmt.Errorf("%d leaderships moved, and nothing had failed", moved)
	}
	return nil
}

// epochs are the leader epochs of the partitions.
func (l *loaded) epochs(ctx context.Context) (map[int32]int32, error) {
	_, parts, err := l.client.Admin().DescribeTopic(ctx, mainTopic)
	out := map[int32]int32{}
	for _, p := range parts {
		out[p.Partition] = p.LeaderEpoch
	}
	return out, err
}

// burn starts processes that compute as fast as they can until stop is called.
func burn(ctx context.Context, n int) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all []*exec.Cmd
	stop = func() {
		cancel()
		for _, cmd := range all {
			_ = cmd.Wait() // killed
		}
	}
	for range n {
		cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			stop()
			return nil, err
		}
		all = append(all, cmd)
	}
	return stop, nil
}
