package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
)

// The file `cluster-snapshot` holds a copy of the cluster's metadata, for the day on which it is lost. Its content is opaque here,
// and has a version and a checksum of its own (docs/formats/cluster-snapshot.md).
const snapshotName = "cluster-snapshot"

// SnapshotMaxBytes bounds the file.
const SnapshotMaxBytes = 256 << 20

// SnapshotTooLargeError says that a snapshot would not be read back.
type SnapshotTooLargeError struct{ Size, Limit int64 } // bytes

func (e *SnapshotTooLargeError) Error() string {
	return fmt.Sprintf("cluster snapshot of %d bytes, the limit is %d", e.Size, e.Limit)
}

// SaveSnapshot replaces the stored snapshot of the cluster's metadata, durably: a crash leaves the old one or the new one, whole. b is
// borrowed. *SnapshotTooLargeError above SnapshotMaxBytes. A full disk is an error that may be tried again. Blocks on the disk.
func (s *Store) SaveSnapshot(b []byte) error {
	if len(b) > SnapshotMaxBytes {
		return &SnapshotTooLargeError{Size: int64(len(b)), Limit: SnapshotMaxBytes}
	}
	s.positionMu.Lock()
	defer s.positionMu.Unlock()
	return s.diskFault(replaceDurably(s.fsys, s.cfg.DataDir, snapshotName, b))
}

// LoadSnapshot reads the snapshot in a data directory, before or after it is opened: nil when none was saved, or when there is no such
// directory yet. *CorruptFileError for a file above SnapshotMaxBytes; the content is the reader's to check.
func LoadSnapshot(fsys vfs.FS, dir string) ([]byte, error) {
	b, err := readWhole(fsys, filepath.Join(dir, snapshotName), SnapshotMaxBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}
