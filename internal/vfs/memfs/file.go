package memfs

import (
	"io"
	"io/fs"
	"syscall"

	"runnel.dev/runnel/internal/vfs"
)

// handle is an open file. closed is guarded by the lock of the file system.
type handle struct {
	fsys     *Mem
	name     string
	file     *inode
	writable bool
	closed   bool
}

var _ vfs.DirtyDropper = (*handle)(nil)

func (m *Mem) handleLocked(name string, f *inode, writable bool) *handle {
	f.opens++
	return &handle{fsys: m, name: name, file: f, writable: writable}
}

func (h *handle) Name() string { return h.name }

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.fsys.mu.RLock()
	defer h.fsys.mu.RUnlock()
	if err := h.usableLocked("read", off); err != nil {
		return 0, err
	}
	n := h.file.data.readAt(p, off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	h.fsys.mu.Lock()
	defer h.fsys.mu.Unlock()
	if err := h.usableLocked("write", off); err != nil {
		return 0, err
	}
	if !h.writable {
		return 0, pathErr("write", h.name, syscall.EBADF)
	}
	if off+int64(len(p)) > maxSize {
		return 0, pathErr("write", h.name, syscall.EFBIG)
	}
	// A full disk takes what fits, as write(2) does.
	var full error
	if room := h.file.data.size + h.fsys.roomLocked(); off+int64(len(p)) > max(room, h.file.data.size) {
		p = p[:max(0, room-off)]
		full = pathErr("write", h.name, syscall.ENOSPC)
	}
	before := h.file.data.size
	h.file.write(p, off)
	h.changedLocked(before)
	return len(p), full
}

func (h *handle) Truncate(size int64) error {
	h.fsys.mu.Lock()
	defer h.fsys.mu.Unlock()
	if err := h.usableLocked("truncate", size); err != nil {
		return err
	}
	before := h.file.data.size
	switch {
	case !h.writable:
		return pathErr("truncate", h.name, syscall.EINVAL)
	case size > maxSize:
		return pathErr("truncate", h.name, syscall.EFBIG)
	case size > before && size-before > h.fsys.roomLocked():
		return pathErr("truncate", h.name, syscall.ENOSPC)
	}
	h.file.truncate(size)
	h.changedLocked(before)
	return nil
}

func (m *Mem) roomLocked() int64 { return max(0, m.opt.Capacity-m.mu.used) }

func (h *handle) changedLocked(sizeBefore int64) {
	m := h.fsys
	m.mu.used += h.file.data.size - sizeBefore
	m.mu.dirty[h.file] = struct{}{}
	h.file.modTime = m.opt.Clock.Now()
}

func (h *handle) usableLocked(op string, off int64) error {
	if h.closed {
		return pathErr(op, h.name, fs.ErrClosed)
	}
	if off < 0 {
		return pathErr(op, h.name, syscall.EINVAL)
	}
	return nil
}

func (h *handle) Size() (int64, error) {
	h.fsys.mu.RLock()
	defer h.fsys.mu.RUnlock()
	return h.file.data.size, h.usableLocked("stat", 0)
}

// Sync makes the bytes and the size of the file durable, not its name.
func (h *handle) Sync() error {
	h.fsys.mu.Lock()
	defer h.fsys.mu.Unlock()
	if err := h.usableLocked("sync", 0); err != nil {
		return err
	}
	h.fsys.syncLocked(h.file)
	return nil
}

func (m *Mem) syncLocked(f *inode) {
	f.sync()
	if len(f.changes) == 0 {
		delete(m.mu.dirty, f)
	}
}

// DropDirty acts out a sync that failed: readers still see the new bytes, but
// no later sync makes them durable.
func (h *handle) DropDirty() {
	h.fsys.mu.Lock()
	defer h.fsys.mu.Unlock()
	h.file.dropDirty()
}

func (h *handle) StartWriteback(off, _ int64) error {
	h.fsys.mu.RLock()
	defer h.fsys.mu.RUnlock()
	return h.usableLocked("sync_file_range", off)
}

func (h *handle) Close() error {
	h.fsys.mu.Lock()
	defer h.fsys.mu.Unlock()
	if err := h.usableLocked("close", 0); err != nil {
		return err
	}
	h.closed = true
	h.file.opens--
	h.fsys.releaseLocked(h.file)
	return nil
}

// OpenVolume returns a handle on the whole file system.
func (m *Mem) OpenVolume(dir string) (vfs.Volume, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.mu.tree.Lookup(clean(dir)); err != nil {
		return nil, pathErr("open", dir, err)
	}
	return &volume{fsys: m, dir: dir}, nil
}

type volume struct {
	fsys   *Mem
	dir    string
	closed bool
}

var _ vfs.DirtyDropper = (*volume)(nil)

// Sync makes everything durable, names included.
func (v *volume) Sync() error {
	v.fsys.mu.Lock()
	defer v.fsys.mu.Unlock()
	if v.closed {
		return pathErr("syncfs", v.dir, fs.ErrClosed)
	}
	v.fsys.syncAllLocked()
	return nil
}

func (m *Mem) syncAllLocked() {
	for f := range m.mu.dirty {
		m.syncLocked(f)
	}
	if err := m.mu.tree.SyncAll(makeDurable); err != nil {
		panic("memfs: makeDurable never fails: " + err.Error())
	}
}

func (v *volume) Supported() bool { return !v.fsys.opt.NoVolume }

// DropDirty acts out a sync that failed, for every file.
func (v *volume) DropDirty() {
	v.fsys.mu.Lock()
	defer v.fsys.mu.Unlock()
	for f := range v.fsys.mu.dirty {
		f.dropDirty()
	}
}

func (v *volume) Close() error {
	v.fsys.mu.Lock()
	defer v.fsys.mu.Unlock()
	if v.closed {
		return pathErr("close", v.dir, fs.ErrClosed)
	}
	v.closed = true
	return nil
}
