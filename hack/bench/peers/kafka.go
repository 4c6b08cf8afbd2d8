package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// kafka is three brokers in KRaft mode, each a controller as well, with their default settings and the usual min.insync.replicas of 2.
type kafka struct {
	libs    string
	servers processes
	seeds   []string
}

func (s *kafka) name() string { return "kafka" }

func (s *kafka) durability() string { return "all in-sync replicas have it in memory; no fsync" }

func (s *kafka) start(ctx context.Context, dir string) error {
	ports, err := freePorts(6)
	if err != nil {
		return err
	}
	var voters []string
	for i := range 3 {
		voters = append(voters, fmt.Sprintf("%d@127.0.0.1:%d", i+1, ports[3+i]))
		s.seeds = append(s.seeds, "127.0.0.1:"+strconv.Itoa(ports[i]))
	}
	for i := range 3 {
		name := "k" + strconv.Itoa(i+1)
		conf := filepath.Join(dir, name+".properties")
		text := fmt.Sprintf(`process.roles=broker,controller
node.id=%d
controller.quorum.voters=%s
listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d
controller.listener.names=CONTROLLER
log.dirs=%s
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
`, i+1, strings.Join(voters, ","), ports[i], ports[3+i], filepath.Join(dir, name))
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return err
		}
		java := []string{"-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-cp", s.libs + "/*"}
		out, err := exec.CommandContext(ctx, "java", append(java, "kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", conf)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("format: %w: %s", err, out)
		}
		if err := s.servers.start(filepath.Join(dir, name+".log"), "java", append(java, "kafka.Kafka", conf)...); err != nil {
			return err
		}
	}
	return nil
}

func (s *kafka) open(opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.seeds...)}, opts...)...)
}

func (s *kafka) createTopic(ctx context.Context, topic string) error {
	c, err := s.open()
	if err != nil {
		return err
	}
	defer c.Close()
	return until(ctx, 2*time.Minute, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		r, err := kadm.NewClient(c).CreateTopic(ctx, partitions, 3, nil, topic)
		if err == nil {
			err = r.Err
		}
		return err
	})
}

func (s *kafka) produce(ctx context.Context, topic string, w workload) (result, error) {
	linger := 5 * time.Millisecond
	if w.rate > 0 {
		linger = 0
	}
	c, err := s.open(kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(linger),
		kgo.ProducerBatchMaxBytes(1_000_000), kgo.MaxBufferedRecords(1<<20), kgo.MaxBufferedBytes(64<<20), kgo.RequiredAcks(kgo.AllISRAcks()),
		// Unpaced, whole batches go to one partition after the other, as the other clients do it.
		kgo.RecordPartitioner(kgo.StickyPartitioner()))
	if err != nil {
		return result{}, err
	}
	defer c.Close()
	var seen latencies
	var failed atomic.Pointer[error]
	value := noise(w.size)
	began := time.Now()
	err = each(ctx, w, func(_ int64, due time.Time) error {
		c.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			} else if w.rate > 0 {
				seen.add(time.Since(due))
			}
		})
		return nil
	})
	err = errors.Join(err, c.Flush(ctx))
	if p := failed.Load(); p != nil {
		err = errors.Join(err, *p)
	}
	return result{records: w.records, bytes: w.records * int64(w.size), took: time.Since(began), p50: seen.at(0.5), p99: seen.at(0.99)}, err
}

func (s *kafka) consume(ctx context.Context, topic string, records int64) (result, error) {
	c, err := s.open(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxPartitionBytes(8<<20), kgo.FetchMaxBytes(64<<20))
	if err != nil {
		return result{}, err
	}
	defer c.Close()
	began := time.Now()
	var r result
	for r.records < records {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			return r, err
		}
		f.EachRecord(func(rec *kgo.Record) {
			r.records++
			r.bytes += int64(len(rec.Value))
		})
	}
	r.took = time.Since(began)
	return r, nil
}

func (s *kafka) stop(context.Context) error {
	s.servers.stop()
	return nil
}
