package client

import (
	"fmt"
	"sync"
	"testing"

	"runnel.dev/runnel/client/fakebroker"
	"runnel.dev/runnel/record"
)

// A record costs Produce no allocation: it is encoded into its batch, and everything else is reused.
func TestProduceDoesNotAllocatePerRecord(t *testing.T) {
	cl := start(t, 1)
	cl.CreateTopic("t", 4)
	p := cl.producer(t, BufferBytes(1<<30))
	value := make([]byte, 100)
	const n = 20000
	records := make([]Record, n)
	var wg sync.WaitGroup
	done := func(*Record, error) { wg.Done() }
	ctx := t.Context()
	run := func() {
		wg.Add(n)
		for i := range records {
			records[i] = Record{Topic: "t", Key: value[i%50 : i%50+8], Value: value, Headers: records[i].Headers}
			p.Produce(ctx, &records[i], done)
		}
		wg.Wait()
	}
	run()
	// What the whole process allocates, broker included, is some dozens per batch: well below one per ten records.
	if allocs := testing.AllocsPerRun(5, run); allocs > n/10 {
		t.Errorf("%.0f allocations for %d records", allocs, n)
	}
}

func TestRecordsDoesNotAllocatePerRecord(t *testing.T) {
	cl := start(t, 1)
	cl.CreateTopic("t", 1)
	b := record.NewBuilder(record.CodecNone)
	const n = 10000
	for i := range n {
		b.Append(int64(i), []byte("key"), make([]byte, 100), []record.HeaderKV{{Key: []byte("h"), Value: []byte("v")}})
	}
	batch, err := b.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	limit := int32(4 << 20)
	cl.mustConfigure("t", limit)
	for range 10 {
		cl.AppendBatch("t", 0, batch)
	}
	cs := cl.consumer(t, Topics("t"), PartitionCredit(64<<20), StreamCredit(64<<20))
	one := func() {
		count := 0
		for _, err := range cs.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if count++; count == n {
				return
			}
		}
	}
	one()
	if allocs := testing.AllocsPerRun(5, one); allocs > n/10 { // a few per frame, and how many frames there are is up to the scheduler
		t.Errorf("%.0f allocations for %d records", allocs, n)
	}
}

func BenchmarkProduce(b *testing.B) {
	fake := fakebroker.Start()
	defer fake.Close()
	fake.CreateTopic("t", 6)
	c, err := Open(b.Context(), fake.URL(), Dialer(fake.Dial))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = c.Close(b.Context()) }()
	for _, keyed := range []bool{false, true} {
		b.Run(fmt.Sprintf("100B/keyed=%v", keyed), func(b *testing.B) {
			p, err := c.NewProducer()
			if err != nil {
				b.Fatal(err)
			}
			value := make([]byte, 100)
			var key []byte
			done := func(_ *Record, err error) {
				if err != nil {
					b.Error(err)
				}
			}
			b.ReportAllocs()
			b.SetBytes(100)
			records := make([]Record, 1<<20)
			i := 0
			for b.Loop() {
				if keyed {
					key = value[i%50 : i%50+8]
				}
				r := &records[i&(1<<20-1)]
				*r = Record{Topic: "t", Key: key, Value: value}
				p.Produce(b.Context(), r, done)
				i++
				if i%(1<<20) == 0 {
					if err := p.Flush(b.Context()); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					for n := range int32(6) {
						_ = fake.DeleteRecords("t", n, -1)
					}
					b.StartTimer()
				}
			}
			_ = p.Close(b.Context())
		})
	}
}
