package segment

import (
	"errors"

	"runnel.dev/runnel/record"
	"runnel.dev/runnel/record/index"
)

// MaxTimestamp returns the largest timestamp of the segment's batches in ms since the Unix epoch, and false if there
// is none. For a segment that was opened it is read once, from the last time entry, which is compared with the batch
// that it names and with the last batch: retention must not trust an index.
func (s *Segment) MaxTimestamp() (int64, bool, error) {
	ms := s.maxTS.Load()
	if ms == unknownTS {
		if err := s.loadMaxTS(); err != nil {
			return 0, false, err
		}
		ms = s.maxTS.Load()
	}
	return ms, ms >= 0, nil
}

func (s *Segment) loadMaxTS() error {
	h, err := s.acquire(false)
	if err != nil {
		return err
	}
	defer func() { _ = h.release() }()
	if s.Size() == 0 {
		s.setMaxTS(noTS, s.base)
		return nil
	}
	t := s.tail.Load()
	if t.fileTimes > 0 || t.times() > 0 {
		e, ok, err := s.lastTimeEntry(h, t)
		if err != nil {
			return err
		}
		if ok && s.timeEntryHolds(h, e) {
			return s.maxTSFrom(h, e)
		}
	}
	// No usable entry: look at every header, once.
	best, at := int64(noTS), s.base
	err = s.Walk(s.base, func(hd record.Header, _ int64) error {
		if hd.MaxTimestamp > best {
			best, at = hd.MaxTimestamp, hd.LastOffset()
		}
		return nil
	})
	if err == nil {
		s.setMaxTS(best, at)
	}
	return err
}

// maxTSFrom takes the entry for the maximum, unless the batches behind the last offset entry know better.
func (s *Segment) maxTSFrom(h *handle, e index.TimeEntry) error {
	best, at := e.Timestamp, s.base+int64(e.RelativeOffset)
	from := at
	if o, ok, err := s.lookup(h, s.End()-1); err != nil {
		return err
	} else if ok {
		from = max(from, s.base+int64(o.RelativeOffset))
	}
	err := s.Walk(from, func(hd record.Header, _ int64) error {
		if hd.MaxTimestamp > best {
			best, at = hd.MaxTimestamp, hd.LastOffset()
		}
		return nil
	})
	if err == nil {
		s.setMaxTS(best, at)
	}
	return err
}

func (s *Segment) lastTimeEntry(h *handle, t *tail) (index.TimeEntry, bool, error) {
	if m := t.timeEntries(); m.Len() > 0 {
		return m.At(m.Len() - 1), true, nil
	}
	li, err := s.load(h, t)
	if err != nil || li.times.Len() == 0 {
		return index.TimeEntry{}, false, err
	}
	return li.times.At(li.times.Len() - 1), true, nil
}

// timeEntryHolds compares an entry with the batch that it names.
func (s *Segment) timeEntryHolds(h *handle, e index.TimeEntry) bool {
	off := s.base + int64(e.RelativeOffset)
	if off >= s.End() {
		return false
	}
	w, hd, _, err := s.seek(h, off, s.Size())
	if err != nil {
		return false
	}
	w.done()
	return hd.LastOffset() == off && hd.MaxTimestamp == e.Timestamp
}

// FirstSince returns the first batch, from the one that holds offset from on, whose largest timestamp is ≥ ms, as a
// pinned Range of one batch; false if there is none below upTo.
func (s *Segment) FirstSince(ms, from, upTo int64) (Range, record.Header, bool, error) {
	h, err := s.acquire(false)
	if err != nil {
		return Range{}, record.Header{}, false, err
	}
	r, hd, ok, err := s.firstSince(h, ms, from, upTo)
	if !ok || err != nil {
		_ = h.release()
		return Range{}, record.Header{}, false, err
	}
	r.Ref = Ref{h}
	return r, hd, true, nil
}

func (s *Segment) firstSince(h *handle, ms, from, upTo int64) (Range, record.Header, bool, error) {
	start := max(from, s.base)
	e, ok, err := s.timeLookup(h, ms)
	if err != nil {
		return Range{}, record.Header{}, false, err
	}
	if ok && !s.timeEntryHolds(h, e) {
		if err := s.rebuild(h); err != nil {
			return Range{}, record.Header{}, false, err
		}
		if e, ok, err = s.timeLookup(h, ms); err != nil {
			return Range{}, record.Header{}, false, err
		}
		ok = ok && s.timeEntryHolds(h, e)
	}
	if ok {
		start = max(start, s.base+int64(e.RelativeOffset))
	}
	var r Range
	var found record.Header
	err = s.Walk(start, func(hd record.Header, pos int64) error {
		if hd.NextOffset() > upTo {
			return errStop
		}
		if hd.MaxTimestamp < ms {
			return nil
		}
		found = hd
		r = Range{Position: pos, Len: hd.Size(), First: hd.BaseOffset, Next: hd.NextOffset()}
		return errStop
	})
	if err != nil && !errors.Is(err, errStop) {
		return Range{}, record.Header{}, false, err
	}
	return r, found, r.Len > 0, nil
}

var errStop = errors.New("stop")

func (s *Segment) timeLookup(h *handle, ms int64) (index.TimeEntry, bool, error) {
	t := s.tail.Load()
	if m := t.timeEntries(); m.Len() > 0 && m.At(0).Timestamp <= ms {
		e, ok := m.Lookup(ms)
		return e, ok, nil
	}
	if t.fileTimes == 0 {
		return index.TimeEntry{}, false, nil
	}
	li, err := s.load(h, t)
	if err != nil {
		return index.TimeEntry{}, false, err
	}
	e, ok := li.times.Lookup(ms)
	return e, ok, nil
}
