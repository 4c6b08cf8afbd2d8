package log

import (
	"fmt"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/record"
)

// AppendAsFollower appends whole batches that a leader stamped, one or many, and returns how many bytes of b it appended: all of them,
// or with an error the batches before the one that cannot be. The first must begin at the log end (ErrNotContiguous), each of the others
// where the one before it ended; epochs must not be older than the log's (ErrFenced), checksums must be right (record.ErrCorrupt, as is a batch that is cut short), and
// a batch must end behind its beginning (record.ErrInvalid). The leader checked producer sequences: here they only become
// state, the same as the leader's. Disk errors are those of Append. b is borrowed.
//
// Batches that go to one segment in one epoch are one write.
func (l *Log) AppendAsFollower(b []byte) (n int, err error) {
	whole, invalid := followerPrefix(b)
	if whole == 0 {
		return 0, invalid
	}
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	now := l.clk.Now()
	l.w.producers.limit = l.cfg.Load().MaxProducers
	if err := l.writableAt(now); err != nil {
		return 0, err
	}
	for n < whole {
		h, _ := record.ParseHeader(b[n:]) // the prefix has been parsed
		if end := l.end.Load(); h.BaseOffset != end {
			return n, fmt.Errorf("%w: base offset %d, log end %d", ErrNotContiguous, h.BaseOffset, end)
		}
		if err := l.assignEpochLocked(h.LeaderEpoch); err != nil {
			return n, err
		}
		if err := l.prepareWrite(h, now); err != nil {
			return n, err
		}
		size, next := l.runLength(b[n:whole], h)
		if err := l.writeRun(b[n:n+size], h, next, now); err != nil {
			return n, err
		}
		n += size
	}
	return n, invalid
}

// followerPrefix returns how many bytes at the beginning of b are whole, intact batches that follow each other, and what is wrong with
// what comes then.
func followerPrefix(b []byte) (n int, err error) {
	want, epoch := int64(-1), int32(-1)
	for rest := b; n < len(b); {
		var batch []byte
		if batch, rest, err = record.NextFrame(rest); err != nil {
			return n, err
		}
		if err = record.VerifyCRC(batch); err != nil {
			return n, err
		}
		h, err := record.ParseHeader(batch)
		switch {
		case err != nil:
			return n, err
		case int64(len(batch)) > segment.MaxSize:
			return n, &BatchTooLargeError{Size: len(batch), Limit: segment.MaxSize}
		case h.LastOffsetDelta < 0 || h.NextOffset() < h.BaseOffset:
			return n, fmt.Errorf("append at %d: last offset delta is %d: %w", h.BaseOffset, h.LastOffsetDelta, record.ErrInvalid)
		case want >= 0 && h.BaseOffset != want:
			return n, fmt.Errorf("%w: base offset %d follows a batch that ends at %d", ErrNotContiguous, h.BaseOffset, want)
		case h.LeaderEpoch < epoch:
			return n, fencedError(h.LeaderEpoch, epoch)
		}
		want, epoch, n = h.NextOffset(), h.LeaderEpoch, n+len(batch)
	}
	return n, nil
}

// runLength returns how many bytes of b, which begins with the batch of h, go to the active segment in one write, and the offset behind
// them: the segments become those that appending batch by batch would make. Needs appendMu, and prepareWrite.
func (l *Log) runLength(b []byte, h record.Header) (size int, next int64) {
	s, limit, epoch := l.active(), l.cfg.Load().SegmentBytes, h.LeaderEpoch
	size, next = h.Size(), h.NextOffset()
	for size < len(b) {
		h, _ = record.ParseHeader(b[size:])
		n := size + h.Size()
		if h.LeaderEpoch != epoch || s.Size()+int64(n) > limit || !s.Room(n, h.LastOffset()) {
			break
		}
		size, next = n, h.NextOffset()
	}
	return size, next
}
