package record_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kmsg"

	"runnel.dev/runnel/record"
)

// The payloads of these tests are compressed here, not by the package under test.

func attributes(c record.Codec) func(*kmsg.RecordBatch) {
	return func(k *kmsg.RecordBatch) { k.Attributes = int16(c) }
}

func gz(t testing.TB, p []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	return finish(t, &out, w, p)
}

func lz(t testing.TB, p []byte, opts ...lz4.Option) []byte {
	t.Helper()
	var out bytes.Buffer
	w := lz4.NewWriter(&out)
	if err := w.Apply(opts...); err != nil {
		t.Fatal(err)
	}
	return finish(t, &out, w, p)
}

func finish(t testing.TB, out *bytes.Buffer, w io.WriteCloser, p []byte) []byte {
	t.Helper()
	if _, err := w.Write(p); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// zs compresses in one call, which records the size in the frame, or as a stream, which does not.
func zs(t testing.TB, p []byte, stream bool, opts ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if !stream {
		return w.EncodeAll(p, nil)
	}
	for half := range 2 { // one Write alone would be stored with its size
		if _, err := w.Write(p[half*len(p)/2 : (half+1)*len(p)/2]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	return finish(t, &out, w, nil)
}

// xerial frames raw snappy blocks as the Java library does.
func xerial(version, compatible uint32, blocks ...[]byte) []byte {
	b := []byte("\x82SNAPPY\x00")
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, compatible)
	for _, block := range blocks {
		b = binary.BigEndian.AppendUint32(b, uint32(len(block)))
		b = append(b, block...)
	}
	return b
}

func snap(p []byte) []byte { return s2.EncodeSnappy(nil, p) }

func manyRecords(n int) []byte {
	var b []byte
	for i := range n {
		b = append(b, sized([]byte{0}, zz(0), zz(int64(i)), zz(-1), zz(20), []byte(strings.Repeat("ab", 10)), zz(0))...)
	}
	return b
}

func TestForeignCompressionIsAccepted(t *testing.T) {
	const n = 5000
	p := manyRecords(n)
	half := len(p) / 2
	for name, tt := range map[string]struct {
		codec record.Codec
		data  []byte
	}{
		"gzip":                          {record.CodecGzip, gz(t, p)},
		"gzip of two members":           {record.CodecGzip, cat(gz(t, p[:half]), gz(t, p[half:]))},
		"snappy, bare block":            {record.CodecSnappy, snap(p)},
		"snappy, xerial, one block":     {record.CodecSnappy, xerial(1, 1, snap(p))},
		"snappy, xerial, blocks":        {record.CodecSnappy, xerial(1, 1, snap(p[:half]), nil2(), snap(p[half:]))},
		"snappy, xerial, newer version": {record.CodecSnappy, xerial(2, 1, snap(p))},
		"lz4":                           {record.CodecLZ4, lz(t, p)},
		"lz4, small blocks, checksums":  {record.CodecLZ4, lz(t, p, lz4.BlockSizeOption(lz4.Block64Kb), lz4.BlockChecksumOption(true), lz4.ChecksumOption(true), lz4.SizeOption(uint64(len(p))))},
		"zstd":                          {record.CodecZstd, zs(t, p, false)},
		"zstd, size unknown":            {record.CodecZstd, zs(t, p, true)},
		"zstd, large window":            {record.CodecZstd, zs(t, p, true, zstd.WithWindowSize(128<<20), zstd.WithEncoderLevel(zstd.SpeedBestCompression))},
		"zstd, two frames":              {record.CodecZstd, cat(zs(t, p[:half], false), zs(t, p[half:], true))},
	} {
		t.Run(name, func(t *testing.T) {
			batch := craft(n, tt.data, attributes(tt.codec))
			var v record.Validator
			if _, err := v.Validate(batch, record.Limits{MaxBatchBytes: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			if recs := mustRead(t, batch); len(recs) != n {
				t.Errorf("%d records", len(recs))
			}
		})
	}
}

// nil2 is an empty snappy block: length 0 and no elements.
func nil2() []byte { return []byte{0} }

func TestWrongCompressionIsRefused(t *testing.T) {
	p := manyRecords(500)
	// An S2 block may copy with offset 0, "the last one again": other snappy readers fail on it.
	s2block := s2.EncodeBest(nil, bytes.Repeat([]byte("abcdefghijklmnop0123456789"), 3000))
	legacy := lz(t, p, lz4.LegacyOption(true))
	linked := lz(t, p)
	linked[4] &^= 0x20
	for name, tt := range map[string]struct {
		codec  record.Codec
		data   []byte
		reason record.Reason
	}{
		"gzip that is plain":              {record.CodecGzip, p, record.ReasonDecompression},
		"gzip, empty":                     {record.CodecGzip, nil, record.ReasonDecompression},
		"gzip cut off":                    {record.CodecGzip, gz(t, p)[:50], record.ReasonDecompression},
		"gzip with bytes behind":          {record.CodecGzip, append(gz(t, p), 1, 2, 3), record.ReasonDecompression},
		"gzip of nothing":                 {record.CodecGzip, gz(t, nil), record.ReasonCount},
		"gzip in gzip":                    {record.CodecGzip, gz(t, gz(t, p)), record.ReasonRecord},
		"snappy that is plain":            {record.CodecSnappy, p, record.ReasonDecompression},
		"snappy, empty":                   {record.CodecSnappy, nil, record.ReasonDecompression},
		"snappy cut off":                  {record.CodecSnappy, snap(p)[:50], record.ReasonDecompression},
		"snappy with bytes behind":        {record.CodecSnappy, append(snap(p), 1, 2, 3), record.ReasonDecompression},
		"snappy that is s2":               {record.CodecSnappy, s2block, record.ReasonDecompression},
		"snappy declares 4 GiB":           {record.CodecSnappy, cat(binary.AppendUvarint(nil, math.MaxUint32), snap(p)[2:]), record.ReasonDecompression},
		"snappy declares 2^63":            {record.CodecSnappy, cat(binary.AppendUvarint(nil, 1<<63), snap(p)[2:]), record.ReasonDecompression},
		"snappy copies from before":       {record.CodecSnappy, []byte{4, 0x01, 0x05}, record.ReasonDecompression},
		"snappy literal past the end":     {record.CodecSnappy, []byte{60, 59 << 2, 'a'}, record.ReasonDecompression},
		"snappy literal length cut off":   {record.CodecSnappy, []byte{60, 63 << 2, 1, 2}, record.ReasonDecompression},
		"xerial header cut off":           {record.CodecSnappy, xerial(1, 1)[:12], record.ReasonDecompression},
		"xerial of a future version":      {record.CodecSnappy, xerial(2, 2, snap(p)), record.ReasonDecompression},
		"xerial without blocks":           {record.CodecSnappy, xerial(1, 1), record.ReasonCount},
		"xerial block length cut off":     {record.CodecSnappy, append(xerial(1, 1, snap(p)), 0, 0), record.ReasonDecompression},
		"xerial block length 4 GiB":       {record.CodecSnappy, append(xerial(1, 1, snap(p)), 0xff, 0xff, 0xff, 0xff), record.ReasonDecompression},
		"lz4 that is plain":               {record.CodecLZ4, p, record.ReasonDecompression},
		"lz4, empty":                      {record.CodecLZ4, nil, record.ReasonDecompression},
		"lz4 magic alone":                 {record.CodecLZ4, lz(t, p)[:4], record.ReasonDecompression},
		"lz4 cut off":                     {record.CodecLZ4, lz(t, p)[:50], record.ReasonDecompression},
		"lz4 with bytes behind":           {record.CodecLZ4, append(lz(t, p), 1, 2, 3), record.ReasonDecompression},
		"lz4, legacy frame":               {record.CodecLZ4, legacy, record.ReasonDecompression},
		"lz4, linked blocks":              {record.CodecLZ4, linked, record.ReasonDecompression},
		"zstd that is plain":              {record.CodecZstd, p, record.ReasonDecompression},
		"zstd, empty":                     {record.CodecZstd, nil, record.ReasonDecompression},
		"zstd cut off":                    {record.CodecZstd, zs(t, p, false)[:30], record.ReasonDecompression},
		"zstd with bytes behind":          {record.CodecZstd, append(zs(t, p, false), 1, 2, 3), record.ReasonDecompression},
		"zstd declares 1 TiB":             {record.CodecZstd, zstdDeclaring(1<<40, 0), record.ReasonDecompression},
		"zstd declares 2^63":              {record.CodecZstd, zstdDeclaring(1<<63, 0), record.ReasonDecompression},
		"zstd declares what it has not":   {record.CodecZstd, zstdDeclaring(100_000, 0), record.ReasonDecompression},
		"zstd declares more than allowed": {record.CodecZstd, zstdDeclaring(1<<30, 1<<16), record.ReasonDecompressionLimit},
	} {
		t.Run(name, func(t *testing.T) {
			var v record.Validator
			batch := craft(500, tt.data, attributes(tt.codec))
			spent := allocated(func() {
				_, err := v.Validate(batch, record.Limits{MaxBatchBytes: 1 << 20})
				wantReason(t, err, tt.reason)
			})
			if limit := uint64(12 << 20); spent > limit {
				t.Errorf("%d bytes were allocated to refuse %d", spent, len(batch))
			}
		})
	}
}

// zstdDeclaring is a frame that declares size, with one raw block of three bytes and padding empty blocks.
func zstdDeclaring(size uint64, padding int) []byte {
	b := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0} // single segment, 8 bytes of content size
	b = binary.LittleEndian.AppendUint64(b, size)
	for range padding {
		b = append(b, 0, 0, 0)
	}
	return append(b, 3<<3|1, 0, 0, 'a', 'b', 'c')
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestDecompressionBombs: what expands beyond the cap is refused with a typed error, and costs memory in
// proportion to the cap, not to what the bomb would expand to.
func TestDecompressionBombs(t *testing.T) {
	const expanded, limit = 64 << 20, 1 << 20
	zeros := make([]byte, expanded)
	bombs := map[string]struct {
		codec record.Codec
		data  []byte
	}{
		"gzip":               {record.CodecGzip, gz(t, zeros)},
		"snappy":             {record.CodecSnappy, snap(zeros)},
		"xerial":             {record.CodecSnappy, xerial(1, 1, repeat(snap(zeros[:1<<20]), 64)...)},
		"lz4":                {record.CodecLZ4, lz(t, zeros)},
		"zstd":               {record.CodecZstd, zs(t, zeros, false)},
		"zstd, size unknown": {record.CodecZstd, zs(t, zeros, true)},
	}
	zeros = nil
	for name, tt := range bombs {
		t.Run(name, func(t *testing.T) {
			batch := craft(1, tt.data, attributes(tt.codec))
			r := record.Reader{MaxDecompressed: limit}
			spent := allocated(func() {
				be := batchError(t, r.Reset(batch), record.ReasonDecompressionLimit)
				if be.Limit != limit || be.Value <= limit {
					t.Errorf("value %d, limit %d", be.Value, be.Limit)
				}
			})
			// The buffers, doubled up to the cap, are three times the cap together at most; the rest are the coders themselves (lz4: blocks of 4 MiB).
			if spent > 3*limit+10<<20 {
				t.Errorf("reader: %d bytes were allocated under a cap of %d", spent, limit)
			}

			// The broker's cap follows from the largest batch, which this bomb has to fit into.
			var v record.Validator
			maxBatch := len(batch)
			if tt.codec == record.CodecSnappy {
				return // expands to 22 times its size at most, which is always within the cap of 32
			}
			spent = allocated(func() {
				_, err := v.Validate(batch, record.Limits{MaxBatchBytes: maxBatch})
				wantReason(t, err, record.ReasonDecompressionLimit)
			})
			if spent > uint64(3*maxBatch*record.MaxExpansion+10<<20) {
				t.Errorf("validator: %d bytes were allocated under a cap of %d", spent, maxBatch*record.MaxExpansion)
			}
		})
	}
}

func repeat(b []byte, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = b
	}
	return out
}

// TestCapIsExact: exactly the cap is allowed, one byte more is not, whatever the codec's block sizes.
func TestCapIsExact(t *testing.T) {
	for _, n := range []int{1, 3000, 70_000} {
		p := manyRecords(n)
		for name, tt := range map[string]struct {
			codec record.Codec
			data  []byte
		}{
			"gzip":         {record.CodecGzip, gz(t, p)},
			"snappy":       {record.CodecSnappy, snap(p)},
			"xerial":       {record.CodecSnappy, xerial(1, 1, snap(p[:10]), snap(p[10:]))},
			"lz4":          {record.CodecLZ4, lz(t, p)},
			"zstd":         {record.CodecZstd, zs(t, p, false)},
			"zstd, stream": {record.CodecZstd, zs(t, p, true)},
		} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				batch := craft(int32(n), tt.data, attributes(tt.codec))
				r := record.Reader{MaxDecompressed: len(p)}
				for range 2 { // with a fresh buffer and with a reused one
					if err := r.Reset(batch); err != nil {
						t.Fatalf("cap %d: %v", len(p), err)
					}
					r.MaxDecompressed = len(p) - 1
					wantReason(t, r.Reset(batch), record.ReasonDecompressionLimit)
					r.MaxDecompressed = len(p)
				}
			})
		}
	}
}
