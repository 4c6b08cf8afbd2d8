package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/clock"
)

// TestProduceSaysWhatItWaitsFor: minutes of silence look like a command that hangs. A failover, and every retry by itself, is not worth a line.
func TestProduceSaysWhatItWaitsFor(t *testing.T) {
	var out buffer
	clk := clock.NewFake(time.Unix(0, 0))
	n := &retryNotes{a: &app{Env: Env{Err: &out, Clock: clk}}, then: " for up to 2m0s"}
	retry := func() {
		n.Retried(client.TopicPartition{Topic: "orders"}, errors.New("NOT_ENOUGH_REPLICAS: 1 of 2\x1b[2J"), time.Second)
	}
	lines := func() int { return strings.Count(out.String(), "\n") }

	retry()
	clk.Advance(noteAfter - time.Millisecond)
	retry()
	n.Produced(client.ProducedBatch{})
	clk.Advance(noteAfter)
	retry()
	if lines() != 0 {
		t.Fatalf("said although records got through: %q", out.String())
	}
	clk.Advance(noteAfter)
	retry()
	if got := out.String(); lines() != 1 || !strings.Contains(got, "orders/0: NOT_ENOUGH_REPLICAS: 1 of 2") || !strings.Contains(got, "up to 2m0s") ||
		strings.Contains(got, "\x1b") {
		t.Fatalf("%q", got)
	}
	clk.Advance(noteEvery - time.Millisecond)
	retry()
	if lines() != 1 {
		t.Fatalf("said again at once: %q", out.String())
	}
	clk.Advance(time.Millisecond)
	retry()
	if lines() != 2 {
		t.Fatalf("not said again: %q", out.String())
	}
}
