package vfs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/vfstest"
)

func TestOSConformance(t *testing.T) {
	vfstest.Conformance(t, func(t *testing.T) (vfs.FS, string) { return vfs.OS(), t.TempDir() })
}

func TestErrorClasses(t *testing.T) {
	wrap := func(errno error) error {
		return fmt.Errorf("append: %w", &fs.PathError{Op: "write", Path: "f", Err: errno})
	}
	for _, c := range []struct {
		err                   error
		noSpace, readOnly, io bool
	}{
		{syscall.ENOSPC, true, false, false},
		{syscall.EDQUOT, true, false, false},
		{syscall.EROFS, false, true, false},
		{syscall.EIO, false, false, true},
		{syscall.EACCES, false, false, false},
		{errors.New("other"), false, false, false},
	} {
		err := wrap(c.err)
		if vfs.IsNoSpace(err) != c.noSpace || vfs.IsReadOnly(err) != c.readOnly || vfs.IsIO(err) != c.io {
			t.Errorf("%v: no space %v, read only %v, I/O %v",
				err, vfs.IsNoSpace(err), vfs.IsReadOnly(err), vfs.IsIO(err))
		}
	}
	if vfs.IsNoSpace(nil) || vfs.IsReadOnly(nil) || vfs.IsIO(nil) {
		t.Error("nil is classified as an error")
	}
}
