package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// jetStream is three nats-server processes with file storage. A stream is one Raft group, so a topic is as many streams as the
// others have partitions, each with a connection of its own.
type jetStream struct {
	executable string
	servers    processes
	urls       []string
}

func (s *jetStream) name() string { return "jetstream" }

func (s *jetStream) durability() string { return "a majority of 3 has it in memory; fsync every 2 min" }

func (s *jetStream) start(ctx context.Context, dir string) error {
	ports, err := freePorts(6)
	if err != nil {
		return err
	}
	var routes []string
	for i := range 3 {
		routes = append(routes, fmt.Sprintf("nats-route://127.0.0.1:%d", ports[3+i]))
		s.urls = append(s.urls, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	for i := range 3 {
		name := "n" + strconv.Itoa(i)
		conf := filepath.Join(dir, name+".conf")
		text := fmt.Sprintf(`server_name: %s
listen: 127.0.0.1:%d
jetstream { store_dir: %q, max_file_store: 40GB, max_memory_store: 1GB }
cluster { name: bench, listen: "127.0.0.1:%d", routes: [%s] }
`, name, ports[i], filepath.Join(dir, name), ports[3+i], strings.Join(routes, ", "))
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return err
		}
		if err := s.servers.start(filepath.Join(dir, name+".log"), s.executable, "-c", conf); err != nil {
			return err
		}
	}
	return nil
}

func (s *jetStream) connect(opts ...jetstream.JetStreamOpt) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(strings.Join(s.urls, ","))
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc, opts...)
	return nc, js, err
}

func stream(topic string, i int) string { return topic + "-" + strconv.Itoa(i) }

func (s *jetStream) createTopic(ctx context.Context, topic string) error {
	return until(ctx, time.Minute, func(ctx context.Context) error {
		// What is asked before the servers have elected a leader stays unanswered.
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		nc, js, err := s.connect()
		if err != nil {
			return err
		}
		defer nc.Close()
		for i := range partitions {
			name := stream(topic, i)
			if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
				Name: name, Subjects: []string{name}, Storage: jetstream.FileStorage, Replicas: 3,
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *jetStream) produce(ctx context.Context, topic string, w workload) (result, error) {
	var seen latencies
	var failed atomic.Pointer[error]
	fail := func(err error) { failed.CompareAndSwap(nil, &err) }
	value := noise(w.size)
	share := w
	share.records, share.rate = w.records/partitions, w.rate/partitions
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i := range partitions {
		nc, js, err := s.connect(jetstream.WithPublishAsyncMaxPending(4096))
		if err != nil {
			return result{}, err
		}
		defer nc.Close()
		subject := stream(topic, i)
		g.Go(func() error {
			var waiting sync.WaitGroup
			err := each(ctx, share, func(_ int64, due time.Time) error {
				future, err := js.PublishAsync(subject, value, jetstream.WithStallWait(30*time.Second))
				if err != nil {
					return err
				}
				if share.rate > 0 {
					waiting.Go(func() {
						select {
						case <-future.Ok():
							seen.add(time.Since(due))
						case err := <-future.Err():
							fail(err)
						}
					})
				}
				return nil
			})
			if err != nil {
				return err
			}
			select {
			case <-js.PublishAsyncComplete():
			case <-ctx.Done():
				return ctx.Err()
			}
			waiting.Wait()
			info, err := js.Stream(ctx, subject)
			if err != nil {
				return err
			}
			if n := info.CachedInfo().State.Msgs; n != uint64(share.records) {
				return fmt.Errorf("stream %s holds %d messages, %d were sent", subject, n, share.records)
			}
			return nil
		})
	}
	err := g.Wait()
	if p := failed.Load(); p != nil {
		err = errors.Join(err, *p)
	}
	n := share.records * partitions
	return result{records: n, bytes: n * int64(w.size), took: time.Since(began), p50: seen.at(0.5), p99: seen.at(0.99)}, err
}

func (s *jetStream) consume(ctx context.Context, topic string, records int64) (result, error) {
	var bytes atomic.Int64
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i := range partitions {
		nc, js, err := s.connect()
		if err != nil {
			return result{}, err
		}
		defer nc.Close()
		g.Go(func() error {
			c, err := js.OrderedConsumer(ctx, stream(topic, i), jetstream.OrderedConsumerConfig{})
			if err != nil {
				return err
			}
			it, err := c.Messages(jetstream.PullMaxMessages(10_000))
			if err != nil {
				return err
			}
			defer it.Stop()
			for range records / partitions {
				m, err := it.Next()
				if err != nil {
					return err
				}
				bytes.Add(int64(len(m.Data())))
			}
			return nil
		})
	}
	err := g.Wait()
	return result{records: records, bytes: bytes.Load(), took: time.Since(began)}, err
}

func (s *jetStream) stop(context.Context) error {
	s.servers.stop()
	return nil
}
