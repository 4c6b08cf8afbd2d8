package dropfs

import (
	"errors"
	"io"
	"io/fs"
	"sync/atomic"
	"syscall"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/namespace"
)

// handle is an open file.
type handle struct {
	file     *inode
	name     string
	writable bool
	closed   atomic.Bool
}

func (h *handle) Name() string { return h.name }

func (h *handle) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: h.name, Err: err}
}

// usable is asked with the lock of the inode held: Close takes it before the
// descriptor goes away.
func (h *handle) usable(op string, off int64) error {
	switch {
	case h.closed.Load():
		return h.failed(op, fs.ErrClosed)
	case off < 0:
		return h.failed(op, syscall.EINVAL)
	}
	return nil
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.file.mu.RLock()
	defer h.file.mu.RUnlock()
	if err := h.usable("read", off); err != nil {
		return 0, err
	}
	n := int(min(int64(len(p)), max(0, h.file.size-off)))
	if err := h.file.read(p[:n], off); err != nil {
		return 0, h.failed("read", err)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	f := h.file
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := h.usable("write", off); err != nil {
		return 0, err
	}
	if !h.writable {
		return 0, h.failed("write", syscall.EBADF)
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.write(p, off)
	f.modTime = f.owner.clock.Now()
	f.owner.setUnsynced(f, true)
	return n, h.failed("write", err)
}

func (h *handle) Truncate(size int64) error {
	f := h.file
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := h.usable("truncate", size); err != nil {
		return err
	}
	if !h.writable {
		return h.failed("truncate", syscall.EINVAL)
	}
	f.truncate(size)
	f.modTime = f.owner.clock.Now()
	f.owner.setUnsynced(f, true)
	return nil
}

func (h *handle) Size() (int64, error) {
	h.file.mu.RLock()
	defer h.file.mu.RUnlock()
	return h.file.size, h.usable("stat", 0)
}

func (h *handle) Sync() error {
	if err := h.usable("sync", 0); err != nil {
		return err
	}
	return h.failed("sync", h.file.sync())
}

// StartWriteback does nothing: it must not make anything durable.
func (h *handle) StartWriteback(off, _ int64) error { return h.usable("sync_file_range", off) }

func (h *handle) Close() error {
	if h.closed.Swap(true) {
		return h.failed("close", fs.ErrClosed)
	}
	d := h.file.owner
	d.mu.Lock()
	defer d.mu.Unlock()
	h.file.opens--
	return h.failed("close", h.file.releaseLocked())
}

func (d *dropFS) OpenVolume(dir string) (vfs.Volume, error) {
	var v vfs.Volume
	err := d.in("open", dir, func(tree *namespace.Tree[*object], rel string) error {
		_, err := tree.Lookup(rel)
		if err == nil {
			v, err = d.disk.OpenVolume(d.root)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &volume{owner: d, Volume: v}, nil
}

// volume adds what is in memory to the volume below.
type volume struct {
	vfs.Volume
	owner  *dropFS
	closed atomic.Bool
}

func (v *volume) Close() error {
	v.closed.Store(true)
	return v.Volume.Close()
}

// Sync makes the bytes durable before the names.
func (v *volume) Sync() error {
	if v.closed.Load() {
		return &fs.PathError{Op: "syncfs", Path: v.owner.root, Err: fs.ErrClosed}
	}
	d := v.owner
	d.unsynced.Lock()
	files := make([]*inode, 0, len(d.unsynced.files))
	for f := range d.unsynced.files {
		files = append(files, f)
	}
	d.unsynced.Unlock()
	var errs []error
	for _, f := range files {
		errs = append(errs, f.sync())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := d.commitAll(files); err != nil {
		return err
	}
	return v.Volume.Sync()
}

func (d *dropFS) commitAll(synced []*inode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.mu.tree.SyncAll(d.commitLocked); err != nil {
		return err
	}
	var errs []error
	for _, f := range synced {
		errs = append(errs, f.releaseLocked())
	}
	return errors.Join(errs...)
}
