package log

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/record"
)

// recovery is the state of one recovery scan.
//
// Everything below lower was flushed and must be there. Above it the scan ends at the first bytes that are not a whole
// batch with a valid checksum, at a base offset that is not the expected one, and at a leader epoch that is not the
// journaled one of its offset. What lies behind is cut off.
//
// Crash windows: the scan only reads. Then, in order, segments and snapshots above the end are unlinked and the
// directory is synced; the last segment is cut; all that is kept above lower is written again in place and synced;
// the epoch checkpoint is replaced. A crash anywhere leaves files for which a new recovery, with the same lower bound,
// comes to the same end: it finds the same batches up to the end, and either the bytes behind it or none. Only when
// all is durable does the log take appends.
type recovery struct {
	l       *Log
	rep     *Report
	rec     Recovered
	lower   int64
	epochs  lineage // accepted; grows only while the journal is unknown
	files   []segmentFile
	segs    []*segment.Segment // all, the last one where the scan ended
	first   int                // first segment with bytes above lower
	rewrite []int64            // per segment from first: position above which it is written again
	firstTS int64              // base timestamp of the first batch of the last segment scanned
}

func (l *Log) recover(ctx context.Context, d dirFiles, rec Recovered, g lineage, rep *Report) error {
	r := &recovery{l: l, rep: rep, rec: rec, epochs: g, files: d.segments}
	if err := r.chooseStart(); err != nil {
		return err
	}
	stray := d.stray
	for len(r.files) > 1 && r.files[1].base <= r.rec.LogStart {
		// Below the log start that was journaled before a crash: only the unlinking was left to do. Unless this segment
		// alone tells of its producers, because the roll behind it was not synced.
		if _, err := readSnapshot(l.fs, l.dir, r.files[1].base); err != nil {
			break
		}
		name := func(ext string) string { return segment.FileName(r.files[0].base, ext) }
		stray = append(stray, name(segment.ExtTimeIndex), name(segment.ExtIndex), name(segment.ExtSnapshot), name(segment.ExtLog))
		r.files = r.files[1:]
	}
	if len(r.files) > 0 {
		if err := r.scan(ctx); err != nil {
			return err
		}
	}
	if err := r.apply(append(stray, cleanName)); err != nil {
		return err
	}
	return l.rebuildProducers()
}

// chooseStart fixes log start and lower bound, and finds missing files.
func (r *recovery) chooseStart() error {
	missing := func(offset int64, format string, args ...any) error {
		return &CorruptError{File: r.l.dir, Segment: offset, Offset: offset, Detail: fmt.Sprintf(format, args...)}
	}
	if len(r.files) == 0 {
		if !r.rec.Known || r.rec.Flushed > r.rec.LogStart {
			return missing(r.rec.LogStart, "no segment is left of offsets %d to %d", r.rec.LogStart, r.rec.Flushed)
		}
		r.lower = r.rec.LogStart
		return nil
	}
	base := r.files[0].base
	if !r.rec.Known {
		r.rec.LogStart = max(r.rec.LogStart, base)
		r.rec.HighWatermark, r.lower = r.rec.LogStart, base
		return nil
	}
	r.lower = max(r.rec.Flushed, base)
	if base > r.rec.LogStart {
		return missing(r.rec.LogStart, "the first segment begins at %d, the log at %d", base, r.rec.LogStart)
	}
	return nil
}

// scan walks the segments from the one that holds lower-1 on.
func (r *recovery) scan(ctx context.Context) error {
	r.segs = r.l.openSegments(r.files, r.files[len(r.files)-1].base)
	for r.first < len(r.files)-1 && r.files[r.first+1].base < r.lower {
		r.first++
	}
	for i := r.first; i < len(r.segs); i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		end, stop, err := r.scanSegment(i)
		if err != nil {
			return err
		}
		if stop == nil && i+1 < len(r.segs) && r.files[i+1].base != end {
			stop = &CorruptError{
				File: r.segs[i+1].Path(), Segment: r.files[i+1].base, Offset: end,
				Detail: fmt.Sprintf("segment begins at %d, the one before ends at %d", r.files[i+1].base, end),
			}
		}
		if stop == nil && i+1 < len(r.segs) {
			continue
		}
		if end < r.lower {
			if stop == nil {
				stop = &CorruptError{
					File: r.segs[i].Path(), Segment: r.files[i].base, Offset: end, Position: r.files[i].size,
					Detail: fmt.Sprintf("the log ends here, it was flushed up to %d", r.lower),
				}
			}
			return stop
		}
		return r.stopAt(i, stop)
	}
	return nil
}

// stopAt makes segment i the last one. If the journal is unknown, nothing may be cut but a torn tail: valid batches
// behind the damage could have been acknowledged.
func (r *recovery) stopAt(i int, stop error) error {
	if stop != nil && !r.rec.Known {
		if i+1 < len(r.segs) {
			return stop
		}
		if later, err := r.validBatchBehind(i); err != nil || later {
			return errors.Join(stop, err)
		}
	}
	r.rep.CutReason = stop
	r.rep.CutBytes = r.files[i].size - r.segs[i].Size()
	r.rep.CutSegments = len(r.segs) - i - 1
	for _, f := range r.files[i+1:] {
		r.rep.CutBytes += f.size
	}
	return nil
}

// scanSegment checks one segment and rebuilds its index entries. It returns the end, why the scan stopped if not at
// the end of the file, and errors that say nothing about the content.
func (r *recovery) scanSegment(i int) (end int64, stop, err error) {
	s, f := r.segs[i], r.files[i]
	ref, err := s.Acquire()
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = ref.Release() }()
	pos, want := int64(0), f.base
	if i == r.first && r.lower > f.base {
		pos, want = s.Anchor(r.lower, r.l.cfg.Load().RecoverVerifyBytes)
	}
	if err := s.BeginRebuild(pos, want); err != nil {
		return 0, nil, err
	}
	rewriteFrom := int64(-1)
	r.firstTS = -1
	from := pos
	pos, end, err = s.ScanFile(ref, pos, f.size, want, func(h record.Header, _ []byte, at int64) error {
		if err := r.checkEpoch(s, h, at); err != nil {
			return err
		}
		if r.firstTS < 0 {
			r.firstTS = h.BaseTimestamp
		}
		if rewriteFrom < 0 && h.NextOffset() > r.lower {
			rewriteFrom = at
		}
		s.Rebuilt(h, at)
		return nil
	})
	r.rep.ScannedBytes += pos - from
	if rewriteFrom < 0 {
		rewriteFrom = pos
	}
	r.rewrite = append(r.rewrite, rewriteFrom)
	if c, ok := errors.AsType[*CorruptError](err); ok {
		return end, c, nil
	}
	return end, nil, err
}

func (r *recovery) checkEpoch(s *segment.Segment, h record.Header, pos int64) error {
	e, known := r.epochs.at(h.BaseOffset)
	if known && e == h.LeaderEpoch {
		return nil
	}
	if !r.rec.Known && h.LeaderEpoch > r.epochs.upTo(h.BaseOffset).latest() {
		r.epochs = r.epochs.with(EpochStart{Epoch: h.LeaderEpoch, Start: h.BaseOffset})
		return nil
	}
	return &CorruptError{
		File: s.Path(), Segment: s.Base(), Offset: h.BaseOffset, Position: pos,
		Detail: fmt.Sprintf("leader epoch %d, the journaled one of this offset is %d", h.LeaderEpoch, e),
	}
}

// validBatchBehind looks for a batch behind the end of segment i that is whole and belongs to a later offset.
func (r *recovery) validBatchBehind(i int) (bool, error) {
	s := r.segs[i]
	ref, err := s.Acquire()
	if err != nil {
		return false, err
	}
	defer func() { _ = ref.Release() }()
	return s.FindBatch(ref, s.Size()+1, r.files[i].size, s.End())
}

// apply makes the files be what the scan found, durably, and publishes the log.
func (r *recovery) apply(stray []string) error {
	l := r.l
	last := r.first + len(r.rewrite) - 1
	if len(r.files) == 0 || r.segs[last].End() < r.rec.LogStart {
		return r.startOver(stray)
	}
	for i := len(r.segs) - 1; i > last; i-- {
		r.segs[i].Retire()
		if err := segment.RemoveFiles(l.fs, l.dir, r.files[i].base); err != nil {
			return err
		}
	}
	kept := r.segs[:last+1]
	end := kept[last].End()
	l.segs.Store(&kept)
	l.end.Store(end)
	if err := l.removeSnapshotsAbove(end); err != nil {
		return err
	}
	if err := l.removeStray(stray); err != nil {
		return err
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	for i := r.first; i <= last; i++ {
		if err := r.settle(i, i == last); err != nil {
			return err
		}
	}
	return r.publish(end)
}

// settle cuts, rewrites and syncs one scanned segment, and writes the indexes of one that takes no more appends.
func (r *recovery) settle(i int, active bool) error {
	s, l := r.segs[i], r.l
	if !active {
		files, err := s.Seal()
		if err != nil {
			return err
		}
		for _, f := range files {
			err = errors.Join(err, f.Sync(), f.Close())
		}
		if err != nil {
			return err
		}
	} else {
		s.Unseal()
		if err := s.TrimIndex(); err != nil {
			return err
		}
	}
	cut := r.files[i].size > s.Size()
	if !cut && r.rewrite[i-r.first] >= s.Size() {
		return nil
	}
	ref, err := s.AcquireWritable()
	if err != nil {
		return err
	}
	defer func() { _ = ref.Release() }()
	if cut {
		if err := s.CutTail(ref); err != nil {
			return err
		}
	}
	if err := s.Rewrite(ref, r.rewrite[i-r.first]); err != nil {
		return err
	}
	if err := ref.Sync(); err != nil {
		return fmt.Errorf("sync %s after recovery: %w", l.dir, err)
	}
	return nil
}

// startOver begins an empty log at the log start: nothing at or above it was ever flushed.
func (r *recovery) startOver(stray []string) error {
	l, start := r.l, r.rec.LogStart
	for i, f := range slices.Backward(r.files) {
		if r.segs != nil {
			r.segs[i].Retire()
		}
		if err := segment.RemoveFiles(l.fs, l.dir, f.base); err != nil {
			return err
		}
	}
	if err := l.removeSnapshotsAbove(start); err != nil {
		return err
	}
	if err := l.removeStray(stray); err != nil {
		return err
	}
	s, err := segment.Create(l.opts, start)
	if err != nil {
		return err
	}
	segs := []*segment.Segment{s}
	l.segs.Store(&segs)
	l.end.Store(start)
	if err := l.fs.SyncDir(l.dir); err != nil {
		return err
	}
	return r.publish(start)
}

func (r *recovery) publish(end int64) error {
	l := r.l
	start := max(r.rec.LogStart, l.segments()[0].Base())
	g := r.epochs.upTo(end)
	l.logStart.Store(start)
	l.epochs.Store(&g)
	l.hw.Store(max(start, min(r.rec.HighWatermark, end)))
	l.flushed.Store(end)
	s := l.active()
	l.w.snapshotSize = s.Size()
	if s.Size() > 0 {
		l.w.firstAt = l.clk.Now()
		if st, err := l.fs.Stat(s.Path()); err == nil && st.ModTime.Before(l.w.firstAt) {
			l.w.firstAt = st.ModTime
		}
		if at := time.UnixMilli(r.firstTS); r.firstTS > 0 && at.Before(l.w.firstAt) {
			l.w.firstAt = at
		}
	}
	return l.checkpointEpochs(true)
}
