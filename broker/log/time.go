package log

import (
	"errors"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/record"
)

// OffsetForTime returns the first offset at or above the log start, below the high watermark, whose record has a
// timestamp ≥ ms (ms since the Unix epoch), with that timestamp; false if there is none. Takes no lock.
func (l *Log) OffsetForTime(ms int64) (offset, timestamp int64, found bool, err error) {
	if err := l.readable(); err != nil {
		return 0, 0, false, err
	}
	for {
		gen := l.truncations.Load()
		offset, timestamp, found, err = l.offsetForTime(ms)
		if errors.Is(err, segment.ErrRetired) && l.state.Load().Health != Offline {
			continue
		}
		if err != nil && l.truncatedSince(gen) {
			return 0, 0, false, ErrTruncated
		}
		if err != nil {
			return 0, 0, false, l.readFailed(err)
		}
		return offset, timestamp, found, nil
	}
}

func (l *Log) offsetForTime(ms int64) (offset, timestamp int64, found bool, err error) {
	start, upTo := l.logStart.Load(), l.hw.Load()
	for _, s := range l.segments() {
		if s.End() <= start {
			continue
		}
		largest, ok, err := s.MaxTimestamp()
		if err != nil {
			return 0, 0, false, err
		}
		if !ok || largest < ms {
			continue
		}
		for from := max(start, s.Base()); from < min(s.End(), upTo); {
			r, h, ok, err := s.FirstSince(ms, from, upTo)
			if err != nil {
				return 0, 0, false, err
			}
			if !ok {
				break
			}
			off, ts, ok, err := firstRecord(r, h, ms, start)
			if err != nil || ok {
				return off, ts, ok, err
			}
			from = h.NextOffset()
		}
	}
	return 0, 0, false, nil
}

// firstRecord finds the first record of one batch at or above start with a timestamp ≥ ms, and releases the range.
func firstRecord(r segment.Range, h record.Header, ms, start int64) (offset, timestamp int64, found bool, err error) {
	defer func() { _ = r.Release() }()
	if h.Attributes.LogAppendTime() {
		off := max(h.BaseOffset, start)
		return off, h.MaxTimestamp, off <= h.LastOffset(), nil
	}
	b := make([]byte, r.Len)
	if err := r.ReadAt(b); err != nil {
		return 0, 0, false, err
	}
	var rd record.Reader
	if err := rd.Reset(b); err != nil {
		return 0, 0, false, &CorruptError{Segment: h.BaseOffset, Offset: h.BaseOffset, Position: r.Position, Detail: "batch does not decode", Err: err}
	}
	var rec record.Record
	for rd.Next(&rec) {
		if rec.Timestamp >= ms && rec.Offset >= start {
			return rec.Offset, rec.Timestamp, true, nil
		}
	}
	if err := rd.Err(); err != nil {
		return 0, 0, false, &CorruptError{Segment: h.BaseOffset, Offset: h.BaseOffset, Position: r.Position, Detail: "batch does not decode", Err: err}
	}
	return 0, 0, false, nil
}
