package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	diskBytes = 4 << 30
	diskBlock = 1 << 20
	diskSync  = 8 << 20
)

// diskSpeed is how fast one file is written with fdatasync every 8 MiB, in 10^6 bytes per second.
func (r *run) diskSpeed(ctx context.Context) (speed float64, err error) {
	if r.disk > 0 {
		return r.disk, nil
	}
	name := filepath.Join(r.dir, "disk")
	f, err := os.Create(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
	block := make([]byte, diskBlock)
	_, _ = rand.NewChaCha8([32]byte{}).Read(block) // never fails
	total := diskBytes / r.shrink
	began := time.Now()
	for written := int64(0); written < total; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := f.Write(block)
		if err != nil {
			return 0, err
		}
		if written += int64(n); written%diskSync == 0 {
			if err := syscall.Fdatasync(int(f.Fd())); err != nil {
				return 0, err
			}
		}
	}
	r.disk = float64(total) / 1e6 / time.Since(began).Seconds()
	return r.disk, nil
}

func (r *run) diskOnly(ctx context.Context) error {
	speed, err := r.diskSpeed(ctx)
	r.add(row{what: "disk: write, fdatasync per 8 MiB", unit: "MB/s", measured: speed})
	return err
}
