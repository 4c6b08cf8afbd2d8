package file

import (
	"errors"
	"fmt"
	"io/fs"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/tiering/objectstore"
)

// ErrClosed is what calls of a closed store fail with.
var ErrClosed = errors.New("file object store is closed")

// CorruptError says where a file contradicts itself. It is
// objectstore.ErrChecksum.
type CorruptError struct {
	File   string
	Offset int64
	Detail string
}

// Error implements error.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d: %s", e.File, e.Offset, e.Detail)
}

// Is makes the error objectstore.ErrChecksum.
func (e *CorruptError) Is(target error) bool { return target == objectstore.ErrChecksum }

// FutureFormatError says that a newer version of Runnel has written a file.
type FutureFormatError struct {
	File               string
	Version, Supported uint32
}

// Error implements error.
func (e *FutureFormatError) Error() string {
	return fmt.Sprintf("%s has format version %d; this version of Runnel reads up to %d", e.File, e.Version, e.Supported)
}

// NotAStoreError says that a directory has something else in it.
type NotAStoreError struct {
	Dir     string
	Foreign string // a name in it that is not of a store
}

// Error implements error.
func (e *NotAStoreError) Error() string {
	return fmt.Sprintf("%s is not an object store: it has no file %q and contains %q; use an empty directory", e.Dir, layoutName, e.Foreign)
}

// classify gives an error of the file system its kind. That a file is missing
// means a missing object only where an object is opened; see openObject.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission), vfs.IsReadOnly(err):
		return fmt.Errorf("%w: %w", objectstore.ErrDenied, err)
	default:
		return fmt.Errorf("%w: %w", objectstore.ErrUnavailable, err)
	}
}
