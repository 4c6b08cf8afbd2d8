package segment

import (
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"

	"runnel.dev/runnel/internal/vfs"
)

// Cache bounds how many segment files stay open while nobody uses them, and how many bytes of index files stay in
// memory. One is shared by all segments of a broker. Safe for concurrent use.
//
// The victim is found by the clock algorithm: a file that was used since the hand last passed it gets another round.
type Cache struct {
	maxFiles      int
	maxIndexBytes int64

	mu struct {
		sync.Mutex
		open       []*Segment // with a handle, in no order
		hand       int
		indexBytes int64
	}
}

// Defaults of NewCache.
const (
	DefaultMaxFiles      = 4096
	DefaultMaxIndexBytes = 64 << 20
)

// NewCache returns a cache of at most maxFiles open files (pinned ones are not closed, so there may be more) and
// about maxIndexBytes of loaded index files. Zero stands for the defaults.
func NewCache(maxFiles int, maxIndexBytes int64) *Cache {
	if maxFiles <= 0 {
		maxFiles = DefaultMaxFiles
	}
	if maxIndexBytes <= 0 {
		maxIndexBytes = DefaultMaxIndexBytes
	}
	return &Cache{maxFiles: maxFiles, maxIndexBytes: maxIndexBytes}
}

// OpenFiles returns how many files the cache holds open.
func (c *Cache) OpenFiles() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mu.open)
}

// Trim closes files that are open beyond the bounds and no longer pinned. Opening a file does that as well; a broker that opens none
// for a while calls it when many were released at once.
func (c *Cache) Trim() { c.evict() }

// handle is an open .log file. It is closed when the last of its references is released; being cached is one.
type handle struct {
	f        vfs.File
	writable bool
	refs     atomic.Int32
	used     atomic.Bool
	index    atomic.Pointer[loadedIndex]
}

func (h *handle) tryRef() bool {
	for {
		n := h.refs.Load()
		if n <= 0 {
			return false
		}
		if h.refs.CompareAndSwap(n, n+1) {
			if !h.used.Load() {
				h.used.Store(true)
			}
			return true
		}
	}
}

func (h *handle) release() error {
	if h.refs.Add(-1) == 0 {
		return h.f.Close()
	}
	return nil
}

// Ref pins the open file of a segment. The zero value pins nothing.
type Ref struct{ h *handle }

// Release ends the pin. The error is that of closing the file, and means nothing once the file was synced.
func (r Ref) Release() error {
	if r.h == nil {
		return nil
	}
	return r.h.release()
}

// Sync makes the bytes of the .log file durable (fdatasync).
func (r Ref) Sync() error { return r.h.f.Sync() }

// StartWriteback asks the system to begin writing the bytes of a range. A hint, for files that no sync round covers and that the sync
// of a whole volume would have to wait for. A follower that catches up needs none: its log is dirty, so rounds follow each other, and each
// has only the last one's time of appends to write. (Measured with syncfs and a bulk log at 40 and 100 MB/s and without a limit: a hint
// for each MiB made the rounds of a small log beside it no shorter, and the longest longer.)
func (r Ref) StartWriteback(off, n int64) error { return r.h.f.StartWriteback(off, n) }

// Same tells whether two Refs pin the same open file.
func (r Ref) Same(o Ref) bool { return r.h == o.h }

// Acquire pins the .log file, opening it if need be. ErrRetired if the segment has been removed meanwhile.
func (s *Segment) Acquire() (Ref, error) {
	h, err := s.acquire(false)
	return Ref{h}, err
}

// AcquireWritable is Acquire for the writer.
func (s *Segment) AcquireWritable() (Ref, error) {
	h, err := s.acquire(true)
	return Ref{h}, err
}

func (s *Segment) acquire(write bool) (*handle, error) {
	for {
		h := s.handle.Load()
		if h == nil || (write && !h.writable) {
			return s.open(write)
		}
		if h.tryRef() {
			return h, nil
		}
	}
}

func (s *Segment) open(write bool) (*handle, error) {
	s.openMu.Lock()
	old := s.handle.Load()
	if old != nil && (!write || old.writable) && old.tryRef() {
		s.openMu.Unlock()
		return old, nil
	}
	h, err := s.openFile(write)
	if err != nil {
		s.openMu.Unlock()
		if errors.Is(err, fs.ErrNotExist) && s.retired.Load() {
			return nil, ErrRetired
		}
		return nil, err
	}
	s.adopt(h)
	s.openMu.Unlock()
	s.cache.evict()
	return h, nil
}

// adopt makes h the segment's cached handle, with one more reference for the caller.
func (s *Segment) adopt(h *handle) {
	h.refs.Store(2)
	h.used.Store(true)
	if old := s.handle.Swap(h); old != nil {
		s.cache.dropIndex(old)
		_ = old.release()
	}
	s.cache.add(s)
	// A segment that was retired in between would keep the handle for ever: nobody retires it again.
	if s.retired.Load() {
		s.closeHandle()
	}
}

// openFile falls back to a read-only file on a read-only file system: reads go on there.
func (s *Segment) openFile(write bool) (*handle, error) {
	name := s.path(ExtLog)
	f, err := s.fs.OpenRW(name)
	if err == nil {
		return &handle{f: f, writable: true}, nil
	}
	if write || errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if f, err = s.fs.Open(name); err != nil {
		return nil, err
	}
	return &handle{f: f}, nil
}

func (s *Segment) closeHandle() {
	if h := s.handle.Swap(nil); h != nil {
		s.cache.dropIndex(h)
		_ = h.release() // a dirty file is pinned by the log until it is synced, so this never closes one
	}
}

func (c *Cache) add(s *Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.cached {
		s.cached = true
		c.mu.open = append(c.mu.open, s)
	}
}

// dropIndex forgets the index of a handle that leaves the cache.
func (c *Cache) dropIndex(h *handle) {
	if old := h.index.Swap(nil); old != nil {
		c.mu.Lock()
		c.mu.indexBytes -= old.bytes()
		c.mu.Unlock()
	}
}

// setIndex attaches a loaded index to a handle of s and accounts for it, as long as the handle is the cached one. It looks
// after it has attached, and whoever takes the handle away drops the index afterwards: one of the two sees the other.
func (c *Cache) setIndex(s *Segment, h *handle, li *loadedIndex) {
	old := h.index.Swap(li)
	c.mu.Lock()
	c.mu.indexBytes += li.bytes()
	if old != nil {
		c.mu.indexBytes -= old.bytes()
	}
	c.mu.Unlock()
	if s.handle.Load() != h {
		c.dropIndex(h)
		return
	}
	c.evict()
}

// evict closes files until the bounds hold, or until every file was looked at twice.
func (c *Cache) evict() {
	for {
		victim := c.victim()
		if victim == nil {
			return
		}
		victim.closeHandle()
	}
}

func (c *Cache) victim() *Segment {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := len(c.mu.open) > c.maxFiles
	if !files && c.mu.indexBytes <= c.maxIndexBytes {
		return nil
	}
	for range 2 * len(c.mu.open) {
		i := c.mu.hand % len(c.mu.open)
		s := c.mu.open[i]
		h := s.handle.Load()
		if h != nil {
			keep := h.used.Swap(false) || h.refs.Load() > 1
			if !keep && !files {
				keep = h.index.Load() == nil // closing it would free no index memory
			}
			if keep {
				c.mu.hand = i + 1
				continue
			}
		}
		c.removeLocked(i)
		if h == nil {
			files = len(c.mu.open) > c.maxFiles
			if !files && c.mu.indexBytes <= c.maxIndexBytes || len(c.mu.open) == 0 {
				return nil
			}
			continue
		}
		return s
	}
	return nil
}

func (c *Cache) removeLocked(i int) {
	last := len(c.mu.open) - 1
	c.mu.open[i].cached = false
	c.mu.open[i] = c.mu.open[last]
	c.mu.open[last] = nil
	c.mu.open = c.mu.open[:last]
}

// forget removes a retired segment.
func (c *Cache) forget(s *Segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.cached {
		return
	}
	for i, o := range c.mu.open {
		if o == s {
			c.removeLocked(i)
			return
		}
	}
}
