//go:build !linux

package cli

import (
	"context"
	"io"
)

// readerGone is left to the next write, which fails.
func readerGone(ctx context.Context, _ io.Writer) bool {
	<-ctx.Done()
	return false
}
