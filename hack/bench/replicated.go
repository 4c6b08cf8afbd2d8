package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/bench"
)

// replicas is how many brokers the sections with replication have, and replicas each partition.
const replicas = 3

// replicatedSection measures throughput and latency with three replicas, on three brokers that share the disk and the cores.
func (r *run) replicatedSection(ctx context.Context) (err error) {
	shared, err := r.sharedDiskSpeed(ctx, replicas)
	if err != nil {
		return err
	}
	l, err := r.start(ctx, "replicated", replicas)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop(context.WithoutCancel(ctx))) }()
	o := bench.Options{Topic: mainTopic, RecordBytes: 1 << 10, Records: (2 << 30) >> 10 / r.shrink}
	topic, res, err := l.produce(ctx, o)
	if err != nil {
		return err
	}
	r.add(row{
		what: "three replicas: produce, 1 KiB records", unit: "MB/s", target: 0.75 * shared / replicas, measured: res.MBPerSecond(),
		note: fmt.Sprintf("75 %% of a third of the %.0f MB/s that three writers get together; %.1f GB in %v", shared, float64(res.Bytes)/1e9, res.Took.Round(time.Millisecond)),
	})
	for _, name := range l.cluster.Brokers() {
		if err := warm(l.cluster.DataDir(name)); err != nil {
			return err
		}
	}
	read, err := bench.Consume(ctx, l.client, bench.Options{Topic: mainTopic, RecordBytes: 1 << 10, Duration: 5 * time.Minute})
	if err != nil {
		return err
	}
	if read.Records != o.Records {
		return fmt.Errorf("read %d records, %d were written", read.Records, o.Records)
	}
	r.add(row{
		what: "three replicas: consume, 1 KiB records", unit: "MB/s", target: 1000, measured: read.MBPerSecond(),
		note: fmt.Sprintf("%.1f GB in %v", float64(read.Bytes)/1e9, read.Took.Round(time.Millisecond)),
	})
	if err := l.client.Admin().DeleteTopic(ctx, mainTopic, topic.ID); err != nil {
		return err
	}
	if _, res, err = l.produce(ctx, bench.Options{Topic: "small", RecordBytes: 100, Records: 12_000_000 / r.shrink}); err != nil {
		return err
	}
	r.add(row{
		what: "three replicas: produce, 100 B records", unit: "M records/s", target: 1, measured: res.RecordsPerSecond() / 1e6,
		note: fmt.Sprintf("%d M records in %v, client and brokers on the same cores", res.Records/1e6, res.Took.Round(time.Millisecond)),
	})
	paced := bench.Options{Topic: "latency", RecordBytes: 1 << 10, BytesPerSecond: 20_000_000, Duration: 15 * time.Second}
	if r.shrink > 1 {
		paced.Duration = 3 * time.Second
	}
	if _, res, err = l.produce(ctx, paced, client.Linger(0)); err != nil {
		return err
	}
	r.add(row{
		what: "three replicas: ack latency at 20 MB/s, p99", unit: "ms", measured: res.Latency.P99.Seconds() * 1e3, atMost: true,
		note: fmt.Sprintf("p50 %v, max %v, %.1f MB/s; the target is half of Kafka's: make bench-peers", res.Latency.P50, res.Latency.Max, res.MBPerSecond()),
	})
	return nil
}

// produce makes a replicated topic and sends to it.
func (l *loaded) produce(ctx context.Context, o bench.Options, opts ...client.ProducerOption) (client.Topic, bench.Result, error) {
	t, err := l.replicatedTopic(ctx, o.Topic, partitions)
	if err != nil {
		return t, bench.Result{}, err
	}
	res, err := bench.Produce(ctx, l.client, o, append(opts, client.Compress(client.CompressionNone))...)
	return t, res, err
}

func (l *loaded) replicatedTopic(ctx context.Context, name string, n int32) (client.Topic, error) {
	minimum := int32(2)
	return l.client.Admin().CreateTopic(ctx, client.TopicSpec{
		Name: name, Partitions: n, Replicas: replicas, Config: client.TopicConfig{MinInSyncReplicas: &minimum},
	})
}
