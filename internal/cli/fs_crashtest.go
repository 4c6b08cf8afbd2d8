//go:build crashtest

package cli

import (
	"fmt"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/dropfs"
)

// dataFS lets the crash tests take away what was not synced. No release is built with this tag.
func dataFS(dataDir string, getenv func(string) (string, bool)) (vfs.FS, error) {
	switch v, _ := getenv("RUNNEL_CRASHTEST_FS"); v {
	case "":
		return vfs.OS(), nil
	case "drop":
		abs, err := filepath.Abs(dataDir)
		if err != nil {
			return nil, err
		}
		return dropfs.New(filepath.Dir(abs))
	default:
		return nil, fmt.Errorf("RUNNEL_CRASHTEST_FS=%q: want drop", v)
	}
}
