package index_test

import (
	"encoding/hex"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"runnel.dev/runnel/record"
	"runnel.dev/runnel/record/index"
)

func TestGoldenEntries(t *testing.T) {
	o := index.AppendOffset([]byte{0xaa}, index.OffsetEntry{RelativeOffset: 0x01020304, Position: 0xf0f1f2f3})
	if got, want := hex.EncodeToString(o), "aa"+"01020304"+"f0f1f2f3"; got != want {
		t.Errorf("offset entry %s, want %s", got, want)
	}
	x := index.AppendTime(nil, index.TimeEntry{Timestamp: 1_700_000_000_000, RelativeOffset: 5})
	if got, want := hex.EncodeToString(x), "0000018bcfe56800"+"00000005"; got != want {
		t.Errorf("time entry %s, want %s", got, want)
	}
}

func TestLookup(t *testing.T) {
	var o index.Offsets
	var x index.Times
	if _, ok := o.Lookup(math.MaxUint32); ok {
		t.Error("an empty offset index finds something")
	}
	if _, ok := x.Lookup(math.MaxInt64); ok {
		t.Error("an empty time index finds something")
	}
	for i := range uint32(100) {
		o = index.AppendOffset(o, index.OffsetEntry{RelativeOffset: 10 + i*10, Position: i*5000 + 4200})
		x = index.AppendTime(x, index.TimeEntry{Timestamp: int64(1000 + i*10), RelativeOffset: 10 + i*10})
	}
	if _, ok := o.Lookup(9); ok {
		t.Error("offset 9 lies before the first entry")
	}
	if _, ok := x.Lookup(999); ok {
		t.Error("time 999 lies before the first entry")
	}
	for want := range uint32(100) {
		for d := range uint32(10) {
			if e, ok := o.Lookup(10 + want*10 + d); !ok || e.Position != want*5000+4200 {
				t.Fatalf("Lookup(%d) = %+v, %v", 10+want*10+d, e, ok)
			}
			if e, ok := x.Lookup(int64(1000 + want*10 + d)); !ok || e.RelativeOffset != 10+want*10 {
				t.Fatalf("time Lookup(%d) = %+v, %v", 1000+want*10+d, e, ok)
			}
		}
		if n := o.Before(10 + want*10); n != int(want) {
			t.Fatalf("Before(%d) = %d", 10+want*10, n)
		}
		if n := x.Before(11 + want*10); n != int(want)+1 {
			t.Fatalf("time Before(%d) = %d", 11+want*10, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { o.Lookup(555); x.Lookup(1555); o.Before(77) }); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
}

func TestValidateNamesTheEntry(t *testing.T) {
	offsets := func(es ...index.OffsetEntry) (b []byte) {
		for _, e := range es {
			b = index.AppendOffset(b, e)
		}
		return b
	}
	times := func(es ...index.TimeEntry) (b []byte) {
		for _, e := range es {
			b = index.AppendTime(b, e)
		}
		return b
	}
	for name, tt := range map[string]struct {
		err   error
		entry int // -1: valid
	}{
		"empty offsets":       {index.Offsets(nil).Validate(), -1},
		"empty times":         {index.Times(nil).Validate(), -1},
		"good offsets":        {index.Offsets(offsets(index.OffsetEntry{0, 0}, index.OffsetEntry{1, 70}, index.OffsetEntry{math.MaxInt32, math.MaxUint32})).Validate(), -1},
		"good times":          {index.Times(times(index.TimeEntry{0, 0}, index.TimeEntry{math.MaxInt64, 1})).Validate(), -1},
		"offset repeats":      {index.Offsets(offsets(index.OffsetEntry{1, 0}, index.OffsetEntry{1, 70})).Validate(), 1},
		"offset goes back":    {index.Offsets(offsets(index.OffsetEntry{1, 0}, index.OffsetEntry{5, 70}, index.OffsetEntry{4, 80})).Validate(), 2},
		"position goes back":  {index.Offsets(offsets(index.OffsetEntry{1, 9}, index.OffsetEntry{5, 8})).Validate(), 1},
		"offset over 31 bits": {index.Offsets(offsets(index.OffsetEntry{math.MaxInt32 + 1, 0})).Validate(), 0},
		"partial offset":      {index.Offsets(offsets(index.OffsetEntry{1, 9}, index.OffsetEntry{5, 80})[:15]).Validate(), 1},
		"time repeats":        {index.Times(times(index.TimeEntry{5, 1}, index.TimeEntry{5, 2})).Validate(), 1},
		"time goes back":      {index.Times(times(index.TimeEntry{5, 1}, index.TimeEntry{4, 2})).Validate(), 1},
		"time's offset back":  {index.Times(times(index.TimeEntry{5, 2}, index.TimeEntry{6, 2})).Validate(), 1},
		"negative time":       {index.Times(times(index.TimeEntry{-1, 2})).Validate(), 0},
		"time over 31 bits":   {index.Times(times(index.TimeEntry{1, math.MaxUint32})).Validate(), 0},
		"partial time":        {index.Times(times(index.TimeEntry{1, 9}, index.TimeEntry{5, 80})[:13]).Validate(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			var ce *index.CorruptError
			switch {
			case tt.entry < 0 && tt.err != nil:
				t.Errorf("valid, but %v", tt.err)
			case tt.entry >= 0 && (!errors.As(tt.err, &ce) || ce.Entry != tt.entry):
				t.Errorf("error %v, want a *CorruptError at entry %d", tt.err, tt.entry)
			}
		})
	}
}

// batchAt returns the header of a batch of the given size.
func batchAt(base int64, count int32, size int, maxTS int64) record.Header {
	return record.Header{BaseOffset: base, LastOffsetDelta: count - 1, Count: count, Length: int32(size - record.LogOverhead), MaxTimestamp: maxTS}
}

func TestBuilderFollowsKafkasInterval(t *testing.T) {
	b := index.NewBuilder(1000, 0)
	for i, h := range []record.Header{
		batchAt(1000, 10, 4096, 50), // never an entry for the first batch
		batchAt(1010, 10, 1, 70),    // 4096 bytes are not more than the interval
		batchAt(1020, 10, 100, 60),  // 4097 are: the largest time so far belongs to the batch before
		batchAt(1030, 10, 5000, 60), // 100 are not
		batchAt(1040, 10, 100, 70),  // offsets only: the time has not grown
		batchAt(1050, 10, 100, 90),  // left for Seal
	} {
		pos := []int64{0, 4096, 4097, 4197, 9197, 9297}[i]
		if err := b.Add(h, pos); err != nil {
			t.Fatal(err)
		}
	}
	b.Seal()
	b.Seal() // changes nothing
	o, x := b.Take()
	var gotO []index.OffsetEntry
	for i := range o.Len() {
		gotO = append(gotO, o.At(i))
	}
	var gotX []index.TimeEntry
	for i := range x.Len() {
		gotX = append(gotX, x.At(i))
	}
	if d := cmp.Diff([]index.OffsetEntry{{29, 4097}, {49, 9197}}, gotO); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]index.TimeEntry{{70, 19}, {90, 59}}, gotX); d != "" {
		t.Error(d)
	}
	if ms, last, ok := b.MaxTimestamp(); ms != 90 || last != 1059 || !ok {
		t.Errorf("MaxTimestamp = %d, %d, %v", ms, last, ok)
	}
	if o, x = b.Take(); o.Len() != 0 || x.Len() != 0 {
		t.Error("a second Take repeats entries")
	}
}

func TestBuilderRefusesWhatDoesNotFit(t *testing.T) {
	for name, tt := range map[string]struct {
		h   record.Header
		pos int64
	}{
		"offset before the segment": {batchAt(99, 1, 100, 1), 10},
		"offset repeats":            {batchAt(104, 10, 100, 1), 10},
		"relative offset 2^31":      {batchAt(100+1<<31, 1, 100, 1), 10},
		"offset overflow":           {batchAt(math.MaxInt64, 2, 100, 1), 10},
		"position repeats":          {batchAt(105, 1, 100, 1), 0},
		"position over 32 bits":     {batchAt(105, 1, 100, 1), 1 << 32},
	} {
		t.Run(name, func(t *testing.T) {
			b := index.NewBuilder(100, 1)
			if err := b.Add(batchAt(100, 5, 100, 1), 0); err != nil {
				t.Fatal(err)
			}
			if err := b.Add(tt.h, tt.pos); !errors.Is(err, index.ErrOutOfRange) {
				t.Errorf("error is %v", err)
			}
			if err := b.Add(batchAt(105, 5, 100, 1), 100); err != nil {
				t.Errorf("a refused batch leaves a trace: %v", err)
			}
		})
	}
}

// TestIndexesLeadToTheRecord is the law that look-ups rest on: starting where the index says, a scan meets
// the batch that a full scan finds.
func TestIndexesLeadToTheRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64Range(0, math.MaxInt64/2).Draw(t, "base")
		b := index.NewBuilder(base, rapid.IntRange(1, 2000).Draw(t, "interval"))
		var hs []record.Header
		var ps []int64
		var offsets index.Offsets
		var times index.Times
		next, pos := base, int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "batches") {
			h := batchAt(next, rapid.Int32Range(1, 50).Draw(t, "count"), rapid.IntRange(70, 900).Draw(t, "size"), rapid.Int64Range(0, 40).Draw(t, "ts"))
			if err := b.Add(h, pos); err != nil {
				t.Fatal(err)
			}
			hs, ps = append(hs, h), append(ps, pos)
			next, pos = h.NextOffset(), pos+int64(h.Size())
			if rapid.Bool().Draw(t, "take") {
				o, x := b.Take()
				offsets, times = append(offsets, o...), append(times, x...)
			}
		}
		b.Seal()
		o, x := b.Take()
		offsets, times = append(offsets, o...), append(times, x...)
		if err := offsets.Validate(); err != nil {
			t.Fatal(err)
		}
		if err := times.Validate(); err != nil {
			t.Fatal(err)
		}
		start := func(relative uint32) int64 {
			e, _ := offsets.Lookup(relative)
			return int64(e.Position)
		}
		for off := base; off < next; off++ {
			from := start(uint32(off - base))
			for i, h := range hs {
				if h.BaseOffset <= off && off <= h.LastOffset() && ps[i] < from {
					t.Fatalf("offset %d is at %d, the index starts at %d", off, ps[i], from)
				}
			}
		}
		for ms := int64(0); ms <= 41; ms++ {
			e, _ := times.Lookup(ms)
			from := start(e.RelativeOffset)
			for i, h := range hs {
				if h.MaxTimestamp >= ms {
					if ps[i] < from {
						t.Fatalf("first batch with time ≥ %d is at %d, the index starts at %d", ms, ps[i], from)
					}
					break
				}
			}
		}
		if last := times.At(times.Len() - 1); last.Timestamp != hs[argmax(hs)].MaxTimestamp {
			t.Fatalf("last time entry is %d, the maximum is %d", last.Timestamp, hs[argmax(hs)].MaxTimestamp)
		}
	})
}

func argmax(hs []record.Header) int {
	best := 0
	for i, h := range hs {
		if h.MaxTimestamp > hs[best].MaxTimestamp {
			best = i
		}
	}
	return best
}

// FuzzIndex: no bytes make validation or a look-up panic, and what validates can be searched.
func FuzzIndex(f *testing.F) {
	f.Add([]byte{}, uint32(0), int64(0))
	f.Add(index.AppendOffset(index.AppendOffset(nil, index.OffsetEntry{1, 2}), index.OffsetEntry{3, 4}), uint32(2), int64(9))
	f.Add(index.AppendTime(nil, index.TimeEntry{1, 2}), uint32(2), int64(9))
	f.Add([]byte{1, 2, 3}, uint32(math.MaxUint32), int64(math.MinInt64))
	f.Fuzz(func(t *testing.T, data []byte, offset uint32, ms int64) {
		o, x := index.Offsets(data), index.Times(data)
		oe, ook := o.Lookup(offset)
		xe, xok := x.Lookup(ms)
		_, _ = o.Before(offset), x.Before(offset)
		if o.Validate() == nil {
			n := 0
			for n < o.Len() && o.At(n).RelativeOffset <= offset {
				n++
			}
			if ook != (n > 0) || ook && o.At(n-1) != oe {
				t.Errorf("Lookup(%d) = %+v, %v; a scan finds %d entries", offset, oe, ook, n)
			}
		}
		if x.Validate() == nil {
			n := 0
			for n < x.Len() && x.At(n).Timestamp <= ms {
				n++
			}
			if xok != (n > 0) || xok && x.At(n-1) != xe {
				t.Errorf("time Lookup(%d) = %+v, %v; a scan finds %d entries", ms, xe, xok, n)
			}
		}
	})
}
