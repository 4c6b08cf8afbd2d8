package record

import "math"

// explainRecord walks the record at pos, the n-th, once more and slowly, and says what is wrong with it.
// It is called only for a record that the fast loop refused.
func explainRecord(p []byte, pos int, n int32, h Header, latest int64) error {
	e := explainFields(p, pos, n, h, latest)
	e.Record = int(n)
	return e
}

// explainFields expects what a producer sends: offsets have no gaps, timestamps have a bound.
func explainFields(p []byte, pos int, n int32, h Header, latest int64) *BatchError {
	f, e := explainShape(p, pos, n, h.Count)
	if e != nil {
		return e
	}
	if f.offDelta != n {
		return fault(ReasonRecord, int64(f.offDelta), int64(n), "offset delta is %d, want %d", f.offDelta, n)
	}
	return explainTimestamp(h.BaseTimestamp, f.tsDelta, latest)
}

// deltas are the fields of a well-formed record that are held against the header.
type deltas struct {
	tsDelta  int64
	offDelta int32
}

// explainShape returns what is malformed about the record at pos, nil when nothing is.
func explainShape(p []byte, pos int, n, count int32) (deltas, *BatchError) {
	if pos == len(p) {
		return deltas{}, fault(ReasonCount, int64(n), int64(count), "the records end after %d of %d", n, count)
	}
	length, i := varint32(p, pos)
	if i < 0 {
		return deltas{}, fault(ReasonRecord, 0, 0, "length: bad or cut off variable-length integer")
	}
	if length < 0 || int(length) > len(p)-i {
		return deltas{}, fault(ReasonRecord, int64(length), int64(len(p)-i), "length is %d, %d bytes are left", length, len(p)-i)
	}
	w := walker{q: p[:i+int(length)], i: i}
	if attributes := w.byte("attributes"); attributes != 0 {
		w.fail(int64(attributes), "record attributes are %#02x, none are defined", attributes)
	}
	d := deltas{tsDelta: w.varint64("timestamp delta"), offDelta: w.varint32("offset delta")}
	w.bytes("key", -1)
	w.bytes("value", -1)
	headers := w.varint32("header count")
	if headers < 0 {
		w.fail(int64(headers), "header count is %d", headers)
	}
	for ; headers > 0 && w.err == nil; headers-- {
		w.bytes("header key", 0)
		w.bytes("header value", -1)
	}
	if w.err == nil && w.i != len(w.q) {
		w.err = fault(ReasonRecord, int64(length), int64(w.i-i), "length is %d, the fields take %d bytes", length, w.i-i)
	}
	return d, w.err
}

func explainTimestamp(base, delta, latest int64) *BatchError {
	if (delta > 0 && base > math.MaxInt64-delta) || (delta < 0 && base < math.MinInt64-delta) {
		return fault(ReasonTimestamp, delta, 0, "base timestamp %d plus delta %d overflows", base, delta)
	}
	ts := base + delta
	if ts < 0 {
		return fault(ReasonTimestamp, ts, 0, "timestamp is %d ms, the minimum is 0", ts)
	}
	return fault(ReasonTimestamp, ts, latest, "timestamp is %d ms, the latest allowed now is %d", ts, latest)
}

// walker reads fields one by one and keeps the first fault.
type walker struct {
	q   []byte
	i   int
	err *BatchError
}

func (w *walker) fail(value int64, format string, args ...any) {
	if w.err == nil {
		w.err = fault(ReasonRecord, value, int64(len(w.q)), format, args...)
	}
}

func (w *walker) byte(field string) byte {
	if w.i >= len(w.q) {
		w.fail(0, "%s: the record ends before it", field)
		return 0
	}
	w.i++
	return w.q[w.i-1]
}

func (w *walker) varint32(field string) int32 {
	if w.err != nil {
		return 0
	}
	v, i := varint32(w.q, w.i)
	if i < 0 {
		w.fail(0, "%s: bad or cut off variable-length integer", field)
		return 0
	}
	w.i = i
	return v
}

func (w *walker) varint64(field string) int64 {
	if w.err != nil {
		return 0
	}
	v, i := varint64(w.q, w.i)
	if i < 0 {
		w.fail(0, "%s: bad or cut off variable-length integer", field)
		return 0
	}
	w.i = i
	return v
}

// bytes skips a length-prefixed field whose length is at least lowest.
func (w *walker) bytes(field string, lowest int32) {
	n := w.varint32(field + " length")
	if w.err != nil {
		return
	}
	if left := len(w.q) - w.i; n < lowest || int(n) > left {
		w.fail(int64(n), "%s length is %d, %d bytes of the record are left", field, n, left)
		return
	}
	if n > 0 {
		w.i += int(n)
	}
}
