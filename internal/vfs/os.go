package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

const (
	fileMode = 0o640
	dirMode  = 0o750
)

// OS returns the file system of the operating system.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) Create(name string) (File, error) {
	return openFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (osFS) OpenRW(name string) (File, error) { return openFile(name, os.O_RDWR) }

func (osFS) Open(name string) (File, error) { return openFile(name, os.O_RDONLY) }

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) RemoveAll(dir string) error { return os.RemoveAll(dir) }

func (osFS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

func (osFS) MkdirAll(dir string) error { return os.MkdirAll(dir, dirMode) }

func (osFS) ReadDir(dir string) ([]DirEntry, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	entries := make([]DirEntry, 0, len(list))
	for _, e := range list {
		entry := DirEntry{Name: e.Name(), IsDir: e.IsDir()}
		if !entry.IsDir {
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since the directory was read
			}
			if err != nil {
				return nil, err
			}
			entry.Size = info.Size()
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

func (osFS) Stat(name string) (FileInfo, error) {
	info, err := os.Stat(name)
	if err != nil {
		return FileInfo{}, err
	}
	out := FileInfo{Name: info.Name(), ModTime: info.ModTime(), IsDir: info.IsDir()}
	if !out.IsDir {
		out.Size = info.Size()
	}
	return out, nil
}

func (osFS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	info, err := d.Stat()
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "syncdir", Path: dir, Err: syscall.ENOTDIR}
	}
	if err == nil {
		err = d.Sync()
	}
	return errors.Join(err, d.Close())
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		_ = f.Close() // nothing was written; the lock error says more
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	return f, nil
}

func (osFS) DiskUsage(dir string) (Usage, error) {
	u, err := diskUsage(dir)
	if err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return u, nil
}

func (osFS) FileSystem(dir string) (kind string, network bool, err error) {
	kind, network, err = fileSystem(dir)
	if err != nil {
		return "", false, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return kind, network, nil
}

func (osFS) OpenVolume(dir string) (Volume, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return osVolume{dir: d, supported: syncfsReportsErrors()}, nil
}

type osVolume struct {
	dir       *os.File
	supported bool
}

func (v osVolume) Sync() error { return syncVolume(v.dir) }

func (v osVolume) Supported() bool { return v.supported }

func (v osVolume) Close() error { return v.dir.Close() }

// osFile adds to os.File what the portable interface lacks.
type osFile struct {
	*os.File
}

func openFile(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, fileMode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return osFile{f}, nil
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) Sync() error { return syncFile(f.File) }

func (f osFile) StartWriteback(off, n int64) error { return startWriteback(f.File, off, n) }
