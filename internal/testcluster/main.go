package testcluster

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main starts an etcd for all tests of a package, sets shared to it, runs the tests, and returns the exit code for os.Exit. It fails when
// a goroutine is left at the end; none is ignored.
func Main(m *testing.M, shared **Etcd) int {
	dir, err := os.MkdirTemp("", "testcluster-")
	if err != nil {
		return failed(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // the system's temporary folder: leaving it is no harm
	etcd := newEtcd(dir, "http://127.0.0.1:0", slog.New(slog.DiscardHandler))
	if err := etcd.start(); err != nil {
		return failed(err)
	}
	*shared = etcd
	code := m.Run()
	if err := etcd.stop(); err != nil {
		return failed(err)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			return failed(err)
		}
	}
	return code
}

func failed(err error) int {
	fmt.Fprintln(os.Stderr, "testcluster:", err)
	return 1
}
