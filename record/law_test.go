package record_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"runnel.dev/runnel/record"
)

func asBatchError(err error, be **record.BatchError) bool { return errors.As(err, be) }

// consistency checks what must hold for any bytes: validation refuses them with a *BatchError, or reading
// yields exactly the declared records, and encoding these again yields an equal batch.
//
// The validator, reader and builder are kept over many batches, as in a broker: none may leave a trace.
type consistency struct {
	v     record.Validator
	r     record.Reader
	again *record.Builder
}

func (c *consistency) check(t testing.TB, b []byte, lim record.Limits) {
	t.Helper()
	before := bytes.Clone(b)
	h, err := c.v.Validate(b, lim)
	if !bytes.Equal(before, b) {
		t.Fatalf("Validate changed its input %x", before)
	}
	if err != nil {
		var be *record.BatchError
		if !errors.As(err, &be) || be.Detail == "" || h != (record.Header{}) {
			t.Fatalf("%x: error %v (%T), header %+v", b, err, err, h)
		}
		return
	}
	b = bytes.Clone(b)
	record.Stamp(b, 1000, 3) // as a broker does, whatever the producer wrote there
	h.BaseOffset, h.LeaderEpoch = 1000, 3
	recs, err := readWith(&c.r, b)
	if err != nil {
		t.Fatalf("%x validates and does not read: %v", b, err)
	}
	if len(recs) != int(h.Count) || h.Size() != len(b) {
		t.Fatalf("%x: %d records of %d, %d bytes of %d", b, len(recs), h.Count, len(b), h.Size())
	}
	newest := int64(-1)
	if c.again == nil {
		c.again = record.NewBuilder(record.CodecNone)
	}
	c.again.Reset()
	c.again.SetProducer(h.ProducerID, h.ProducerEpoch, h.BaseSequence)
	for i, r := range recs {
		if r.Offset != h.BaseOffset+int64(i) || r.TS < 0 {
			t.Fatalf("%x: record %d has offset %d, timestamp %d", b, i, r.Offset, r.TS)
		}
		newest = max(newest, r.TS)
		c.again.Append(r.TS, r.Key, r.Value, r.Headers)
	}
	if newest != h.MaxTimestamp {
		t.Fatalf("%x: maximum timestamp %d, header says %d", b, newest, h.MaxTimestamp)
	}
	batch, err := c.again.Build(nil)
	if err != nil {
		t.Fatalf("%x: records do not encode again: %v", b, err)
	}
	record.Stamp(batch, h.BaseOffset, h.LeaderEpoch)
	if d := cmp.Diff(recs, mustRead(t, batch)); d != "" {
		t.Fatalf("%x: encoded again (-first +again):\n%s", b, d)
	}
	if _, err := c.v.Validate(batch, record.Limits{NowMS: lim.NowMS, MaxAheadMS: lim.MaxAheadMS}); err != nil {
		t.Fatalf("%x: encoded again, it is refused: %v", b, err)
	}
}

// drawBytes yields nil, empty and arbitrary bytes.
func drawBytes(most int) *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		if rapid.IntRange(0, 4).Draw(t, "null") == 0 {
			return nil
		}
		return append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, "bytes")...)
	})
}

func drawRecord(t *rapid.T, i int) rec {
	r := rec{
		Offset: int64(i),
		TS:     rapid.OneOf(rapid.Int64Range(now-100, now+100), rapid.Int64Range(0, 1<<62)).Draw(t, "ts"),
		Key:    drawBytes(20).Draw(t, "key"),
		Value:  drawBytes(300).Draw(t, "value"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		r.Headers = append(r.Headers, record.HeaderKV{
			Key:   append([]byte{}, drawBytes(10).Draw(t, "hkey")...),
			Value: drawBytes(80).Draw(t, "hvalue"),
		})
	}
	return r
}

// TestRoundTripLaw: whatever is appended comes back, through any codec and with reused builders, readers and
// validators, and the sizes that the builder announces are the sizes that result.
func TestRoundTripLaw(t *testing.T) {
	var v record.Validator
	var r record.Reader
	builders := make(map[record.Codec]*record.Builder)
	for _, c := range codecs {
		builders[c] = record.NewBuilder(c)
	}
	rapid.Check(t, func(t *rapid.T) {
		b := builders[rapid.SampledFrom(codecs).Draw(t, "codec")]
		b.Reset()
		id := rapid.Int64Range(0, 1<<40).Draw(t, "producer")
		seq := rapid.Int32Range(0, 1<<30).Draw(t, "sequence")
		b.SetProducer(id, 3, seq)
		want := make([]rec, rapid.IntRange(1, 40).Draw(t, "count"))
		for i := range want {
			want[i] = drawRecord(t, i)
			announced := b.SizeWith(want[i].TS, want[i].Key, want[i].Value, want[i].Headers)
			b.Append(want[i].TS, want[i].Key, want[i].Value, want[i].Headers)
			if b.Size() != announced {
				t.Fatalf("SizeWith %d, Size %d", announced, b.Size())
			}
		}
		batch, err := b.Build(nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(batch) > b.Size() {
			t.Fatalf("batch of %d bytes, Size %d", len(batch), b.Size())
		}
		h, err := v.Validate(batch, record.Limits{MaxBatchBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if h.ProducerID != id || h.ProducerEpoch != 3 || h.BaseSequence != seq || int(h.LastSequence()) != int(seq)+len(want)-1 {
			t.Fatalf("header %+v", h)
		}
		if err := r.Reset(batch); err != nil {
			t.Fatal(err)
		}
		var got record.Record
		for i := range want {
			if !r.Next(&got) {
				t.Fatalf("ends at record %d: %v", i, r.Err())
			}
			if d := cmp.Diff(want[i], rec{Offset: got.Offset, TS: got.Timestamp, Key: got.Key, Value: got.Value, Headers: got.Headers}); d != "" {
				t.Fatalf("record %d (-want +got):\n%s", i, d)
			}
		}
		if r.Next(&got) || r.Err() != nil {
			t.Fatalf("a record too many, or %v", r.Err())
		}
	})
}

// TestReaderToleratesGaps: compaction leaves gaps in the offsets, which a reader has to follow and which
// nobody may send.
func TestReaderToleratesGaps(t *testing.T) {
	batch := craft(3, cat(plain(2, 0), plain(5, 0), plain(9, 0)))
	setLastOffsetDelta(batch, 11)
	record.Stamp(batch, 100, 1)
	recs := mustRead(t, batch)
	if len(recs) != 3 || recs[0].Offset != 102 || recs[1].Offset != 105 || recs[2].Offset != 109 {
		t.Errorf("records %+v", recs)
	}
	var v record.Validator
	_, err := v.Validate(batch, record.Limits{Stored: true})
	wantReason(t, err, record.ReasonCount)

	for name, records := range map[string][]byte{
		"repeats":       cat(plain(2, 0), plain(2, 0), plain(3, 0)),
		"goes back":     cat(plain(2, 0), plain(1, 0), plain(3, 0)),
		"negative":      cat(plain(-1, 0), plain(1, 0), plain(3, 0)),
		"past the last": cat(plain(0, 0), plain(1, 0), plain(12, 0)),
	} {
		b := craft(3, records)
		setLastOffsetDelta(b, 11)
		_, err := readAll(b)
		if be := batchError(t, err, record.ReasonRecord); be.Limit != 11 {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = readAll(craft(1, cat(plain(0, 0), plain(1, 0))))
	wantReason(t, err, record.ReasonCount)
}

func setLastOffsetDelta(b []byte, d byte) {
	copy(b[23:27], []byte{0, 0, 0, d})
	fixCRC(b)
}

func TestReaderRefusesOffsetsThatOverflow(t *testing.T) {
	b := craft(3, cat(plain(0, 0), plain(1, 0), plain(2, 0)))
	for base, ok := range map[int64]bool{math.MaxInt64 - 3: true, math.MaxInt64 - 2: false, math.MaxInt64: false, -1: false, math.MinInt64: false} {
		record.Stamp(b, base, 0)
		_, err := readAll(b)
		if ok && err != nil {
			t.Errorf("base offset %d: %v", base, err)
		} else if !ok {
			wantReason(t, err, record.ReasonOffset)
		}
	}
}

// FuzzValidate mutates whole batches; the length and the checksum are repaired, so that the mutations reach
// the records.
func FuzzValidate(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		var c consistency
		lim := record.Limits{MaxBatchBytes: 64 << 10, NowMS: now, MaxAheadMS: ahead}
		c.check(t, b, lim)
		if len(b) >= record.HeaderSize {
			repaired := bytes.Clone(b)
			size := len(b) - record.LogOverhead
			copy(repaired[8:12], []byte{byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)})
			c.check(t, fixCRC(repaired), lim)
		}
	})
}

// FuzzReader: any bytes at all end in a clean error or in no more records than declared, within the cap.
func FuzzReader(f *testing.F) {
	seed(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		for batch, err := range record.Frames(b) {
			if err != nil {
				break
			}
			r := record.Reader{MaxDecompressed: 1 << 20, SkipCRC: true}
			if r.Reset(batch) != nil {
				continue
			}
			var rec record.Record
			n, last, size := 0, int64(-1), 0
			for r.Next(&rec) {
				if n++; rec.Offset <= last {
					t.Fatalf("offset %d follows %d", rec.Offset, last)
				}
				last = rec.Offset
				size += len(rec.Key) + len(rec.Value)
			}
			if n > int(r.Header().Count) || size > max(1<<20, len(batch)) || r.Err() == nil && n != int(r.Header().Count) {
				t.Fatalf("%d records of %d, %d bytes, error %v", n, r.Header().Count, size, r.Err())
			}
		}
	})
}

func seed(f *testing.F) {
	f.Helper()
	for _, codec := range codecs {
		f.Add(small(f, codec))
		f.Add(build(f, codec, sample(30)))
	}
	f.Add(craft(1, snap(manyRecords(1)), attributes(record.CodecSnappy)))
	f.Add(craft(20, zs(f, manyRecords(20), true), attributes(record.CodecZstd)))
	f.Add(craft(20, zstdDeclaring(1<<40, 3), attributes(record.CodecZstd)))
	f.Add([]byte{})
}
