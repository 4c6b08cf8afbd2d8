package record_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"runnel.dev/runnel/record"
)

// fill appends records of n bytes of value (half random, half repeated) and a 10-byte key until the batch
// has size bytes.
func fill(b *record.Builder, n, size int) {
	rng := rand.New(rand.NewPCG(1, 2))
	value := make([]byte, n)
	for i := range value {
		if value[i] = 'a'; i < n/2 {
			value[i] = byte(rng.Uint32())
		}
	}
	key := []byte("key-000000")
	for ts := int64(1_700_000_000_000); b.SizeWith(ts, key, value, nil) <= size; ts++ {
		b.Append(ts, key, value, nil)
		value[0]++
		key[9] = '0' + value[0]%10
	}
}

func eachShape(b *testing.B, f func(b *testing.B, codec record.Codec, size int)) {
	for _, codec := range codecs {
		for _, size := range []int{100, 1024} {
			b.Run(fmt.Sprintf("%s/%dB", codec, size), func(b *testing.B) { f(b, codec, size) })
		}
	}
}

func report(b *testing.B, records, bytes int) {
	b.SetBytes(int64(bytes))
	b.ReportMetric(float64(records)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mrecords/s")
	b.ReportAllocs()
}

const benchBatch = 1 << 20

func BenchmarkEncode(b *testing.B) {
	eachShape(b, func(b *testing.B, codec record.Codec, size int) {
		bu := record.NewBuilder(codec)
		value, key := make([]byte, size), []byte("key-000000")
		for i := range value {
			value[i] = byte(i * i >> 3)
		}
		var dst []byte
		records := 0
		for b.Loop() {
			bu.Reset()
			for ts := int64(1_700_000_000_000); bu.Size()+size+32 <= benchBatch; ts++ {
				bu.Append(ts, key, value, nil)
			}
			records = bu.Count()
			var err error
			if dst, err = bu.Build(dst[:0]); err != nil {
				b.Fatal(err)
			}
		}
		report(b, records, bu.Size())
	})
}

func BenchmarkValidate(b *testing.B) {
	eachShape(b, func(b *testing.B, codec record.Codec, size int) {
		bu := record.NewBuilder(codec)
		fill(bu, size, benchBatch)
		batch, err := bu.Build(nil)
		if err != nil {
			b.Fatal(err)
		}
		var v record.Validator
		for b.Loop() {
			if _, err := v.Validate(batch, record.Limits{MaxBatchBytes: benchBatch}); err != nil {
				b.Fatal(err)
			}
		}
		report(b, bu.Count(), bu.Size())
	})
}

func BenchmarkRead(b *testing.B) {
	eachShape(b, func(b *testing.B, codec record.Codec, size int) {
		bu := record.NewBuilder(codec)
		fill(bu, size, benchBatch)
		batch, err := bu.Build(nil)
		if err != nil {
			b.Fatal(err)
		}
		var r record.Reader
		var rec record.Record
		for b.Loop() {
			if err := r.Reset(batch); err != nil {
				b.Fatal(err)
			}
			n := 0
			for r.Next(&rec) {
				n++
			}
			if n != bu.Count() {
				b.Fatal(n, r.Err())
			}
		}
		report(b, bu.Count(), bu.Size())
	})
}
