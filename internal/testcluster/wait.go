package testcluster

import (
	"testing"
	"time"
)

const (
	// Patience is how long anything that has to happen may take on a busy machine.
	Patience = 30 * time.Second
	// pollInterval is for conditions that nobody announces.
	pollInterval = 5 * time.Millisecond
)

// Eventually calls cond until it returns nil, and fails the test with its last error when that takes longer than Patience. It is for
// conditions that can be looked at but not waited for.
func Eventually(t testing.TB, cond func() error) {
	t.Helper()
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("still after %v: %v", Patience, err)
		}
	}
}
