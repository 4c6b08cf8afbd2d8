// Package integration tests the product from end to end: a real etcd, real brokers with their listeners, and the Go client or plain
// generated stubs, all in this process. What only a part shows is tested beside that part; what needs processes to be killed is tested by
// test/crash.
package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
	"runnel.dev/runnel/record"
)

// shared is the etcd of all tests that do not stop it.
var shared *testcluster.Etcd

func TestMain(m *testing.M) { os.Exit(testcluster.Main(m, &shared)) }

// start starts a cluster of one broker in the shared etcd.
func start(t *testing.T, edits ...func(*config.Config)) *testcluster.Cluster {
	t.Helper()
	return testcluster.New(t, testcluster.Options{Etcd: shared, Configure: func(c *config.Config) {
		for _, edit := range edits {
			edit(c)
		}
	}})
}

// bounded is the test's context with a deadline, for calls that could wait for ever.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testcluster.Patience)
	t.Cleanup(cancel)
	return ctx
}

func create(t *testing.T, cl *client.Client, name string, partitions int32, cfg client.TopicConfig) client.Topic {
	t.Helper()
	topic, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: name, Partitions: partitions, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

func producer(t *testing.T, cl *client.Client, opts ...client.ProducerOption) *client.Producer {
	t.Helper()
	p, err := cl.NewProducer(append([]client.ProducerOption{client.ManualPartitioner(), client.Linger(0)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// produce sends each value in a batch of its own, and returns the offsets.
func produce(t *testing.T, cl *client.Client, topic string, partition int32, values ...string) []int64 {
	t.Helper()
	p := producer(t, cl)
	var offsets []int64
	for _, v := range values {
		r := &client.Record{Topic: topic, Partition: partition, Value: []byte(v)}
		if err := p.ProduceSync(bounded(t), r); err != nil {
			t.Fatal(err)
		}
		offsets = append(offsets, r.Offset)
	}
	if err := p.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	return offsets
}

// values are n different ones.
func values(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("value-%d", i)
	}
	return out
}

// read returns the records from a position to the end.
func read(t *testing.T, cl *client.Client, from client.Position, tps ...client.TopicPartition) []*client.Record {
	t.Helper()
	records, err := tryRead(t, cl, from, tps...)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

// tryRead stops at the first error.
func tryRead(t *testing.T, cl *client.Client, from client.Position, tps ...client.TopicPartition) (records []*client.Record, err error) {
	t.Helper()
	cs, err := cl.NewConsumer(client.Partitions(tps...), client.From(from), client.UntilEnd())
	if err != nil {
		return nil, err
	}
	ctx := bounded(t)
	defer func() { err = errors.Join(err, cs.Close(ctx)) }()
	for r, err := range cs.Records(ctx) {
		if err != nil {
			return records, err
		}
		records = append(records, r.Clone())
	}
	return records, ctx.Err()
}

func texts(records []*client.Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r.Value)
	}
	return out
}

func tp(topic string, partition int32) client.TopicPartition {
	return client.TopicPartition{Topic: topic, Partition: partition}
}

// partitions describes a topic's partitions. A client whose broker has just come back may need a moment to notice.
func partitions(t *testing.T, cl *client.Client, topic string) (infos []client.PartitionInfo) {
	t.Helper()
	ctx := bounded(t)
	testcluster.Eventually(t, func() (err error) {
		infos, err = cl.Admin().DescribePartitions(ctx, topic)
		if err != nil && !client.Retriable(err) {
			t.Fatal(err)
		}
		for _, p := range infos { // a broker may not know of a new topic yet
			if client.Retriable(p.Err) {
				err = errors.Join(err, p.Err)
			}
		}
		return err
	})
	return infos
}

// wantReason checks that a broker refused with a reason, and returns the details of its answer.
func wantReason(t *testing.T, err error, code codes.Code, reason string) map[string]string {
	t.Helper()
	var answer *client.Error
	if !errors.As(err, &answer) {
		t.Fatalf("error %v (%T), want a broker's answer with reason %s", err, err, reason)
	}
	if answer.Reason != reason || answer.Code != code {
		t.Fatalf("answer %v %s (%v), want %v %s", answer.Code, answer.Reason, err, code, reason)
	}
	return answer.Metadata
}

// dial connects plain stubs.
func dial(t *testing.T, address string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if len(opts) == 0 {
		opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	conn, err := grpc.NewClient("passthrough:///"+address, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// batch encodes values into one record batch.
func batch(t *testing.T, values ...string) []byte {
	t.Helper()
	b := record.NewBuilder(record.CodecNone)
	for i, v := range values {
		b.Append(int64(1_700_000_000_000+i), nil, []byte(v), nil)
	}
	out, err := b.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// raw is a produce stream of plain stubs.
type raw struct {
	t      *testing.T
	stream runnelv1.Producer_ProduceClient
}

// rawProduce opens a stream that is answered by the broker it goes to, and by no other on its behalf.
func rawProduce(t *testing.T, address string) *raw {
	t.Helper()
	ctx := metadata.AppendToOutgoingContext(bounded(t), "runnel-route", "direct")
	s, err := runnelv1.NewProducerClient(dial(t, address)).Produce(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &raw{t, s}
}

func (r *raw) send(id uint64, topic client.TopicID, partition int32, batch []byte) {
	r.t.Helper()
	err := r.stream.Send(&runnelv1.ProduceRequest{
		CorrelationId: id, TopicId: topic[:], Partition: partition, LeaderEpoch: -1, Batch: batch,
	})
	if err != nil && !errors.Is(err, io.EOF) { // Recv says why
		r.t.Fatal(err)
	}
}

// do sends one batch and returns its answer.
func (r *raw) do(topic client.TopicID, partition int32, batch []byte) *runnelv1.ProduceResponse {
	r.t.Helper()
	r.send(1, topic, partition, batch)
	resp, err := r.stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

// rawFetch subscribes one partition by plain stubs and returns the first answer.
func rawFetch(t *testing.T, address string, topic client.TopicID, partition int32, offset int64) *runnelv1.FetchResponse {
	t.Helper()
	s, err := runnelv1.NewConsumerClient(dial(t, address)).Fetch(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	err = s.Send(&runnelv1.FetchRequest{StreamCreditBytes: 1 << 20, Add: []*runnelv1.FetchAdd{{
		SubscriptionId: 1, TopicId: topic[:], Partition: partition, Offset: offset, LeaderEpoch: -1, CreditBytes: 1 << 20,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return resp
}
