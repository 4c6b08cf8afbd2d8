// Package file keeps objects as files below a directory: the object store of a
// cluster on one machine, without a service.
//
// Several processes may have one directory open. Everything goes through
// internal/vfs. docs/formats/object-file-store.md is the layout:
//
//	<root>/layout            "runnel-file-object-store 1"
//	<root>/lock              flock of whoever opens the store
//	<root>/locks/<n>         flocks of the commits of puts, 16 stripes by key
//	<root>/tmp/<id>.owner    flock of a process; <id>.<n>: what it is writing
//	<root>/objects/+a/+b/=c  the object a/b/c
//
// A segment of a key becomes the name of a directory behind "+", and the last
// one the name of a file behind "=". No two keys share a path, "a" and "a/b"
// can both exist, and no name is "." or "..", whatever the key.
//
// # Writing
//
// An object is written to tmp, checked, synced, renamed, and the directory is
// synced. Crash windows:
//
//   - before the rename: the old state, and a left-over in tmp that the next
//     Open removes, once the lock of its owner is free;
//   - between rename and sync of the directory: the old object or the new one,
//     each whole, since bytes were synced before the rename and the directories
//     above it are durable before it;
//   - after the sync: the new one.
//
// Whoever reports on an object whose put may have died in the second window
// syncs the directory first (Head, and a put that finds the object where there
// was to be none): callers delete local data on the strength of that answer.
//
// The precondition needs "create unless it exists" for a name together with its
// bytes. A commit therefore looks and renames under a flock, which all puts of
// the key take and which dies with its process.
//
// A sync of a directory that failed says nothing about what is on the disk, now
// or later. The store then refuses puts and deletes, and answers of Head, until
// it is opened again.
//
// Directories are never removed: an empty one costs little, and removing it
// would race with a put that has just made sure that it is durable.
package file
