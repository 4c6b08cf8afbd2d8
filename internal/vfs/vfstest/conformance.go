// Package vfstest holds the behaviour that every vfs.FS has to show, as one
// table. What a power failure may undo is not in it: a test on the operating
// system's file system could not see that.
package vfstest

import (
	"errors"
	"io"
	"path/filepath"
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
		{"truncate a synced file", testTruncateSynced},
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
