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
	ps, from := newProducers(), segs[0].Base()
	for _, e := range slices.Backward(entries) {
		base, ext, ok := segment.ParseFileName(e.Name)
		if !ok || ext != segment.ExtSnapshot || base > end || base < from {
			continue
		}
		states, err := readSnapshot(l.fs, l.dir, base)
		if err != nil {
			l.lg.Warn("producer snapshot is not usable, an older one serves", "dir", l.dir, "offset", base, "error", err)
			continue
		}
		ps, from = importProducers(states), base
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
	return err
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
