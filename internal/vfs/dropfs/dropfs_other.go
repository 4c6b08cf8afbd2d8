//go:build !linux

package dropfs

import (
	"errors"
	"fmt"

	"runnel.dev/runnel/internal/vfs"
)

// New fails on this platform, which has no unnamed files.
func New(root string) (vfs.FS, error) {
	return nil, fmt.Errorf("dropfs on %s: %w", root, errors.ErrUnsupported)
}
