package memfs_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"path"
	"syscall"
	"testing"
	"time"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/internal/vfs/vfstest"
)

func TestConformance(t *testing.T) {
	vfstest.Conformance(t, func(t *testing.T) (vfs.FS, string) {
		m := memfs.New()
		ok(t, m.MkdirAll("/data"))
		return m, "/data"
	})
}

// A file system that came out of a crash is an ordinary one.
func TestConformanceOfClone(t *testing.T) {
	vfstest.Conformance(t, func(t *testing.T) (vfs.FS, string) {
		m := memfs.New()
		ok(t, m.MkdirAll("/data"))
		m.SyncAll()
		return m.CrashClone(rand.New(rand.NewPCG(1, 2))), "/data"
	})
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, m *memfs.Mem, name, content string) vfs.File {
	t.Helper()
	f, err := m.Create(name)
	ok(t, err)
	write(t, f, content, 0)
	return f
}

func write(t testing.TB, f vfs.File, content string, off int64) {
	t.Helper()
	_, err := f.WriteAt([]byte(content), off)
	ok(t, err)
}

// durable makes a file with content that survives anything.
func durable(t testing.TB, m *memfs.Mem, name, content string) vfs.File {
	t.Helper()
	f := create(t, m, name, content)
	ok(t, f.Sync())
	ok(t, m.SyncDir(path.Dir(name)))
	return f
}

const absent = "<absent>"

func read(t testing.TB, m *memfs.Mem, name string) string {
	t.Helper()
	f, err := m.Open(name)
	if errors.Is(err, syscall.ENOENT) {
		return absent
	}
	ok(t, err)
	size, err := f.Size()
	ok(t, err)
	buf := make([]byte, size)
	n, err := f.ReadAt(buf, 0)
	if int64(n) != size || (err != nil && !errors.Is(err, io.EOF)) {
		t.Fatalf("read %d of %d bytes: %v", n, size, err)
	}
	ok(t, f.Close())
	return string(buf)
}

// outcomes reads some files in many crash clones and counts the combinations.
func outcomes(t testing.TB, m *memfs.Mem, names ...string) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for seed := range uint64(400) {
		clone := m.CrashClone(rand.New(rand.NewPCG(seed, 7)))
		var key string
		for i, name := range names {
			if i > 0 {
				key += "|"
			}
			key += read(t, clone, name)
		}
		seen[key]++
	}
	return seen
}

// wantOutcomes checks that just these outcomes occur, each at least once.
func wantOutcomes(t *testing.T, got map[string]int, want ...string) {
	t.Helper()
	rest := map[string]bool{}
	for _, w := range want {
		rest[w] = true
		if got[w] == 0 {
			t.Errorf("never seen: %.200q", w)
		}
	}
	for g, n := range got {
		if !rest[g] {
			t.Errorf("seen %d times and not legal: %.200q", n, g)
		}
	}
}

func TestCapacity(t *testing.T) {
	m := memfs.NewWith(memfs.Options{Capacity: 10_000})
	f := create(t, m, "f", string(make([]byte, 6000)))
	n, err := f.WriteAt(make([]byte, 5000), 6000)
	if n != 4000 || !vfs.IsNoSpace(err) {
		t.Fatalf("wrote %d bytes, error %v", n, err)
	}
	if n, err := f.WriteAt(make([]byte, 5000), 100); n != 5000 || err != nil {
		t.Fatalf("overwrite on a full disk: %d, %v", n, err)
	}
	if n, err := f.WriteAt([]byte("x"), 20_000); n != 0 || !vfs.IsNoSpace(err) {
		t.Fatalf("wrote %d bytes, error %v", n, err)
	}
	if err := f.Truncate(10_001); !vfs.IsNoSpace(err) {
		t.Fatalf("extended: %v", err)
	}
	free := func(want int64) {
		t.Helper()
		usage, err := m.DiskUsage("/")
		ok(t, err)
		if usage.Free != want {
			t.Fatalf("%d bytes free, want %d", usage.Free, want)
		}
	}
	free(0)
	ok(t, f.Truncate(1000))
	free(9000)
	ok(t, m.Remove("f"))
	free(9000) // still open
	ok(t, f.Close())
	free(10_000)
	m.SetCapacity(3)
	f = create(t, m, "g", "abc")
	if _, err := f.WriteAt([]byte("d"), 3); !vfs.IsNoSpace(err) {
		t.Fatal(err)
	}
	m.SetCapacity(4)
	write(t, f, "d", 3)
	ok(t, f.Sync())
	ok(t, m.SyncDir("/"))
	usage, err := m.StrictCrashClone().DiskUsage("/")
	ok(t, err)
	if usage != (vfs.Usage{Total: 4, Free: 0}) {
		t.Fatalf("clone: %+v", usage)
	}
}

func TestOptions(t *testing.T) {
	now := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	c := clock.NewFake(now)
	m := memfs.NewWith(memfs.Options{FileSystem: "nfs", Network: true, NoVolume: true, Clock: c})
	kind, network, err := m.FileSystem("/")
	if kind != "nfs" || !network || err != nil {
		t.Errorf("file system %q, network %v, error %v", kind, network, err)
	}
	v, err := m.OpenVolume("/")
	ok(t, err)
	if v.Supported() {
		t.Error("volume sync is supported")
	}
	f := create(t, m, "f", "")
	c.Advance(time.Minute)
	write(t, f, "x", 0)
	info, err := m.Stat("f")
	ok(t, err)
	if !info.ModTime.Equal(now.Add(time.Minute)) {
		t.Errorf("modified at %v", info.ModTime)
	}
}

func TestFileTooBig(t *testing.T) {
	f := create(t, memfs.New(), "f", "")
	if _, err := f.WriteAt([]byte("x"), 1<<50); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("write: %v", err)
	}
	if err := f.Truncate(1 << 50); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("truncate: %v", err)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	m := memfs.New()
	old := string(bytes.Repeat([]byte("o"), 10_000))
	f := durable(t, m, "f", old)
	one, two := m.StrictCrashClone(), m.StrictCrashClone()
	g, err := one.OpenRW("f")
	ok(t, err)
	write(t, g, "ONE", 5000)
	ok(t, g.Truncate(6000))
	ok(t, g.Sync())
	write(t, f, "SRC", 4999)
	ok(t, f.Sync())
	ok(t, m.Remove("f"))
	if got := read(t, two, "f"); got != old {
		t.Error("a clone changed with its source or its sibling")
	}
	if got, want := read(t, one, "f"), old[:5000]+"ONE"+old[5003:6000]; got != want {
		t.Error("the clone lost its own write")
	}
	if got, want := read(t, one.StrictCrashClone(), "f"), old[:5000]+"ONE"+old[5003:6000]; got != want {
		t.Error("the clone of the clone lost a synced write")
	}
	if got, want := read(t, m.StrictCrashClone(), "f"), old[:4999]+"SRC"+old[5002:]; got != want {
		t.Error("the source lost its own write")
	}
}

func TestCloneHasNoLocks(t *testing.T) {
	m := memfs.New()
	lock, err := m.Lock("lock")
	ok(t, err)
	m.SyncAll()
	other, err := m.StrictCrashClone().Lock("lock")
	ok(t, err)
	ok(t, other.Close())
	if _, err := m.Lock("lock"); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("the original lock: %v", err)
	}
	ok(t, lock.Close())
	if err := lock.Close(); err == nil {
		t.Error("closed twice")
	}
}

func BenchmarkCrashClone(b *testing.B) {
	m := memfs.New()
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		f := durable(b, m, name, string(make([]byte, 8000)))
		write(b, f, string(make([]byte, 8000)), 4000)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		m.CrashClone(rng)
	}
}

func BenchmarkAppendSync(b *testing.B) {
	f := create(b, memfs.New(), "f", "")
	p := make([]byte, 64<<10)
	b.SetBytes(int64(len(p)))
	var off int64
	for b.Loop() {
		if _, err := f.WriteAt(p, off); err != nil {
			b.Fatal(err)
		}
		ok(b, f.Sync())
		off = (off + int64(len(p))) % (100 << 20)
	}
}
