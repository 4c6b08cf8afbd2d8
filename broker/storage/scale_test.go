package storage

import (
	"fmt"
	"sync/atomic"
	"testing"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// countingFS counts the files that are open, now and at most.
type countingFS struct {
	vfs.FS
	open, most atomic.Int64
}

type countedFile struct {
	vfs.File
	open   *atomic.Int64
	closed atomic.Bool
}

func (c *countingFS) count(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	n := c.open.Add(1)
	for m := c.most.Load(); n > m && !c.most.CompareAndSwap(m, n); m = c.most.Load() {
	}
	return &countedFile{File: f, open: &c.open}, nil
}

func (c *countingFS) Create(name string) (vfs.File, error) { return c.count(c.FS.Create(name)) }
func (c *countingFS) Open(name string) (vfs.File, error)   { return c.count(c.FS.Open(name)) }
func (c *countingFS) OpenRW(name string) (vfs.File, error) { return c.count(c.FS.OpenRW(name)) }

func (f *countedFile) Close() error {
	if !f.closed.Swap(true) {
		f.open.Add(-1)
	}
	return f.File.Close()
}

// TestOpenFilesAreBounded: many more partitions than files that may stay open, written in one round, read, and opened again.
func TestOpenFilesAreBounded(t *testing.T) {
	const partitions, bound = 500, 40
	const others = 8 // the journal, and what an operation has open for a moment
	fsys := &countingFS{FS: memfs.New()}
	few := func(c *Config) { c.OpenFiles, c.OpenParallelism, c.SyncWorkers = bound, 4, 4 }
	s := newStore(t, fsys, few)
	for n := range int32(partitions) {
		s.create(n)
		if n%50 == 49 {
			s.round() // creating pins nothing for longer than this
		}
	}
	check := func(when string) {
		t.Helper()
		if got := s.cache.OpenFiles(); got > bound {
			t.Errorf("%s: the cache holds %d files open, the bound is %d", when, got, bound)
		}
		if n := fsys.most.Swap(0); n > bound+others {
			t.Errorf("%s: %d files were open, the bound is %d", when, n, bound)
		}
	}
	check("created")
	// Files with unsynced bytes stay open until the round is over, however many they are.
	for n := range int32(partitions) {
		mustAppend(t, s.mustLog(n), fmt.Sprint("record of ", n))
	}
	s.round()
	if _, err := s.syncer.whenIdle(); err != nil {
		t.Fatal(err)
	}
	fsys.most.Store(fsys.open.Load())
	check("written in one round, idle now")
	read := func() {
		t.Helper()
		for n := range int32(partitions) {
			if got := texts(t, s.mustLog(n)); len(got) != 1 || got[0] != fmt.Sprint("record of ", n) {
				t.Fatalf("partition %d holds %q", n, got)
			}
		}
	}
	read()
	check("read")
	s.mustClose()
	if n := fsys.open.Load(); n != 0 {
		t.Errorf("%d files are open after the store was closed", n)
	}
	s = newStore(t, fsys, few)
	check("opened again")
	read()
	check("read again")
}
