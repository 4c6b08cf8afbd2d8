package errorfs_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/internal/vfs/vfstest"
)

func TestConformance(t *testing.T) {
	vfstest.Conformance(t, func(*testing.T) (vfs.FS, string) { return errorfs.Wrap(memfs.New(), nil), "/" })
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	f, err := fsys.Open(name)
	ok(t, err)
	size, err := f.Size()
	ok(t, err)
	buf := make([]byte, size)
	if _, err := f.ReadAt(buf, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	ok(t, f.Close())
	return string(buf)
}

// steps does every operation once, in the order of the kinds below.
func steps(fsys vfs.FS) error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	add(fsys.MkdirAll("/d"))
	f, err := fsys.Create("/d/f")
	add(err)
	if err == nil {
		_, err = f.WriteAt([]byte("abc"), 1)
		add(err)
		add(f.Truncate(2))
		add(f.Sync())
		_, err = f.ReadAt(make([]byte, 2), 0)
		add(err)
		_, err = f.Size()
		add(err)
		add(f.StartWriteback(0, 2))
		add(f.Close())
	}
	add(fsys.Rename("/d/f", "/d/g"))
	add(fsys.SyncDir("/d"))
	if f, err = fsys.Open("/d/g"); err == nil {
		add(f.Close())
	}
	add(err)
	if f, err = fsys.OpenRW("/d/g"); err == nil {
		add(f.Close())
	}
	add(err)
	_, err = fsys.ReadDir("/d")
	add(err)
	_, err = fsys.Stat("/d")
	add(err)
	_, err = fsys.DiskUsage("/d")
	add(err)
	_, _, err = fsys.FileSystem("/d")
	add(err)
	if v, err := fsys.OpenVolume("/d"); err == nil {
		add(v.Sync())
		add(v.Close())
	} else {
		add(err)
	}
	if lock, err := fsys.Lock("/d/lock"); err == nil {
		add(lock.Close())
	} else {
		add(err)
	}
	add(fsys.Remove("/d/g"))
	add(fsys.RemoveAll("/d"))
	return errors.Join(errs...)
}

func TestInjectorSeesEveryOperation(t *testing.T) {
	var got []string
	fsys := errorfs.Wrap(memfs.New(), func(op errorfs.Op) error {
		got = append(got, op.String())
		return nil
	})
	ok(t, steps(fsys))
	want := []string{
		"#1 mkdir all /d", "#2 create /d/f", "#3 write /d/f [1,+3]", "#4 truncate /d/f to 2", "#5 sync /d/f",
		"#5 read /d/f [0,+2]", "#5 size /d/f", "#5 start writeback /d/f [0,+2]", "#5 close /d/f",
		"#6 rename /d/f to /d/g", "#7 sync dir /d", "#7 open /d/g", "#7 close /d/g", "#7 open rw /d/g", "#7 close /d/g",
		"#7 read dir /d", "#7 stat /d", "#7 disk usage /d", "#7 file system /d", "#7 open volume /d", "#8 sync volume /d",
		"#8 close /d", "#9 lock /d/lock", "#10 remove /d/g", "#11 remove all /d",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if n := fsys.Mutations(); n != 11 {
		t.Errorf("%d mutations", n)
	}
}

func TestEveryKindFails(t *testing.T) {
	for kind := errorfs.Create; kind <= errorfs.Close; kind++ {
		fsys := errorfs.Wrap(memfs.New(), errorfs.FailAll(syscall.EIO, kind))
		if err := steps(fsys); !vfs.IsIO(err) {
			t.Errorf("%s: got %v", kind, err)
		}
	}
}

func TestFailsBeforeItBegins(t *testing.T) {
	disk := memfs.New()
	fsys := errorfs.Wrap(disk, errorfs.FailNth(errorfs.Write, 2, syscall.ENOSPC))
	f, err := fsys.Create("f")
	ok(t, err)
	_, err = f.WriteAt([]byte("one"), 0)
	ok(t, err)
	n, err := f.WriteAt([]byte("two"), 3)
	if n != 0 || !vfs.IsNoSpace(err) {
		t.Errorf("got %d, %v", n, err)
	}
	if got := content(t, disk, "f"); got != "one" {
		t.Errorf("file holds %q", got)
	}
	_, err = f.WriteAt([]byte("two"), 3) // only the second one fails
	ok(t, err)
	fsys.SetInjector(errorfs.FailAll(syscall.EROFS, errorfs.Write))
	if _, err = f.WriteAt([]byte("x"), 0); !vfs.IsReadOnly(err) {
		t.Errorf("got %v", err)
	}
	fsys.SetInjector(nil)
	_, err = f.WriteAt([]byte("O"), 0)
	ok(t, err)
	if got := content(t, disk, "f"); got != "Onetwo" {
		t.Errorf("file holds %q", got)
	}
}

func TestShortWrite(t *testing.T) {
	disk := memfs.New()
	fsys := errorfs.Wrap(disk, errorfs.FailNth(errorfs.Write, 1, errorfs.ShortWrite(2, syscall.ENOSPC)))
	f, err := fsys.Create("f")
	ok(t, err)
	n, err := f.WriteAt([]byte("abcd"), 0)
	if n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %d, %v", n, err)
	}
	if got := content(t, disk, "f"); got != "ab" {
		t.Errorf("file holds %q", got)
	}
	fsys.SetInjector(errorfs.FailAll(errorfs.ShortWrite(99, syscall.EIO), errorfs.Write, errorfs.Sync))
	if n, err := f.WriteAt([]byte("xyz"), 0); n != 3 || !vfs.IsIO(err) {
		t.Errorf("got %d, %v", n, err)
	}
	if err := f.Sync(); !vfs.IsIO(err) {
		t.Errorf("sync: %v", err)
	}
}

func TestFailsAfterItWasDone(t *testing.T) {
	disk := memfs.New()
	fsys := errorfs.Wrap(disk, errorfs.FailAll(errorfs.After(syscall.EIO), errorfs.Create, errorfs.Write, errorfs.Rename))
	if _, err := fsys.Create("f"); !vfs.IsIO(err) {
		t.Errorf("create: %v", err)
	}
	f, err := fsys.OpenRW("f")
	ok(t, err)
	if n, err := f.WriteAt([]byte("abc"), 0); n != 3 || !vfs.IsIO(err) {
		t.Errorf("write: %d, %v", n, err)
	}
	if err := fsys.Rename("f", "g"); !vfs.IsIO(err) {
		t.Errorf("rename: %v", err)
	}
	if got := content(t, disk, "g"); got != "abc" {
		t.Errorf("file holds %q", got)
	}
	if err := fsys.Rename("none", "x"); !errors.Is(err, syscall.ENOENT) { // its own failure
		t.Errorf("rename: %v", err)
	}
}

func TestLosePages(t *testing.T) {
	for _, kind := range []errorfs.Kind{errorfs.Sync, errorfs.VolumeSync} {
		disk := memfs.New()
		fsys := errorfs.Wrap(disk, errorfs.FailNth(kind, 1, errorfs.LosePages(syscall.EIO)))
		f, err := fsys.Create("f")
		ok(t, err)
		ok(t, fsys.SyncDir("/"))
		v, err := fsys.OpenVolume("/")
		ok(t, err)
		sync := f.Sync
		if kind == errorfs.VolumeSync {
			sync = v.Sync
		}
		_, err = f.WriteAt([]byte("abc"), 0)
		ok(t, err)
		if err := sync(); !vfs.IsIO(err) {
			t.Errorf("%s: %v", kind, err)
		}
		ok(t, sync()) // the retry succeeds
		if got := content(t, disk, "f"); got != "abc" {
			t.Errorf("%s: file holds %q", kind, got)
		}
		if got := content(t, disk.StrictCrashClone(), "f"); got != "" {
			t.Errorf("%s: strict clone holds %q", kind, got)
		}
	}
}

func TestCrashAt(t *testing.T) {
	const mutations = 11
	for k := int64(1); k <= mutations+1; k++ {
		disk := memfs.New()
		fsys := errorfs.Wrap(disk, nil)
		fsys.CrashAt(k)
		err := steps(fsys)
		if k > mutations {
			ok(t, err)
			if fsys.Crashed() {
				t.Error("crashed after the end")
			}
			continue
		}
		if !errors.Is(err, errorfs.ErrCrashed) || !fsys.Crashed() || fsys.Mutations() != k {
			t.Fatalf("crash at %d: %v, crashed %v, %d mutations", k, err, fsys.Crashed(), fsys.Mutations())
		}
		if _, err := fsys.Stat("/"); !errors.Is(err, errorfs.ErrCrashed) {
			t.Errorf("after the crash: %v", err)
		}
		_, err = disk.Stat("/d")
		if (err == nil) != (k > 1) { // the k-th change itself did not happen
			t.Errorf("crash at %d: %v", k, err)
		}
	}
	fsys := errorfs.Wrap(memfs.New(), nil)
	fsys.Crash()
	if err := fsys.MkdirAll("/x"); !errors.Is(err, errorfs.ErrCrashed) {
		t.Errorf("got %v", err)
	}
}

// An injector may hold one operation up while others go on.
func TestBlockingInjector(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	fsys := errorfs.Wrap(memfs.New(), func(op errorfs.Op) error {
		if op.Kind == errorfs.Sync {
			close(entered)
			<-release
		}
		return nil
	})
	f, err := fsys.Create("f")
	ok(t, err)
	var wg sync.WaitGroup
	var syncErr error
	wg.Go(func() { syncErr = f.Sync() })
	<-entered
	_, err = f.WriteAt([]byte("during the sync"), 0)
	ok(t, err)
	close(release)
	wg.Wait()
	ok(t, syncErr)
}
