package errorfs

import (
	"errors"
	"io"

	"runnel.dev/runnel/internal/vfs"
)

// opened runs an operation that returns something to close. If it fails after
// it was done the caller never sees what it opened, so that is closed.
func opened[T io.Closer](fsys *FS, op Op, open func() (T, error)) (T, error) {
	var got T
	done := false
	err := fsys.run(op, func() error {
		var err error
		got, err = open()
		done = err == nil
		return err
	})
	if err == nil {
		return got, nil
	}
	if done {
		err = errors.Join(err, got.Close())
	}
	var zero T
	return zero, err
}

func (fsys *FS) openFile(kind Kind, name string, open func(string) (vfs.File, error)) (vfs.File, error) {
	f, err := opened(fsys, Op{Kind: kind, Name: name}, func() (vfs.File, error) { return open(name) })
	if err != nil {
		return nil, err
	}
	return &file{fsys: fsys, inner: f}, nil
}

// Create is vfs.FS.Create with faults, and so on.
func (fsys *FS) Create(name string) (vfs.File, error) {
	return fsys.openFile(Create, name, fsys.inner.Create)
}

// OpenRW opens a file for reading and writing.
func (fsys *FS) OpenRW(name string) (vfs.File, error) {
	return fsys.openFile(OpenRW, name, fsys.inner.OpenRW)
}

// Open opens a file for reading.
func (fsys *FS) Open(name string) (vfs.File, error) {
	return fsys.openFile(Open, name, fsys.inner.Open)
}

// Remove unlinks a file or an empty directory.
func (fsys *FS) Remove(name string) error {
	return fsys.run(Op{Kind: Remove, Name: name}, func() error { return fsys.inner.Remove(name) })
}

// RemoveAll counts as one operation.
func (fsys *FS) RemoveAll(dir string) error {
	return fsys.run(Op{Kind: RemoveAll, Name: dir}, func() error { return fsys.inner.RemoveAll(dir) })
}

// Rename moves a file or directory.
func (fsys *FS) Rename(oldName, newName string) error {
	return fsys.run(Op{Kind: Rename, Name: oldName, NewName: newName}, func() error {
		return fsys.inner.Rename(oldName, newName)
	})
}

// MkdirAll counts as one operation.
func (fsys *FS) MkdirAll(dir string) error {
	return fsys.run(Op{Kind: MkdirAll, Name: dir}, func() error { return fsys.inner.MkdirAll(dir) })
}

// ReadDir lists a directory.
func (fsys *FS) ReadDir(dir string) (list []vfs.DirEntry, err error) {
	err = fsys.run(Op{Kind: ReadDir, Name: dir}, func() error {
		list, err = fsys.inner.ReadDir(dir)
		return err
	})
	return list, err
}

// Stat describes a file or directory.
func (fsys *FS) Stat(name string) (info vfs.FileInfo, err error) {
	err = fsys.run(Op{Kind: Stat, Name: name}, func() error {
		info, err = fsys.inner.Stat(name)
		return err
	})
	return info, err
}

// SyncDir makes the entries of a directory durable.
func (fsys *FS) SyncDir(dir string) error {
	return fsys.run(Op{Kind: SyncDir, Name: dir}, func() error { return fsys.inner.SyncDir(dir) })
}

// Lock takes an exclusive lock.
func (fsys *FS) Lock(name string) (io.Closer, error) {
	return opened(fsys, Op{Kind: Lock, Name: name}, func() (io.Closer, error) { return fsys.inner.Lock(name) })
}

// DiskUsage reports the space of the file system.
func (fsys *FS) DiskUsage(dir string) (usage vfs.Usage, err error) {
	err = fsys.run(Op{Kind: DiskUsage, Name: dir}, func() error {
		usage, err = fsys.inner.DiskUsage(dir)
		return err
	})
	return usage, err
}

// FileSystem names the kind of file system.
func (fsys *FS) FileSystem(dir string) (kind string, network bool, err error) {
	err = fsys.run(Op{Kind: FileSystem, Name: dir}, func() error {
		kind, network, err = fsys.inner.FileSystem(dir)
		return err
	})
	return kind, network, err
}

// OpenVolume returns a handle on the whole file system.
func (fsys *FS) OpenVolume(dir string) (vfs.Volume, error) {
	v, err := opened(fsys, Op{Kind: OpenVolume, Name: dir}, func() (vfs.Volume, error) {
		return fsys.inner.OpenVolume(dir)
	})
	if err != nil {
		return nil, err
	}
	return &volume{fsys: fsys, inner: v, dir: dir}, nil
}

func dropDirty(x any) {
	if d, ok := x.(vfs.DirtyDropper); ok {
		d.DropDirty()
	}
}

type volume struct {
	fsys  *FS
	inner vfs.Volume
	dir   string
}

func (v *volume) Sync() error {
	return v.fsys.runSync(Op{Kind: VolumeSync, Name: v.dir}, v.inner.Sync, func() { dropDirty(v.inner) })
}

func (v *volume) Supported() bool { return v.inner.Supported() }

func (v *volume) Close() error { return v.fsys.close(v.dir, v.inner) }

// close closes what is below even if the answer is an error.
func (fsys *FS) close(name string, c io.Closer) error {
	_, err := fsys.begin(Op{Kind: Close, Name: name})
	if closeErr := c.Close(); err == nil {
		err = closeErr
	}
	return err
}

type file struct {
	fsys  *FS
	inner vfs.File
}

func (f *file) op(kind Kind, off, n int64) Op {
	return Op{Kind: kind, Name: f.inner.Name(), Offset: off, Len: n}
}

func (f *file) Name() string { return f.inner.Name() }

func (f *file) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.fsys.run(f.op(Read, off, int64(len(p))), func() error {
		n, err = f.inner.ReadAt(p, off)
		return err
	})
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	op, err := f.fsys.begin(f.op(Write, off, int64(len(p))))
	if err == nil {
		return f.inner.WriteAt(p, off)
	}
	var ft *fault
	switch {
	case !errors.As(err, &ft):
		return 0, err
	case ft.how != nil:
		cause := ft.how(op, func() error {
			n, err = f.inner.WriteAt(p, off)
			return err
		}, func() {})
		return n, cause
	}
	n, err = f.inner.WriteAt(p[:min(max(ft.short, 0), len(p))], off)
	if err == nil {
		err = ft.cause
	}
	return n, err
}

func (f *file) Size() (size int64, err error) {
	err = f.fsys.run(f.op(Size, 0, 0), func() error {
		size, err = f.inner.Size()
		return err
	})
	return size, err
}

func (f *file) Truncate(size int64) error {
	return f.fsys.run(f.op(Truncate, size, 0), func() error { return f.inner.Truncate(size) })
}

func (f *file) Sync() error {
	return f.fsys.runSync(f.op(Sync, 0, 0), f.inner.Sync, func() { dropDirty(f.inner) })
}

func (f *file) StartWriteback(off, n int64) error {
	return f.fsys.run(f.op(StartWriteback, off, n), func() error { return f.inner.StartWriteback(off, n) })
}

func (f *file) Close() error { return f.fsys.close(f.inner.Name(), f.inner) }
