package log

import (
	"errors"
	"fmt"
	"slices"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record"
)

// producersAt returns the producer state at offset end, the base of a batch or the log end: that of the newest usable
// snapshot at or below it, and the batches between. Producers found only in batches count as active now.
func (l *Log) producersAt(end int64) (*producers, error) {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	segs := l.segments()
	limit := l.cfg.Load().MaxProducers
	ps, from := newProducers(limit), segs[0].Base()
	for _, e := range slices.Backward(entries) {
		base, ext, ok := segment.ParseFileName(e.Name)
		if !ok || ext != segment.ExtSnapshot || base > end || base < from {
			continue
		}
		states, err := readSnapshot(l.fs, l.dir, base)
		if errors.Is(err, ErrVersion) {
			return nil, err // a newer release knew producers that would be forgotten
		}
		if err != nil {
			l.lg.Warn("producer snapshot is not usable, an older one serves", "dir", l.dir, "offset", base, "error", err)
			continue
		}
		ps, from = importProducers(states, limit), base
		break
	}
	now := l.clk.Now().UnixMilli()
	for _, s := range segs {
		if s.End() <= from || s.Base() >= end {
			continue
		}
		err := s.Walk(max(from, s.Base()), func(h record.Header, _ int64) error {
			if h.BaseOffset >= end {
				return errFound
			}
			if h.BaseOffset >= from {
				ps.add(h, now)
			}
			return nil
		})
		if err != nil && !errors.Is(err, errFound) {
			return nil, err
		}
	}
	return ps, nil
}

// tidySnapshots removes the snapshots that nothing needs: those below the log, and of those within segments all but the
// newest usable one, which the next one replaces. What cannot be removed now is tried again by the next Open. Needs
// appendMu, and the producer state at the end.
func (l *Log) tidySnapshots() error {
	entries, err := l.fs.ReadDir(l.dir)
	if err != nil {
		return err
	}
	segs, newest := l.segments(), int64(0)
	for _, e := range slices.Backward(entries) {
		at, ext, ok := segment.ParseFileName(e.Name)
		if !ok || ext != segment.ExtSnapshot {
			continue
		}
		s := find(segs, at)
		if s != nil && s.Base() == at {
			continue
		}
		if s != nil && newest == 0 {
			usable := at == l.w.midSnapshot
			if !usable {
				_, err := readSnapshot(l.fs, l.dir, at)
				usable = err == nil
			}
			if usable {
				newest = at
				continue
			}
		}
		if err := removeIfThere(l.fs, segment.Path(l.dir, at, ext)); err != nil {
			l.lg.Warn("a producer snapshot that nothing needs stays for now", "dir", l.dir, "offset", at, "error", err)
		}
	}
	l.w.midSnapshot = newest
	return nil
}

// keepSnapshot makes sure that the segment at base and a usable snapshot at its base are durable before the segments
// below are deleted: what it says of their producers cannot be read from batches afterwards. A roll writes both, but
// perhaps no round has synced them yet, and a crash may have kept the segment and lost the snapshot. Needs startMu.
func (l *Log) keepSnapshot(base int64) error {
	name := segment.Path(l.dir, base, segment.ExtSnapshot)
	if _, err := readSnapshot(l.fs, l.dir, base); err != nil {
		ps, err := l.producersAt(base)
		if err != nil {
			return err
		}
		return replaceFile(l.fs, name, encodeSnapshot(base, ps.export()))
	}
	f, err := l.fs.OpenRW(name)
	if err != nil {
		return err
	}
	err = f.Sync()
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = l.fs.SyncDir(l.dir)
	}
	if err != nil {
		return l.syncFailed(err) // the next try would find clean pages, and unlink what the disk needs
	}
	return nil
}

func readSnapshot(fsys vfs.FS, dir string, offset int64) ([]ProducerState, error) {
	name := segment.Path(dir, offset, segment.ExtSnapshot)
	b, err := readFile(fsys, name)
	if err != nil {
		return nil, err
	}
	at, states, err := decodeSnapshot(name, b)
	if err == nil && at != offset {
		err = &CorruptError{File: name, Offset: offset, Detail: fmt.Sprintf("snapshot of offset %d", at)}
	}
	return states, err
}
