package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// pipePoll is how long one look at the pipe waits, milliseconds: the bound on noticing that ctx has ended.
const pipePoll = 100

// readerGone blocks until nobody can read from the pipe w any more (true), or until ctx ends. What is no pipe never loses its reader.
func readerGone(ctx context.Context, w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		<-ctx.Done()
		return false
	}
	if info, err := f.Stat(); err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		<-ctx.Done()
		return false
	}
	fds := []unix.PollFd{{Fd: int32(f.Fd())}} // no events: errors are always reported
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, pipePoll)
		if err != nil && !errors.Is(err, unix.EINTR) {
			<-ctx.Done()
			return false
		}
		if n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
			return true
		}
	}
	return false
}
