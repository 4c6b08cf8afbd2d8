package cli

import (
	"io"
	"sync"
	"syscall"
	"time"
)

const (
	outputBlock = 128 << 10
	// outputDelay is how long a record that does not fill a block may wait to be seen.
	outputDelay = 20 * time.Millisecond
)

// output gathers small records into large writes, and lets none wait long: a timer, armed by the first byte that waits, writes what
// has gathered.
type output struct {
	a      *app
	w      io.Writer
	failed func()
	mu     struct {
		sync.Mutex
		buf    []byte
		armed  bool
		closed bool
		err    error // of a write; nothing is written after it
	}
}

// startOutput calls failed, which must not block, when a write that nobody waited for fails.
func (a *app) startOutput(failed func()) *output { return &output{a: a, w: a.Out, failed: failed} }

// write lets f append to the buffer, and call flushLocked when it has grown.
func (o *output) write(f func([]byte) ([]byte, error)) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.err != nil {
		return o.mu.err
	}
	var err error
	o.mu.buf, err = f(o.mu.buf)
	if len(o.mu.buf) > 0 && !o.mu.armed && o.mu.err == nil {
		o.mu.armed = true
		o.a.Clock.AfterFunc(outputDelay, o.onTime)
	}
	return err
}

func (o *output) onTime() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.armed = false
	if !o.mu.closed {
		var err error
		if o.mu.buf, err = o.flushLocked(o.mu.buf); err != nil {
			o.failed()
		}
	}
}

// flushLocked writes b and returns it emptied.
func (o *output) flushLocked(b []byte) ([]byte, error) {
	if o.mu.err == nil && len(b) > 0 {
		_, o.mu.err = o.w.Write(b)
	}
	return b[:0], o.mu.err
}

// abandon ends writing because nobody reads any more.
func (o *output) abandon() {
	o.mu.Lock()
	if o.mu.err == nil {
		o.mu.err = syscall.EPIPE
	}
	o.mu.Unlock()
	o.failed()
}

// close writes the rest.
func (o *output) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.closed = true
	_, err := o.flushLocked(o.mu.buf)
	return err
}
