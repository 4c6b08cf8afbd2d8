package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/bench"
	"runnel.dev/runnel/internal/devcluster"
)

const (
	mainTopic  = "bench"
	partitions = 6
	brokerName = "1"
)

// run is what the sections share.
type run struct {
	dir, runnel string
	shrink      int64
	busy        time.Duration
	rows        []row
	disk        float64
	// The cluster of the throughput sections, once one of them has started it.
	load *loaded
	// filled: the topic of the produce section is there.
	filled bool
}

// loaded is a running cluster with a client.
type loaded struct {
	cluster *devcluster.Cluster
	client  *client.Client
}

func (r *run) add(w row) { r.rows = append(r.rows, w) }

func (r *run) start(ctx context.Context, name string, brokers int) (*loaded, error) {
	cluster, err := devcluster.Start(ctx, devcluster.Options{
		Dir: filepath.Join(r.dir, name), Executable: r.runnel, Brokers: brokers, Tied: true,
	})
	if err != nil {
		return nil, err
	}
	c, err := client.Open(ctx, "runnel://"+strings.Join(cluster.Addresses(), ","))
	if err != nil {
		return nil, errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
	}
	return &loaded{cluster, c}, nil
}

// stop ends the cluster and removes its data.
func (l *loaded) stop(ctx context.Context) error {
	closing, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err := l.client.Close(closing)
	return errors.Join(err, l.cluster.Stop(ctx), os.RemoveAll(l.cluster.Dir()))
}

func (r *run) throughputCluster(ctx context.Context) (*loaded, error) {
	if r.load != nil {
		return r.load, nil
	}
	l, err := r.start(ctx, "throughput", 1)
	r.load = l
	return l, err
}

func (r *run) stopLoad(ctx context.Context) error {
	if r.load == nil {
		return nil
	}
	l := r.load
	r.load = nil
	return l.stop(ctx)
}

// withTopic runs f on a topic of its own, which is deleted afterwards, so that its data does not weigh on what follows.
func (r *run) withTopic(ctx context.Context, name string, f func(*client.Client) error) error {
	l, err := r.throughputCluster(ctx)
	if err != nil {
		return err
	}
	t, err := l.client.Admin().CreateTopic(ctx, client.TopicSpec{Name: name, Partitions: partitions})
	if err != nil {
		return err
	}
	return errors.Join(f(l.client), l.client.Admin().DeleteTopic(context.WithoutCancel(ctx), name, t.ID))
}

// fill makes the topic that the produce section measures and the consume section reads.
func (r *run) fill(ctx context.Context) (bench.Result, error) {
	l, err := r.throughputCluster(ctx)
	if err != nil {
		return bench.Result{}, err
	}
	if _, err := l.client.Admin().CreateTopic(ctx, client.TopicSpec{Name: mainTopic, Partitions: partitions}); err != nil {
		return bench.Result{}, err
	}
	o := bench.Options{Topic: mainTopic, RecordBytes: 1 << 10, Records: (4 << 30) >> 10 / r.shrink}
	res, err := bench.Produce(ctx, l.client, o, client.Compress(client.CompressionNone))
	r.filled = err == nil
	return res, err
}

func (r *run) produceSection(ctx context.Context) error {
	disk, err := r.diskSpeed(ctx)
	if err != nil {
		return err
	}
	res, err := r.fill(ctx)
	if err != nil {
		return err
	}
	r.add(row{
		what: "produce, 1 KiB records, fsync before ack", unit: "MB/s", target: 0.6 * disk, measured: res.MBPerSecond(),
		note: fmt.Sprintf("60 %% of the disk's %.0f MB/s; %.1f GB in %v, %d partitions", disk, float64(res.Bytes)/1e9, res.Took.Round(time.Millisecond), partitions),
	})
	return nil
}

func (r *run) consumeSection(ctx context.Context) error {
	if !r.filled {
		if _, err := r.fill(ctx); err != nil {
			return err
		}
	}
	if err := warm(r.load.cluster.DataDir(brokerName)); err != nil {
		return err
	}
	res, err := bench.Consume(ctx, r.load.client, bench.Options{Topic: mainTopic, RecordBytes: 1 << 10, Duration: 5 * time.Minute})
	if err != nil {
		return err
	}
	if want := (4 << 30) >> 10 / r.shrink; res.Records != want {
		return fmt.Errorf("read %d records, %d were written", res.Records, want)
	}
	r.add(row{
		what: "consume from the page cache, 1 KiB records", unit: "MB/s", target: 1000, measured: res.MBPerSecond(),
		note: fmt.Sprintf("%.1f GB in %v", float64(res.Bytes)/1e9, res.Took.Round(time.Millisecond)),
	})
	return nil
}

// warm reads every file once, so that it is in the page cache as far as that has room.
func warm(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, f)
		return errors.Join(err, f.Close())
	})
}

func (r *run) smallSection(ctx context.Context) error {
	return r.withTopic(ctx, "small", func(c *client.Client) error {
		res, err := bench.Produce(ctx, c, bench.Options{Topic: "small", RecordBytes: 100, Records: 24_000_000 / r.shrink}, client.Compress(client.CompressionNone))
		if err != nil {
			return err
		}
		r.add(row{
			what: "produce, 100 B records, fsync before ack", unit: "M records/s", target: 1.5, measured: res.RecordsPerSecond() / 1e6,
			note: fmt.Sprintf("%d M records in %v, client and broker on the same cores", res.Records/1e6, res.Took.Round(time.Millisecond)),
		})
		return nil
	})
}

func (r *run) latencySection(ctx context.Context) error {
	return r.withTopic(ctx, "latency", func(c *client.Client) error {
		o := bench.Options{Topic: "latency", RecordBytes: 1 << 10, BytesPerSecond: 20_000_000, Duration: 15 * time.Second}
		if r.shrink > 1 {
			o.Duration = 3 * time.Second
		}
		res, err := bench.Produce(ctx, c, o, client.Compress(client.CompressionNone), client.Linger(0))
		if err != nil {
			return err
		}
		l := res.Latency
		r.add(row{
			what: "ack latency at 20 MB/s, p99", unit: "ms", target: 5, measured: l.P99.Seconds() * 1e3, atMost: true,
			note: fmt.Sprintf("from when a record was due; p50 %v, max %v, %.1f MB/s", l.P50, l.Max, res.MBPerSecond()),
		})
		return nil
	})
}
