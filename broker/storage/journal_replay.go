package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// journalMaxSize bounds what a replay reads into memory. A journal is rotated long before.
const journalMaxSize = 1 << 30

// replayed is the outcome of reading a journal.
type replayed struct {
	state    journalState
	sequence uint64 // of the last frame
	end      int64  // bytes up to the end of the last whole frame
	torn     bool   // bytes behind it were dropped: the write that a crash interrupted

	// damage lists places that were not as written and that an interrupted write does not explain. Records are missing only if
	// lost is set: critical frames are there twice.
	damage []*CorruptFileError
	lost   bool
}

// replayJournal reads the journal at path without changing it; the error wraps fs.ErrNotExist when there is none.
//
// One frame (with its copy) at most is unsynced at any time, since the lock of the journal is held over a write and its sync. So
// whole frames behind a damaged place prove that it once was synced and is a damage, while a damaged place with nothing behind it
// is taken for the torn tail.
func replayJournal(fsys vfs.FS, path string, id ids.StorageID) (replayed, error) {
	b, err := readWhole(fsys, path, journalMaxSize)
	if err != nil {
		return replayed{}, err
	}
	return replayBytes(path, b, id)
}

// replayBytes replays the content of the journal at path.
func replayBytes(path string, b []byte, id ids.StorageID) (replayed, error) {
	out := replayed{state: journalState{}}
	damaged := func(offset int, format string, args ...any) {
		out.damage = append(out.damage, &CorruptFileError{File: path, Offset: int64(offset), Detail: fmt.Sprintf(format, args...)})
	}

	expected := uint64(0) // any
	var corrupt *CorruptFileError
	switch found, first, err := decodeJournalHeader(path, b); {
	case errors.As(err, &corrupt):
		out.damage = append(out.damage, corrupt)
	case err != nil:
		return replayed{}, err
	case found != id:
		return replayed{}, &CorruptFileError{File: path, Offset: 12, Detail: fmt.Sprintf("belongs to storage %s, this is %s", found, id)}
	default:
		expected, out.sequence = first, first-1
	}

	pos := min(journalHeaderSize, len(b))
	out.end = int64(pos)
	for pos < len(b) {
		f, ok := parseFrame(b[pos:])
		if !ok {
			next := nextFrame(b, pos+1)
			if next < 0 {
				break // the torn tail
			}
			f, _ = parseFrame(b[next:])
			// An interrupted write of a frame and its copy, of which the copy reached the disk first, is no damage.
			interrupted := f.sequence == expected && f.critical() && next-pos == f.size && allZero(b[next+f.size:])
			if !interrupted {
				damaged(pos, "%d bytes are not a frame", next-pos)
			}
			pos = next
		}
		if expected == 0 || f.sequence != expected-1 { // else it is the copy of a critical frame
			if expected != 0 && f.sequence != expected {
				damaged(pos, "frame %d follows frame %d: records are lost", f.sequence, expected-1)
				out.lost = true
			}
			for _, r := range f.records {
				out.state.apply(r)
			}
			out.sequence, expected = f.sequence, f.sequence+1
		}
		pos += f.size
		out.end = int64(pos)
	}
	out.torn = !allZero(b[out.end:])
	return out, nil
}

// allZero tells whether b is padding.
func allZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

// nextFrame finds the first whole frame at or behind from; -1 if there is none.
func nextFrame(b []byte, from int) int {
	magic := binary.LittleEndian.AppendUint32(nil, frameMagic)
	for from < len(b) {
		i := bytes.Index(b[from:], magic)
		if i < 0 {
			return -1
		}
		if _, ok := parseFrame(b[from+i:]); ok {
			return from + i
		}
		from += i + 1
	}
	return -1
}
