package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
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
	speed, err = writeSpeed(ctx, filepath.Join(r.dir, "disk"), diskBytes/r.shrink, diskSync)
	r.disk = speed
	return speed, err
}

// sharedDiskSpeed is how fast so many files are written side by side, together, with fdatasync every MiB.
func (r *run) sharedDiskSpeed(ctx context.Context, files int) (total float64, err error) {
	var g errgroup.Group
	speeds := make([]float64, files)
	for i := range files {
		g.Go(func() (err error) {
			speeds[i], err = writeSpeed(ctx, filepath.Join(r.dir, "disk-"+strconv.Itoa(i)), diskBytes/r.shrink/int64(files), diskBlock)
			return err
		})
	}
	err = g.Wait()
	for _, s := range speeds {
		total += s
	}
	return total, err
}

// writeSpeed writes a file with fdatasync every so many bytes, and removes it.
func writeSpeed(ctx context.Context, name string, total, syncBytes int64) (speed float64, err error) {
	f, err := os.Create(name)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
	block := make([]byte, diskBlock)
	_, _ = rand.NewChaCha8([32]byte{}).Read(block) // never fails
	began := time.Now()
	for written := int64(0); written < total; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		n, err := f.Write(block)
		if err != nil {
			return 0, err
		}
		if written += int64(n); written%syncBytes == 0 {
			if err := syscall.Fdatasync(int(f.Fd())); err != nil {
				return 0, err
			}
		}
	}
	return float64(total) / 1e6 / time.Since(began).Seconds(), nil
}

func (r *run) diskOnly(ctx context.Context) error {
	speed, err := r.diskSpeed(ctx)
	r.add(row{what: "disk: write, fdatasync per 8 MiB", unit: "MB/s", measured: speed})
	return err
}
