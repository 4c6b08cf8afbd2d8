package log

import (
	"errors"
	"fmt"
	"sort"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/record"
)

// Range is a run of whole batches in one segment, whose file it pins until Release. Its size is known before a buffer
// is taken for it. For one goroutine.
type Range struct {
	First, Next int64 // offset of the first batch; offset behind the last
	Len         int   // bytes; 0 = nothing to read yet
	r           segment.Range
	l           *Log
	s           *segment.Segment
	gen         uint64
	replica     bool
}

// ReadRange finds the whole batches that begin with the one that holds offset and lie below upTo (the high watermark,
// the flushed offset or the log end): as many as fit maxBytes, at least one, never beyond a segment. The Range is empty
// if there are none yet. *OutOfRangeError for offsets outside [log start, log end]. Takes no lock, allocates nothing.
func (l *Log) ReadRange(offset int64, maxBytes int, upTo int64) (Range, error) {
	return l.readRange(offset, maxBytes, upTo, false)
}

func (l *Log) readRange(offset int64, maxBytes int, upTo int64, replica bool) (Range, error) {
	if err := l.readable(); err != nil {
		return Range{}, err
	}
	for {
		gen := l.truncations.Load()
		end := l.end.Load()
		start := l.logStart.Load()
		if replica {
			start = l.ReplicaStart()
		}
		if offset < start || offset > end {
			return Range{}, &OutOfRangeError{Asked: offset, Earliest: start, Latest: end}
		}
		if offset >= min(upTo, end) {
			return Range{First: offset, Next: offset}, nil
		}
		s := find(l.segments(), offset)
		if s == nil {
			continue // retention moved the log start between the two loads
		}
		r, err := s.Locate(offset, maxBytes, min(upTo, end))
		switch {
		case err == nil:
			return Range{First: r.First, Next: r.Next, Len: r.Len, r: r, l: l, s: s, gen: gen, replica: replica}, nil
		case errors.Is(err, segment.ErrRetired):
			if l.state.Load().Health == Offline {
				return Range{}, ErrClosed
			}
		case l.truncatedSince(gen):
			return Range{}, ErrTruncated
		default:
			return Range{}, l.readFailed(err)
		}
	}
}

// find returns the segment that holds offset, nil if the list begins above it.
func find(segs []*segment.Segment, offset int64) *segment.Segment {
	i := sort.Search(len(segs), func(i int) bool { return segs[i].Base() > offset })
	if i == 0 {
		return nil
	}
	return segs[i-1]
}

// ReadInto fills dst[:Len] and checks what it read: every batch's checksum, that it begins where the last one ended,
// and that its leader epoch is the one that the log knows of its offset. Damage below the flushed offset quarantines
// the log. ErrTruncated if the log was truncated since ReadRange; ErrShortBuffer if dst is too small.
func (r *Range) ReadInto(dst []byte) error {
	if len(dst) < r.Len {
		return &ShortBufferError{Have: len(dst), Need: r.Len}
	}
	if r.Len == 0 {
		return nil
	}
	dst = dst[:r.Len]
	err := r.r.ReadAt(dst)
	if err == nil {
		err = r.verify(dst)
	}
	if r.l.truncatedSince(r.gen) {
		return ErrTruncated
	}
	if err != nil {
		return r.l.readFailed(err)
	}
	if !r.replica {
		r.l.bytesOut.Add(uint64(len(dst)))
	}
	return nil
}

// truncatedSince tells whether bytes may have disappeared since gen was loaded: the count is odd during a truncation.
func (l *Log) truncatedSince(gen uint64) bool { return gen%2 == 1 || gen != l.truncations.Load() }

func (r *Range) verify(b []byte) error {
	g := *r.l.epochs.Load()
	want, pos := r.First, r.r.Position
	for len(b) > 0 {
		batch, rest, err := record.NextFrame(b)
		if err == nil {
			err = record.VerifyCRC(batch)
		}
		if err != nil {
			return r.corrupt(want, pos, err, "batch does not check")
		}
		h, err := record.ParseHeader(batch)
		if err != nil || h.BaseOffset != want {
			return r.corrupt(want, pos, err, "base offset is not the expected one")
		}
		if e, known := g.at(want); known && e != h.LeaderEpoch {
			return r.corrupt(want, pos, nil, "leader epoch is not the one of this offset")
		}
		want, pos, b = h.NextOffset(), pos+int64(len(batch)), rest
	}
	if want != r.Next {
		return r.corrupt(want, pos, nil, "batches end at another offset")
	}
	return nil
}

func (r *Range) corrupt(offset, pos int64, cause error, detail string) error {
	return &CorruptError{File: r.s.Path(), Segment: r.s.Base(), Offset: offset, Position: pos, Detail: detail, Err: cause}
}

// Release unpins the file. It must be called once for every Range without error; more calls do nothing.
func (r *Range) Release() {
	_ = r.r.Release() // read only
	r.r = segment.Range{}
}

// readFailed turns damage below the flushed offset into quarantine.
func (l *Log) readFailed(err error) error {
	if c, ok := errors.AsType[*CorruptError](err); ok {
		if c.Offset < l.flushed.Load() {
			l.quarantine(c)
		}
		return err
	}
	if errors.Is(err, segment.ErrShort) {
		return l.readFailed(&CorruptError{File: l.dir, Offset: l.logStart.Load(), Detail: "a segment file is shorter than its batches", Err: err})
	}
	return fmt.Errorf("read log in %s: %w", l.dir, diskError(err))
}

func (l *Log) quarantine(cause error) {
	q := &QuarantinedError{Dir: l.dir, Err: cause}
	if l.state.Load().Health == Quarantined {
		return
	}
	l.setState(Quarantined, q)
	l.lg.Error("log is quarantined", "dir", l.dir, "error", cause)
	l.host.Failed(l, q)
}

// Read copies the batches that ReadRange finds into dst and returns their size and the offset behind them. With a dst
// that is too small for the first batch it returns a *ShortBufferError. n is 0 if nothing lies below upTo yet.
func (l *Log) Read(offset int64, maxBytes int, upTo int64, dst []byte) (n int, next int64, err error) {
	r, err := l.ReadRange(offset, min(maxBytes, len(dst)), upTo)
	if err != nil {
		return 0, offset, err
	}
	defer r.Release()
	if err := r.ReadInto(dst); err != nil {
		return 0, offset, err
	}
	return r.Len, r.Next, nil
}
