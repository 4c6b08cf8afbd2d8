package record_test

import (
	"testing"

	"runnel.dev/runnel/record"
)

// allocBudget is how many allocations one batch may cost with a codec, whatever its number of records. The
// coders come from pools, which a garbage collection may empty at any time: hence not 0 for compression.
func allocBudget(c record.Codec) float64 {
	switch {
	case c == record.CodecNone:
		return 0
	case poolsLeak:
		return 200
	}
	return 2
}

func TestEncodeAllocates(t *testing.T) {
	for _, codec := range codecs {
		recs := sample(2000)
		b := record.NewBuilder(codec)
		var dst []byte
		got := testing.AllocsPerRun(50, func() {
			b.Reset()
			for i := range recs {
				if b.SizeWith(recs[i].TS, recs[i].Key, recs[i].Value, recs[i].Headers) > 1<<20 {
					panic("unexpected size")
				}
				b.Append(recs[i].TS, recs[i].Key, recs[i].Value, recs[i].Headers)
			}
			var err error
			if dst, err = b.Build(dst[:0]); err != nil {
				panic(err)
			}
		})
		if got > allocBudget(codec) {
			t.Errorf("%s: %v allocations per batch, budget %v", codec, got, allocBudget(codec))
		}
	}
}

func TestValidateAllocates(t *testing.T) {
	for _, codec := range codecs {
		batch := build(t, codec, sample(2000))
		var v record.Validator
		got := testing.AllocsPerRun(50, func() {
			if _, err := v.Validate(batch, record.Limits{MaxBatchBytes: 1 << 20, NowMS: 1_800_000_000_000, MaxAheadMS: 1}); err != nil {
				panic(err)
			}
		})
		if got > allocBudget(codec) {
			t.Errorf("%s: %v allocations per batch, budget %v", codec, got, allocBudget(codec))
		}
	}
}

func TestReadAllocates(t *testing.T) {
	for _, codec := range codecs {
		batch := build(t, codec, sample(2000))
		var r record.Reader
		var rec record.Record
		got := testing.AllocsPerRun(50, func() {
			if err := r.Reset(batch); err != nil {
				panic(err)
			}
			n := 0
			for r.Next(&rec) {
				n += len(rec.Headers)
			}
			if r.Err() != nil || n != 1500 {
				panic("short read")
			}
		})
		if got > allocBudget(codec) {
			t.Errorf("%s: %v allocations per batch, budget %v", codec, got, allocBudget(codec))
		}
	}
}

func TestStampAndFrameAllocateNothing(t *testing.T) {
	batch := build(t, record.CodecNone, sample(100))
	if n := testing.AllocsPerRun(100, func() {
		record.Stamp(batch, 5, 6)
		record.SetProducerOn(batch, 1, 2, 3)
		if _, _, err := record.NextFrame(batch); err != nil {
			panic(err)
		}
		if err := record.VerifyCRC(batch); err != nil {
			panic(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
