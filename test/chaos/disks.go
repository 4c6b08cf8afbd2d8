package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

const (
	diskBytes    = 2 << 30
	reserveBytes = 32 << 20
	ballast      = "ballast"
)

// disks are file systems in memory, one per broker, small enough to be filled. Below each is the broker's data directory.
type disks struct{ dir string }

// mountDisks makes them where devcluster puts the brokers' data.
func mountDisks(dir string) (*disks, error) {
	d := &disks{dir: dir}
	for n := 1; n <= brokers; n++ {
		at := d.path(strconv.Itoa(n))
		if err := os.MkdirAll(at, 0o750); err != nil {
			return d, err
		}
		if err := syscall.Mount("tmpfs", at, "tmpfs", 0, "size="+strconv.Itoa(diskBytes)); err != nil {
			return d, fmt.Errorf("mount a file system in memory at %s: %w", at, err)
		}
	}
	return d, nil
}

func (d *disks) path(broker string) string { return filepath.Join(d.dir, "broker-"+broker) }

// keep copies what is on the disks, which are about to go, and returns where to.
func (d *disks) keep() (string, error) {
	at := filepath.Join(d.dir, "disks")
	var errs []error
	for n := 1; n <= brokers; n++ {
		name := strconv.Itoa(n)
		errs = append(errs, d.free(name), os.CopyFS(filepath.Join(at, "broker-"+name), os.DirFS(d.path(name))))
	}
	return at, errors.Join(errs...)
}

func (d *disks) unmount() error {
	var errs []error
	for n := 1; n <= brokers; n++ {
		if err := syscall.Unmount(d.path(strconv.Itoa(n)), 0); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", d.path(strconv.Itoa(n)), err))
		}
	}
	return errors.Join(errs...)
}

// fill takes all space but so many bytes.
func (d *disks) fill(broker string, left int64) error {
	f, err := os.Create(filepath.Join(d.path(broker), ballast))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for {
		var st syscall.Statfs_t
		if err := syscall.Statfs(d.path(broker), &st); err != nil {
			return err
		}
		free := int64(st.Bavail)*st.Bsize - left
		if free <= 0 {
			return nil
		}
		info, err := f.Stat()
		if err != nil {
			return err
		}
		// The broker writes meanwhile: what cannot be had at once is had in halves.
		for ; free > 0; free /= 2 {
			if err = syscall.Fallocate(int(f.Fd()), 0, info.Size(), free); err == nil {
				break
			}
			if !errors.Is(err, syscall.ENOSPC) {
				return err
			}
		}
		if free < 4096 {
			return nil
		}
	}
}

func (d *disks) free(broker string) error {
	err := os.Remove(filepath.Join(d.path(broker), ballast))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
