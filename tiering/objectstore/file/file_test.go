package file_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/tiering/objectstore"
	"runnel.dev/runnel/tiering/objectstore/file"
	"runnel.dev/runnel/tiering/objectstore/storetest"
)

const root = "/data/objects"

func open(t testing.TB, fsys vfs.FS, root string) *file.Store {
	t.Helper()
	s, err := file.Open(t.Context(), file.Config{FS: fsys, Root: root, Clock: clock.System()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t testing.TB) objectstore.Store { return open(t, memfs.New(), root) })
}

func TestModel(t *testing.T) {
	storetest.RunModel(t, func(t testing.TB) objectstore.Store { return open(t, memfs.New(), root) })
}

func TestConformanceOnDisk(t *testing.T) {
	storetest.Run(t, func(t testing.TB) objectstore.Store {
		return open(t, vfs.OS(), filepath.Join(t.TempDir(), "a", "b"))
	})
}

func put(ctx context.Context, s objectstore.Store, key, data string, p objectstore.Precondition) error {
	_, err := s.Put(ctx, objectstore.PutRequest{
		Key: key, Body: strings.NewReader(data), Size: int64(len(data)), Precondition: p,
		Checksum: objectstore.ChecksumOf(objectstore.CRC32C, []byte(data)),
	})
	return err
}

func get(t testing.TB, s objectstore.Store, key string) (string, error) {
	t.Helper()
	body, _, err := s.Get(t.Context(), key, 0, objectstore.ToEnd)
	if err != nil {
		return "", err
	}
	data, err := io.ReadAll(body)
	return string(data), errors.Join(err, body.Close())
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// leftOvers lists what is in tmp apart from the marks of owners.
func leftOvers(t testing.TB, fsys vfs.FS) (names []string) {
	t.Helper()
	entries, err := fsys.ReadDir(filepath.Join(root, "tmp"))
	ok(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name, ".owner") {
			names = append(names, e.Name)
		}
	}
	return names
}

// Two stores on one directory are two processes: one creator wins, and opening
// the second does not take away what the first is writing.
func TestTwoProcesses(t *testing.T) {
	disk := memfs.New()
	a := open(t, disk, root)
	req := objectstore.PutRequest{
		Key: "slow", Size: 4, Checksum: objectstore.ChecksumOf(objectstore.CRC32C, []byte("data")),
		Body: hook{ReaderAt: strings.NewReader("data"), f: func() {
			if len(leftOvers(t, disk)) != 1 {
				t.Error("nothing is being written")
			}
			open(t, disk, root)
		}},
	}
	if _, err := a.Put(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	b := open(t, disk, root)
	if got, err := get(t, b, "slow"); err != nil || got != "data" {
		t.Fatalf("%q, %v", got, err)
	}
	for round := range 20 {
		key := fmt.Sprintf("race/%d", round)
		var wins atomic.Int64
		var group sync.WaitGroup
		for _, s := range []*file.Store{a, b, a, b} {
			group.Go(func() {
				switch err := put(t.Context(), s, key, "x", objectstore.IfNoneMatch); {
				case err == nil:
					wins.Add(1)
				case !errors.Is(err, objectstore.ErrPreconditionFailed):
					t.Error(err)
				}
			})
		}
		group.Wait()
		if wins.Load() != 1 {
			t.Fatalf("%d winners", wins.Load())
		}
	}
}

// hook calls f before the body is read.
type hook struct {
	io.ReaderAt
	f func()
}

func (h hook) ReadAt(p []byte, off int64) (int, error) {
	h.f()
	return h.ReaderAt.ReadAt(p, off)
}

// The commit of a put waits for another process that is committing the same
// key, as long as its context allows.
func TestWaitsForLock(t *testing.T) {
	disk := memfs.New()
	fake := clock.NewFake(time.Unix(0, 0))
	s, err := file.Open(t.Context(), file.Config{FS: disk, Root: root, Clock: fake})
	ok(t, err)
	var locks []io.Closer
	for n := range 16 {
		l, err := disk.Lock(fmt.Sprintf(root+"/locks/%02d", n))
		ok(t, err)
		locks = append(locks, l)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- put(ctx, s, "key", "data", objectstore.Unconditional) }()
	ok(t, fake.BlockUntil(t.Context(), 1))
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if left := leftOvers(t, disk); len(left) != 0 {
		t.Fatalf("left over: %q", left)
	}
	go func() { done <- put(t.Context(), s, "key", "data", objectstore.Unconditional) }()
	ok(t, fake.BlockUntil(t.Context(), 1))
	for _, l := range locks {
		ok(t, l.Close())
	}
	fake.Advance(time.Second)
	ok(t, <-done)
	ok(t, s.Close())
}

func TestClosed(t *testing.T) {
	s := open(t, memfs.New(), root)
	ok(t, put(t.Context(), s, "key", "data", objectstore.Unconditional))
	body, _, err := s.Get(t.Context(), "key", 0, objectstore.ToEnd)
	ok(t, err)
	ok(t, s.Close())
	ok(t, s.Close())
	if data, err := io.ReadAll(body); err != nil || string(data) != "data" {
		t.Fatalf("body of a closed store: %q, %v", data, err)
	}
	ok(t, body.Close())
	_, getErr := get(t, s, "key")
	_, deleteErr := s.Delete(t.Context(), []string{"key"})
	_, headErr := s.Head(t.Context(), "key")
	_, listErr := s.List(t.Context(), objectstore.ListRequest{})
	for _, err := range []error{put(t.Context(), s, "key", "", objectstore.Unconditional), getErr, deleteErr, headErr, listErr} {
		if !errors.Is(err, file.ErrClosed) {
			t.Errorf("call of a closed store: %v", err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	write := func(t *testing.T, disk *memfs.Mem, name, content string) {
		t.Helper()
		ok(t, disk.MkdirAll(root))
		f, err := disk.Create(filepath.Join(root, name))
		ok(t, err)
		_, err = f.WriteAt([]byte(content), 0)
		ok(t, errors.Join(err, f.Close()))
	}
	for name, test := range map[string]struct {
		file, content string
		want          any
	}{
		"somebody else's": {"letter.txt", "", new(*file.NotAStoreError)},
		"without layout":  {"objects", "", new(*file.NotAStoreError)},
		"a newer layout":  {"layout", "runnel-file-object-store 2\n", new(*file.FutureFormatError)},
		"no version":      {"layout", "runnel-file-object-store \n", new(*file.CorruptError)},
		"version 0":       {"layout", "runnel-file-object-store 0\n", new(*file.CorruptError)},
		"a damaged end":   {"layout", "runnel-file-object-store 1\n\n", new(*file.CorruptError)},
		"an empty layout": {"layout", "", new(*file.CorruptError)},
		"a long layout":   {"layout", strings.Repeat("runnel-file-object-store 1\n", 1000), new(*file.CorruptError)},
	} {
		t.Run(name, func(t *testing.T) {
			disk := memfs.New()
			write(t, disk, test.file, test.content)
			before := tree(t, disk)
			_, err := file.Open(t.Context(), file.Config{FS: disk, Root: root, Clock: clock.System()})
			if !errors.As(err, test.want) || !strings.Contains(err.Error(), root) {
				t.Fatalf("%v, want %T", err, test.want)
			}
			after := tree(t, disk)
			after = slices.DeleteFunc(after, func(name string) bool { return name == "lock" })
			if !slices.Equal(after, before) {
				t.Fatalf("there are %q, were %q", after, before)
			}
		})
	}
	t.Run("config", func(t *testing.T) {
		_, err := file.Open(t.Context(), file.Config{})
		for _, want := range []string{"file system", "root", "clock"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v does not mention the %s", err, want)
			}
		}
	})
	t.Run("a new volume", func(t *testing.T) {
		disk := memfs.New()
		ok(t, disk.MkdirAll(root+"/lost+found"))
		open(t, disk, root)
	})
}

func tree(t *testing.T, disk *memfs.Mem) (names []string) {
	t.Helper()
	entries, err := disk.ReadDir(root)
	ok(t, err)
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// Whatever else lies in the directories is neither listed nor touched.
func TestForeignFiles(t *testing.T) {
	disk := memfs.New()
	s := open(t, disk, root)
	ok(t, put(t.Context(), s, "a/b", "data", objectstore.Unconditional))
	for _, name := range []string{"letter", "+file", "=", "+", "=.", "=a\nb"} {
		f, err := disk.Create(filepath.Join(root, "objects", name))
		ok(t, err)
		ok(t, f.Close())
	}
	ok(t, disk.MkdirAll(root+"/objects/=dir"))
	ok(t, disk.MkdirAll(root+"/objects/+..")) // no key has such a segment
	page, err := s.List(t.Context(), objectstore.ListRequest{})
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != "a/b" {
		t.Fatalf("%+v, %v", page, err)
	}
}
