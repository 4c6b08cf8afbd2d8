// Package errorfs injects faults into a file system: an [Injector] sees every
// operation before it happens and may let it fail, fail after it was done,
// write short, or lose the pages of a sync. [FS.CrashAt] stops everything at
// the k-th change, so that a test can crash a program at each of its steps:
//
//	for k := int64(1); ; k++ {
//		disk := memfs.New()
//		fsys := errorfs.Wrap(disk, nil)
//		fsys.CrashAt(k)
//		run(fsys)
//		check(disk.CrashClone(rng))
//		if !fsys.Crashed() {
//			break // the program ended before its k-th change
//		}
//	}
package errorfs

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"runnel.dev/runnel/internal/vfs"
)

// ErrCrashed is what every operation returns after the crash.
var ErrCrashed = errors.New("errorfs: the machine has crashed")

// Kind is the kind of an operation.
type Kind uint8

// The kinds of operations. Those up to VolumeSync change the disk.
const (
	Create Kind = iota + 1
	Remove
	RemoveAll
	Rename
	MkdirAll
	Lock // may create the file
	Write
	Truncate
	Sync
	SyncDir
	VolumeSync
	Open
	OpenRW
	ReadDir
	Stat
	DiskUsage
	FileSystem
	OpenVolume
	Read
	Size
	StartWriteback
	Close
)

var kindNames = [...]string{
	Create: "create", Remove: "remove", RemoveAll: "remove all", Rename: "rename", MkdirAll: "mkdir all", Lock: "lock",
	Write: "write", Truncate: "truncate", Sync: "sync", SyncDir: "sync dir", VolumeSync: "sync volume",
	Open: "open", OpenRW: "open rw", ReadDir: "read dir", Stat: "stat", DiskUsage: "disk usage",
	FileSystem: "file system", OpenVolume: "open volume", Read: "read", Size: "size",
	StartWriteback: "start writeback", Close: "close",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", k)
}

// Mutates tells whether the operation changes the disk, or what of it is
// durable.
func (k Kind) Mutates() bool { return k >= Create && k <= VolumeSync }

// Op is one operation.
type Op struct {
	Kind    Kind
	Name    string // as given to the file system; a file's is the one it was opened by
	NewName string // of a rename
	N       int64  // of a mutating operation: its number, from 1; else how many there were
	Offset  int64  // of Read, Write and StartWriteback; the size of Truncate
	Len     int64  // bytes, of Read, Write and StartWriteback
}

func (op Op) String() string {
	s := fmt.Sprintf("#%d %s %s", op.N, op.Kind, op.Name)
	switch op.Kind {
	case Rename:
		s += " to " + op.NewName
	case Read, Write, StartWriteback:
		s += fmt.Sprintf(" [%d,+%d]", op.Offset, op.Len)
	case Truncate:
		s += fmt.Sprintf(" to %d", op.Offset)
	default:
	}
	return s
}

// Injector decides the fate of an operation: nil lets it pass, an error makes
// it fail before it began, and the errors made by [ShortWrite], [After] and
// [LosePages] make it fail in another way. It must be safe for concurrent use,
// and it may block to hold an operation up.
type Injector func(op Op) error

// fault is an error that says how to fail; callers get the cause.
type fault struct {
	cause error
	how   func(op Op, do func() error, drop func()) error
	short int // bytes that a write still does; -1: not a short write
}

func (f *fault) Error() string { return f.cause.Error() }

func (f *fault) Unwrap() error { return f.cause }

// ShortWrite lets a Write do its first n bytes and then fail with err. Other
// operations fail before they begin.
func ShortWrite(n int, err error) error { return &fault{cause: err, short: n} }

// After lets the operation happen and then fail with err, as if the answer had
// been lost. If it fails by itself its own error is returned.
func After(err error) error {
	return &fault{cause: err, short: -1, how: func(_ Op, do func() error, _ func()) error {
		if doErr := do(); doErr != nil {
			return doErr
		}
		return err
	}}
}

// LosePages fails a Sync or VolumeSync with err and marks its pages clean:
// readers still see the new bytes, but no later sync covers them (on file
// systems whose files are a vfs.DirtyDropper; others just do not sync).
func LosePages(err error) error {
	return &fault{cause: err, short: -1, how: func(op Op, _ func() error, drop func()) error {
		if op.Kind == Sync || op.Kind == VolumeSync {
			drop()
		}
		return err
	}}
}

// FailNth lets the n-th operation (from 1) of a kind fail with err, which may
// be made by ShortWrite, After or LosePages.
func FailNth(kind Kind, n int, err error) Injector {
	var mu sync.Mutex
	seen := 0
	return func(op Op) error {
		if op.Kind != kind {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if seen++; seen == n {
			return err
		}
		return nil
	}
}

// FailAll lets every operation of the kinds fail with err.
func FailAll(err error, kinds ...Kind) Injector {
	return func(op Op) error {
		if slices.Contains(kinds, op.Kind) {
			return err
		}
		return nil
	}
}

// FS is a file system with faults. It is safe for concurrent use.
type FS struct {
	inner vfs.FS
	mu    struct {
		sync.Mutex
		inject  Injector
		count   int64 // mutating operations that began
		crashAt int64 // 0: never
		crashed bool
	}
}

var _ vfs.FS = (*FS)(nil)

// Wrap returns inner with faults; inject may be nil.
func Wrap(inner vfs.FS, inject Injector) *FS {
	fsys := &FS{inner: inner}
	fsys.mu.inject = inject
	return fsys
}

// SetInjector replaces the injector; nil stops the faults.
func (fsys *FS) SetInjector(inject Injector) {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	fsys.mu.inject = inject
}

// Mutations is the number of mutating operations so far.
func (fsys *FS) Mutations() int64 {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	return fsys.mu.count
}

// CrashAt lets the k-th mutating operation (from 1, counted since Wrap) and
// every operation after it fail with ErrCrashed, reads included. Close still
// releases what is below. 0 means never; a crash that has happened stays.
func (fsys *FS) CrashAt(k int64) {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	fsys.mu.crashAt = k
}

// Crash lets everything fail from now on.
func (fsys *FS) Crash() {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	fsys.mu.crashed = true
}

// Crashed tells whether the crash has happened.
func (fsys *FS) Crashed() bool {
	fsys.mu.Lock()
	defer fsys.mu.Unlock()
	return fsys.mu.crashed
}

// begin numbers an operation and asks for its fate, without holding the lock
// while the injector runs.
func (fsys *FS) begin(op Op) (Op, error) {
	fsys.mu.Lock()
	if op.Kind.Mutates() && !fsys.mu.crashed {
		fsys.mu.count++
		fsys.mu.crashed = fsys.mu.count == fsys.mu.crashAt
	}
	op.N = fsys.mu.count
	inject, crashed := fsys.mu.inject, fsys.mu.crashed
	fsys.mu.Unlock()
	if crashed {
		return op, fmt.Errorf("%s: %w", op, ErrCrashed)
	}
	if inject == nil {
		return op, nil
	}
	return op, inject(op)
}

// run does an operation unless it is to fail.
func (fsys *FS) run(op Op, do func() error) error { return fsys.runSync(op, do, func() {}) }

func (fsys *FS) runSync(op Op, do func() error, drop func()) error {
	op, err := fsys.begin(op)
	if err == nil {
		return do()
	}
	var f *fault
	if !errors.As(err, &f) {
		return err
	}
	if f.how == nil {
		return f.cause
	}
	return f.how(op, do, drop)
}
