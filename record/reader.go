package record

// DefaultMaxDecompressed is the most bytes that a Reader decompresses one batch to by default: MaxExpansion
// times the largest maxBatchBytes that a broker can be configured to (16 MiB).
const DefaultMaxDecompressed = MaxExpansion * (16 << 20)

// Record is one record as Reader yields it. Every slice is borrowed from the batch or from the reader.
type Record struct {
	Offset     int64
	Timestamp  int64 // ms since the Unix epoch
	Key, Value []byte
	Headers    []HeaderKV
}

// Reader iterates the records of one batch. It borrows the batch's bytes, or decompresses them into a
// buffer that it reuses, and allocates nothing per record. Records are valid until the next Next (headers)
// or Reset (everything else). The zero Reader is ready for Reset. Not safe for concurrent use.
type Reader struct {
	// MaxDecompressed bounds the decompressed records in bytes; 0 means DefaultMaxDecompressed.
	MaxDecompressed int
	// SkipCRC leaves the checksum out, for bytes that were checked just before.
	SkipCRC bool

	dec     decompressor
	h       Header
	p       []byte
	pos     int
	n       int32 // records yielded
	lastOff int32
	headers []HeaderKV
	err     error
}

// Reset starts on batch, which must be exactly one batch and stay unchanged while it is read. After an error
// Next returns false.
func (r *Reader) Reset(batch []byte) error {
	r.dec.release()
	r.p, r.pos, r.n, r.lastOff = nil, 0, 0, -1
	r.h, r.err = parseExact(batch)
	if r.err != nil {
		return r.err
	}
	if !r.SkipCRC {
		if r.err = r.h.verifyCRC(batch); r.err != nil {
			return r.err
		}
	}
	if r.h.Count < 0 || int64(r.h.Count) > int64(r.h.LastOffsetDelta)+1 {
		r.err = fault(ReasonCount, int64(r.h.Count), int64(r.h.LastOffsetDelta)+1,
			"%d records in %d offsets", r.h.Count, int64(r.h.LastOffsetDelta)+1)
		return r.err
	}
	if r.err = r.h.checkOffsets(); r.err != nil {
		return r.err
	}
	limit := r.MaxDecompressed
	if limit <= 0 {
		limit = DefaultMaxDecompressed
	}
	r.p, r.err = r.dec.decode(r.h.Attributes.Codec(), batch[HeaderSize:], limit)
	return r.err
}

// Size returns the bytes of the records behind the header, decompressed.
func (r *Reader) Size() int { return len(r.p) }

// Header returns the header of the batch that Reset was given.
func (r *Reader) Header() Header { return r.h }

// Err returns the error that ended the iteration, nil at the regular end.
func (r *Reader) Err() error { return r.err }

// Next reads the next record into rec and reports whether there was one. Offsets must increase within the
// batch; unlike in a batch fresh from a producer they may have gaps, which compaction leaves.
func (r *Reader) Next(rec *Record) bool {
	if r.err != nil {
		return false
	}
	if r.n == r.h.Count {
		if r.pos != len(r.p) {
			r.err = fault(ReasonCount, int64(len(r.p)-r.pos), 0, "%d bytes behind the last of %d records", len(r.p)-r.pos, r.h.Count)
		}
		return false
	}
	p := r.p
	length, i := varint32(p, r.pos)
	if i < 0 || length < 1 || int(length) > len(p)-i {
		return r.fail()
	}
	end := i + int(length)
	q := p[:end]
	tsDelta, i := varint64(q, i+1) // behind the attributes, of which none are defined
	offDelta, i := varint32(q, i)
	key, i := readBytes(q, i)
	value, i := readBytes(q, i)
	headers, i := varint32(q, i)
	rec.Headers = nil
	if headers != 0 {
		i = r.readHeaders(q, i, headers)
		rec.Headers = r.headers
	}
	if i != end || offDelta <= r.lastOff || offDelta > r.h.LastOffsetDelta {
		return r.fail()
	}
	rec.Offset = r.h.BaseOffset + int64(offDelta)
	rec.Timestamp = r.h.BaseTimestamp + tsDelta
	if r.h.Attributes.LogAppendTime() {
		rec.Timestamp = r.h.MaxTimestamp
	}
	rec.Key, rec.Value = key, value
	r.pos, r.lastOff = end, offDelta
	r.n++
	return true
}

// fail ends the iteration with the fault of the record at r.pos.
func (r *Reader) fail() bool {
	d, e := explainShape(r.p, r.pos, r.n, r.h.Count)
	if e == nil {
		e = fault(ReasonRecord, int64(d.offDelta), int64(r.h.LastOffsetDelta),
			"offset delta is %d, it must lie between %d and %d", d.offDelta, int64(r.lastOff)+1, r.h.LastOffsetDelta)
	}
	e.Record = int(r.n)
	r.err = e
	return false
}

// readBytes returns the nullable field at i, borrowed, and the index behind it, -1 when it is malformed.
func readBytes(q []byte, i int) (field []byte, next int) {
	n, i := varint32(q, i)
	if i < 0 || n < -1 || int(n) > len(q)-i {
		return nil, -1
	}
	if n < 0 {
		return nil, i
	}
	next = i + int(n)
	return q[i:next:next], next
}

// readHeaders fills r.headers with n headers and returns the index behind them, or -1.
func (r *Reader) readHeaders(q []byte, i int, n int32) int {
	r.headers = r.headers[:0]
	// A header takes two bytes at least: a count beyond that is a lie, and must not make memory grow.
	if i < 0 || n < 0 || int(n) > (len(q)-i)/2 {
		return -1
	}
	for range n {
		var kv HeaderKV
		if kv.Key, i = readBytes(q, i); kv.Key == nil {
			return -1
		}
		if kv.Value, i = readBytes(q, i); i < 0 {
			return -1
		}
		r.headers = append(r.headers, kv)
	}
	return i
}
