// Package vfs is the seam between Runnel and the disk: every data file is
// created, written, synced and removed through an [FS].
//
// The interface is small on purpose, and every call states what a power
// failure may still undo after it has returned. The rules are those that a
// careful program has to assume of any Linux file system:
//
//   - Written bytes are volatile until [File.Sync] or [Volume.Sync] returns
//     nil. Before that, each 512-byte sector may hold the old or the new
//     bytes, in any order, and the size may be ahead of the data (zeros).
//   - A truncation is volatile until [File.Sync], like a write.
//   - A directory entry (create, rename, remove, mkdir) is volatile until
//     [FS.SyncDir] of the directory that holds it; syncing the file itself
//     does not make its name durable.
//   - A rename is atomic: after a failure the old state or the new one, never
//     neither and never both. A rename between directories is durable once
//     the destination directory is synced.
//   - A sync that failed says nothing about what reached the disk, and a
//     later sync that succeeds does not either: the kernel has marked the
//     pages clean.
//
// [OS] is the real thing. Package memfs keeps files in memory and can produce
// what a power failure would leave; package errorfs injects faults; package
// dropfs runs a real process on real files that lose what was not synced.
package vfs

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// ErrLocked reports that somebody else, in this process or another one, holds
// the lock that [FS.Lock] asked for.
var ErrLocked = errors.New("file is locked by another holder")

// FS is a file system. Names are file paths of the platform. All methods are
// safe for concurrent use and may block on the disk. Errors satisfy
// errors.Is with [io/fs.ErrNotExist], [io/fs.ErrExist] and the classification
// functions of this package where they apply.
type FS interface {
	// Create makes a new empty file and opens it for reading and writing. It
	// fails with fs.ErrExist if the name is taken. The entry is volatile until
	// SyncDir of its directory.
	Create(name string) (File, error)
	// OpenRW opens an existing file for reading and writing.
	OpenRW(name string) (File, error)
	// Open opens an existing file for reading; writes to it fail.
	Open(name string) (File, error)
	// Remove unlinks a file or an empty directory. Open files stay readable.
	Remove(name string) error
	// RemoveAll removes a directory (or file) with everything below it. It
	// returns nil if there is none. It is not atomic.
	RemoveAll(dir string) error
	// Rename gives a file or a directory another name. A file atomically
	// replaces a file of the new name; nothing replaces a directory.
	Rename(oldName, newName string) error
	// MkdirAll creates a directory and its missing parents. Each new entry is
	// volatile until SyncDir of the directory above it.
	MkdirAll(dir string) error
	// ReadDir lists a directory, sorted by name.
	ReadDir(dir string) ([]DirEntry, error)
	// Stat describes a file or directory.
	Stat(name string) (FileInfo, error)
	// SyncDir makes the creates, renames and removes in a directory durable.
	// It does nothing for the bytes of the files in it.
	SyncDir(dir string) error
	// Lock takes an exclusive advisory lock on a file, which it creates if
	// need be, without waiting: ErrLocked if somebody holds it. The lock ends
	// with Close or with the process. The file is never removed.
	Lock(name string) (io.Closer, error)
	// DiskUsage reports the space of the file system that holds dir. Platforms
	// without the means answer errors.ErrUnsupported.
	DiskUsage(dir string) (Usage, error)
	// FileSystem names the kind of file system that holds dir ("ext4", "xfs",
	// "nfs", or a hexadecimal magic number if unknown) and whether it is
	// served over a network. Platforms without the means answer
	// errors.ErrUnsupported.
	FileSystem(dir string) (kind string, network bool, err error)
	// OpenVolume opens the file system that holds dir for Volume.Sync. It has
	// to be opened before the first write whose errors it is to report.
	OpenVolume(dir string) (Volume, error)
}

// File is an open file. Methods are safe for concurrent use, including Close,
// after which every method fails with fs.ErrClosed.
type File interface {
	// ReadAt reads what was last written, synced or not; io.EOF at the end.
	io.ReaderAt
	// WriteAt writes at an offset and extends the file as needed; a gap reads
	// as zeros. On an error the first n bytes were written.
	io.WriterAt
	// Close releases the file. It syncs nothing.
	io.Closer
	// Name is the name that the file was opened with.
	Name() string
	// Size is the current size in bytes, unsynced writes included.
	Size() (int64, error)
	// Truncate cuts the file, or extends it with zeros, to size bytes.
	Truncate(size int64) error
	// Sync makes bytes and size durable that were written before it began.
	// After an error nothing is known about them, ever again.
	Sync() error
	// StartWriteback asks the system to begin writing n bytes at off. It is a
	// hint: nothing is durable after it, and it may do nothing.
	StartWriteback(off, n int64) error
}

// Volume is a handle on a whole file system.
type Volume interface {
	// Sync makes everything on the file system durable that was written or
	// done before it began: bytes, sizes and directory entries of all files.
	// Where Supported is false its nil result proves nothing.
	Sync() error
	// Supported tells whether Sync reports write errors (Linux 5.8 or newer).
	Supported() bool
	io.Closer
}

// DirEntry is one entry of a directory.
type DirEntry struct {
	Name  string
	IsDir bool
	Size  int64 // bytes; 0 for a directory
}

// FileInfo describes a file or directory.
type FileInfo struct {
	Name    string // last element of the path
	Size    int64  // bytes; 0 for a directory
	ModTime time.Time
	IsDir   bool
}

// Usage is the space of a file system in bytes.
type Usage struct {
	Total int64
	Free  int64 // available to this process, so without a reserve for root
}

// DirtyDropper is implemented by files and volumes of test file systems that
// can act out a failed sync: unsynced pages keep their new bytes in memory and
// are marked clean, so that no later Sync covers them.
type DirtyDropper interface {
	DropDirty()
}

// IsNoSpace tells whether err says that the disk or a quota is full.
func IsNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// IsReadOnly tells whether err says that the file system is read-only.
func IsReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }

// IsIO tells whether err says that the device failed.
func IsIO(err error) bool { return errors.Is(err, syscall.EIO) }
