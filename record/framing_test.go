package record_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"runnel.dev/runnel/record"
)

// TestWrittenFraming pins what docs/formats/record-batch.md promises about each codec's framing.
func TestWrittenFraming(t *testing.T) {
	for codec, prefix := range map[record.Codec]string{
		record.CodecGzip:   "1f8b08",
		record.CodecSnappy: "82534e4150505900" + "00000001" + "00000001",
		record.CodecLZ4:    "04224d18" + "60" + "40", // version 1, independent blocks, no checksums; blocks of 64 KiB
		record.CodecZstd:   "28b52ffd",
	} {
		batch := build(t, codec, sample(5000))
		if got := hex.EncodeToString(batch[record.HeaderSize:][:len(prefix)/2]); got != prefix {
			t.Errorf("%s starts with %s, want %s", codec, got, prefix)
		}
		if codec == record.CodecZstd && batch[record.HeaderSize+4]&0x04 != 0 {
			t.Error("the zstd frame has a checksum of its own")
		}
		if codec == record.CodecSnappy {
			checkXerialBlocks(t, batch[record.HeaderSize+16:])
		}
	}
}

func checkXerialBlocks(t *testing.T, b []byte) {
	t.Helper()
	blocks := 0
	for ; len(b) > 0; blocks++ {
		n := int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3])
		// The raw size is a varint; 32 KiB, the most that one block holds, is 80 80 02.
		if raw := b[4:7]; len(b) > 4+n && !bytes.Equal(raw, []byte{0x80, 0x80, 0x02}) {
			t.Errorf("block %d declares %x, want 32 KiB", blocks, raw)
		}
		b = b[4+n:]
	}
	if blocks < 3 {
		t.Errorf("%d blocks, the records fill more", blocks)
	}
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	var v record.Validator
	_, err := v.Validate(craft(2, cat(plain(0, 0), plain(7, 0))), record.Limits{})
	if got, want := err.Error(), "record batch: malformed record: record 1: offset delta is 7, want 1"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	_, err = v.Validate(craft(1, plain(0, 0)), record.Limits{MaxBatchBytes: 69})
	if got, want := err.Error(), "record batch: too large: batch of 70 bytes, the limit is 69"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	_, err = v.Validate(craft(1, []byte("no gzip at all"), attributes(record.CodecGzip)), record.Limits{})
	if be := batchError(t, err, record.ReasonDecompression); be.Err == nil || !errors.Is(err, be.Err) || !strings.Contains(err.Error(), "gzip") {
		t.Errorf("error %v does not carry the codec's error", err)
	}
	if got := record.Reason(200).String(); got != "reason(200)" {
		t.Error(got)
	}
}

func TestLastSequence(t *testing.T) {
	for want, h := range map[int32]record.Header{
		14: {ProducerID: 0, BaseSequence: 5, LastOffsetDelta: 9},
		-1: {ProducerID: -1, BaseSequence: 5, LastOffsetDelta: 9},
		0:  {ProducerID: 1, BaseSequence: 1<<31 - 1, LastOffsetDelta: 1},
	} {
		if got := h.LastSequence(); got != want {
			t.Errorf("%+v: last sequence %d, want %d", h, got, want)
		}
	}
}
