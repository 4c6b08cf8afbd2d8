package server_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/record"
)

// loopback replaces the in-memory listener by a TCP socket.
func loopback(b *testing.B) (*fixture, func()) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	f := setup(b, func(c *server.Config) { c.Listeners[0].Listener = l })
	old := f.conn
	f.dial(func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", l.Addr().String())
	}, grpc.WithStaticStreamWindowSize(16<<20), grpc.WithStaticConnWindowSize(32<<20), grpc.WithReadBufferSize(256<<10), grpc.WithWriteBufferSize(256<<10))
	return f, func() { old.Close() }
}

func BenchmarkProduce(b *testing.B) {
	for name, size := range map[string]struct{ records, bytes int }{"100Bx1000": {1000, 100}, "1KiBx1000": {1000, 1024}, "100Bx1": {1, 100}} {
		b.Run(name, func(b *testing.B) {
			f, done := loopback(b)
			defer done()
			f.syncing()
			topic := f.topic("t", 1)
			bld := record.NewBuilder(record.CodecNone)
			value := []byte(strings.Repeat("v", size.bytes))
			for range size.records {
				bld.Append(1, nil, value, nil)
			}
			batch, err := bld.Build(nil)
			if err != nil {
				b.Fatal(err)
			}
			s := f.produce(b.Context())
			b.SetBytes(int64(len(batch)))
			b.ReportAllocs()
			b.ResetTimer()
			n := b.N
			answered := make(chan error, 1)
			go func() {
				var r runnelv1.ProduceResponse
				for range n {
					if err := s.RecvMsg(&r); err != nil {
						answered <- err
						return
					}
				}
				answered <- nil
			}()
			fr := &codec.ProduceFrame{TopicID: topic.ID, LeaderEpoch: -1, Acks: runnelv1.Acks_ACKS_LEADER}
			fr.SetBatchBytes(batch)
			for i := range n {
				fr.CorrelationID = uint64(i)
				if err := s.SendMsg(fr); err != nil {
					b.Fatal(err)
				}
			}
			if err := <-answered; err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(n*size.records)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

func BenchmarkFetch(b *testing.B) {
	f, done := loopback(b)
	defer done()
	topic := f.topic("t", 1)
	p := f.cluster.parts[topic.ID][0]
	const batches = 256
	var total int64
	for range batches {
		batch, _ := partitiontest.Batch(b, 1, strings.Repeat("x", 250<<10))
		total += int64(len(batch))
		f.appendTo(p, batch)
	}
	f.host.Sync()
	b.SetBytes(total)
	b.ReportAllocs()
	s := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: 1 << 62})
	id := uint32(0)
	var fr codec.FetchFrame
	for b.Loop() {
		id++
		s.ask(&runnelv1.FetchRequest{Add: []*runnelv1.FetchAdd{add(id, topic, 0, 0, 1<<62)}})
		for next := int64(0); next < batches; next = fr.NextOffset {
			if err := s.RecvMsg(&fr); err != nil {
				b.Fatal(err)
			}
		}
		s.ask(&runnelv1.FetchRequest{Remove: []uint32{id}})
	}
	fr.Free()
}
