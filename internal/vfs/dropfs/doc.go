// Package dropfs lets a real process on real files lose what it did not sync:
// after kill -9 the disk holds what a power failure would certainly have left.
// (A kill alone proves nothing about syncs, because the page cache survives
// it.)
//
// Written bytes stay in the memory of the process, in pages, and reach the
// real file only by File.Sync or Volume.Sync; creates, renames and removes are
// done in memory, and on the disk only by FS.SyncDir or Volume.Sync. A new
// file is an unnamed one (O_TMPFILE) until its directory is synced, so the
// kernel frees it when the process dies and nothing has to be cleaned up. The
// memory and descriptors in use are those of what is unsynced.
//
// Two things are kinder than a power failure: nothing unsynced ever survives
// (memfs.CrashClone covers that side), and a sync of a new directory makes its
// own name durable too, as ext4 does. Lock files are real at once.
//
// The process must be the only one that changes anything below the root. The
// package is for tests of crashes; it works on Linux, on file systems with
// O_TMPFILE (ext4, xfs, btrfs, tmpfs).
package dropfs

import "errors"

// ErrOutside reports a path that is not below the root of the file system.
var ErrOutside = errors.New("dropfs: path is outside of the root")
