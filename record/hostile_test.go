package record_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"runnel.dev/runnel/record"
)

const (
	now   = 1_700_000_000_000
	ahead = 3_600_000
)

// craft encodes a batch through kmsg, with a right length and checksum: everything else may lie.
func craft(count int32, records []byte, mutate ...func(*kmsg.RecordBatch)) []byte {
	k := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: count - 1, FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: count, Records: records,
		Length: int32(49 + len(records)),
	}
	for _, m := range mutate {
		m(&k)
	}
	return fixCRC(k.AppendTo(nil))
}

func fixCRC(b []byte) []byte {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// zz is a zig-zag varint.
func zz(v int64) []byte { return binary.AppendVarint(nil, v) }

func cat(parts ...[]byte) []byte { return slices.Concat(parts...) }

// sized puts the length of a record before its body.
func sized(body ...[]byte) []byte {
	b := cat(body...)
	return cat(zz(int64(len(b))), b)
}

// plain is a well-formed record with key "k" and value "v".
func plain(offsetDelta, tsDelta int64) []byte {
	return sized([]byte{0}, zz(tsDelta), zz(offsetDelta), zz(1), []byte("k"), zz(1), []byte("v"), zz(0))
}

type hostile struct {
	name   string
	batch  []byte
	reason record.Reason
	class  error
	record int
	value  int64
	limit  int64
}

func TestValidateRefusesBadHeaders(t *testing.T) {
	one := plain(0, 0)
	attrs := func(a int16) []byte { return craft(1, one, func(k *kmsg.RecordBatch) { k.Attributes = a }) }
	length := func(n int32) []byte { return craft(1, one, func(k *kmsg.RecordBatch) { k.Length = n }) }
	producer := func(id int64, epoch int16, seq int32) []byte {
		return craft(1, one, func(k *kmsg.RecordBatch) { k.ProducerID, k.ProducerEpoch, k.FirstSequence = id, epoch, seq })
	}
	size := int64(len(craft(1, one)))
	magic := func(m int8) []byte { return craft(1, one, func(k *kmsg.RecordBatch) { k.Magic = m }) }
	badCRC := craft(1, one)
	badCRC[len(badCRC)-2] ^= 1
	long := craft(1, make([]byte, 4096))

	runHostile(t, record.Limits{MaxBatchBytes: 4096, NowMS: now, MaxAheadMS: ahead}, []hostile{
		{"nothing", nil, record.ReasonTruncated, record.ErrCorrupt, -1, 0, 61},
		{"60 bytes", craft(1, one)[:60], record.ReasonTruncated, record.ErrCorrupt, -1, 60, 61},
		{"header alone", craft(1, one)[:61], record.ReasonTruncated, record.ErrCorrupt, -1, 61, size},
		{"one byte short", craft(1, one)[:size-1], record.ReasonTruncated, record.ErrCorrupt, -1, size - 1, size},
		{"one byte more", append(craft(1, one), 0), record.ReasonTrailingBytes, record.ErrCorrupt, -1, size + 1, size},
		{"two batches", cat(craft(1, one), craft(1, one)), record.ReasonTrailingBytes, record.ErrCorrupt, -1, 2 * size, size},
		{"negative length", length(-1), record.ReasonTruncated, record.ErrCorrupt, -1, -1, 49},
		{"length 0", length(0), record.ReasonTruncated, record.ErrCorrupt, -1, 0, 49},
		{"length 48", length(48), record.ReasonTruncated, record.ErrCorrupt, -1, 48, 49},
		{"length overflows", length(math.MaxInt32), record.ReasonTooLarge, record.ErrTooLarge, -1, math.MaxInt32, math.MaxInt32 - 12},
		{"huge length in a tiny frame", length(math.MaxInt32 - 12), record.ReasonTooLarge, record.ErrTooLarge, -1, math.MaxInt32, 4096},
		{"good checksum, short length", length(int32(size - 13)), record.ReasonTrailingBytes, record.ErrCorrupt, -1, size, size - 1},
		{"bad checksum, good length", badCRC, record.ReasonCRC, record.ErrCorrupt, -1, 0, 0},
		{"too large", long, record.ReasonTooLarge, record.ErrTooLarge, -1, 61 + 4096, 4096},
		{"magic 0", magic(0), record.ReasonMagic, record.ErrInvalid, -1, 0, 2},
		{"magic 1", magic(1), record.ReasonMagic, record.ErrInvalid, -1, 1, 2},
		{"a future magic", magic(3), record.ReasonMagic, record.ErrInvalid, -1, 3, 2},
		{"negative magic", magic(-1), record.ReasonMagic, record.ErrInvalid, -1, -1, 2},
		{"codec 5", attrs(5), record.ReasonAttributes, record.ErrInvalid, -1, 5, 4},
		{"codec 7", attrs(7), record.ReasonAttributes, record.ErrInvalid, -1, 7, 4},
		{"log append time", attrs(0x08), record.ReasonAttributes, record.ErrInvalid, -1, 0x08, 0},
		{"transactional", attrs(0x10), record.ReasonAttributes, record.ErrInvalid, -1, 0x10, 0},
		{"control", attrs(0x20), record.ReasonAttributes, record.ErrInvalid, -1, 0x20, 0},
		{"delete horizon", attrs(0x40), record.ReasonAttributes, record.ErrInvalid, -1, 0x40, 0},
		{"unknown bit 7", attrs(0x80), record.ReasonAttributes, record.ErrInvalid, -1, 0x80, 0},
		{"unknown bit 15", attrs(math.MinInt16), record.ReasonAttributes, record.ErrInvalid, -1, math.MinInt16, 0},
		{"count 0", craft(0, nil), record.ReasonCount, record.ErrInvalid, -1, 0, 1},
		{"count -1", craft(-1, one), record.ReasonCount, record.ErrInvalid, -1, -1, 1},
		{"count MinInt32", craft(math.MinInt32, one), record.ReasonCount, record.ErrInvalid, -1, math.MinInt32, 1},
		{"last offset delta 1 of one", craft(1, one, func(k *kmsg.RecordBatch) { k.LastOffsetDelta = 1 }), record.ReasonCount, record.ErrInvalid, -1, 1, 0},
		{"last offset delta negative", craft(1, one, func(k *kmsg.RecordBatch) { k.LastOffsetDelta = -1 }), record.ReasonCount, record.ErrInvalid, -1, -1, 0},
		{"last offset delta MaxInt32", craft(1, one, func(k *kmsg.RecordBatch) { k.LastOffsetDelta = math.MaxInt32 }), record.ReasonCount, record.ErrInvalid, -1, math.MaxInt32, 0},
		{"producer id -2", producer(-2, 0, 0), record.ReasonProducer, record.ErrInvalid, -1, -2, -1},
		{"producer id without epoch", producer(5, -1, 0), record.ReasonProducer, record.ErrInvalid, -1, -1, 0},
		{"producer id without sequence", producer(5, 0, -1), record.ReasonProducer, record.ErrInvalid, -1, -1, 0},
		{"producer epoch without id", producer(-1, 3, -1), record.ReasonProducer, record.ErrInvalid, -1, 3, -1},
	})
}

func TestValidateRefusesBadRecords(t *testing.T) {
	var (
		attr, ts, off = []byte{0}, zz(0), zz(0)
		key, val      = cat(zz(1), []byte("k")), cat(zz(1), []byte("v"))
		none          = zz(0)
	)
	at := func(base, newest int64) func(*kmsg.RecordBatch) {
		return func(k *kmsg.RecordBatch) { k.FirstTimestamp, k.MaxTimestamp = base, newest }
	}
	tooLong := []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x00}
	over32 := []byte{0xff, 0xff, 0xff, 0xff, 0x1f}
	over64 := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02}
	bad, invalid := record.ReasonRecord, record.ErrInvalid
	const huge = math.MaxInt32

	runHostile(t, record.Limits{MaxBatchBytes: 1 << 20, NowMS: now, MaxAheadMS: ahead}, []hostile{
		{"more records declared", craft(3, cat(plain(0, 0), plain(1, 0))), record.ReasonCount, invalid, 2, 2, 3},
		{"huge count in a tiny batch", craft(huge, plain(0, 0)), record.ReasonCount, invalid, 1, 1, huge},
		{"no records at all", craft(1, nil), record.ReasonCount, invalid, 0, 0, 1},
		{"fewer records declared", craft(1, cat(plain(0, 0), plain(1, 0))), record.ReasonCount, invalid, -1, 9, 0},
		{"trailing byte", craft(1, append(plain(0, 0), 0)), record.ReasonCount, invalid, -1, 1, 0},
		{"negative record length", craft(1, zz(-1)), bad, invalid, 0, -1, 0},
		{"zero record length", craft(1, zz(0)), bad, invalid, 0, 0, 1},
		{"record length past the end", craft(1, cat(zz(100), attr)), bad, invalid, 0, 100, 1},
		{"huge record length", craft(1, cat(zz(huge), attr)), bad, invalid, 0, huge, 1},
		{"unterminated length", craft(1, []byte{0x80}), bad, invalid, 0, 0, 0},
		{"length of six bytes", craft(1, tooLong), bad, invalid, 0, 0, 0},
		{"length over 32 bits", craft(1, over32), bad, invalid, 0, 0, 0},
		{"record attributes", craft(1, sized([]byte{4}, ts, off, key, val, none)), bad, invalid, 0, 4, 0},
		{"timestamp over 64 bits", craft(1, sized(attr, over64, off, key, val, none)), bad, invalid, 0, 0, 0},
		{"timestamp cut off", craft(1, sized(attr, []byte{0x80})), bad, invalid, 0, 0, 0},
		{"offset delta cut off", craft(1, sized(attr, ts, []byte{0xff})), bad, invalid, 0, 0, 0},
		{"first offset delta 1", craft(1, plain(1, 0)), bad, invalid, 0, 1, 0},
		{"offset delta repeats", craft(2, cat(plain(0, 0), plain(0, 0))), bad, invalid, 1, 0, 1},
		{"offset delta skips", craft(3, cat(plain(0, 0), plain(2, 0), plain(3, 0))), bad, invalid, 1, 2, 1},
		{"offset delta negative", craft(2, cat(plain(0, 0), plain(-1, 0))), bad, invalid, 1, -1, 1},
		{"key length -2", craft(1, sized(attr, ts, off, zz(-2), val, none)), bad, invalid, 0, -2, 0},
		{"key past the record", craft(2, cat(sized(attr, ts, off, zz(9), val, none), plain(1, 0))), bad, invalid, 0, 9, 0},
		{"huge key", craft(1, sized(attr, ts, off, zz(huge), val, none)), bad, invalid, 0, huge, 0},
		{"key length MinInt32", craft(1, sized(attr, ts, off, zz(math.MinInt32), val, none)), bad, invalid, 0, math.MinInt32, 0},
		{"value length -2", craft(1, sized(attr, ts, off, key, zz(-2), none)), bad, invalid, 0, -2, 0},
		{"value past the record", craft(1, sized(attr, ts, off, key, zz(2), none)), bad, invalid, 0, 2, 0},
		{"no header count", craft(1, sized(attr, ts, off, key, val)), bad, invalid, 0, 0, 0},
		{"negative header count", craft(1, sized(attr, ts, off, key, val, zz(-1))), bad, invalid, 0, -1, 0},
		{"huge header count", craft(1, sized(attr, ts, off, key, val, zz(huge))), bad, invalid, 0, 0, 0},
		{"header key null", craft(1, sized(attr, ts, off, key, val, zz(1), zz(-1), zz(-1))), bad, invalid, 0, -1, 0},
		{"header key past the record", craft(1, sized(attr, ts, off, key, val, zz(1), zz(50), val)), bad, invalid, 0, 50, 0},
		{"header value -2", craft(1, sized(attr, ts, off, key, val, zz(1), key, zz(-2))), bad, invalid, 0, -2, 0},
		{"header value past the record", craft(1, sized(attr, ts, off, key, val, zz(1), key, zz(3))), bad, invalid, 0, 3, 0},
		{"header missing", craft(1, sized(attr, ts, off, key, val, zz(2), key, val)), bad, invalid, 0, 0, 0},
		{"bytes behind the fields", craft(1, sized(attr, ts, off, key, val, none, none)), bad, invalid, 0, 9, 8},
		{"timestamp overflows", craft(1, plain(0, 1), at(math.MaxInt64, math.MaxInt64)), record.ReasonTimestamp, invalid, 0, 1, 0},
		{"timestamp overflows downwards", craft(1, plain(0, -1), at(math.MinInt64, 0)), record.ReasonTimestamp, invalid, 0, -1, 0},
		{"negative timestamp", craft(1, plain(0, -6), at(5, 5)), record.ReasonTimestamp, invalid, 0, -1, 0},
		{"negative base timestamp", craft(1, plain(0, 0), at(-1, -1)), record.ReasonTimestamp, invalid, 0, -1, 0},
		{"too far ahead", craft(2, cat(plain(0, 0), plain(1, ahead+1)), at(now, now+ahead+1)), record.ReasonTimestamp, invalid, 1, now + ahead + 1, now + ahead},
		{"maximum timestamp too large", craft(1, plain(0, 0), at(now, now+1)), record.ReasonTimestamp, invalid, -1, now + 1, now},
		{"maximum timestamp too small", craft(1, plain(0, 7), at(now, now)), record.ReasonTimestamp, invalid, -1, now, now + 7},
	})
}

// runHostile holds each refusal against what it must say, and checks that the same validator still takes a
// good batch afterwards and that the input was not changed.
func runHostile(t *testing.T, lim record.Limits, cases []hostile) {
	t.Helper()
	var v record.Validator
	good := craft(1, plain(0, 0))
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			before := slices.Clone(tt.batch)
			_, err := v.Validate(tt.batch, lim)
			be := batchError(t, err, tt.reason)
			for _, class := range []error{record.ErrCorrupt, record.ErrTooLarge, record.ErrInvalid} {
				if errors.Is(err, class) != errors.Is(tt.class, class) {
					t.Errorf("errors.Is(%v, %v) = %v", err, class, errors.Is(err, class))
				}
			}
			if be.Record != tt.record {
				t.Errorf("record is %d, want %d (%v)", be.Record, tt.record, err)
			}
			// Where the value is a checksum or the limit is what was left of the record, the text says it.
			if tt.value != 0 && be.Value != tt.value || tt.limit != 0 && be.Limit != tt.limit {
				t.Errorf("value %d, limit %d, want %d, %d (%v)", be.Value, be.Limit, tt.value, tt.limit, err)
			}
			if !slices.Equal(before, tt.batch) {
				t.Error("the input was changed")
			}
			if _, err := v.Validate(good, lim); err != nil {
				t.Errorf("a good batch afterwards: %v", err)
			}
		})
	}
}

func TestValidateAcceptsTheEdges(t *testing.T) {
	var v record.Validator
	at := func(base, newest int64) func(*kmsg.RecordBatch) {
		return func(k *kmsg.RecordBatch) { k.FirstTimestamp, k.MaxTimestamp = base, newest }
	}
	lim := record.Limits{MaxBatchBytes: 4096, NowMS: now, MaxAheadMS: ahead}
	for name, tt := range map[string]struct {
		batch []byte
		lim   record.Limits
	}{
		"exactly the allowed time ahead": {craft(2, cat(plain(0, 0), plain(1, ahead)), at(now, now+ahead)), lim},
		"any time ahead without a limit": {craft(1, plain(0, 0), at(math.MaxInt64, math.MaxInt64)), record.Limits{NowMS: now}},
		"a clock near the end of time":   {craft(1, plain(0, 0), at(math.MaxInt64, math.MaxInt64)), record.Limits{NowMS: math.MaxInt64 - 1, MaxAheadMS: ahead}},
		"the epoch":                      {craft(1, plain(0, 0), at(0, 0)), lim},
		"times that go back":             {craft(2, cat(plain(0, 0), plain(1, -now)), at(now, now)), lim},
		"exactly the size limit":         {craft(1, plain(0, 0)), record.Limits{MaxBatchBytes: len(craft(1, plain(0, 0)))}},
		"null key, null value":           {craft(1, sized([]byte{0}, zz(0), zz(0), zz(-1), zz(-1), zz(0))), lim},
		"header without value":           {craft(1, sized([]byte{0}, zz(0), zz(0), zz(-1), zz(-1), zz(1), zz(0), zz(-1))), lim},
		"sequence without producer id":   {craft(1, plain(0, 0), func(k *kmsg.RecordBatch) { k.FirstSequence = 17 }), lim},
		"a stamped batch":                {craft(1, plain(0, 0), func(k *kmsg.RecordBatch) { k.FirstOffset, k.PartitionLeaderEpoch = 1<<40, 9 }), lim},
		"largest producer": {craft(1, plain(0, 0), func(k *kmsg.RecordBatch) {
			k.ProducerID, k.ProducerEpoch, k.FirstSequence = math.MaxInt64, math.MaxInt16, math.MaxInt32
		}), lim},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := v.Validate(tt.batch, tt.lim)
			if err != nil {
				t.Fatal(err)
			}
			if recs := mustRead(t, tt.batch); len(recs) != int(h.Count) {
				t.Errorf("%d records read, %d declared", len(recs), h.Count)
			}
		})
	}
}
