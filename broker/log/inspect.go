package log

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/record"
	"runnel.dev/runnel/record/index"
)

// IsFile tells whether a name in a partition directory is that of a file that a log keeps beside its segments.
func IsFile(name string) bool {
	switch strings.TrimSuffix(name, tmpSuffix) {
	case MetaFile, epochsName, cleanName:
		return true
	}
	return isSnapshotTmp(name)
}

// VerifyFile checks one of the small files of a partition directory, a producer snapshot included: frame, checksum,
// version and content. A *CorruptError or ErrVersion says what is wrong; a temporary file that a crash left is fine.
// Reads only.
func VerifyFile(fsys vfs.FS, path string) error {
	name := filepath.Base(path)
	if strings.HasSuffix(name, tmpSuffix) {
		return nil
	}
	if base, ext, ok := segment.ParseFileName(name); ok && ext == segment.ExtSnapshot {
		_, err := readSnapshot(fsys, filepath.Dir(path), base)
		return err
	}
	b, err := readFile(fsys, path)
	if err != nil {
		return err
	}
	switch name {
	case MetaFile:
		_, err = decodeMeta(path, b)
	case epochsName:
		_, err = decodeEpochs(path, b)
	case cleanName:
		_, err = decodeClean(path, b)
	default:
		err = fmt.Errorf("%s is not a file of a log", path)
	}
	return err
}

// DumpOptions select what DumpSegment prints.
type DumpOptions struct {
	// Records prints every record, not only the batches.
	Records bool
	// From skips batches that end below this offset; Max ends after so many batches, 0 = all.
	From int64
	Max  int
}

// DumpSegment prints a file of a partition directory for people, one line per entry: batches and records of a .log
// file, entries of an index, producers of a snapshot, epochs, partition.meta. It reads only, and is safe on the files
// of a running broker. Damage ends the output and is returned as *CorruptError.
func DumpSegment(fsys vfs.FS, path string, w io.Writer, opts DumpOptions) error {
	out := bufio.NewWriter(w)
	err := dump(fsys, path, out, opts)
	return errors.Join(err, out.Flush())
}

func dump(fsys vfs.FS, path string, w io.Writer, opts DumpOptions) error {
	name := filepath.Base(path)
	base, ext, ok := segment.ParseFileName(name)
	if !ok {
		return dumpFile(fsys, path, w)
	}
	switch ext {
	case segment.ExtLog:
		return dumpLog(fsys, path, base, w, opts)
	case segment.ExtSnapshot:
		states, err := readSnapshot(fsys, filepath.Dir(path), base)
		for _, p := range states {
			p1(w, "producer %d epoch %d lastActive %s batches %v", p.ProducerID, p.Epoch, stamp(p.LastActiveMS), p.Batches)
		}
		return err
	}
	b, err := readFile(fsys, path)
	if err != nil {
		return err
	}
	if ext == segment.ExtIndex {
		x := index.Offsets(b)
		for i := range x.Len() {
			p1(w, "entry %d offset %d position %d", i, base+int64(x.At(i).RelativeOffset), x.At(i).Position)
		}
		return dumpFault(path, base, x.Validate(), index.OffsetEntrySize)
	}
	x := index.Times(b)
	for i := range x.Len() {
		p1(w, "entry %d timestamp %d (%s) offset %d", i, x.At(i).Timestamp, stamp(x.At(i).Timestamp), base+int64(x.At(i).RelativeOffset))
	}
	return dumpFault(path, base, x.Validate(), index.TimeEntrySize)
}

// p1 prints a line. Write errors stick to the buffered writer and come out at its Flush.
func p1(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

func dumpFault(path string, base int64, err error, entrySize int64) error {
	if c, ok := errors.AsType[*index.CorruptError](err); ok {
		return &CorruptError{File: path, Segment: base, Offset: base, Position: int64(c.Entry) * entrySize, Detail: c.Detail, Err: err}
	}
	return err
}

func dumpFile(fsys vfs.FS, path string, w io.Writer) error {
	b, err := readFile(fsys, path)
	if err != nil {
		return err
	}
	switch filepath.Base(path) {
	case MetaFile:
		m, err := decodeMeta(path, b)
		if err == nil {
			p1(w, "topic %q id %s partition %d logID %s config %d bytes", m.TopicName, m.TopicID, m.Partition, m.LogID, len(m.TopicConfig))
		}
		return err
	case epochsName:
		g, err := decodeEpochs(path, b)
		for _, e := range g {
			p1(w, "epoch %d start %d", e.Epoch, e.Start)
		}
		return err
	case cleanName:
		c, err := decodeClean(path, b)
		if err == nil {
			p1(w, "clean end %d highWatermark %d logStart %d segments %d bytes %d", c.end, c.highWatermark, c.logStart, c.segments, c.totalBytes)
		}
		return err
	}
	return fmt.Errorf("%s is not a file of a log: want a segment, index, snapshot, %s, %s or %s", path, epochsName, MetaFile, cleanName)
}

var errEnough = errors.New("enough")

func dumpLog(fsys vfs.FS, path string, base int64, w io.Writer, opts DumpOptions) error {
	f, err := fsys.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	size, err := f.Size()
	if err != nil {
		return err
	}
	n := 0
	rd := record.Reader{SkipCRC: true}
	_, _, err = segment.Scan(f, base, 0, size, base, func(h record.Header, b []byte, pos int64) error {
		if h.LastOffset() < opts.From {
			return nil
		}
		if opts.Max > 0 && n == opts.Max {
			return errEnough
		}
		n++
		p1(w, "batch %d..%d position %d size %d records %d codec %s epoch %d timestamps %d..%d logAppendTime %t producer %d/%d sequence %d crc %08x",
			h.BaseOffset, h.LastOffset(), pos, h.Size(), h.Count, h.Attributes.Codec(), h.LeaderEpoch, h.BaseTimestamp, h.MaxTimestamp,
			h.Attributes.LogAppendTime(), h.ProducerID, h.ProducerEpoch, h.BaseSequence, h.CRC)
		if !opts.Records {
			return nil
		}
		return dumpRecords(&rd, b, w)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func dumpRecords(rd *record.Reader, b []byte, w io.Writer) error {
	if err := rd.Reset(b); err != nil {
		return err
	}
	var rec record.Record
	for rd.Next(&rec) {
		p1(w, "  record %d timestamp %d key %s value %s headers %d", rec.Offset, rec.Timestamp, quoted(rec.Key), quoted(rec.Value), len(rec.Headers))
	}
	return rd.Err()
}

// quoted keeps control characters of the data away from the terminal, and tells null from empty.
func quoted(b []byte) string {
	if b == nil {
		return "null"
	}
	return fmt.Sprintf("%q", b)
}
