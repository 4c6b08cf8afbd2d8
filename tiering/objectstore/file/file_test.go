package file_test

import (
	"path/filepath"
	"testing"

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

func TestConformanceOnDisk(t *testing.T) {
	storetest.Run(t, func(t testing.TB) objectstore.Store {
		return open(t, vfs.OS(), filepath.Join(t.TempDir(), "a", "b"))
	})
}
