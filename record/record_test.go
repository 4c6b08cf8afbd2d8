package record_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"runnel.dev/runnel/record"
)

var codecs = []record.Codec{record.CodecNone, record.CodecGzip, record.CodecSnappy, record.CodecLZ4, record.CodecZstd}

// rec is a record by value, for comparison.
type rec struct {
	Offset, TS int64
	Key, Value []byte
	Headers    []record.HeaderKV
}

func build(t testing.TB, codec record.Codec, recs []rec) []byte {
	t.Helper()
	b := record.NewBuilder(codec)
	for _, r := range recs {
		b.Append(r.TS, r.Key, r.Value, r.Headers)
	}
	batch, err := b.Build(nil)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return batch
}

// readAll returns deep copies of the batch's records.
func readAll(batch []byte) ([]rec, error) { return readWith(new(record.Reader), batch) }

func readWith(r *record.Reader, batch []byte) ([]rec, error) {
	if err := r.Reset(batch); err != nil {
		return nil, err
	}
	var out []rec
	var rc record.Record
	for r.Next(&rc) {
		c := rec{Offset: rc.Offset, TS: rc.Timestamp, Key: bytes.Clone(rc.Key), Value: bytes.Clone(rc.Value)}
		for _, h := range rc.Headers {
			c.Headers = append(c.Headers, record.HeaderKV{Key: bytes.Clone(h.Key), Value: bytes.Clone(h.Value)})
		}
		out = append(out, c)
	}
	return out, r.Err()
}

func mustRead(t testing.TB, batch []byte) []rec {
	t.Helper()
	recs, err := readAll(batch)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return recs
}

// sample returns n compressible records of every shape: null and empty keys and values, headers, timestamps
// that go back.
func sample(n int) []rec {
	recs := make([]rec, n)
	for i := range recs {
		r := rec{Offset: int64(i), TS: 1_700_000_000_000 + int64(i%7)*1000 - int64(i%3)*5000}
		switch i % 4 {
		case 0:
			r.Key, r.Value = fmt.Appendf(nil, "key-%d", i%10), bytes.Repeat([]byte("value "), i%50)
		case 1:
			r.Value = fmt.Appendf(nil, "no key %d", i)
		case 2:
			r.Key = []byte{}
			r.Headers = []record.HeaderKV{{Key: []byte("trace"), Value: fmt.Append(nil, i)}, {Key: []byte{}, Value: nil}, {Key: []byte("empty"), Value: []byte{}}}
		case 3:
			r.Key, r.Value = fmt.Appendf(nil, "tombstone-%d", i), nil
		}
		if r.Value != nil && len(r.Value) == 0 {
			r.Value = []byte{}
		}
		recs[i] = r
	}
	return recs
}

func wantReason(t *testing.T, err error, want record.Reason) {
	t.Helper()
	_ = batchError(t, err, want)
}

func batchError(t *testing.T, err error, want record.Reason) *record.BatchError {
	t.Helper()
	var be *record.BatchError
	if !errors.As(err, &be) {
		t.Fatalf("error is %v (%T), want a *BatchError with reason %q", err, err, want)
	}
	if be.Reason != want {
		t.Fatalf("reason is %q (%v), want %q", be.Reason, err, want)
	}
	return be
}

// TestGoldenBatch pins the bytes; the expectation was written by hand from Kafka's protocol guide, its
// checksum computed independently.
func TestGoldenBatch(t *testing.T) {
	b := record.NewBuilder(record.CodecNone)
	b.SetProducer(0x1122334455667788, 7, 42)
	b.Append(1_700_000_000_000, []byte("k"), []byte("v1"), nil)
	b.Append(1_699_999_999_999, nil, []byte{}, []record.HeaderKV{{Key: []byte("h"), Value: []byte("x")}, {Key: []byte("n")}})
	got, err := b.Build([]byte("prefix"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(got, []byte("prefix")) {
		t.Fatalf("Build dropped what dst held: %q", got)
	}
	want := "0000000000000000" + // base offset
		"00000049" + // length 49 + 10 + 14
		"ffffffff" + // leader epoch
		"02" + "a0f6c4c8" + // magic, CRC-32C
		"0000" + // attributes
		"00000001" + // last offset delta
		"0000018bcfe56800" + // base timestamp
		"0000018bcfe56800" + // maximum timestamp
		"1122334455667788" + "0007" + "0000002a" + // producer
		"00000002" + // count
		// length 9, attributes, timestamp delta 0, offset delta 0, key, value, 0 headers
		"12" + "00" + "00" + "00" + "02" + "6b" + "04" + "7631" + "00" +
		// length 13, attributes, timestamp delta -1, offset delta 1, null key, empty value, 2 headers
		"1a" + "00" + "01" + "02" + "01" + "00" + "04" + "02" + "68" + "02" + "78" + "02" + "6e" + "01"
	if g := hex.EncodeToString(got[len("prefix"):]); g != want {
		t.Errorf("batch\n got %s\nwant %s", g, want)
	}
}

func TestRoundTripEveryCodec(t *testing.T) {
	want := sample(1000)
	for _, codec := range codecs {
		t.Run(codec.String(), func(t *testing.T) {
			batch := build(t, codec, want)
			var v record.Validator
			h, err := v.Validate(batch, record.Limits{MaxBatchBytes: 1 << 20, NowMS: 1_700_000_000_000, MaxAheadMS: 3_600_000})
			if err != nil {
				t.Fatalf("Validate: %v", err)
			}
			if h.Attributes.Codec() != codec || h.Count != 1000 || h.Size() != len(batch) || h.LeaderEpoch != -1 ||
				h.BaseOffset != 0 || h.ProducerID != -1 || h.ProducerEpoch != -1 || h.BaseSequence != -1 {
				t.Errorf("header %+v", h)
			}
			if d := cmp.Diff(want, mustRead(t, batch)); d != "" {
				t.Errorf("records (-want +got):\n%s", d)
			}
		})
	}
}

func TestBuilderSizesAreExact(t *testing.T) {
	b := record.NewBuilder(record.CodecNone)
	for i, r := range sample(300) {
		want := b.SizeWith(r.TS, r.Key, r.Value, r.Headers)
		b.Append(r.TS, r.Key, r.Value, r.Headers)
		if b.Size() != want {
			t.Fatalf("record %d: SizeWith said %d, Size is %d", i, want, b.Size())
		}
	}
	batch, err := b.Build(nil)
	if err != nil || len(batch) != b.Size() || b.Count() != 300 {
		t.Fatalf("batch of %d bytes, Size %d, Count %d, error %v", len(batch), b.Size(), b.Count(), err)
	}
}

func TestBuilderRefuses(t *testing.T) {
	b := record.NewBuilder(record.CodecNone)
	dst := []byte("keep")
	got, err := b.Build(dst)
	wantReason(t, err, record.ReasonCount)
	if !bytes.Equal(got, dst) {
		t.Errorf("dst became %q", got)
	}

	b.Append(1, nil, []byte("ok"), nil)
	b.Append(-5, nil, []byte("bad"), nil)
	_, err = b.Build(nil)
	if be := batchError(t, err, record.ReasonTimestamp); be.Value != -5 || be.Record != 1 {
		t.Errorf("error names value %d, record %d", be.Value, be.Record)
	}
	if b.Count() != 1 {
		t.Errorf("Count is %d after a refused record, want 1", b.Count())
	}
	b.Reset()
	b.Append(1, nil, nil, nil)
	if _, err = b.Build(nil); err != nil {
		t.Errorf("after Reset: %v", err)
	}

	u := record.NewBuilder(record.Codec(6))
	u.Append(1, nil, nil, nil)
	_, err = u.Build(nil)
	wantReason(t, err, record.ReasonAttributes)
}

func TestIncompressibleRecordsStayUncompressed(t *testing.T) {
	for _, codec := range codecs {
		batch := build(t, codec, []rec{{TS: 1, Value: []byte{0xde}}})
		h, err := record.ParseHeader(batch)
		if err != nil || h.Attributes.Codec() != record.CodecNone {
			t.Errorf("%s: one tiny record is stored with %s, error %v", codec, h.Attributes.Codec(), err)
		}
	}
}

func TestStamp(t *testing.T) {
	batch := build(t, record.CodecZstd, sample(50))
	record.Stamp(batch, math.MaxInt64-100, math.MaxInt32)
	if err := record.VerifyCRC(batch); err != nil {
		t.Errorf("after Stamp: %v", err)
	}
	h, err := record.ParseHeader(batch)
	if err != nil || h.BaseOffset != math.MaxInt64-100 || h.LeaderEpoch != math.MaxInt32 || h.LastOffset() != math.MaxInt64-51 || h.NextOffset() != math.MaxInt64-50 {
		t.Errorf("header %+v, error %v", h, err)
	}
	if recs := mustRead(t, batch); recs[49].Offset != math.MaxInt64-51 {
		t.Errorf("last offset read is %d", recs[49].Offset)
	}
}

func TestStampLogAppendTime(t *testing.T) {
	batch := build(t, record.CodecLZ4, sample(50))
	record.StampLogAppendTime(batch, 123)
	for i, r := range mustRead(t, batch) {
		if r.TS != 123 {
			t.Fatalf("record %d has timestamp %d, want the log append time", i, r.TS)
		}
	}
	var v record.Validator
	_, err := v.Validate(batch, record.Limits{})
	wantReason(t, err, record.ReasonAttributes)
	if _, err = v.Validate(batch, record.Limits{Stored: true}); err != nil {
		t.Errorf("a stored batch may have log append time: %v", err)
	}
}

func TestSetProducerOn(t *testing.T) {
	batch := build(t, record.CodecNone, sample(10))
	record.SetProducerOn(batch, 99, 3, math.MaxInt32-4)
	var v record.Validator
	h, err := v.Validate(batch, record.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if h.ProducerID != 99 || h.ProducerEpoch != 3 || h.BaseSequence != math.MaxInt32-4 {
		t.Errorf("header %+v", h)
	}
	// MaxInt32-4 … MaxInt32 are five records, then 0 … 4.
	if h.LastSequence() != 4 {
		t.Errorf("last sequence is %d, want 4: sequences wrap to 0", h.LastSequence())
	}
}

func TestFrames(t *testing.T) {
	one, two := build(t, record.CodecNone, sample(3)), build(t, record.CodecGzip, sample(40))
	all := append(bytes.Clone(one), two...)
	var got [][]byte
	for f, err := range record.Frames(all) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, f)
	}
	if d := cmp.Diff([][]byte{one, two}, got); d != "" {
		t.Error(d)
	}

	for cut := 1; cut < len(two); cut++ {
		n, last := 0, error(nil)
		for f, err := range record.Frames(all[:len(all)-cut]) {
			if n++; n == 1 && !bytes.Equal(f, one) {
				t.Fatal("first batch differs")
			}
			last = err
		}
		if n != 2 {
			t.Fatalf("cut %d: %d frames", cut, n)
		}
		wantReason(t, last, record.ReasonTruncated)
	}

	for f, err := range record.Frames(all) { // an early end must not panic
		if err != nil || !bytes.Equal(f, one) {
			t.Errorf("first frame %x, error %v", f, err)
		}
		break
	}
}

func TestParseCodec(t *testing.T) {
	for _, c := range codecs {
		if got, err := record.ParseCodec(c.String()); err != nil || got != c {
			t.Errorf("ParseCodec(%q) = %v, %v", c, got, err)
		}
	}
	if _, err := record.ParseCodec("brotli"); err == nil {
		t.Error("brotli is accepted")
	}
	if s := record.Codec(6).String(); s != "codec(6)" {
		t.Error(s)
	}
}
