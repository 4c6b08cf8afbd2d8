package vfstest

import (
	"errors"
	"io"
	"io/fs"
	"sync"

	"runnel.dev/runnel/internal/vfs"
)

func testLock(e *env) {
	lock, err := e.Lock(e.path("lock"))
	e.ok(err)
	_, err = e.Lock(e.path("lock"))
	e.is(err, vfs.ErrLocked)
	other, err := e.Lock(e.path("other"))
	e.ok(err)
	e.ok(other.Close())
	e.ok(lock.Close())
	e.names(e.dir, "lock", "other")
	lock, err = e.Lock(e.path("lock"))
	e.ok(err)
	e.ok(lock.Close())
	_, err = e.Lock(e.path("none", "lock"))
	e.is(err, fs.ErrNotExist)
}

func testVolume(e *env) {
	v, err := e.OpenVolume(e.dir)
	e.ok(err)
	f := e.create(e.path("f"), "abc")
	e.ok(v.Sync())
	e.content(f, "abc")
	e.ok(v.Close())
	e.is(v.Sync(), fs.ErrClosed)
	_, err = e.OpenVolume(e.path("none"))
	e.is(err, fs.ErrNotExist)

	usage, err := e.DiskUsage(e.dir)
	e.ok(err)
	if usage.Total <= 0 || usage.Free < 0 || usage.Free > usage.Total {
		e.Fatalf("usage: %+v", usage)
	}
	_, err = e.DiskUsage(e.path("none"))
	e.is(err, fs.ErrNotExist)
	kind, network, err := e.FileSystem(e.dir)
	e.ok(err)
	if kind == "" || network {
		e.Fatalf("file system %q, network %v", kind, network)
	}
	_, _, err = e.FileSystem(e.path("none"))
	e.is(err, fs.ErrNotExist)
}

// testConcurrent is for the race detector: appends, reads and syncs of one
// file beside changes of the directory.
func testConcurrent(e *env) {
	const rounds = 50
	f := e.create(e.path("f"), "")
	var errs [3]error
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range int64(rounds) {
			if _, err := f.WriteAt([]byte("0123456789"), i*10); err != nil {
				errs[0] = err
			}
		}
	})
	wg.Go(func() {
		buf := make([]byte, 10)
		for i := range int64(rounds) {
			n, err := f.ReadAt(buf, i*10)
			if err != nil && !errors.Is(err, io.EOF) || n == 10 && string(buf) != "0123456789" {
				errs[1] = errors.Join(err, errors.New("read "+string(buf[:n])))
			}
			if i%10 == 0 {
				errs[1] = errors.Join(errs[1], f.Sync())
			}
		}
	})
	wg.Go(func() {
		for range rounds {
			g, err := e.Create(e.path("g"))
			if err == nil {
				err = errors.Join(g.Close(), e.Rename(e.path("g"), e.path("h")), e.SyncDir(e.dir), e.Remove(e.path("h")))
			}
			if err != nil {
				errs[2] = err
			}
		}
	})
	wg.Wait()
	e.ok(errors.Join(errs[:]...))
	size, err := f.Size()
	e.ok(err)
	if size != rounds*10 {
		e.Fatalf("size is %d, want %d", size, rounds*10)
	}
}
