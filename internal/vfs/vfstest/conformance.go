// Package vfstest holds the behaviour that every vfs.FS has to show, as one
// table. What a power failure may undo is not in it: a test on the operating
// system's file system could not see that.
package vfstest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"runnel.dev/runnel/internal/vfs"
)

// Conformance runs the table. open returns a file system and an empty,
// existing directory in it; it is called once per case.
func Conformance(t *testing.T, open func(t *testing.T) (fsys vfs.FS, dir string)) {
	t.Helper()
	cases := []struct {
		name string
		run  func(e *env)
	}{
		{"create, write, read", testReadWrite},
		{"read at and behind the end", testReadEnd},
		{"write leaves a gap of zeros", testGap},
		{"truncate down and up", testTruncate},
		{"handles share one file", testSharedHandles},
		{"read-only handle", testReadOnly},
		{"closed handle", testClosed},
		{"create and open errors", testOpenErrors},
		{"remove", testRemove},
		{"removed file stays readable", testRemovedStaysOpen},
		{"remove all", testRemoveAll},
		{"rename replaces", testRename},
		{"rename a directory", testRenameDir},
		{"rename errors", testRenameErrors},
		{"directories", testDirs},
		{"stat", testStat},
		{"sync", testSync},
		{"lock", testLock},
		{"volume and usage", testVolume},
		{"concurrent use", testConcurrent},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fsys, dir := open(t)
			c.run(&env{T: t, FS: fsys, dir: dir})
		})
	}
}

// env is one case's file system with checks that end the test.
type env struct {
	*testing.T
	vfs.FS
	dir string
}

func (e *env) path(parts ...string) string {
	return filepath.Join(append([]string{e.dir}, parts...)...)
}

func (e *env) ok(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) is(err, target error) {
	e.Helper()
	if !errors.Is(err, target) {
		e.Fatalf("got error %v, want %v", err, target)
	}
}

func (e *env) fails(err error) {
	e.Helper()
	if err == nil {
		e.Fatal("got no error, want one")
	}
}

func (e *env) create(name, content string) vfs.File {
	e.Helper()
	f, err := e.Create(name)
	e.ok(err)
	e.write(f, content, 0)
	e.Cleanup(func() { _ = f.Close() })
	return f
}

func (e *env) write(f vfs.File, content string, off int64) {
	e.Helper()
	n, err := f.WriteAt([]byte(content), off)
	e.ok(err)
	if n != len(content) {
		e.Fatalf("wrote %d bytes, want %d", n, len(content))
	}
}

func (e *env) content(f vfs.File, want string) {
	e.Helper()
	size, err := f.Size()
	e.ok(err)
	got := make([]byte, size)
	if n, err := f.ReadAt(got, 0); int64(n) != size || (err != nil && !errors.Is(err, io.EOF)) {
		e.Fatalf("read %d of %d bytes: %v", n, size, err)
	}
	if string(got) != want {
		e.Fatalf("content is %q, want %q", got, want)
	}
}

func (e *env) holds(name, want string) {
	e.Helper()
	f, err := e.Open(name)
	e.ok(err)
	e.content(f, want)
	e.ok(f.Close())
}

func (e *env) names(dir string, want ...string) {
	e.Helper()
	list, err := e.ReadDir(dir)
	e.ok(err)
	got := make([]string, 0, len(list))
	for _, entry := range list {
		got = append(got, entry.Name)
	}
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		e.Fatalf("directory %s (-want +got):\n%s", dir, diff)
	}
}

func testReadWrite(e *env) {
	f := e.create(e.path("f"), "hello")
	if f.Name() != e.path("f") {
		e.Fatalf("name is %q", f.Name())
	}
	e.write(f, "J", 0)
	e.write(f, " world", 5)
	e.content(f, "Jello world")
	part := make([]byte, 3)
	n, err := f.ReadAt(part, 6)
	if n != 3 || err != nil || string(part) != "wor" {
		e.Fatalf("got %d bytes %q, error %v", n, part, err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	e.write(f, string(big), 3)
	e.content(f, "Jel"+string(big))
	if n, err := f.WriteAt(nil, 1<<20); n != 0 || err != nil {
		e.Fatalf("empty write: %d, %v", n, err)
	}
	e.content(f, "Jel"+string(big)) // an empty write extends nothing
}

func testReadEnd(e *env) {
	f := e.create(e.path("f"), "abc")
	buf := make([]byte, 4)
	n, err := f.ReadAt(buf, 1)
	if n != 2 {
		e.Fatalf("read %d bytes, want 2", n)
	}
	e.is(err, io.EOF)
	for _, off := range []int64{3, 100} {
		n, err = f.ReadAt(buf, off)
		if n != 0 {
			e.Fatalf("read %d bytes at %d, want none", n, off)
		}
		e.is(err, io.EOF)
	}
	_, err = f.ReadAt(buf, -1)
	e.fails(err)
	_, err = f.WriteAt(buf, -1)
	e.fails(err)
}

func testGap(e *env) {
	f := e.create(e.path("f"), "ab")
	e.write(f, "z", 9000)
	e.content(f, "ab"+string(make([]byte, 8998))+"z")
}

func testTruncate(e *env) {
	f := e.create(e.path("f"), "abcdef")
	e.ok(f.Truncate(2))
	e.content(f, "ab")
	e.ok(f.Truncate(4))
	e.content(f, "ab\x00\x00")
	e.write(f, "x", 5)
	e.content(f, "ab\x00\x00\x00x")
	long := bytes.Repeat([]byte("x"), 20_000)
	e.write(f, string(long), 0)
	e.ok(f.Truncate(5000))
	e.write(f, "y", 12_000)
	e.content(f, string(long[:5000])+string(make([]byte, 7000))+"y")
	e.ok(f.Truncate(0))
	e.content(f, "")
	e.fails(f.Truncate(-1))
}

func testSharedHandles(e *env) {
	f := e.create(e.path("f"), "abc")
	g, err := e.OpenRW(e.path("f"))
	e.ok(err)
	e.write(g, "X", 1)
	e.content(f, "aXc")
	e.ok(g.Close())
	e.content(f, "aXc")
}

func testReadOnly(e *env) {
	e.create(e.path("f"), "abc")
	f, err := e.Open(e.path("f"))
	e.ok(err)
	_, err = f.WriteAt([]byte("x"), 0)
	e.fails(err)
	e.fails(f.Truncate(0))
	e.content(f, "abc")
	e.ok(f.Sync())
	e.ok(f.Close())
}

func testClosed(e *env) {
	f := e.create(e.path("f"), "abc")
	e.ok(f.Close())
	e.is(f.Close(), fs.ErrClosed)
	_, err := f.ReadAt(make([]byte, 1), 0)
	e.is(err, fs.ErrClosed)
	_, err = f.WriteAt(make([]byte, 1), 0)
	e.is(err, fs.ErrClosed)
	_, err = f.Size()
	e.is(err, fs.ErrClosed)
	e.is(f.Truncate(0), fs.ErrClosed)
	e.is(f.Sync(), fs.ErrClosed)
	e.is(f.StartWriteback(0, 1), fs.ErrClosed)
	e.holds(e.path("f"), "abc")
}

func testOpenErrors(e *env) {
	e.create(e.path("f"), "abc")
	e.ok(e.MkdirAll(e.path("d")))
	_, err := e.Create(e.path("f"))
	e.is(err, fs.ErrExist)
	_, err = e.Create(e.path("d"))
	e.is(err, fs.ErrExist)
	_, err = e.Create(e.path("none", "f"))
	e.is(err, fs.ErrNotExist)
	_, err = e.Create(e.path("f", "g"))
	e.fails(err)
	_, err = e.Open(e.path("none"))
	e.is(err, fs.ErrNotExist)
	_, err = e.OpenRW(e.path("none"))
	e.is(err, fs.ErrNotExist)
	_, err = e.Open(e.path("d"))
	e.fails(err)
	_, err = e.OpenRW(e.path("d"))
	e.fails(err)
	e.holds(e.path("f"), "abc")
}

func testRemove(e *env) {
	e.create(e.path("f"), "abc")
	e.ok(e.MkdirAll(e.path("d")))
	e.create(e.path("d", "g"), "")
	e.ok(e.Remove(e.path("f")))
	e.is(e.Remove(e.path("f")), fs.ErrNotExist)
	_, err := e.Open(e.path("f"))
	e.is(err, fs.ErrNotExist)
	e.fails(e.Remove(e.path("d"))) // not empty
	e.ok(e.Remove(e.path("d", "g")))
	e.ok(e.Remove(e.path("d")))
	e.names(e.dir)
	e.create(e.path("f"), "new")
	e.holds(e.path("f"), "new")
}

func testRemovedStaysOpen(e *env) {
	f := e.create(e.path("f"), "abc")
	g := e.create(e.path("g"), "replaced")
	e.create(e.path("h"), "new")
	e.ok(e.Remove(e.path("f")))
	e.ok(e.Rename(e.path("h"), e.path("g")))
	e.content(f, "abc")
	e.content(g, "replaced")
	e.write(f, "X", 0)
	e.ok(f.Sync())
	e.content(f, "Xbc")
	e.create(e.path("f"), "other")
	e.content(f, "Xbc")
	e.holds(e.path("f"), "other")
	e.holds(e.path("g"), "new")
}

func testRemoveAll(e *env) {
	e.ok(e.MkdirAll(e.path("d", "e")))
	e.create(e.path("d", "f"), "1")
	e.create(e.path("d", "e", "g"), "2")
	e.create(e.path("h"), "3")
	e.ok(e.RemoveAll(e.path("d")))
	e.ok(e.RemoveAll(e.path("d")))
	e.names(e.dir, "h")
	e.ok(e.RemoveAll(e.path("h")))
	e.names(e.dir)
}

func testRename(e *env) {
	e.ok(e.MkdirAll(e.path("d")))
	f := e.create(e.path("f"), "new")
	e.create(e.path("g"), "old")
	e.ok(e.Rename(e.path("f"), e.path("g")))
	e.names(e.dir, "d", "g")
	e.holds(e.path("g"), "new")
	e.ok(e.Rename(e.path("g"), e.path("g")))
	e.holds(e.path("g"), "new")
	e.ok(e.Rename(e.path("g"), e.path("d", "x")))
	e.names(e.dir, "d")
	e.write(f, "NEW", 0) // the handle follows the file
	e.holds(e.path("d", "x"), "NEW")
}

func testRenameDir(e *env) {
	e.ok(e.MkdirAll(e.path("a", "b")))
	e.create(e.path("a", "b", "f"), "1")
	e.ok(e.MkdirAll(e.path("z")))
	e.ok(e.Rename(e.path("a", "b"), e.path("z", "c")))
	e.names(e.path("a"))
	e.names(e.path("z"), "c")
	e.holds(e.path("z", "c", "f"), "1")
}

func testRenameErrors(e *env) {
	e.ok(e.MkdirAll(e.path("d", "sub")))
	e.ok(e.MkdirAll(e.path("empty")))
	e.create(e.path("f"), "1")
	e.is(e.Rename(e.path("none"), e.path("x")), fs.ErrNotExist)
	e.is(e.Rename(e.path("f"), e.path("none", "x")), fs.ErrNotExist)
	e.fails(e.Rename(e.path("f"), e.path("d")))                // file over directory
	e.fails(e.Rename(e.path("empty"), e.path("f")))            // directory over file
	e.fails(e.Rename(e.path("empty"), e.path("d")))            // over a directory
	e.fails(e.Rename(e.path("d"), e.path("d", "sub", "deep"))) // into itself
	e.names(e.dir, "d", "empty", "f")
	e.names(e.path("d"), "sub")
}

func testDirs(e *env) {
	e.ok(e.MkdirAll(e.path("b", "c")))
	e.ok(e.MkdirAll(e.path("b", "c")))
	e.create(e.path("b", "z"), "12")
	e.create(e.path("b", "a"), "1")
	list, err := e.ReadDir(e.path("b"))
	e.ok(err)
	want := []vfs.DirEntry{{Name: "a", Size: 1}, {Name: "c", IsDir: true}, {Name: "z", Size: 2}}
	if diff := cmp.Diff(want, list); diff != "" {
		e.Fatalf("listing (-want +got):\n%s", diff)
	}
	e.fails(e.MkdirAll(e.path("b", "a")))
	e.fails(e.MkdirAll(e.path("b", "a", "x")))
	_, err = e.ReadDir(e.path("none"))
	e.is(err, fs.ErrNotExist)
	_, err = e.ReadDir(e.path("b", "a"))
	e.fails(err)
	e.ok(e.SyncDir(e.path("b")))
	e.is(e.SyncDir(e.path("none")), fs.ErrNotExist)
	e.fails(e.SyncDir(e.path("b", "a")))
}

func testStat(e *env) {
	e.ok(e.MkdirAll(e.path("d")))
	e.create(e.path("d", "f"), "123")
	info, err := e.Stat(e.path("d", "f"))
	e.ok(err)
	if info.Name != "f" || info.Size != 3 || info.IsDir || info.ModTime.IsZero() {
		e.Fatalf("file: %+v", info)
	}
	info, err = e.Stat(e.path("d"))
	e.ok(err)
	if info.Name != "d" || info.Size != 0 || !info.IsDir {
		e.Fatalf("directory: %+v", info)
	}
	_, err = e.Stat(e.path("none"))
	e.is(err, fs.ErrNotExist)
	_, err = e.Stat(e.path("d", "f", "x"))
	e.fails(err)
}

func testSync(e *env) {
	f := e.create(e.path("f"), "abc")
	e.ok(f.StartWriteback(0, 3))
	e.ok(f.Sync())
	e.ok(e.SyncDir(e.dir))
	e.write(f, "def", 3)
	e.ok(f.Sync())
	e.ok(f.Truncate(4))
	e.ok(f.Sync())
	e.ok(f.Close())
	e.holds(e.path("f"), "abcd")
	e.ok(e.Rename(e.path("f"), e.path("g")))
	e.ok(e.SyncDir(e.dir))
	e.holds(e.path("g"), "abcd")
	e.ok(e.Remove(e.path("g")))
	e.ok(e.SyncDir(e.dir))
	e.names(e.dir)
}

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
