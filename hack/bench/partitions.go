package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"runnel.dev/runnel/client"
)

const (
	manyTopic      = "many"
	manyPartitions = 2_000
	perPartition   = 50
)

// partitionsSection measures a broker with many partitions: its memory, and how soon it is ready again.
func (r *run) partitionsSection(ctx context.Context) (err error) {
	l, err := r.start(ctx, "partitions", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop(context.WithoutCancel(ctx))) }()
	n := int32(manyPartitions / r.shrink)
	if _, err := l.client.Admin().CreateTopic(ctx, client.TopicSpec{Name: manyTopic, Partitions: n}); err != nil {
		return err
	}
	if err := writeToEach(ctx, l.client, n); err != nil {
		return err
	}
	memory, err := residentMB(l, brokerName)
	if err != nil {
		return err
	}
	r.add(row{
		what: fmt.Sprintf("%d partitions: resident memory", n), unit: "MB", target: 500, measured: memory, atMost: true,
		note: fmt.Sprintf("after %d records to each", perPartition),
	})
	return r.restarts(ctx, l, n)
}

func (r *run) restarts(ctx context.Context, l *loaded, n int32) error {
	began := time.Now()
	if err := l.cluster.StopProcess(ctx, brokerName); err != nil {
		return err
	}
	stopping := time.Since(began)
	clean, err := timeStart(ctx, l)
	if err != nil {
		return err
	}
	r.add(row{
		what: fmt.Sprintf("%d partitions: ready after a clean stop", n), unit: "s", target: 3, measured: clean.Seconds(), atMost: true,
		note: fmt.Sprintf("the stop took %v", stopping.Round(time.Millisecond)),
	})
	// Every partition has just been written to when the broker is killed.
	if err := writeToEach(ctx, l.client, n); err != nil {
		return err
	}
	if err := l.cluster.Kill(ctx, brokerName); err != nil {
		return err
	}
	killed, err := timeStart(ctx, l)
	if err != nil {
		return err
	}
	r.add(row{what: fmt.Sprintf("%d partitions: ready after kill -9", n), unit: "s", target: 10, measured: killed.Seconds(), atMost: true})
	return writeToEach(ctx, l.client, n)
}

func timeStart(ctx context.Context, l *loaded) (time.Duration, error) {
	began := time.Now()
	err := l.cluster.StartProcess(ctx, brokerName)
	return time.Since(began), err
}

// writeToEach sends some records to each partition and waits for their acks.
func writeToEach(ctx context.Context, c *client.Client, n int32) error {
	return writeSome(ctx, c, n, perPartition)
}

func writeSome(ctx context.Context, c *client.Client, n int32, each int) error {
	p, err := c.NewProducer(client.ManualPartitioner(), client.BatchBytes(16<<10))
	if err != nil {
		return err
	}
	value := []byte(strings.Repeat("x", 100))
	for range each {
		for partition := range n {
			p.Produce(ctx, &client.Record{Topic: manyTopic, Partition: partition, Value: value}, nil)
		}
	}
	return errors.Join(p.Flush(ctx), p.Close(ctx))
}

// residentMB is a broker's VmRSS, 10^6 bytes.
func residentMB(l *loaded, name string) (float64, error) {
	for _, p := range l.cluster.Processes {
		if p.Name != name {
			continue
		}
		var kib int64
		text := field("/proc/"+strconv.Itoa(p.PID)+"/status", "VmRSS")
		if _, err := fmt.Sscanf(text, "%d kB", &kib); err != nil {
			return 0, fmt.Errorf("memory of process %d is %q: %w", p.PID, text, err)
		}
		return float64(kib) * 1024 / 1e6, nil
	}
	return 0, fmt.Errorf("%w: %s", errNoBroker, name)
}

var errNoBroker = errors.New("no such broker")
