package record_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"runnel.dev/runnel/record"
)

// These tests hold the codec against an independent implementation, in both directions.

func TestKmsgReadsOurBatch(t *testing.T) {
	b := record.NewBuilder(record.CodecNone)
	b.SetProducer(77, 5, 900)
	want := sample(200)
	for _, r := range want {
		b.Append(r.TS, r.Key, r.Value, r.Headers)
	}
	batch, err := b.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	record.Stamp(batch, 12345, 6)

	var k kmsg.RecordBatch
	if err := k.ReadFrom(batch); err != nil {
		t.Fatal(err)
	}
	h, err := record.ParseHeader(batch)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(headerOf(k), h); d != "" {
		t.Errorf("header (-kmsg +ours):\n%s", d)
	}
	rest := k.Records
	var got []rec
	for len(rest) > 0 {
		var kr kmsg.Record
		if err := kr.ReadFrom(rest); err != nil {
			t.Fatalf("record %d: %v", len(got), err)
		}
		r := rec{Offset: int64(kr.OffsetDelta), TS: k.FirstTimestamp + kr.TimestampDelta64, Key: kr.Key, Value: kr.Value}
		for _, kh := range kr.Headers {
			r.Headers = append(r.Headers, record.HeaderKV{Key: []byte(kh.Key), Value: kh.Value})
		}
		got = append(got, r)
		rest = rest[len(kr.AppendTo(nil)):]
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("records (-want +kmsg):\n%s", d)
	}
	if again := k.AppendTo(nil); !bytes.Equal(again, batch) {
		t.Errorf("kmsg encodes the batch differently:\n got %x\nours %x", again, batch)
	}
}

func headerOf(k kmsg.RecordBatch) record.Header {
	return record.Header{
		BaseOffset: k.FirstOffset, Length: k.Length, LeaderEpoch: k.PartitionLeaderEpoch, Magic: k.Magic,
		CRC: uint32(k.CRC), Attributes: record.Attributes(k.Attributes), LastOffsetDelta: k.LastOffsetDelta,
		BaseTimestamp: k.FirstTimestamp, MaxTimestamp: k.MaxTimestamp, ProducerID: k.ProducerID,
		ProducerEpoch: k.ProducerEpoch, BaseSequence: k.FirstSequence, Count: k.NumRecords,
	}
}

func TestWeReadKmsgsBatch(t *testing.T) {
	want := sample(200)
	base, newest := want[0].TS, want[0].TS
	var records []byte
	for i, r := range want {
		newest = max(newest, r.TS)
		kr := kmsg.Record{TimestampDelta64: r.TS - base, OffsetDelta: int32(i), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			kr.Headers = append(kr.Headers, kmsg.Header{Key: string(h.Key), Value: h.Value})
		}
		// Length counts the bytes behind itself, and a zero length encodes to one byte.
		kr.Length = int32(len(kr.AppendTo(nil)) - 1)
		records = kr.AppendTo(records)
	}
	k := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: 199, FirstTimestamp: base, MaxTimestamp: newest,
		ProducerID: 77, ProducerEpoch: 5, FirstSequence: 900, NumRecords: 200, Records: records,
		Length: int32(49 + len(records)),
	}
	batch := k.AppendTo(nil)
	record.SetProducerOn(batch, 77, 5, 900) // kmsg leaves the checksum to its caller
	var v record.Validator
	if _, err := v.Validate(batch, record.Limits{}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, mustRead(t, batch)); d != "" {
		t.Errorf("records (-kmsg +ours):\n%s", d)
	}
}

var kgoCodecs = map[record.Codec]kgo.CompressionCodec{
	record.CodecNone:   kgo.NoCompression(),
	record.CodecGzip:   kgo.GzipCompression(),
	record.CodecSnappy: kgo.SnappyCompression(),
	record.CodecLZ4:    kgo.Lz4Compression(),
	record.CodecZstd:   kgo.ZstdCompression(),
}

const topic = "interop"

// fakeKafka starts an in-process broker of the Kafka protocol with a topic of one partition per codec.
func fakeKafka(t *testing.T) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(int32(len(codecs)), topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func kafkaClient(t *testing.T, c *kfake.Cluster, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(c.ListenAddrs()...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

func toKgo(r rec) *kgo.Record {
	k := &kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.TS)}
	for _, h := range r.Headers {
		k.Headers = append(k.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
	}
	return k
}

func fromKgo(k *kgo.Record) rec {
	r := rec{Offset: k.Offset, TS: k.Timestamp.UnixMilli(), Key: k.Key, Value: k.Value}
	for _, h := range k.Headers {
		r.Headers = append(r.Headers, record.HeaderKV{Key: []byte(h.Key), Value: h.Value})
	}
	return r
}

// TestWeReadWhatAKafkaClientProduces captures the batches that a public client sends to a broker.
func TestWeReadWhatAKafkaClientProduces(t *testing.T) {
	for _, codec := range codecs {
		for _, idempotent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/idempotent=%v", codec, idempotent), func(t *testing.T) {
				t.Parallel()
				batches := make(chan []byte, 100)
				c := fakeKafka(t)
				c.ControlKey(int16(kmsg.Produce), func(kr kmsg.Request) (kmsg.Response, error, bool) {
					c.KeepControl()
					req := kr.(*kmsg.ProduceRequest)
					for _, tp := range req.Topics {
						for _, p := range tp.Partitions {
							batches <- bytes.Clone(p.Records)
						}
					}
					return nil, nil, false
				})
				opts := []kgo.Opt{
					kgo.ProducerBatchCompression(kgoCodecs[codec]), kgo.RecordPartitioner(kgo.ManualPartitioner()),
					kgo.ProducerLinger(time.Minute), kgo.MaxBufferedRecords(10_000),
				}
				if !idempotent {
					opts = append(opts, kgo.DisableIdempotentWrite())
				}
				cl := kafkaClient(t, c, opts...)
				want := sample(2000)
				for _, r := range want {
					cl.Produce(t.Context(), toKgo(r), nil)
				}
				if err := cl.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				close(batches)

				var got []rec
				var v record.Validator
				for b := range batches {
					h, err := v.Validate(b, record.Limits{MaxBatchBytes: 1 << 20})
					if err != nil {
						t.Fatalf("Validate: %v", err)
					}
					if h.Attributes.Codec() != codec || (h.ProducerID >= 0) != idempotent {
						t.Errorf("header %+v", h)
					}
					record.Stamp(b, int64(len(got)), 1)
					got = append(got, mustRead(t, b)...)
				}
				if d := cmp.Diff(want, got); d != "" {
					t.Errorf("records (-sent +read):\n%s", d)
				}
			})
		}
	}
}

// TestAKafkaClientReadsOurBatches stores our batches in the fake broker, which checks them its own way, and
// fetches them with a public client.
func TestAKafkaClientReadsOurBatches(t *testing.T) {
	c := fakeKafka(t)
	want := make(map[int32][]rec)
	// Newer produce requests name the topic by an id that only the client knows.
	cl := kafkaClient(t, c, kgo.MaxVersions(kversion.V3_5_0()))
	for p, codec := range codecs {
		for _, n := range []int{1, 50, 3000} {
			recs := sample(n)
			produceRaw(t, cl, int32(p), build(t, codec, recs))
			for _, r := range recs {
				r.Offset = int64(len(want[int32(p)]))
				want[int32(p)] = append(want[int32(p)], r)
			}
		}
	}
	parts := make(map[int32]kgo.Offset)
	total := 0
	for p, recs := range want {
		parts[p] = kgo.NewOffset().AtStart()
		total += len(recs)
	}
	consumer := kafkaClient(t, c, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: parts}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got := make(map[int32][]rec)
	for n := 0; n < total; {
		fs := consumer.PollFetches(ctx)
		if errs := fs.Errors(); len(errs) > 0 {
			t.Fatalf("fetch: %v", errs)
		}
		fs.EachRecord(func(r *kgo.Record) {
			got[r.Partition] = append(got[r.Partition], fromKgo(r))
			n++
		})
	}
	for p, codec := range codecs {
		if d := cmp.Diff(want[int32(p)], got[int32(p)]); d != "" {
			t.Errorf("%s (-ours +read):\n%s", codec, d)
		}
	}
}

func produceRaw(t *testing.T, cl *kgo.Client, partition int32, batch []byte) {
	t.Helper()
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 5000
	rt := kmsg.NewProduceRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, batch
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 {
		t.Fatalf("the fake broker refuses our batch: error %d, %v", p.ErrorCode, p.ErrorMessage)
	}
}

// TestPartitionsAgreeWithAKafkaClient compares with the client's own partitioner.
func TestPartitionsAgreeWithAKafkaClient(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	tp := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	for range 10_000 {
		key := make([]byte, rng.IntN(40))
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		n := 1 + rng.IntN(5000)
		if got, want := record.PartitionForKey(key, int32(n)), tp.Partition(&kgo.Record{Key: key}, n); int(got) != want {
			t.Fatalf("PartitionForKey(%x, %d) = %d, the Kafka client says %d", key, n, got, want)
		}
	}
}
