package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// threeWriters returns what three files together are written at, each with fdatasync per MiB, in 10^6 bytes per second.
func threeWriters(ctx context.Context, dir string, total int64) (float64, error) {
	const block = 1 << 20
	each := total / 3 / block * block
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for i := range 3 {
		g.Go(func() (err error) {
			name := filepath.Join(dir, "disk-"+strconv.Itoa(i))
			f, err := os.Create(name)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close(), os.Remove(name)) }()
			data := noise(block)
			for written := int64(0); written < each; written += block {
				if err := ctx.Err(); err != nil {
					return err
				}
				if _, err := f.Write(data); err != nil {
					return err
				}
				if err := syscall.Fdatasync(int(f.Fd())); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return float64(3*each) / 1e6 / time.Since(began).Seconds(), err
}
