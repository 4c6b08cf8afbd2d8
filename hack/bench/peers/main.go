// Command peers measures Runnel, NATS JetStream and Apache Kafka side by side and prints one table of ratios: three servers each,
// replication 3, the same records, the same number of partitions, one client process, one machine, one directory, one run.
//
// Each system runs alone, with what it does by default about durability, and is asked for its strongest acknowledgement: Runnel fsyncs on
// the in-sync set before it acks; JetStream and Kafka ack what replicas have in memory. What three writers get out of the disk with
// fdatasync is measured first, because three replicas share one disk here.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const limit = 40 * time.Minute

// system is one of the peers. Its methods are called in order: start, the measurements, stop.
type system interface {
	name() string
	// durability is what an acknowledgement means.
	durability() string
	start(ctx context.Context, dir string) error
	// createTopic makes a topic with workload.partitions partitions, or the nearest that the system has, and three replicas.
	createTopic(ctx context.Context, topic string) error
	// produce sends records and waits for all acknowledgements. With a rate it measures from when each record was due.
	produce(ctx context.Context, topic string, w workload) (result, error)
	// consume reads the topic from its start until it has seen so many records.
	consume(ctx context.Context, topic string, records int64) (result, error)
	stop(ctx context.Context) error
}

// workload is what is sent.
type workload struct {
	records int64
	size    int
	// rate is in bytes per second, 0: as fast as it goes.
	rate int64
}

const partitions = 6

// result is what a measurement came to.
type result struct {
	records, bytes int64
	took           time.Duration
	p50, p99       time.Duration
}

func (r result) mbPerSecond() float64 { return float64(r.bytes) / 1e6 / r.took.Seconds() }

func (r result) recordsPerSecond() float64 { return float64(r.records) / r.took.Seconds() }

// measured is all that is known of one system.
type measured struct {
	system                  system
	big, small, paced, read result
}

func main() {
	var o options
	var only string
	flag.StringVar(&o.runnel, "runnel", "bin/runnel", "the runnel binary")
	flag.StringVar(&o.nats, "nats-server", "", "the nats-server binary")
	flag.StringVar(&o.kafka, "kafka-libs", "", "folder with Kafka's jars")
	flag.StringVar(&o.dir, "dir", os.TempDir(), "directory to measure in; up to 15 GB are written, and removed again")
	flag.Int64Var(&o.shrink, "shrink", 1, "divides the amounts of data")
	flag.StringVar(&only, "only", "runnel,jetstream,kafka", "systems to measure, separated by commas")
	flag.Parse()
	o.only = strings.Split(only, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx, o)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-peers:", err)
		os.Exit(1)
	}
}

type options struct {
	runnel, nats, kafka, dir string
	only                     []string
	shrink                   int64
}

func run(ctx context.Context, o options) (err error) {
	exe, err := filepath.Abs(o.runnel)
	if err != nil {
		return err
	}
	all := []system{&runnelSystem{executable: exe}, &jetStream{executable: o.nats}, &kafka{libs: o.kafka}}
	dir, err := os.MkdirTemp(o.dir, "runnel-peers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	step("disk …")
	disk, err := threeWriters(ctx, dir, (3<<30)/o.shrink)
	if err != nil {
		return err
	}
	var got []measured
	for _, s := range all {
		if !slices.Contains(o.only, s.name()) {
			continue
		}
		m, err := measure(ctx, s, filepath.Join(dir, s.name()), o.shrink)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name(), err)
		}
		got = append(got, m)
	}
	report(os.Stdout, disk, got)
	return nil
}

func measure(ctx context.Context, s system, dir string, shrink int64) (m measured, err error) {
	m.system = s
	step("%s: start …", s.name())
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return m, err
	}
	defer func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, s.stop(stopping), os.RemoveAll(dir))
	}()
	if err := s.start(ctx, dir); err != nil {
		return m, err
	}
	for _, part := range []struct {
		what string
		into *result
		w    workload
	}{
		{"warm", new(result), workload{records: 100_000 / shrink, size: 1 << 10}},
		{"produce", &m.big, workload{records: 1_000_000 / shrink, size: 1 << 10}},
		{"small", &m.small, workload{records: 5_000_000 / shrink, size: 100}},
		{"paced", &m.paced, workload{records: 200_000 / shrink, size: 1 << 10, rate: 20_000_000}},
	} {
		step("%s: %s …", s.name(), part.what)
		if err := s.createTopic(ctx, part.what); err != nil {
			return m, fmt.Errorf("create topic %s: %w", part.what, err)
		}
		if *part.into, err = s.produce(ctx, part.what, part.w); err != nil {
			return m, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	step("%s: consume …", s.name())
	m.read, err = s.consume(ctx, "produce", m.big.records)
	return m, err
}

func step(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench-peers: "+format+"\n", args...) }
