// Package memfs is a file system in memory that knows what a power failure
// would leave of it.
//
// It keeps two states: what a process sees, and what is certain to be on the
// disk, which only File.Sync (bytes and size of one file), FS.SyncDir (the
// entries of one directory) and Volume.Sync (everything) advance.
// [Mem.CrashClone] returns a legal mixture of the two, and
// [Mem.StrictCrashClone] the second alone. A test runs code on a Mem, clones it
// at any moment, and opens the clone as a restarted process would. Package
// errorfs stops the code at a chosen operation.
//
// New directories are as volatile as new files: a test that starts with
// MkdirAll("/data") loses everything in it unless it also syncs "/" (or calls
// [Mem.SyncAll]).
package memfs

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/namespace"
)

// Options are the properties of the pretended disk. The zero value is valid.
type Options struct {
	Capacity   int64       // bytes; 0: 1 TiB. Writes beyond it fail with ENOSPC
	FileSystem string      // what FileSystem answers; "": "mem"
	Network    bool        // FileSystem says that it is served over a network
	NoVolume   bool        // Volume.Supported is false
	Clock      clock.Clock // for modification times; nil: the system's
}

// Mem is the file system. It is safe for concurrent use. Paths are taken from
// the root: "data" and "/data" are the same.
type Mem struct {
	opt Options
	mu  struct {
		sync.RWMutex
		tree   *namespace.Tree[*object]
		dirty  map[*inode]struct{} // files with changes
		locked map[*inode]struct{}
		used   int64 // bytes
	}
}

type node = namespace.Node[*object]

// object is a file (file is set) or a directory.
type object struct {
	file    *inode
	durable map[string]*node
	modTime time.Time // of a directory
}

func newDir(now time.Time) *object {
	return &object{durable: map[string]*node{}, modTime: now}
}

// New returns an empty file system with default options.
func New() *Mem { return NewWith(Options{}) }

// NewWith returns an empty file system.
func NewWith(opt Options) *Mem {
	if opt.Capacity == 0 {
		opt.Capacity = 1 << 40
	}
	if opt.FileSystem == "" {
		opt.FileSystem = "mem"
	}
	if opt.Clock == nil {
		opt.Clock = clock.System()
	}
	m := &Mem{opt: opt}
	m.mu.tree = namespace.New(newDir(opt.Clock.Now()), namespace.Config[*object]{})
	m.mu.dirty = map[*inode]struct{}{}
	m.mu.locked = map[*inode]struct{}{}
	return m
}

// SetCapacity changes the size of the pretended disk, to fill it or to make
// room.
func (m *Mem) SetCapacity(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opt.Capacity = bytes
}

// SyncAll makes everything durable, as Volume.Sync does.
func (m *Mem) SyncAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.syncAllLocked()
}

func clean(name string) string { return filepath.ToSlash(name) }

func pathErr(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Create makes a new empty file.
func (m *Mem) Create(name string) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.createLocked(name)
	if err != nil {
		return nil, pathErr("create", name, err)
	}
	return m.handleLocked(name, f, true), nil
}

func (m *Mem) createLocked(name string) (*inode, error) {
	f := &inode{data: blob{mine: new(owner)}, durable: blob{mine: new(owner)}, modTime: m.opt.Clock.Now()}
	if _, err := m.mu.tree.Create(clean(name), &object{file: f}); err != nil {
		return nil, err
	}
	return f, nil
}

// OpenRW opens a file for reading and writing.
func (m *Mem) OpenRW(name string) (vfs.File, error) { return m.open(name, true) }

// Open opens a file for reading.
func (m *Mem) Open(name string) (vfs.File, error) { return m.open(name, false) }

func (m *Mem) open(name string, writable bool) (vfs.File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.mu.tree.Lookup(clean(name))
	if err == nil && n.IsDir() {
		err = syscall.EISDIR
	}
	if err != nil {
		return nil, pathErr("open", name, err)
	}
	return m.handleLocked(name, n.Data.file, writable), nil
}

// Remove unlinks a file or an empty directory.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.mu.tree.Remove(clean(name))
	if err != nil {
		return pathErr("remove", name, err)
	}
	m.unnamedLocked(n)
	return nil
}

// RemoveAll unlinks a file or directory and everything below it.
func (m *Mem) RemoveAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	removed, err := m.mu.tree.RemoveAll(clean(dir))
	for _, n := range removed {
		m.unnamedLocked(n)
	}
	return pathErr("removeall", dir, err)
}

// Rename moves a file or directory; it replaces a file.
func (m *Mem) Rename(oldName, newName string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	replaced, err := m.mu.tree.Rename(clean(oldName), clean(newName))
	if err != nil {
		return pathErr("rename "+oldName+" to", newName, err)
	}
	if replaced != nil {
		m.unnamedLocked(replaced)
	}
	return nil
}

// unnamedLocked frees a file that lost its name, unless it is open.
func (m *Mem) unnamedLocked(n *node) {
	f := n.Data.file
	if f == nil {
		return
	}
	f.unnamed = true
	m.releaseLocked(f)
}

func (m *Mem) releaseLocked(f *inode) {
	if f.unnamed && f.opens == 0 {
		m.mu.used -= f.data.size
		delete(m.mu.dirty, f)
	}
}

// MkdirAll creates a directory and its missing parents.
func (m *Mem) MkdirAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.opt.Clock.Now()
	return pathErr("mkdir", dir, m.mu.tree.MkdirAll(clean(dir), func() *object { return newDir(now) }))
}

// ReadDir lists a directory.
func (m *Mem) ReadDir(dir string) ([]vfs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, err := m.mu.tree.List(clean(dir))
	if err != nil {
		return nil, pathErr("readdir", dir, err)
	}
	entries := make([]vfs.DirEntry, 0, len(list))
	for _, n := range list {
		entry := vfs.DirEntry{Name: n.Name(), IsDir: n.IsDir()}
		if !entry.IsDir {
			entry.Size = n.Data.file.data.size
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// Stat describes a file or directory.
func (m *Mem) Stat(name string) (vfs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.mu.tree.Lookup(clean(name))
	if err != nil {
		return vfs.FileInfo{}, pathErr("stat", name, err)
	}
	info := vfs.FileInfo{Name: path.Base(clean(name)), IsDir: n.IsDir(), ModTime: n.Data.modTime}
	if f := n.Data.file; f != nil {
		info.Size, info.ModTime = f.data.size, f.modTime
	}
	return info, nil
}

// SyncDir makes the entries of a directory durable.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return pathErr("syncdir", dir, m.mu.tree.SyncDir(clean(dir), makeDurable))
}

// makeDurable carries a change over to the durable directories.
func makeDurable(op *namespace.Op[*object]) error {
	if op.Kind != namespace.Link {
		delete(op.From.Dir.Data.durable, op.From.Name)
	}
	if op.Kind != namespace.Unlink {
		op.To.Dir.Data.durable[op.To.Name] = op.Node
	}
	return nil
}

// Lock takes an exclusive lock, as flock(2) would.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.mu.tree.Lookup(clean(name))
	var f *inode
	switch {
	case errors.Is(err, syscall.ENOENT):
		f, err = m.createLocked(name)
	case err == nil && n.IsDir():
		err = syscall.EISDIR
	case err == nil:
		f = n.Data.file
	}
	if err != nil {
		return nil, pathErr("lock", name, err)
	}
	if _, taken := m.mu.locked[f]; taken {
		return nil, pathErr("lock", name, vfs.ErrLocked)
	}
	m.mu.locked[f] = struct{}{}
	return &memLock{fsys: m, file: f}, nil
}

type memLock struct {
	fsys   *Mem
	file   *inode
	closed bool
}

func (l *memLock) Close() error {
	l.fsys.mu.Lock()
	defer l.fsys.mu.Unlock()
	if l.closed {
		return fs.ErrClosed
	}
	l.closed = true
	delete(l.fsys.mu.locked, l.file)
	return nil
}

// DiskUsage reports the capacity and what is left of it.
func (m *Mem) DiskUsage(dir string) (vfs.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.mu.tree.Lookup(clean(dir)); err != nil {
		return vfs.Usage{}, pathErr("statfs", dir, err)
	}
	return vfs.Usage{Total: m.opt.Capacity, Free: max(0, m.opt.Capacity-m.mu.used)}, nil
}

// FileSystem answers what the options say.
func (m *Mem) FileSystem(dir string) (kind string, network bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.mu.tree.Lookup(clean(dir)); err != nil {
		return "", false, pathErr("statfs", dir, err)
	}
	return m.opt.FileSystem, m.opt.Network, nil
}
