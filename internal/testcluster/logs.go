package testcluster

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// logs keeps what parts say until the test has failed: then it is printed. (testing.TB.Log must not be called once a test has ended.)
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// newLogs returns a logger that speaks at the end of a failed test.
func newLogs(t testing.TB) *slog.Logger {
	l := &logs{}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if t.Failed() && l.b.Len() > 0 {
			t.Logf("logs:\n%s", l.b.Bytes())
		}
	})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// Write implements io.Writer.
func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
