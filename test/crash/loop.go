package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/devcluster"
	"runnel.dev/runnel/internal/history"
	"runnel.dev/runnel/internal/workload"
)

const (
	topic      = "crash"
	partitions = 4
	// fillerBytes is the most that follows a record's number.
	fillerBytes = 2_000
	brokerName  = "1"
	// Each round lets at least so many acks in, then a random while more, before it kills.
	acksPerRound = 500
	maxExtraWait = 150 * time.Millisecond
	// A mutant's producer gives up soon: what it lost will never be answered.
	mutantPatience = 3 * time.Second
)

// loop is one cluster, one workload, and many kills.
type loop struct {
	name, dir, runnel string
	env               []string
	rounds            int
	seed              uint64
	// untilLost ends the loop at the first round after which an acked record is missing.
	untilLost bool
}

func (l loop) run(ctx context.Context) (report history.Report, err error) {
	cluster, err := devcluster.Start(ctx, devcluster.Options{
		Dir: l.dir, Executable: l.runnel, Brokers: 1, BrokerEnv: l.env, Tied: true,
	})
	if err != nil {
		return report, err
	}
	defer func() {
		err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
		if err != nil || !report.OK() && !l.untilLost {
			copyLog(cluster.LogFile(brokerName))
		}
	}()
	c, err := client.Open(ctx, "runnel://"+cluster.Addresses()[0])
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	segment := int64(1 << 20) // small, so that kills also hit rolls
	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: topic, Partitions: partitions, Config: client.TopicConfig{SegmentBytes: &segment}}); err != nil {
		return report, err
	}
	if l.untilLost {
		return l.untilCaught(ctx, cluster, c)
	}
	return l.all(ctx, cluster, c)
}

// all writes through every kill and judges once, at the end.
func (l loop) all(ctx context.Context, cluster *devcluster.Cluster, c *client.Client) (history.Report, error) {
	w, err := l.write(ctx, c, time.Now(), 0, 2*time.Minute)
	if err != nil {
		return history.Report{}, err
	}
	random := rand.New(rand.NewPCG(l.seed, 0))
	for range l.rounds {
		if err := l.kill(ctx, cluster, w, random); err != nil {
			return history.Report{}, errors.Join(err, w.Stop(ctx))
		}
	}
	if err := w.Stop(ctx); err != nil {
		return history.Report{}, err
	}
	reads, err := workload.ReadAll(ctx, c, topic, fillerBytes)
	return history.Check(w.History(), reads), err
}

// write numbers records from first+1. patience is how long an unanswered record is retried.
func (l loop) write(ctx context.Context, c *client.Client, began time.Time, first uint64, patience time.Duration) (*workload.Writer, error) {
	return workload.Start(ctx, c, workload.Options{
		Topic: topic, Partitions: partitions, First: first, Began: began, FillerBytes: fillerBytes,
		Producer: []client.ProducerOption{client.Linger(time.Millisecond), client.BatchBytes(64 << 10), client.DeliveryTimeout(patience)},
	})
}

// untilCaught judges after each kill, with a new writer each time: one whose acked records vanished cannot go on.
func (l loop) untilCaught(ctx context.Context, cluster *devcluster.Cluster, c *client.Client) (history.Report, error) {
	random := rand.New(rand.NewPCG(l.seed, 0))
	began := time.Now()
	var sends []history.Send
	var report history.Report
	for round := range l.rounds {
		w, err := l.write(ctx, c, began, uint64(round)<<32, mutantPatience)
		if err != nil {
			return report, err
		}
		killed := l.kill(ctx, cluster, w, random)
		// That sends fail here is what is being looked for, and the history says which.
		_ = w.Stop(ctx)
		if killed != nil {
			return report, killed
		}
		sends = append(sends, w.History()...)
		reads, err := workload.ReadAll(ctx, c, topic, fillerBytes)
		if err != nil {
			return report, err
		}
		if report = history.Check(sends, reads); report.Lost > 0 {
			break
		}
	}
	return report, nil
}

// kill waits for progress and for a random moment, kills the broker, and starts it again.
func (l loop) kill(ctx context.Context, cluster *devcluster.Cluster, w *workload.Writer, random *rand.Rand) error {
	if err := w.WaitAcks(ctx, acksPerRound); err != nil {
		return err
	}
	t := time.NewTimer(time.Duration(random.Int64N(int64(maxExtraWait))))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := cluster.Kill(ctx, brokerName); err != nil {
		return err
	}
	return cluster.StartProcess(ctx, brokerName)
}

func copyLog(name string) {
	b, err := os.ReadFile(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	const most = 8 << 10
	fmt.Fprintf(os.Stderr, "the broker's output ends:\n%s\n", b[max(0, len(b)-most):])
}
