package record

import "math"

// MaxExpansion bounds what a batch may decompress to: the largest allowed batch times this.
const MaxExpansion = 32

// Limits is what a batch is held against.
type Limits struct {
	// MaxBatchBytes is the largest batch, as sent, in bytes; 0 means the format's own limit. Records may
	// decompress to MaxExpansion times as much.
	MaxBatchBytes int
	// NowMS is the broker's clock, in ms since the Unix epoch.
	NowMS int64
	// MaxAheadMS is how far behind NowMS a record's timestamp may lie in the future; 0 means no check.
	MaxAheadMS int64
	// Stored is set for a batch that was appended before (recovery, verification, the tier): the broker
	// may then have replaced its timestamps by the log append time.
	Stored bool
}

func (l Limits) maxDecompressed() int {
	if l.MaxBatchBytes <= 0 || l.MaxBatchBytes > math.MaxInt32/MaxExpansion {
		return math.MaxInt32
	}
	return l.MaxBatchBytes * MaxExpansion
}

// Validator checks whole batches. It holds a decompression buffer (kept up to 4 MiB), so keep one per
// stream or in a pool. Not safe for concurrent use.
type Validator struct {
	dec decompressor
}

// Validate checks everything about b that a broker can know without its log; b must be exactly one batch
// and is not changed. Every error is a *BatchError. The order is: framing and size, magic, checksum,
// attributes, count, producer fields, then each record. Only base offset and leader epoch are not looked
// at, unless the batch is a stored one: they are the broker's to stamp.
func (v *Validator) Validate(b []byte, lim Limits) (Header, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return Header{}, err
	}
	if lim.MaxBatchBytes > 0 && h.Size() > lim.MaxBatchBytes {
		return Header{}, fault(ReasonTooLarge, int64(h.Size()), int64(lim.MaxBatchBytes),
			"batch of %d bytes, the limit is %d", h.Size(), lim.MaxBatchBytes)
	}
	if h, err = parseExact(b); err != nil {
		return Header{}, err
	}
	if err = h.verifyCRC(b); err != nil {
		return Header{}, err
	}
	if err = h.check(lim.Stored); err != nil {
		return Header{}, err
	}
	records, err := v.dec.decode(h.Attributes.Codec(), b[HeaderSize:], lim.maxDecompressed())
	if err == nil {
		err = validateRecords(records, h, lim)
	}
	v.dec.release()
	if err != nil {
		return Header{}, err
	}
	return h, nil
}

// check holds the header's fields against each other.
func (h Header) check(stored bool) error {
	a := h.Attributes
	switch {
	case !a.Codec().Valid():
		return fault(ReasonAttributes, int64(a.Codec()), int64(CodecZstd), "compression %d is not known, the largest is %d", a.Codec(), CodecZstd)
	case a.Control():
		return fault(ReasonAttributes, int64(a), 0, "control batches are not accepted (attributes %#04x)", uint16(a)) // #nosec G115 -- bits
	case a.Transactional():
		return fault(ReasonAttributes, int64(a), 0, "transactional batches are not accepted (attributes %#04x)", uint16(a)) // #nosec G115 -- bits
	case a.LogAppendTime() && !stored:
		return fault(ReasonAttributes, int64(a), 0, "log append time is the broker's to set (attributes %#04x)", uint16(a)) // #nosec G115 -- bits
	case a.DeleteHorizon() || a&attrUnknown != 0:
		return fault(ReasonAttributes, int64(a), 0, "reserved attribute bits are set (attributes %#04x)", uint16(a)) // #nosec G115 -- bits
	case h.Count < 1:
		return fault(ReasonCount, int64(h.Count), 1, "record count is %d, the minimum is 1", h.Count)
	case int64(h.LastOffsetDelta)+1 != int64(h.Count):
		return fault(ReasonCount, int64(h.LastOffsetDelta), int64(h.Count)-1, "last offset delta is %d with %d records", h.LastOffsetDelta, h.Count)
	}
	if stored {
		if err := h.checkOffsets(); err != nil {
			return err
		}
	}
	return h.checkProducer()
}

// checkOffsets makes sure that LastOffset and NextOffset do not overflow.
func (h Header) checkOffsets() error {
	if last := int64(math.MaxInt64 - 1 - int64(h.LastOffsetDelta)); h.BaseOffset < 0 || h.BaseOffset > last {
		return fault(ReasonOffset, h.BaseOffset, last, "base offset is %d, it must lie between 0 and %d", h.BaseOffset, last)
	}
	return nil
}

// checkProducer leaves the sequence of a batch without producer id alone: it means nothing, and some
// clients (franz-go) number such batches all the same.
func (h Header) checkProducer() error {
	switch {
	case h.ProducerID < -1:
		return fault(ReasonProducer, h.ProducerID, -1, "producer id is %d, the minimum is -1", h.ProducerID)
	case h.ProducerID >= 0 && h.ProducerEpoch < 0:
		return fault(ReasonProducer, int64(h.ProducerEpoch), 0, "producer id %d comes with epoch %d", h.ProducerID, h.ProducerEpoch)
	case h.ProducerID >= 0 && h.BaseSequence < 0:
		return fault(ReasonProducer, int64(h.BaseSequence), 0, "producer id %d comes with sequence %d", h.ProducerID, h.BaseSequence)
	case h.ProducerID == -1 && h.ProducerEpoch != -1:
		return fault(ReasonProducer, int64(h.ProducerEpoch), -1, "producer epoch %d comes without producer id", h.ProducerEpoch)
	}
	return nil
}

// validateRecords walks p, the records of h without compression. This is the broker's hottest loop: no
// allocation, no call through an interface, and one combined check per record; explainRecord finds the
// words when that fails.
func validateRecords(p []byte, h Header, lim Limits) error {
	latest := int64(math.MaxInt64)
	if lim.MaxAheadMS > 0 && lim.NowMS <= math.MaxInt64-lim.MaxAheadMS && !h.Attributes.LogAppendTime() {
		latest = lim.NowMS + lim.MaxAheadMS
	}
	maxTS := int64(-1)
	pos := 0
	for n := range h.Count {
		length, i := varint32(p, pos)
		if i < 0 || length < 0 || int(length) > len(p)-i {
			return explainRecord(p, pos, n, h, latest)
		}
		end := i + int(length)
		q := p[:end]
		if i == end || q[i] != 0 {
			return explainRecord(p, pos, n, h, latest)
		}
		tsDelta, i := varint64(q, i+1)
		offDelta, i := varint32(q, i)
		keyLen, i := varint32(q, i)
		if keyLen > 0 {
			i += int(keyLen)
		}
		valueLen, i := varint32(q, i)
		if valueLen > 0 {
			i += int(valueLen)
		}
		headers, i := varint32(q, i)
		if headers != 0 {
			i = skipHeaders(q, i, headers)
		}
		ts := h.BaseTimestamp + tsDelta
		if i != end || offDelta != n || keyLen < -1 || valueLen < -1 || ts < 0 || ts > latest ||
			(ts < h.BaseTimestamp) != (tsDelta < 0) {
			return explainRecord(p, pos, n, h, latest)
		}
		maxTS = max(maxTS, ts)
		pos = end
	}
	if pos != len(p) {
		return fault(ReasonCount, int64(len(p)-pos), 0, "%d bytes behind the last of %d records", len(p)-pos, h.Count)
	}
	if maxTS != h.MaxTimestamp && !h.Attributes.LogAppendTime() {
		return fault(ReasonTimestamp, h.MaxTimestamp, maxTS, "maximum timestamp is %d, the records' is %d", h.MaxTimestamp, maxTS)
	}
	return nil
}

// skipHeaders returns the index behind n headers, or -1.
func skipHeaders(q []byte, i int, n int32) int {
	if n < 0 {
		return -1
	}
	for ; n > 0 && i >= 0; n-- {
		var l int32
		if l, i = varint32(q, i); l < 0 || i < 0 {
			return -1
		}
		if l, i = varint32(q, i+int(l)); l < -1 || i < 0 {
			return -1
		}
		if l > 0 {
			i += int(l)
		}
		if i > len(q) {
			return -1
		}
	}
	return i
}
