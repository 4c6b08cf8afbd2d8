package file_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/tiering/objectstore"
	"runnel.dev/runnel/tiering/objectstore/file"
)

// crash is a way of losing power.
type crash struct {
	name  string
	clone func(*memfs.Mem) *memfs.Mem
}

// crashes are the strictest loss of power, several random ones, and the death
// of the process alone.
func crashes() []crash {
	all := []crash{
		{"strict", (*memfs.Mem).StrictCrashClone},
		{"process only", func(m *memfs.Mem) *memfs.Mem { return m }},
	}
	for seed := range uint64(8) {
		all = append(all, crash{fmt.Sprintf("random %d", seed), func(m *memfs.Mem) *memfs.Mem {
			return m.CrashClone(rand.New(rand.NewPCG(seed, 1)))
		}})
	}
	return all
}

// crashAtEvery runs change on a store that holds the given objects and crashes
// at each change of the disk in turn, in each way; check gets what is left, and
// what the call returned.
func crashAtEvery(t *testing.T, objects map[string]string, change func(*file.Store) error, check func(t *testing.T, s *file.Store, returned error)) {
	t.Helper()
	for _, c := range crashes() {
		steps := 0
		for k := int64(1); ; k++ {
			disk := memfs.New()
			fsys := errorfs.Wrap(disk, nil)
			s := open(t, fsys, root)
			for key, data := range objects {
				ok(t, put(t.Context(), s, key, data, objectstore.Unconditional))
			}
			fsys.CrashAt(fsys.Mutations() + k)
			returned := change(s)
			crashed := fsys.Crashed()
			fsys.Crash()
			_ = s.Close()
			t.Run(fmt.Sprintf("%s at %d", c.name, k), func(t *testing.T) {
				after := c.clone(disk)
				s := open(t, after, root)
				if left := leftOvers(t, after); len(left) != 0 {
					t.Fatalf("left over: %q", left)
				}
				check(t, s, returned)
				// And it goes on.
				ok(t, put(t.Context(), s, "key/more", "more", objectstore.Unconditional))
				ok(t, s.Close())
				again := open(t, after.StrictCrashClone(), root)
				if got, err := get(t, again, "key/more"); err != nil || got != "more" {
					t.Fatalf("after the crash: %q, %v", got, err)
				}
			})
			if !crashed {
				if returned != nil {
					t.Fatalf("nothing crashed: %v", returned)
				}
				break
			}
			steps++
		}
		if steps < 2 {
			t.Fatalf("crashed at %d steps only", steps)
		}
	}
}

var big = func() string {
	b := make([]byte, 5000)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return string(b)
}()

func TestCrashDuringReplace(t *testing.T) {
	crashAtEvery(t, map[string]string{"a/b/key": "old"},
		func(s *file.Store) error { return put(t.Context(), s, "a/b/key", big, objectstore.Unconditional) },
		func(t *testing.T, s *file.Store, returned error) {
			got, err := get(t, s, "a/b/key")
			if err != nil || got != big && (got != "old" || returned == nil) {
				t.Fatalf("object has %d bytes, %v; put returned %v", len(got), err, returned)
			}
		})
}

func TestCrashDuringCreate(t *testing.T) {
	for _, p := range []objectstore.Precondition{objectstore.Unconditional, objectstore.IfNoneMatch} {
		crashAtEvery(t, nil,
			func(s *file.Store) error { return put(t.Context(), s, "a/b/key", big, p) },
			func(t *testing.T, s *file.Store, returned error) {
				got, err := get(t, s, "a/b/key")
				absent := errors.Is(err, objectstore.ErrNotFound)
				if absent && returned == nil || !absent && (err != nil || got != big) {
					t.Fatalf("object has %d bytes, %v; put returned %v", len(got), err, returned)
				}
				// The next one that creates it is told the truth.
				err = put(t.Context(), s, "a/b/key", "next", objectstore.IfNoneMatch)
				if absent != (err == nil) || !absent && !errors.Is(err, objectstore.ErrPreconditionFailed) {
					t.Fatalf("absent: %v, put: %v", absent, err)
				}
			})
	}
}

func TestCrashDuringDelete(t *testing.T) {
	crashAtEvery(t, map[string]string{"a/1": "1", "a/2": "2", "b/3": "3"},
		func(s *file.Store) error {
			_, err := s.Delete(t.Context(), []string{"a/1", "b/3", "never/there"})
			return err
		},
		func(t *testing.T, s *file.Store, returned error) {
			for key, data := range map[string]string{"a/1": "1", "b/3": "3"} {
				got, err := get(t, s, key)
				gone := errors.Is(err, objectstore.ErrNotFound)
				if !gone && (returned == nil || err != nil || got != data) {
					t.Fatalf("%q: %q, %v; delete returned %v", key, got, err, returned)
				}
			}
			if got, err := get(t, s, "a/2"); err != nil || got != "2" {
				t.Fatalf("a/2: %q, %v", got, err)
			}
		})
}

func TestCrashDuringOpen(t *testing.T) {
	for _, c := range crashes() {
		for k := int64(1); ; k++ {
			disk := memfs.New()
			fsys := errorfs.Wrap(disk, nil)
			fsys.CrashAt(k)
			s, err := file.Open(t.Context(), file.Config{FS: fsys, Root: root, Clock: clock.System()})
			crashed := fsys.Crashed()
			if crashed == (err == nil) {
				t.Fatalf("crash at %d: %v", k, err)
			}
			fsys.Crash()
			if err == nil {
				_ = s.Close()
			}
			s = open(t, c.clone(disk), root)
			ok(t, put(t.Context(), s, "key", "data", objectstore.IfNoneMatch))
			if !crashed {
				break
			}
		}
	}
}

// What Head and a refused precondition say of an object still holds after a
// loss of power, even if the put that wrote it died before its last sync.
func TestAnswersAreDurable(t *testing.T) {
	for name, ask := range map[string]func(s *file.Store) error{
		"head": func(s *file.Store) error {
			_, err := s.Head(t.Context(), "a/key")
			return err
		},
		"precondition": func(s *file.Store) error {
			err := put(t.Context(), s, "a/key", "other", objectstore.IfNoneMatch)
			if errors.Is(err, objectstore.ErrPreconditionFailed) {
				return nil // there is one
			}
			return errors.Join(objectstore.ErrNotFound, err)
		},
	} {
		answered := 0
		for k := int64(1); ; k++ {
			disk := memfs.New()
			fsys := errorfs.Wrap(disk, nil)
			dying := open(t, fsys, root)
			fsys.CrashAt(fsys.Mutations() + k)
			err := put(t.Context(), dying, "a/key", "data", objectstore.Unconditional)
			_ = dying.Close()
			if ask(open(t, disk, root)) == nil {
				answered++
				after := open(t, disk.StrictCrashClone(), root)
				if got, err := get(t, after, "a/key"); err != nil || got != "data" {
					t.Fatalf("%s after a crash at %d: %q, %v", name, k, got, err)
				}
			}
			if err == nil {
				break
			}
		}
		if answered < 2 {
			t.Fatalf("%s: only %d puts left an object behind", name, answered)
		}
	}
}

// All directories on the way to an object are durable before it is there, those
// too that another process has made and not synced. (The file system in memory
// makes them durable with the rename, as some real ones do.)
func TestDirectoriesAreSyncedFirst(t *testing.T) {
	disk := memfs.New()
	fsys := errorfs.Wrap(disk, nil)
	s := open(t, fsys, root)
	ok(t, disk.MkdirAll(root+"/objects/+a"))
	var synced []string
	renamed := false
	fsys.SetInjector(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.SyncDir:
			synced = append(synced, op.Name)
		case errorfs.Rename:
			renamed = true
			for _, dir := range []string{root + "/objects", root + "/objects/+a"} {
				if !slices.Contains(synced, dir) {
					t.Errorf("%s was not synced before the rename", dir)
				}
			}
			synced = nil
		default:
		}
		return nil
	})
	ok(t, put(t.Context(), s, "a/b/key", "data", objectstore.Unconditional))
	if want := []string{root + "/objects/+a/+b"}; !renamed || !slices.Equal(synced, want) {
		t.Fatalf("after the rename synced %q, want %q", synced, want)
	}
}

// A sync of a directory that failed is never made up for by a later one.
func TestFailedDirectorySync(t *testing.T) {
	disk := memfs.New()
	fsys := errorfs.Wrap(disk, nil)
	s := open(t, fsys, root)
	ok(t, put(t.Context(), s, "a/key", "data", objectstore.Unconditional))
	fsys.SetInjector(errorfs.FailNth(errorfs.SyncDir, 1, syscall.EIO))
	for range 2 {
		if err := put(t.Context(), s, "a/other", "data", objectstore.IfNoneMatch); !errors.Is(err, objectstore.ErrUnavailable) || !vfs.IsIO(err) {
			t.Fatal(err)
		}
		if _, err := s.Head(t.Context(), "a/other"); !errors.Is(err, objectstore.ErrUnavailable) {
			t.Fatal(err)
		}
		if _, err := s.Delete(t.Context(), []string{"a/key"}); !errors.Is(err, objectstore.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	if got, err := get(t, s, "a/key"); err != nil || got != "data" {
		t.Fatalf("reads go on: %q, %v", got, err)
	}
}

// An error of the disk at any step is reported as one that may pass, and leaves
// nothing in tmp; the next attempt succeeds.
func TestDiskErrors(t *testing.T) {
	for _, kind := range []errorfs.Kind{errorfs.Create, errorfs.Write, errorfs.Sync, errorfs.Rename, errorfs.MkdirAll, errorfs.Lock, errorfs.Stat} {
		for cause, class := range map[error]error{
			syscall.ENOSPC: objectstore.ErrUnavailable, syscall.EIO: objectstore.ErrUnavailable,
			syscall.EROFS: objectstore.ErrDenied, syscall.EACCES: objectstore.ErrDenied,
		} {
			disk := memfs.New()
			fsys := errorfs.Wrap(disk, nil)
			s := open(t, fsys, root)
			fsys.SetInjector(errorfs.FailNth(kind, 1, cause))
			err := put(t.Context(), s, "a/key", big, objectstore.IfNoneMatch)
			if !errors.Is(err, class) || !errors.Is(err, cause) {
				t.Fatalf("%v fails with %v: %v", kind, cause, err)
			}
			if left := leftOvers(t, disk); len(left) != 0 {
				t.Fatalf("%v: left over: %q", kind, left)
			}
			ok(t, put(t.Context(), s, "a/key", big, objectstore.IfNoneMatch))
		}
	}
	fsys := errorfs.Wrap(memfs.New(), nil)
	s := open(t, fsys, root)
	ok(t, put(t.Context(), s, "a/key", big, objectstore.Unconditional))
	for _, kind := range []errorfs.Kind{errorfs.Open, errorfs.Read, errorfs.Size, errorfs.Stat} {
		fsys.SetInjector(errorfs.FailAll(syscall.EIO, kind))
		if _, err := get(t, s, "a/key"); !errors.Is(err, objectstore.ErrUnavailable) {
			t.Fatalf("get, %v fails: %v", kind, err)
		}
	}
	fsys.SetInjector(errorfs.FailNth(errorfs.Read, 2, syscall.EIO)) // of the body
	if _, err := get(t, s, "a/key"); !objectstore.Retriable(err) {
		t.Fatalf("body: %v", err)
	}
	fsys.SetInjector(errorfs.FailAll(syscall.EIO, errorfs.ReadDir))
	if _, err := s.List(t.Context(), objectstore.ListRequest{}); !objectstore.Retriable(err) {
		t.Fatalf("list: %v", err)
	}
	fsys.SetInjector(errorfs.FailAll(syscall.EIO, errorfs.Remove))
	results, err := s.Delete(t.Context(), []string{"a/key"})
	if !objectstore.Retriable(err) || len(results) != 1 || !objectstore.Retriable(results[0].Err) {
		t.Fatalf("delete: %v", err)
	}
}
