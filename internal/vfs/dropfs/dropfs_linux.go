package dropfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/namespace"
)

// dropFS is the file system. Lock order: dropFS.mu, inode.syncing, inode.mu,
// dropFS.unsynced.
type dropFS struct {
	root  string // absolute
	disk  vfs.FS
	clock clock.Clock
	mu    struct {
		sync.Mutex
		tree *namespace.Tree[*object]
	}
	unsynced struct {
		sync.Mutex
		files map[*inode]struct{}
	}
}

type (
	node = namespace.Node[*object]
	op   = namespace.Op[*object]
)

// object is a file (file is set) or a directory, with its name on the disk:
// not yet any if dir is nil, which the root's is too.
type object struct {
	file    *inode
	dir     *node
	name    string
	modTime time.Time // of a directory that is not on the disk yet
}

// New returns a file system for everything below root, a directory that it
// creates if need be.
func New(root string) (vfs.FS, error) {
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	d := &dropFS{root: abs, disk: vfs.OS(), clock: clock.System()}
	if err := d.disk.MkdirAll(abs); err != nil {
		return nil, err
	}
	probe, err := d.unnamedFile()
	if err != nil {
		return nil, fmt.Errorf("dropfs: unnamed files on %s: %w", abs, err)
	}
	if err := probe.Close(); err != nil {
		return nil, err
	}
	d.mu.tree = namespace.New(&object{}, namespace.Config[*object]{Load: d.load, ParentFirst: true})
	d.unsynced.files = map[*inode]struct{}{}
	return d, nil
}

func (d *dropFS) unnamedFile() (*os.File, error) {
	return os.OpenFile(d.root, os.O_RDWR|unix.O_TMPFILE, 0o640)
}

// load lists a directory of the disk.
func (d *dropFS) load(dir *node) error {
	list, err := d.disk.ReadDir(d.diskPath(dir))
	if err != nil {
		return err
	}
	for _, e := range list {
		d.insert(dir, e.Name, e.IsDir)
	}
	return nil
}

// insert adds what is on the disk already.
func (d *dropFS) insert(dir *node, name string, isDir bool) {
	data := &object{dir: dir, name: name}
	n := d.mu.tree.Insert(dir, name, isDir, data)
	if !isDir {
		data.file = &inode{owner: d, node: n}
	}
}

// diskPath is the name that a node has on the disk.
func (d *dropFS) diskPath(n *node) string {
	if n.Data.dir == nil {
		return d.root
	}
	return filepath.Join(d.diskPath(n.Data.dir), n.Data.name)
}

func (d *dropFS) onDisk(n *node) bool { return n.Data.dir != nil || n == d.mu.tree.Root() }

// in runs a function on the tree with the path relative to the root.
func (d *dropFS) in(what, name string, do func(tree *namespace.Tree[*object], rel string) error) error {
	rel, err := d.rel(name)
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		err = do(d.mu.tree, rel)
	}
	var errno syscall.Errno
	if err == nil || !errors.As(err, &errno) && !errors.Is(err, ErrOutside) {
		return err
	}
	if _, wrapped := errors.AsType[*fs.PathError](err); wrapped {
		return err
	}
	return &fs.PathError{Op: what, Path: name, Err: err}
}

func (d *dropFS) rel(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	rel, err := filepath.Rel(d.root, abs)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", ErrOutside
	}
	return rel, nil
}

func (d *dropFS) Create(name string) (vfs.File, error) {
	var h *handle
	err := d.in("create", name, func(tree *namespace.Tree[*object], rel string) error {
		f := &inode{owner: d, modTime: d.clock.Now()}
		n, err := tree.Create(rel, &object{file: f})
		if err != nil {
			return err
		}
		f.node = n
		if f.disk, err = d.unnamedFile(); err != nil {
			_, removeErr := tree.Remove(rel)
			return errors.Join(err, removeErr)
		}
		h = f.openLocked(name, true)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (d *dropFS) OpenRW(name string) (vfs.File, error) { return d.open(name, true) }

func (d *dropFS) Open(name string) (vfs.File, error) { return d.open(name, false) }

func (d *dropFS) open(name string, writable bool) (vfs.File, error) {
	var h *handle
	err := d.in("open", name, func(tree *namespace.Tree[*object], rel string) error {
		n, err := tree.Lookup(rel)
		if err != nil {
			return err
		}
		if n.IsDir() {
			return syscall.EISDIR
		}
		if err := n.Data.file.attachLocked(); err != nil {
			return err
		}
		h = n.Data.file.openLocked(name, writable)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

func (d *dropFS) Remove(name string) error {
	return d.in("remove", name, func(tree *namespace.Tree[*object], rel string) error {
		n, err := tree.Remove(rel)
		if err != nil {
			return err
		}
		return d.unnamedLocked(n)
	})
}

func (d *dropFS) RemoveAll(dir string) error {
	return d.in("removeall", dir, func(tree *namespace.Tree[*object], rel string) error {
		removed, err := tree.RemoveAll(rel)
		for _, n := range removed {
			err = errors.Join(err, d.unnamedLocked(n))
		}
		return err
	})
}

func (d *dropFS) Rename(oldName, newName string) error {
	relNew, err := d.rel(newName)
	if err != nil {
		return &fs.PathError{Op: "rename", Path: newName, Err: err}
	}
	return d.in("rename", oldName, func(tree *namespace.Tree[*object], rel string) error {
		replaced, err := tree.Rename(rel, relNew)
		if err != nil || replaced == nil {
			return err
		}
		return d.unnamedLocked(replaced)
	})
}

func (d *dropFS) unnamedLocked(n *node) error {
	if n.Data.file == nil {
		return nil
	}
	return n.Data.file.releaseLocked()
}

func (d *dropFS) MkdirAll(dir string) error {
	return d.in("mkdir", dir, func(tree *namespace.Tree[*object], rel string) error {
		return tree.MkdirAll(rel, func() *object { return &object{modTime: d.clock.Now()} })
	})
}

func (d *dropFS) ReadDir(dir string) (entries []vfs.DirEntry, err error) {
	err = d.in("readdir", dir, func(tree *namespace.Tree[*object], rel string) error {
		list, err := tree.List(rel)
		if err != nil {
			return err
		}
		entries = make([]vfs.DirEntry, 0, len(list))
		for _, n := range list {
			info, err := d.statLocked(n)
			if err != nil {
				return err
			}
			entries = append(entries, vfs.DirEntry{Name: n.Name(), IsDir: info.IsDir, Size: info.Size})
		}
		return nil
	})
	return entries, err
}

func (d *dropFS) Stat(name string) (info vfs.FileInfo, err error) {
	err = d.in("stat", name, func(tree *namespace.Tree[*object], rel string) error {
		n, err := tree.Lookup(rel)
		if err == nil {
			info, err = d.statLocked(n)
		}
		return err
	})
	info.Name = filepath.Base(name)
	return info, err
}

func (d *dropFS) statLocked(n *node) (vfs.FileInfo, error) {
	if f := n.Data.file; f != nil && f.disk != nil {
		f.mu.RLock()
		defer f.mu.RUnlock()
		return vfs.FileInfo{Size: f.size, ModTime: f.modTime}, nil
	}
	if !d.onDisk(n) {
		return vfs.FileInfo{IsDir: true, ModTime: n.Data.modTime}, nil
	}
	return d.disk.Stat(d.diskPath(n))
}

// SyncDir does on the disk what was done to the directory in memory.
func (d *dropFS) SyncDir(dir string) error {
	return d.in("syncdir", dir, func(tree *namespace.Tree[*object], rel string) error {
		return d.syncDirLocked(tree, rel)
	})
}

func (d *dropFS) syncDirLocked(tree *namespace.Tree[*object], rel string) error {
	if err := tree.SyncDir(rel, d.commitLocked); err != nil {
		return err
	}
	n, err := tree.Lookup(rel)
	if err != nil {
		return err
	}
	return d.disk.SyncDir(d.diskPath(n))
}

// commitLocked does one change on the disk. The death of the process between
// two of them leaves what a power failure during the sync may leave.
func (d *dropFS) commitLocked(op *op) error {
	switch op.Kind {
	case namespace.Link:
		return d.commitLinkLocked(op)
	case namespace.Unlink:
		if err := d.disk.Remove(filepath.Join(d.diskPath(op.From.Dir), op.From.Name)); err != nil {
			return err
		}
		return d.unnamedLocked(op.Node)
	default:
		from := filepath.Join(d.diskPath(op.From.Dir), op.From.Name)
		to := filepath.Join(d.diskPath(op.To.Dir), op.To.Name)
		if err := d.disk.Rename(from, to); err != nil {
			return err
		}
		op.Node.Data.dir, op.Node.Data.name = op.To.Dir, op.To.Name
		return nil
	}
}

func (d *dropFS) commitLinkLocked(op *op) error {
	path := filepath.Join(d.diskPath(op.To.Dir), op.To.Name)
	f := op.Node.Data.file
	if f == nil {
		if err := os.Mkdir(path, 0o750); err != nil {
			return err
		}
	} else if err := linkFile(f.disk, path); err != nil {
		return err
	}
	op.Node.Data.dir, op.Node.Data.name = op.To.Dir, op.To.Name
	if f != nil {
		return f.releaseLocked()
	}
	return nil
}

// linkFile gives an unnamed file a name.
func linkFile(f *os.File, path string) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var linkErr error
	err = conn.Control(func(fd uintptr) {
		linkErr = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	})
	if err = errors.Join(err, linkErr); err != nil {
		return &fs.PathError{Op: "link", Path: path, Err: err}
	}
	return nil
}

// Lock needs a real file, so what it needs is made durable on the spot.
func (d *dropFS) Lock(name string) (lock io.Closer, err error) {
	err = d.in("lock", name, func(tree *namespace.Tree[*object], rel string) error {
		dirName := filepath.Dir(rel)
		dir, err := tree.Lookup(dirName)
		if err != nil {
			return err
		}
		n, err := tree.Lookup(rel)
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return err
		}
		if !d.onDisk(dir) || n != nil && !d.onDisk(n) {
			if err := d.syncDirLocked(tree, dirName); err != nil {
				return err
			}
		}
		path := filepath.Join(d.diskPath(dir), filepath.Base(rel))
		if n != nil {
			path = d.diskPath(n)
		}
		if lock, err = d.disk.Lock(path); err == nil && n == nil {
			d.insert(dir, filepath.Base(rel), false)
		}
		return err
	})
	return lock, err
}

func (d *dropFS) DiskUsage(dir string) (usage vfs.Usage, err error) {
	err = d.in("statfs", dir, func(tree *namespace.Tree[*object], rel string) error {
		if _, err := tree.Lookup(rel); err != nil {
			return err
		}
		usage, err = d.disk.DiskUsage(d.root)
		return err
	})
	return usage, err
}

func (d *dropFS) FileSystem(dir string) (kind string, network bool, err error) {
	err = d.in("statfs", dir, func(tree *namespace.Tree[*object], rel string) error {
		if _, err := tree.Lookup(rel); err != nil {
			return err
		}
		kind, network, err = d.disk.FileSystem(d.root)
		return err
	})
	return kind, network, err
}
