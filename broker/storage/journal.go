package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"sync"
	"sync/atomic"

	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// journal is the broker-wide file of recovery bounds: one frame of records for each sync round, synced beside the round's data.
//
// Invariant: at most one write is not covered by a successful sync. The lock is held over a write and its sync, and over nothing
// longer, so replay can tell a torn tail from a damage.
//
// When the file grows over a limit, the sum of its records is written to journal.tmp, synced, renamed over journal, and the
// directory is synced; only then is anything written to the new file. Crash windows: before the rename is durable the old journal
// is there, complete, and journal.tmp is removed by the next Open; afterwards the new one, which says the same.
//
// Frames are written over zeros, of which the write that needs room adds many: a sync of bytes within a file's size is a plain write
// to the disk, while one that moves the size waits for the file system's own journal as well.
type journal struct {
	fsys        vfs.FS
	dir         string
	storageID   ids.StorageID
	rotateBytes int64
	length      atomic.Int64 // of the file, for metrics: the lock may be held for as long as a sync takes

	mu struct {
		sync.Mutex
		file     vfs.File
		end      int64  // where the next frame goes
		padded   int64  // size of the file; there are zeros from end on
		sequence uint64 // of the last frame
		state    journalState
		rotateAt int64
		failed   error       // a sync failed: nothing is written any more
		snapshot journalSeal // of the content that the last rotation wrote
		buf      []byte
	}
}

// journalPadBytes is how many zeros a write that needs room adds, at most.
const journalPadBytes = 256 << 10

// newJournal starts a fresh file that holds state, in place of any file there is. It does so at every open: bytes that an earlier
// process wrote may look whole in the page cache and yet not be on the disk, and syncing them again would prove nothing.
func newJournal(fsys vfs.FS, dir string, id ids.StorageID, rotateBytes int64, sequence uint64, state journalState) (*journal, error) {
	j := &journal{fsys: fsys, dir: dir, storageID: id, rotateBytes: rotateBytes}
	j.mu.sequence, j.mu.state = sequence, state
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.rotateLocked(); err != nil {
		return nil, err
	}
	return j, nil
}

// rotateLocked replaces the file by a snapshot. On an error before the rename the old file stays in use; after it the journal has
// failed.
func (j *journal) rotateLocked() error {
	path := filepath.Join(j.dir, journalName)
	content, sequence := appendFrames(encodeJournalHeader(j.storageID, j.mu.sequence+1), j.mu.sequence+1, j.mu.state.records())
	if err := writeSynced(j.fsys, path+tmpSuffix, content); err != nil {
		return fmt.Errorf("writing a new journal: %w", err)
	}
	if err := j.fsys.Rename(path+tmpSuffix, path); err != nil {
		return fmt.Errorf("renaming the new journal: %w", err)
	}
	err := j.fsys.SyncDir(j.dir)
	var f vfs.File
	if err == nil {
		f, err = j.fsys.OpenRW(path)
	}
	if err != nil {
		// The old file has lost its name, and whether the new one has it after a crash is not known: neither may be written.
		j.mu.failed = fmt.Errorf("replacing the journal: %w", err)
		return j.mu.failed
	}
	if j.mu.file != nil {
		_ = j.mu.file.Close() // its content is in the new file: an error loses nothing
	}
	j.mu.file, j.mu.end, j.mu.sequence = f, int64(len(content)), sequence-1
	j.mu.padded = j.mu.end
	j.length.Store(j.mu.end)
	j.mu.rotateAt = max(j.rotateBytes, 4*j.mu.end)
	j.mu.snapshot = journalSeal{size: j.mu.end, crc: crc32.Checksum(content, castagnoli)}
	return nil
}

// writeLocked appends records without syncing them. After an error nothing was appended: what a full disk left of the write is cut
// off, so that it may be tried again. No records: nothing happens.
func (j *journal) writeLocked(records []journalRecord) error {
	if j.mu.failed != nil {
		return j.mu.failed
	}
	if len(records) == 0 {
		return nil
	}
	if j.mu.end >= j.mu.rotateAt {
		// A full disk only delays the rotation: the old file goes on.
		err := j.rotateLocked()
		if err != nil && j.mu.failed == nil && !vfs.IsNoSpace(err) {
			j.mu.failed = err
		}
		if j.mu.failed != nil {
			return j.mu.failed
		}
	}
	var next uint64
	j.mu.buf, next = appendFrames(j.mu.buf[:0], j.mu.sequence+1, records)
	frames := int64(len(j.mu.buf))
	if j.mu.end+frames > j.mu.padded {
		j.mu.buf = append(j.mu.buf, make([]byte, min(journalPadBytes, j.rotateBytes/8))...)
	}
	if _, err := j.mu.file.WriteAt(j.mu.buf, j.mu.end); err != nil {
		err = fmt.Errorf("writing the journal: %w", err)
		j.mu.padded = j.mu.end
		if cut := j.mu.file.Truncate(j.mu.end); cut != nil || !vfs.IsNoSpace(err) {
			j.mu.failed = errors.Join(err, cut)
		}
		return err
	}
	j.mu.padded = max(j.mu.padded, j.mu.end+int64(len(j.mu.buf)))
	j.mu.end += frames
	j.length.Store(j.mu.end)
	j.mu.sequence = next - 1
	for _, r := range records {
		j.mu.state.apply(r)
	}
	return nil
}

// syncLocked makes what was written durable. After an error the journal refuses all further writes.
func (j *journal) syncLocked() error {
	if j.mu.failed != nil {
		return j.mu.failed
	}
	if err := j.mu.file.Sync(); err != nil {
		j.mu.failed = fmt.Errorf("syncing the journal: %w", err)
		return j.mu.failed
	}
	return nil
}

// commit appends records and returns once they are durable.
func (j *journal) commit(records []journalRecord) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.writeLocked(records); err != nil {
		return err
	}
	return j.syncLocked()
}

// lookup returns what the journal knows about a log.
func (j *journal) lookup(k partitionKey) (logState, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	st, ok := j.mu.state[k]
	return st, ok
}

// journalSeal identifies the exact content of a journal that was closed cleanly.
type journalSeal struct {
	size int64
	crc  uint32
}

// seal rotates, so that the file holds critical frames only, and describes the result. Nothing may be written afterwards.
func (j *journal) seal() (journalSeal, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.failed != nil {
		return journalSeal{}, j.mu.failed
	}
	if err := j.rotateLocked(); err != nil {
		return journalSeal{}, err
	}
	return j.mu.snapshot, nil
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.mu.file == nil {
		return nil
	}
	err := j.mu.file.Close()
	j.mu.file = nil
	if j.mu.failed == nil {
		j.mu.failed = ErrClosed
	}
	return err
}
