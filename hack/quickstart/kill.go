package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/devcluster"
)

const (
	healLimit = time.Minute
	healPoll  = 50 * time.Millisecond
)

// killer ends a broker in the middle of the writing, with SIGKILL, and starts it again when the writing is over.
type killer struct {
	cluster *devcluster.Cluster
	client  *client.Client
	victim  int32
	led     []int32 // partitions
}

// strike kills the leader of partition 0.
func (k *killer) strike(ctx context.Context, w *written) error {
	_, parts, err := k.client.Admin().DescribeTopic(ctx, topic)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Partition == 0 {
			k.victim = p.Leader
		}
	}
	for _, p := range parts {
		if p.Leader == k.victim {
			k.led = append(k.led, p.Partition)
		}
	}
	slices.Sort(k.led)
	step("kill -9 broker %d, which leads partitions %v", k.victim, k.led)
	w.watch()
	return k.cluster.Kill(ctx, k.name())
}

func (k *killer) name() string { return strconv.Itoa(int(k.victim)) }

func (k *killer) report(w *written) {
	step("its partitions had no acknowledgement for %v at most; nothing failed, and the writer did not have to know", w.longestGap(k.led).Round(time.Millisecond))
}

// heal starts the broker again and waits until it has caught up.
func (k *killer) heal(ctx context.Context) error {
	began := time.Now()
	if err := k.cluster.StartProcess(ctx, k.name()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healLimit)
	defer cancel()
	tick := time.NewTicker(healPoll)
	defer tick.Stop()
	for {
		behind, err := k.behind(ctx)
		if behind == 0 && err == nil {
			step("broker %d is back, and in sync with all it had missed, after %v", k.victim, time.Since(began).Round(time.Millisecond))
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d partitions do not have broker %d in sync after %v: %w", behind, k.victim, healLimit, errors.Join(ctx.Err(), err))
		}
	}
}

// behind counts the partitions of which the broker is not in sync.
func (k *killer) behind(ctx context.Context) (n int, err error) {
	_, parts, err := k.client.Admin().DescribeTopic(ctx, topic)
	for _, p := range parts {
		if !slices.Contains(p.ISR, k.victim) {
			n++
		}
	}
	return n, err
}
