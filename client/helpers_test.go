package client

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/client/fakebroker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a fake cluster and a client of it; both end with the test, or with stop.
type cluster struct {
	*fakebroker.Cluster
	c    *Client
	stop func()
}

func start(t *testing.T, brokers int, opts ...Option) *cluster {
	t.Helper()
	return startAt(t, brokers, "", opts...)
}

// startAt is start with other seeds than all brokers.
func startAt(t *testing.T, brokers int, url string, opts ...Option) *cluster {
	t.Helper()
	fake := fakebroker.Start(fakebroker.Brokers(brokers))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := Open(ctx, cmp.Or(url, fake.URL()), append([]Option{Dialer(fake.Dial)}, opts...)...)
	if err != nil {
		fake.Close()
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		_ = c.Close(ctx) // a test that cares closes producers itself
		fake.Close()
	})
	t.Cleanup(stop)
	return &cluster{fake, c, stop}
}

func (cl *cluster) producer(t *testing.T, opts ...ProducerOption) *Producer {
	t.Helper()
	p, err := cl.c.NewProducer(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (cl *cluster) consumer(t *testing.T, opts ...ConsumerOption) *Consumer {
	t.Helper()
	cs, err := cl.c.NewConsumer(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// outcomes collects what callbacks were told, in the order in which they ran.
type outcomes struct {
	wg sync.WaitGroup
	mu struct {
		sync.Mutex
		list []outcome
	}
}

type outcome struct {
	value  string
	offset int64
	err    error
}

func (o *outcomes) produce(ctx context.Context, p *Producer, r *Record) {
	o.wg.Add(1)
	p.Produce(ctx, r, func(r *Record, err error) {
		o.mu.Lock()
		o.mu.list = append(o.mu.list, outcome{string(r.Value), r.Offset, err})
		o.mu.Unlock()
		o.wg.Done()
	})
}

func (o *outcomes) all() []outcome {
	o.wg.Wait()
	return o.now()
}

func (o *outcomes) now() []outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]outcome(nil), o.mu.list...)
}

func rec(topic, value string) *Record { return &Record{Topic: topic, Value: []byte(value)} }

// values are the values in a partition's log.
func (cl *cluster) values(topic string, partition int32) []string {
	var out []string
	for _, r := range cl.Records(topic, partition) {
		out = append(out, string(r.Value))
	}
	return out
}

func numbers(prefix string, from, to int) []string {
	var out []string
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("%s%d", prefix, i))
	}
	return out
}

func (cl *cluster) mustConfigure(topic string, maxBatchBytes int32) {
	cl.Configure(topic, func(c *runnelv1.TopicConfig) { c.MaxBatchBytes = &maxBatchBytes })
}

// sleep waits in the virtual time of a synctest bubble.
func sleep(d time.Duration) { <-time.NewTimer(d).C }
