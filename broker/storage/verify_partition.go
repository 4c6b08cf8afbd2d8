package storage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/record"
	"runnel.dev/runnel/record/index"
)

// partition verifies one partition directory.
func (v *verifier) partition(ctx context.Context, k partitionKey, dir string) error {
	v.summary.Partitions++
	m, err := log.ReadMeta(v.fsys, dir)
	metaPath := filepath.Join(dir, log.MetaFile)
	if err == nil && (m.TopicID != k.TopicID || m.Partition != k.Partition) {
		v.damage(Finding{
			File: metaPath, Segment: -1, Offset: -1, Position: 0,
			Detail: fmt.Sprintf("says that it is partition %s/%d", m.TopicID, m.Partition),
		})
	}
	if err := v.fault(metaPath, err); err != nil {
		return err
	}
	known, isKnown := v.state[k]
	if isKnown = isKnown && known.logID == m.LogID; !isKnown {
		known = logState{}
		v.note(dir, "the journal does not know this log: it was just created, or the journal was lost")
	}
	entries, err := v.fsys.ReadDir(dir)
	if err != nil {
		return v.fault(dir, err)
	}
	w := &segmentWalk{verifier: v, dir: dir, known: known, isKnown: isKnown, want: -1, epoch: -1}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name)
		base, ext, ok := segment.ParseFileName(e.Name)
		switch {
		case e.IsDir || !ok && !log.IsFile(e.Name):
			v.note(path, "not a file of Runnel's")
		case !ok || ext == segment.ExtSnapshot:
			if err := v.fault(path, log.VerifyFile(v.fsys, path)); err != nil {
				return err
			}
		case ext == segment.ExtLog:
			w.bases = append(w.bases, base)
		}
	}
	for i := range w.bases {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.segment(i); err != nil {
			return err
		}
	}
	w.end()
	return nil
}

// segmentWalk verifies the segments of one partition in order.
type segmentWalk struct {
	*verifier
	dir     string
	known   logState
	isKnown bool
	bases   []int64
	want    int64 // where the next segment has to begin; -1: anywhere
	epoch   int32 // of the last batch
}

func (w *segmentWalk) path(base int64, ext string) string { return segment.Path(w.dir, base, ext) }

func (w *segmentWalk) segment(i int) (err error) {
	base, last := w.bases[i], i == len(w.bases)-1
	path := w.path(base, segment.ExtLog)
	if w.want >= 0 && base != w.want {
		w.damage(Finding{
			File: path, Segment: base, Offset: w.want, Position: 0,
			Detail: fmt.Sprintf("begins at offset %d, the segment before it ends at %d", base, w.want),
		})
	}
	w.want = -1
	// The indexes are read first: what they say was written before them.
	offsets, err := w.readIndex(base, segment.ExtIndex)
	if err != nil {
		return err
	}
	times, err := w.readIndex(base, segment.ExtTimeIndex)
	if err != nil {
		return err
	}
	f, err := w.fsys.Open(path)
	if err != nil {
		return w.fault(path, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	w.summary.Segments++
	check := indexCheck{walk: w, base: base, offsets: index.Offsets(offsets), times: index.Times(times)}
	pos, end, err := segment.Scan(f, base, 0, size, base, func(h record.Header, _ []byte, pos int64) error {
		w.batch(path, base, h, pos)
		check.batch(h, pos)
		return nil
	})
	w.summary.Bytes += pos
	w.want = end
	if err == nil {
		check.end()
		return nil
	}
	w.want = -1
	var corrupt *log.CorruptError
	if last && errors.As(err, &corrupt) && (end >= w.known.flushed || !w.isKnown) {
		w.want = end
		w.noteAt(Finding{
			File: path, Segment: base, Offset: end, Position: pos,
			Detail: "above what was made durable: " + causeOf(corrupt),
		})
		return nil
	}
	if errors.Is(err, segment.ErrShort) {
		return nil // truncated while it was read
	}
	return w.fault(path, err)
}

// batch checks what a batch says against its predecessors and the epochs that the journal knows.
func (w *segmentWalk) batch(path string, base int64, h record.Header, pos int64) {
	w.summary.Batches++
	w.summary.Records += int64(h.LastOffsetDelta) + 1
	if h.LeaderEpoch < w.epoch {
		w.damage(Finding{
			File: path, Segment: base, Offset: h.BaseOffset, Position: pos,
			Detail: fmt.Sprintf("leader epoch %d follows %d", h.LeaderEpoch, w.epoch),
		})
	}
	w.epoch = max(w.epoch, h.LeaderEpoch)
	if n := len(w.known.epochs); n > 0 && h.BaseOffset >= w.known.epochs[0].Start && h.BaseOffset < w.known.flushed {
		want := int32(-1)
		for _, e := range w.known.epochs {
			if e.Start <= h.BaseOffset {
				want = e.Epoch
			}
		}
		if h.LeaderEpoch != want {
			w.damage(Finding{
				File: path, Segment: base, Offset: h.BaseOffset, Position: pos,
				Detail: fmt.Sprintf("leader epoch is %d, the journal says %d", h.LeaderEpoch, want),
			})
		}
	}
}

// end checks that everything that was made durable is there.
func (w *segmentWalk) end() {
	if !w.isKnown || w.want < 0 && len(w.bases) > 0 {
		return
	}
	if w.want >= w.known.flushed || len(w.bases) == 0 && w.known.flushed == w.known.logStart {
		return
	}
	// A running broker may have truncated the log since the journal was read.
	if r, err := w.reread(); err == nil && w.want >= r.flushed {
		return
	}
	w.damage(Finding{
		File: w.dir, Segment: -1, Offset: w.want, Position: -1,
		Detail: fmt.Sprintf("ends at offset %d, and was durable up to %d", w.want, w.known.flushed),
	})
}

func (w *segmentWalk) reread() (logState, error) {
	m, err := log.ReadMeta(w.fsys, w.dir)
	if err != nil {
		return logState{}, err
	}
	path := filepath.Join(w.verifier.dir, journalName)
	r, err := replayJournal(w.fsys, path, w.storageOfJournal())
	if err != nil {
		return logState{}, err
	}
	return r.state[partitionKey{m.TopicID, m.Partition}], nil
}

// readIndex reads an index file and checks its form. An index that is absent or damaged is rebuilt from the batches, so nil is
// returned for it.
func (w *segmentWalk) readIndex(base int64, ext string) ([]byte, error) {
	path := w.path(base, ext)
	b, err := readWhole(w.fsys, path, 1<<30)
	if err != nil {
		return nil, w.fault(path, err)
	}
	if ext == segment.ExtIndex {
		err = index.Offsets(b).Validate()
	} else {
		err = index.Times(b).Validate()
	}
	if corrupt, ok := errors.AsType[*index.CorruptError](err); ok {
		size := int64(index.OffsetEntrySize)
		if ext == segment.ExtTimeIndex {
			size = index.TimeEntrySize
		}
		w.damage(Finding{
			File: path, Segment: base, Offset: base, Position: int64(corrupt.Entry) * size,
			Detail: corrupt.Detail + "; the index is rebuilt when it is used",
		})
		return nil, nil
	}
	return b, err
}

// indexCheck compares the entries of both indexes with the batches, in one pass.
type indexCheck struct {
	walk    *segmentWalk
	base    int64
	offsets index.Offsets
	times   index.Times
	o, t    int   // next entries
	maxTS   int64 // of the batches so far
	any     bool
}

func (c *indexCheck) bad(ext string, entry, size int, format string, args ...any) {
	c.walk.damage(Finding{
		File: c.walk.path(c.base, ext), Segment: c.base, Offset: c.base, Position: int64(entry * size),
		Detail: fmt.Sprintf(format, args...) + "; the index is rebuilt when it is used",
	})
}

func (c *indexCheck) batch(h record.Header, pos int64) {
	if !c.any || h.MaxTimestamp > c.maxTS {
		c.maxTS, c.any = h.MaxTimestamp, true
	}
	for ; c.o < c.offsets.Len() && int64(c.offsets.At(c.o).Position) <= pos; c.o++ {
		e := c.offsets.At(c.o)
		if int64(e.Position) != pos || c.base+int64(e.RelativeOffset) != h.LastOffset() {
			c.bad(segment.ExtIndex, c.o, index.OffsetEntrySize, "entry %d says that the batch at %d ends with offset %d",
				c.o, e.Position, c.base+int64(e.RelativeOffset))
		}
	}
	for ; c.t < c.times.Len() && c.base+int64(c.times.At(c.t).RelativeOffset) <= h.LastOffset(); c.t++ {
		e := c.times.At(c.t)
		if c.base+int64(e.RelativeOffset) != h.LastOffset() && e.Timestamp != c.maxTS || e.Timestamp != c.maxTS {
			c.bad(segment.ExtTimeIndex, c.t, index.TimeEntrySize, "entry %d says that timestamp %d is the largest up to offset %d",
				c.t, e.Timestamp, c.base+int64(e.RelativeOffset))
		}
	}
}

// end reports entries for batches that are not there.
func (c *indexCheck) end() {
	if c.o < c.offsets.Len() {
		c.bad(segment.ExtIndex, c.o, index.OffsetEntrySize, "entry %d points behind the last batch", c.o)
	}
	if c.t < c.times.Len() {
		c.bad(segment.ExtTimeIndex, c.t, index.TimeEntrySize, "entry %d names an offset behind the last batch", c.t)
	}
}
