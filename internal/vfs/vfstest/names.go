package vfstest

import (
	"io/fs"

	"github.com/google/go-cmp/cmp"

	"runnel.dev/runnel/internal/vfs"
)

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
