package dropfs_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/dropfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/internal/vfs/vfstest"
)

func TestConformance(t *testing.T) {
	vfstest.Conformance(t, func(t *testing.T) (vfs.FS, string) {
		dir := t.TempDir()
		return open(t, dir), dir
	})
}

func TestConformanceInSubdirectory(t *testing.T) {
	vfstest.Conformance(t, func(t *testing.T) (vfs.FS, string) {
		dir := t.TempDir()
		fsys := open(t, dir)
		ok(t, fsys.MkdirAll(filepath.Join(dir, "a", "b")))
		return fsys, filepath.Join(dir, "a", "b")
	})
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) vfs.FS {
	t.Helper()
	fsys, err := dropfs.New(dir)
	ok(t, err)
	return fsys
}

// walk returns the content of every file below dir, and "/" for a directory.
func walk(t testing.TB, fsys vfs.FS, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	var visit func(rel string)
	visit = func(rel string) {
		list, err := fsys.ReadDir(filepath.Join(dir, rel))
		ok(t, err)
		for _, e := range list {
			name := path.Join(rel, e.Name)
			if e.IsDir {
				files[name] = "/"
				visit(name)
				continue
			}
			f, err := fsys.Open(filepath.Join(dir, name))
			ok(t, err)
			buf := make([]byte, e.Size)
			if _, err := f.ReadAt(buf, 0); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			ok(t, f.Close())
			files[name] = string(buf)
		}
	}
	visit("")
	return files
}

func TestOutsideOfRoot(t *testing.T) {
	dir := t.TempDir()
	fsys := open(t, filepath.Join(dir, "root"))
	for name, err := range map[string]error{
		"mkdir":  fsys.MkdirAll(filepath.Join(dir, "x")),
		"rename": fsys.Rename(filepath.Join(dir, "root", "a"), filepath.Join(dir, "rootless")),
		"remove": fsys.Remove("/etc/none"),
	} {
		if !errors.Is(err, dropfs.ErrOutside) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := fsys.Create(filepath.Join(dir, "root", "..", "x")); !errors.Is(err, dropfs.ErrOutside) {
		t.Errorf("create: %v", err)
	}
}

// The disk below dropfs always holds what a strict crash clone of memfs holds
// after the same operations, and dropfs itself shows what memfs shows.
func TestDiskEqualsStrictClone(t *testing.T) {
	base := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir := filepath.Join(base, fmt.Sprintf("run%d", rapid.Uint64().Draw(rt, "run")))
		defer func() { ok(t, vfs.OS().RemoveAll(dir)) }()
		fsys, mem := open(t, dir), memfs.New()
		both := func(do func(fsys vfs.FS, at func(string) string) error) {
			errDrop := do(fsys, func(name string) string { return filepath.Join(dir, name) })
			errMem := do(mem, func(name string) string { return name })
			if (errDrop == nil) != (errMem == nil) {
				rt.Fatalf("dropfs: %v, memfs: %v", errDrop, errMem)
			}
		}
		dirs := []string{"/", "/a", "/b", "/a/c"}
		both(func(fsys vfs.FS, at func(string) string) error {
			return errors.Join(fsys.MkdirAll(at("/a/c")), fsys.MkdirAll(at("/b")),
				fsys.SyncDir(at("/")), fsys.SyncDir(at("/a")))
		})
		name := func() string {
			return path.Join(rapid.SampledFrom(dirs).Draw(rt, "dir"), rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "name"))
		}
		onFile := func(do func(f vfs.File) error) {
			n := name()
			both(func(fsys vfs.FS, at func(string) string) error {
				f, err := fsys.OpenRW(at(n))
				if err != nil {
					return err
				}
				return errors.Join(do(f), f.Close())
			})
		}
		rt.Repeat(map[string]func(*rapid.T){
			"create": func(*rapid.T) {
				n := name()
				both(func(fsys vfs.FS, at func(string) string) error {
					f, err := fsys.Create(at(n))
					if err != nil {
						return err
					}
					return f.Close()
				})
			},
			"write": func(*rapid.T) {
				off := rapid.Int64Range(0, 9000).Draw(rt, "off")
				p := rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(rt, "bytes")
				for range rapid.IntRange(0, 9).Draw(rt, "doublings") {
					p = append(p, p...)
				}
				onFile(func(f vfs.File) error { _, err := f.WriteAt(p, off); return err })
			},
			"truncate": func(*rapid.T) {
				size := rapid.Int64Range(0, 12_000).Draw(rt, "size")
				onFile(func(f vfs.File) error { return f.Truncate(size) })
			},
			"sync": func(*rapid.T) { onFile(vfs.File.Sync) },
			"remove": func(*rapid.T) {
				n := name()
				both(func(fsys vfs.FS, at func(string) string) error { return fsys.Remove(at(n)) })
			},
			"rename": func(*rapid.T) {
				from, to := name(), name()
				both(func(fsys vfs.FS, at func(string) string) error { return fsys.Rename(at(from), at(to)) })
			},
			"syncdir": func(*rapid.T) {
				d := rapid.SampledFrom(dirs).Draw(rt, "dir")
				both(func(fsys vfs.FS, at func(string) string) error { return fsys.SyncDir(at(d)) })
			},
			"syncvolume": func(*rapid.T) {
				both(func(fsys vfs.FS, at func(string) string) error {
					v, err := fsys.OpenVolume(at("/"))
					if err != nil {
						return err
					}
					return errors.Join(v.Sync(), v.Close())
				})
			},
			"": func(*rapid.T) {
				if diff := cmp.Diff(walk(t, mem, "/"), walk(t, fsys, dir)); diff != "" {
					rt.Fatalf("seen by the process (-memfs +dropfs):\n%s", diff)
				}
				if diff := cmp.Diff(walk(t, mem.StrictCrashClone(), "/"), walk(t, vfs.OS(), dir)); diff != "" {
					rt.Fatalf("durable (-memfs +disk):\n%s", diff)
				}
			},
		})
	})
}

// Opening the root again in the same process is what a restart does, but for
// the kill: a new dropfs sees what the first one synced.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	first := open(t, dir)
	f, err := first.Create(filepath.Join(dir, "f"))
	ok(t, err)
	_, err = f.WriteAt([]byte("synced"), 0)
	ok(t, err)
	ok(t, f.Sync())
	if got := walk(t, open(t, dir), dir); len(got) != 0 {
		t.Errorf("a file without a durable name is there: %v", got)
	}
	ok(t, first.SyncDir(dir))
	_, err = f.WriteAt([]byte(" and lost"), 6)
	ok(t, err)
	want := map[string]string{"f": "synced"}
	if got := walk(t, open(t, dir), dir); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	ok(t, f.Close())
}
