package testcluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports that have to be the same after a restart come from below the range that systems give to outgoing connections, so that nobody
// takes them while their owner is down.
const (
	firstPort = 15_000
	lastPort  = 31_999
)

var ports struct {
	sync.Mutex
	next int
}

// Address returns a loopback address that nobody listens on, and that no other call in this process returns soon.
func Address(t testing.TB) string {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	if ports.next == 0 {
		ports.next = firstPort + rand.IntN(lastPort-firstPort)
	}
	for range lastPort - firstPort {
		if ports.next++; ports.next > lastPort {
			ports.next = firstPort
		}
		address := fmt.Sprintf("127.0.0.1:%d", ports.next)
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue // somebody else's
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return address
	}
	t.Fatal("no free port")
	return ""
}
