//go:build !linux

package vfs

import (
	"errors"
	"os"
)

// The portable fallbacks. Linux is the platform that Runnel is run on; others
// are for development, so they do the safe thing and not the fast one.

func syncFile(f *os.File) error { return f.Sync() }

// syncVolume cannot be had portably, and Supported says so.
func syncVolume(*os.File) error { return errors.ErrUnsupported }

func startWriteback(*os.File, int64, int64) error { return nil }

func syncfsReportsErrors() bool { return false }

func diskUsage(dir string) (Usage, error) {
	if _, err := os.Stat(dir); err != nil {
		return Usage{}, err
	}
	return Usage{}, errors.ErrUnsupported
}

func fileSystem(dir string) (kind string, network bool, err error) {
	if _, err := os.Stat(dir); err != nil {
		return "", false, err
	}
	return "", false, errors.ErrUnsupported
}
