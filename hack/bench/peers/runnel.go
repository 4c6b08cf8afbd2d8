package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/bench"
	"runnel.dev/runnel/internal/devcluster"
)

// runnelSystem is three brokers and one etcd, as `runnel dev --brokers 3` starts them.
type runnelSystem struct {
	executable string
	cluster    *devcluster.Cluster
	client     *client.Client
}

func (s *runnelSystem) name() string { return "runnel" }

func (s *runnelSystem) durability() string { return "fsynced on the in-sync set, at least 2 of 3" }

func (s *runnelSystem) start(ctx context.Context, dir string) (err error) {
	s.cluster, err = devcluster.Start(ctx, devcluster.Options{Dir: dir, Executable: s.executable, Brokers: 3, Tied: true})
	if err != nil {
		return err
	}
	s.client, err = client.Open(ctx, "runnel://"+strings.Join(s.cluster.Addresses(), ","))
	return err
}

func (s *runnelSystem) createTopic(ctx context.Context, topic string) error {
	_, err := s.client.Admin().CreateTopic(ctx, client.TopicSpec{Name: topic, Partitions: partitions, Replicas: 3})
	return err
}

func (s *runnelSystem) produce(ctx context.Context, topic string, w workload) (result, error) {
	linger := 5 * time.Millisecond
	if w.rate > 0 {
		linger = 0
	}
	r, err := bench.Produce(ctx, s.client, bench.Options{Topic: topic, Records: w.records, RecordBytes: w.size, BytesPerSecond: w.rate},
		client.Compress(client.CompressionNone), client.Linger(linger))
	if err != nil {
		return result{}, err
	}
	return result{records: r.Records, bytes: r.Bytes, took: r.Took, p50: r.Latency.P50, p99: r.Latency.P99}, nil
}

func (s *runnelSystem) consume(ctx context.Context, topic string, records int64) (result, error) {
	r, err := bench.Consume(ctx, s.client, bench.Options{Topic: topic, Records: records, RecordBytes: 1 << 10})
	if err == nil && r.Records != records {
		err = fmt.Errorf("read %d records, %d were written", r.Records, records)
	}
	return result{records: r.Records, bytes: r.Bytes, took: r.Took}, err
}

func (s *runnelSystem) stop(ctx context.Context) error {
	var errs []error
	if s.client != nil {
		errs = append(errs, s.client.Close(ctx))
	}
	if s.cluster != nil {
		errs = append(errs, s.cluster.Stop(ctx))
	}
	return errors.Join(errs...)
}
