//go:build !crashtest

package cli

import "runnel.dev/runnel/internal/vfs"

// dataFS is the file system that a broker keeps its data on.
func dataFS(string, func(string) (string, bool)) (vfs.FS, error) { return vfs.OS(), nil }
