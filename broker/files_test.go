package broker

import (
	"math"
	"testing"
)

// TestIdleFilesLeaveDescriptorsForConnections: with 500 partitions and 256 descriptors the broker once took no connection any more.
func TestIdleFilesLeaveDescriptorsForConnections(t *testing.T) {
	for limit, want := range map[uint64]int{0: 1, 1: 1, 256: 128, 2048: 1024, 4096: 1024, math.MaxUint64: 1024} {
		if got := shareOf(limit, 1024); got != want {
			t.Errorf("limit %d: %d, want %d", limit, got, want)
		}
	}
	if n := idleFiles(10); n < 1 || n > 10 {
		t.Errorf("%d", n)
	}
}
