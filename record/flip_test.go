package record_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"runnel.dev/runnel/record"
)

// small returns a short batch that really is compressed with codec.
func small(t testing.TB, codec record.Codec) []byte {
	t.Helper()
	batch := build(t, codec, []rec{
		{TS: now, Key: []byte("key"), Value: bytes.Repeat([]byte("abc"), 50)},
		{TS: now - 5, Value: bytes.Repeat([]byte("abc"), 50), Headers: []record.HeaderKV{{Key: []byte("h"), Value: []byte("v")}}},
		{TS: now + 5, Key: []byte{}},
	})
	if h, err := record.ParseHeader(batch); err != nil || h.Attributes.Codec() != codec {
		t.Fatalf("batch is stored with %v, want %v (%v)", h.Attributes.Codec(), codec, err)
	}
	return batch
}

// TestEveryByteFlip: a changed byte is found, unless it belongs to the base offset or the leader epoch, which
// lie outside the checksum: then the records are the same, at another place.
func TestEveryByteFlip(t *testing.T) {
	lim := record.Limits{MaxBatchBytes: 1 << 20, NowMS: now, MaxAheadMS: ahead}
	for _, codec := range codecs {
		good := small(t, codec)
		want := mustRead(t, good)
		var v record.Validator
		for i := range good {
			for _, flip := range []byte{0x01, 0x10, 0x80, 0xff} {
				b := bytes.Clone(good)
				b[i] ^= flip
				h, err := v.Validate(b, lim)
				_, rerr := readAll(b)
				stamped := i < 8 || i >= 12 && i < 16
				if !stamped {
					if err == nil || rerr == nil {
						t.Fatalf("%s: byte %d ^ %#02x: Validate says %v, Reader says %v", codec, i, flip, err, rerr)
					}
					var be *record.BatchError
					switch {
					case i < 12: // length: shorter, longer, negative or over the limit
						if !asBatchError(err, &be) || be.Reason != record.ReasonTruncated && be.Reason != record.ReasonTrailingBytes && be.Reason != record.ReasonTooLarge {
							t.Fatalf("%s: length byte %d ^ %#02x: %v", codec, i, flip, err)
						}
					case i == 16:
						wantReason(t, err, record.ReasonMagic)
					default:
						wantReason(t, err, record.ReasonCRC)
					}
					continue
				}
				if i == 0 && flip&0x80 != 0 { // a negative base offset: a producer's is ignored, a stored one is wrong
					wantReason(t, rerr, record.ReasonOffset)
					_, serr := v.Validate(b, record.Limits{Stored: true})
					wantReason(t, serr, record.ReasonOffset)
					rerr = nil
				}
				if err != nil || rerr != nil {
					t.Fatalf("%s: stamped byte %d: %v, %v", codec, i, err, rerr)
				}
				record.Stamp(b, 0, -1)
				if d := cmp.Diff(want, mustRead(t, b)); d != "" || h.Count != 3 {
					t.Fatalf("%s: stamped byte %d changes records:\n%s", codec, i, d)
				}
			}
		}
	}
}

// TestEveryByteFlipWithAGoodChecksum: what a faulty or hostile producer sends is refused, or is a batch that
// can be read to its end exactly as its header says.
func TestEveryByteFlipWithAGoodChecksum(t *testing.T) {
	var c consistency
	for _, codec := range codecs {
		good := small(t, codec)
		for i := range good {
			for bit := range 8 {
				b := bytes.Clone(good)
				b[i] ^= 1 << bit
				c.check(t, fixCRC(b), record.Limits{MaxBatchBytes: 1 << 20, NowMS: now, MaxAheadMS: ahead})
			}
		}
	}
}

func TestEveryTruncation(t *testing.T) {
	for _, codec := range codecs {
		good := small(t, codec)
		var v record.Validator
		for n := range good {
			_, err := v.Validate(good[:n], record.Limits{})
			wantReason(t, err, record.ReasonTruncated)
			_, err = readAll(good[:n])
			wantReason(t, err, record.ReasonTruncated)
		}
	}
}
