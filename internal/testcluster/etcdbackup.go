package testcluster

import (
	"os"
	"path/filepath"
	"testing"
)

// Backup copies the member's data to a directory of the test. The member is stopped meanwhile.
func (e *Etcd) Backup(t testing.TB) string {
	t.Helper()
	e.Stop(t)
	dir := filepath.Join(t.TempDir(), "backup")
	if err := os.CopyFS(dir, os.DirFS(e.cfg.DataDir)); err != nil {
		t.Fatal(err)
	}
	e.Start(t)
	return dir
}

// Restore starts the member anew with the data of a Backup, or with none when dir is empty.
func (e *Etcd) Restore(t testing.TB, dir string) {
	t.Helper()
	e.Stop(t)
	if err := os.RemoveAll(e.cfg.DataDir); err != nil {
		t.Fatal(err)
	}
	if dir != "" {
		if err := os.CopyFS(e.cfg.DataDir, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	e.Start(t)
}
