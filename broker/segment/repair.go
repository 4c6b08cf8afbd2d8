package segment

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"runnel.dev/runnel/record"
	"runnel.dev/runnel/record/index"
)

// Anchor returns where a recovery scan may begin: the position and base offset of a batch that an index entry names
// and that agrees with it, at least back bytes before the last indexed batch below offset; (0, Base) if there is none.
// Only the files are consulted.
func (s *Segment) Anchor(offset, back int64) (pos, want int64) {
	h, err := s.acquire(false)
	if err != nil {
		return 0, s.base
	}
	defer func() { _ = h.release() }()
	li, err := s.readIndex(s.tail.Load())
	if err != nil {
		return 0, s.base
	}
	near, ok := lastBelow(li.offsets, s.base, s.Size(), offset)
	if !ok {
		return 0, s.base
	}
	e, ok := lastBelow(li.offsets, s.base, int64(near.Position)-back, offset)
	if !ok {
		return 0, s.base
	}
	w := s.walk(h, int64(e.Position), -1, s.Size())
	defer w.done()
	hd, at, err := w.next()
	if err != nil || hd.LastOffset() != s.base+int64(e.RelativeOffset) {
		return 0, s.base
	}
	// The largest timestamp so far is taken from the time index, so that has to agree as well.
	if n := li.times.Before(e.RelativeOffset); n > 0 && !s.timeEntryHolds(h, li.times.At(n-1)) {
		return 0, s.base
	}
	return at, hd.BaseOffset
}

// BeginRebuild prepares the segment for a scan that starts at position pos: the index entries of batches before it
// are kept, everything else about the content is forgotten. For the only user of a segment, during recovery. The
// caller then tells Rebuilt about every batch from pos on.
func (s *Segment) BeginRebuild(pos, offset int64) error {
	keepO, keepT := 0, 0
	s.setMaxTS(noTS, s.base)
	s.indexedTS = noTS
	if pos > 0 {
		li, err := s.readIndex(s.tail.Load())
		if err != nil {
			return fmt.Errorf("index of %s below position %d: %w", s.Path(), pos, err)
		}
		rel := uint32(offset - s.base) // #nosec G115 -- an offset of this segment
		keepO, keepT = li.offsets.Before(rel), li.times.Before(rel)
		if keepT > 0 {
			e := li.times.At(keepT - 1)
			s.setMaxTS(e.Timestamp, s.base+int64(e.RelativeOffset))
			s.indexedTS = e.Timestamp
		}
	}
	s.tail.Store(newTail(keepO, keepT, 0))
	s.size.Store(pos)
	s.end.Store(offset)
	s.sinceEntry = int64(s.interval) + 1
	if pos == 0 {
		s.sinceEntry = 0
	}
	return nil
}

// Rebuilt takes one batch of the scan.
func (s *Segment) Rebuilt(h record.Header, pos int64) {
	s.noteBatch(h, pos)
	s.size.Store(pos + int64(h.Size()))
	s.end.Store(h.NextOffset())
}

// Rewrite writes the bytes from position pos to Size again, in place, so that the next sync covers them: after a
// failed sync the kernel believes that pages are clean which never reached the disk.
func (s *Segment) Rewrite(w Ref, pos int64) error {
	buf := make([]byte, min(scanBuffer, max(0, s.Size()-pos)))
	for size := s.Size(); pos < size; {
		b := buf[:min(int64(len(buf)), size-pos)]
		if n, err := w.h.f.ReadAt(b, pos); n < len(b) {
			if err == nil || errors.Is(err, io.EOF) {
				err = ErrShort
			}
			return fmt.Errorf("rewrite %s at %d: %w", s.Path(), pos, err)
		}
		if _, err := w.h.f.WriteAt(b, pos); err != nil {
			return fmt.Errorf("rewrite %s at %d: %w", s.Path(), pos, err)
		}
		pos += int64(len(b))
	}
	return nil
}

// FileSize returns the current size of the file, which may exceed Size before a recovery or after a failed append.
func (s *Segment) FileSize(w Ref) (int64, error) { return w.h.f.Size() }

// ScanFile is Scan over the pinned file.
func (s *Segment) ScanFile(w Ref, pos, size, want int64, visit func(h record.Header, b []byte, pos int64) error) (int64, int64, error) {
	return Scan(w.h.f, s.base, pos, size, want, visit)
}

// Truncate cuts the segment so that it ends at the base offset of the batch that holds to, or at to when that is a
// boundary, and returns the new end. The file is cut and synced. For the writer; readers of what is cut get ErrShort
// or bytes that fail their checks.
//
// Index entries behind the cut are dropped from memory and from the files. A crash may bring those in the files back;
// like every entry they are compared with the batches before use.
func (s *Segment) Truncate(w Ref, to int64) (int64, error) {
	pos, end, err := s.cutPoint(to)
	if err != nil {
		return 0, err
	}
	s.end.Store(end)
	s.size.Store(pos)
	if err := w.h.f.Truncate(pos); err != nil {
		return 0, fmt.Errorf("truncate %s to %d: %w", s.Path(), pos, err)
	}
	if err := w.h.f.Sync(); err != nil {
		return 0, fmt.Errorf("sync %s after truncation: %w", s.Path(), err)
	}
	return end, s.truncateIndex(w, end)
}

func (s *Segment) cutPoint(to int64) (pos, end int64, err error) {
	if to >= s.End() {
		return s.Size(), s.End(), nil
	}
	if to <= s.base {
		return 0, s.base, nil
	}
	err = s.Walk(to, func(h record.Header, p int64) error {
		pos, end = p, h.BaseOffset
		return errStop
	})
	if errors.Is(err, errStop) {
		err = nil
	}
	return pos, end, err
}

func (s *Segment) truncateIndex(w Ref, end int64) error {
	t := s.tail.Load()
	rel := uint32(end - s.base) // #nosec G115 -- an offset of this segment
	var o index.Offsets
	var m index.Times
	if t.fileOffsets > 0 || t.fileTimes > 0 {
		if li, err := s.load(w.h, t); err == nil {
			o, m = li.offsets[:li.offsets.Before(rel)*index.OffsetEntrySize], li.times[:li.times.Before(rel)*index.TimeEntrySize]
		}
	}
	mem := t.offsetEntries()
	o = append(slices.Clip(o), mem[:mem.Before(rel)*index.OffsetEntrySize]...)
	mt := t.timeEntries()
	m = append(slices.Clip(m), mt[:mt.Before(rel)*index.TimeEntrySize]...)
	s.cache.dropIndex(w.h)
	s.tail.Store(newTail(o.Len(), m.Len(), 0))
	s.sealed.Store(false)
	s.sinceEntry = int64(s.interval) + 1
	if s.Size() == 0 {
		s.sinceEntry = 0
	}
	s.indexedTS = noTS
	if m.Len() > 0 {
		s.indexedTS = m.At(m.Len() - 1).Timestamp
	}
	// Indexes are hints: if the disk refuses, the next reader finds less than the tail promises, and rebuilds them.
	_ = writeIndex(s.fs, s.path(ExtIndex), o, 0, nil)
	_ = writeIndex(s.fs, s.path(ExtTimeIndex), m, 0, nil)
	s.setMaxTS(unknownTS, s.base)
	return s.loadMaxTS()
}

// State returns what Open needs to open the segment again, after FlushIndex.
func (s *Segment) State() State {
	t := s.tail.Load()
	return State{
		Base: s.base, End: s.End(), Size: s.Size(), OffsetEntries: t.fileOffsets, TimeEntries: t.fileTimes,
		TimesKnown: true, MaxTimestamp: s.maxTS.Load(), MaxTimestampOffset: s.maxTSOffset.Load(), IndexedMaxTime: s.indexedTS,
	}
}

// FindBatch looks for a whole batch with a valid checksum and a base offset ≥ offset that begins anywhere in [pos,
// size) of the pinned file. It reads at most a few times the range: bytes that look like the header of a large batch over and over,
// which honest batches never do, are taken for one. Then true means "perhaps".
func (s *Segment) FindBatch(w Ref, pos, size, offset int64) (bool, error) {
	sc := scanner{f: w.h.f, base: s.base, size: size}
	// Batches do not overlap, so real ones, damaged or not, are checked for no more than the range. Three more are for what looks
	// like a header by chance.
	budget := 4 * (size - pos)
	for ; pos+record.HeaderSize <= size; pos++ {
		b, err := sc.at(pos, record.HeaderSize)
		if err != nil {
			return false, err
		}
		h, err := record.ParseHeader(b)
		if err != nil || h.BaseOffset < offset || int64(h.Size()) > size-pos || h.LastOffsetDelta < 0 {
			continue
		}
		if budget -= int64(h.Size()); budget < 0 {
			return true, nil
		}
		if b, err = sc.at(pos, h.Size()); err != nil {
			return false, err
		}
		if record.VerifyCRC(b) == nil {
			return true, nil
		}
	}
	return false, nil
}
