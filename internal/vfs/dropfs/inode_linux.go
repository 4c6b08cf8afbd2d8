package dropfs

import (
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	pageSize = 4096
	maxRun   = 256 // pages per write to the disk
)

type page [pageSize]byte

// inode is a file: the real one, and the pages in memory that are newer.
type inode struct {
	owner *dropFS

	// Guarded by owner.mu.
	node  *node
	opens int

	// syncing is held by Sync and by Truncate, which would pull bytes from under
	// it. Writes go on during a sync and are not covered by it.
	syncing sync.Mutex

	mu      sync.RWMutex
	disk    *os.File // open while anything here needs it; see releaseLocked
	size    int64
	modTime time.Time
	// valid is how many bytes of the real file count: behind it are zeros (a
	// truncation that the disk has not seen), or nothing.
	valid    int64
	dirty    map[int64]*page // written since the last sync
	flushing map[int64]*page // being written to the disk by a sync
	resized  bool            // since the last sync
}

// attachLocked opens the real file. The caller holds owner.mu, as for the
// other methods that end in Locked.
func (f *inode) attachLocked() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.disk != nil {
		return nil
	}
	disk, err := os.OpenFile(f.owner.diskPath(f.node), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := disk.Stat()
	if err != nil {
		_ = disk.Close() // nothing was written
		return err
	}
	f.disk, f.size, f.valid, f.modTime = disk, info.Size(), info.Size(), info.ModTime()
	return nil
}

func (f *inode) openLocked(name string, writable bool) *handle {
	f.opens++
	return &handle{file: f, name: name, writable: writable}
}

// releaseLocked closes the real file if it can be opened again by name, or
// will never be asked for.
func (f *inode) releaseLocked() error {
	if f.opens > 0 {
		return nil
	}
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.node.Linked() {
		f.dirty, f.resized = nil, false
		f.owner.setUnsynced(f, false)
	}
	// Without a name on the disk the descriptor is all there is of the file.
	if f.disk == nil || f.changed() || !f.owner.onDisk(f.node) {
		return nil
	}
	err := f.disk.Close()
	f.disk = nil
	return err
}

func (f *inode) changed() bool { return len(f.dirty) > 0 || f.resized }

func (d *dropFS) setUnsynced(f *inode, unsynced bool) {
	d.unsynced.Lock()
	defer d.unsynced.Unlock()
	if unsynced {
		d.unsynced.files[f] = struct{}{}
	} else {
		delete(d.unsynced.files, f)
	}
}

// read fills p from off; the caller holds mu and has cut p to the size.
func (f *inode) read(p []byte, off int64) error {
	for len(p) > 0 {
		i := off / pageSize
		n := min(len(p), int(pageSize-off%pageSize))
		if newer := f.newer(i); newer != nil {
			copy(p[:n], newer[off%pageSize:])
		} else {
			for n < len(p) && f.newer(i+1) == nil {
				i++
				n = min(len(p), n+pageSize)
			}
			if err := f.readDisk(p[:n], off); err != nil {
				return err
			}
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

func (f *inode) newer(i int64) *page {
	if p := f.dirty[i]; p != nil {
		return p
	}
	return f.flushing[i]
}

func (f *inode) readDisk(p []byte, off int64) error {
	n := int(min(int64(len(p)), max(0, f.valid-off)))
	clear(p[n:])
	if n == 0 {
		return nil
	}
	_, err := f.disk.ReadAt(p[:n], off)
	return err
}

// write puts p into dirty pages; the caller holds mu.
func (f *inode) write(p []byte, off int64) (int, error) {
	if f.dirty == nil {
		f.dirty = map[int64]*page{}
	}
	done := 0
	for done < len(p) {
		at := off + int64(done)
		i := at / pageSize
		pg := f.dirty[i]
		if pg == nil {
			pg = new(page)
			if err := f.read(pg[:], i*pageSize); err != nil {
				return done, err
			}
			f.dirty[i] = pg
		}
		n := copy(pg[at%pageSize:], p[done:])
		done += n
		f.size = max(f.size, at+int64(n))
	}
	return done, nil
}

// truncate cuts or extends; the caller holds syncing and mu.
func (f *inode) truncate(size int64) {
	if size < f.size {
		for i, pg := range f.dirty {
			switch {
			case i*pageSize >= size:
				delete(f.dirty, i)
			case i == size/pageSize:
				clear(pg[size%pageSize:])
			}
		}
		f.valid = min(f.valid, size)
	}
	f.size, f.resized = size, true
}

// sync writes to the real file what was changed before it began.
func (f *inode) sync() error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.mu.Lock()
	if f.disk == nil || !f.changed() {
		f.mu.Unlock()
		return nil
	}
	pages, size, valid := f.dirty, f.size, f.valid
	f.flushing, f.dirty, f.resized = pages, nil, false
	f.mu.Unlock()

	err := f.flush(pages, size, valid)

	f.mu.Lock()
	defer f.mu.Unlock()
	f.flushing = nil
	if err != nil {
		if f.dirty == nil {
			f.dirty = map[int64]*page{}
		}
		for i, pg := range pages {
			if f.dirty[i] == nil {
				f.dirty[i] = pg
			}
		}
		f.resized = true
		return err
	}
	f.valid = size
	if !f.changed() {
		f.owner.setUnsynced(f, false)
	}
	return nil
}

// flush makes the real file equal to the pages over its first valid bytes,
// size bytes long.
func (f *inode) flush(pages map[int64]*page, size, valid int64) error {
	info, err := f.disk.Stat()
	if err != nil {
		return err
	}
	if info.Size() > valid {
		if err := f.disk.Truncate(valid); err != nil {
			return err
		}
	}
	order := slices.Sorted(maps.Keys(pages))
	var run []byte
	for len(order) > 0 {
		first := order[0]
		run = run[:0]
		for n := 0; len(order) > 0 && n < maxRun && order[0] == first+int64(n); n++ {
			run = append(run, pages[order[0]][:]...)
			order = order[1:]
		}
		start := first * pageSize
		run = run[:max(0, min(int64(len(run)), size-start))]
		if _, err := f.disk.WriteAt(run, start); err != nil {
			return err
		}
	}
	if err := f.disk.Truncate(size); err != nil {
		return err
	}
	return f.disk.Sync()
}
