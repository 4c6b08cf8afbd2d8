package log

import (
	"context"
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/broker/segment"
)

// ApplyRetention deletes segments that are too old, or that exceed the size bound, for a replica that nobody has to agree with:
// RetentionTarget and PublishLogStart. It returns how many segments were deleted. Blocks for the journal, not for appends.
func (l *Log) ApplyRetention(ctx context.Context, now time.Time) (deleted int, err error) {
	start, err := l.RetentionTarget(now)
	if err != nil {
		return 0, err
	}
	l.startMu.Lock()
	defer l.startMu.Unlock()
	return l.publishLocked(ctx, start)
}

// RetentionTarget returns where retention wants the log to begin, LogStart if it has no wish: behind the segments that are too
// old, or that exceed the size bound, and never above the high watermark or the flushed offset. A segment's age is that of its
// largest timestamp. It deletes nothing; it does seal an active segment that has expired as a whole, forget idle producers, and
// unlink files that an earlier move left. Blocks on the disk, not for appends.
func (l *Log) RetentionTarget(now time.Time) (int64, error) {
	l.expireProducers(now)
	l.startMu.Lock()
	defer l.startMu.Unlock()
	if err := l.startMovable(); err != nil {
		return 0, err
	}
	l.collectGarbage()
	start, err := l.retentionStart(now)
	if err != nil {
		return 0, l.readFailed(err)
	}
	return start, nil
}

func (l *Log) expireProducers(now time.Time) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.w.producers.expire(now.Add(-l.cfg.Load().ProducerIDExpiry).UnixMilli())
}

// retentionStart returns where the log should begin. Needs startMu.
func (l *Log) retentionStart(now time.Time) (int64, error) {
	cfg := l.cfg.Load()
	safe := min(l.hw.Load(), l.flushed.Load())
	start, total := l.logStart.Load(), l.Size()
	for _, s := range l.segments() {
		if s.Size() == 0 || s.End() > safe {
			return start, nil
		}
		expired := false
		if cfg.RetentionTime >= 0 {
			at, err := l.newestRecord(s, now, cfg)
			if err != nil {
				return start, err
			}
			expired = now.Sub(at) > cfg.RetentionTime
		}
		if !expired && !(cfg.RetentionBytes >= 0 && s.Sealed() && total-s.Size() >= cfg.RetentionBytes) {
			return start, nil
		}
		if !s.Sealed() {
			// The last segment has expired as a whole: the log goes on in an empty one.
			if err := l.rollExpired(s); err != nil {
				if errors.Is(err, ErrFailed) {
					return start, err
				}
				if !errors.Is(err, errNotExpired) {
					l.lg.Warn("expired segment cannot be sealed", "dir", l.dir, "segment", s.Base(), "error", err)
				}
				return start, nil
			}
		}
		start, total = s.End(), total-s.Size()
	}
	return start, nil
}

// newestRecord returns the time of the segment's newest record: its largest timestamp, or, when there is none or it
// lies in a future that the topic does not allow, the time at which the file was last written.
func (l *Log) newestRecord(s *segment.Segment, now time.Time, cfg *Config) (time.Time, error) {
	ms, ok, err := s.MaxTimestamp()
	if err != nil {
		return time.Time{}, err
	}
	if at := time.UnixMilli(ms); ok && !at.After(now.Add(cfg.MaxTimestampAhead)) {
		return at, nil
	}
	st, err := l.fs.Stat(s.Path())
	if err != nil {
		return time.Time{}, fmt.Errorf("age of segment: %w", err)
	}
	return st.ModTime, nil
}

// rollExpired seals s if it is still the active segment and still as it was judged.
func (l *Log) rollExpired(s *segment.Segment) error {
	end := s.End()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if err := l.writable(); err != nil {
		return err
	}
	if l.active() != s || s.End() != end {
		return errNotExpired
	}
	return l.rollLocked()
}

var errNotExpired = errors.New("segment was appended to")
