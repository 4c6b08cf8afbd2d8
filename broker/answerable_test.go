package broker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestTheBrokerGivesUpBeforeItsClient: a client whose deadline comes first learns nothing of what was done, and what is waited for.
func TestTheBrokerGivesUpBeforeItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for within, want := range map[time.Duration]time.Duration{30 * time.Second: 29 * time.Second, 2 * time.Second: 1800 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			patience, done := answerable(ctx)
			begin := time.Now()
			<-patience.Done()
			if got := time.Since(begin); got != want || ctx.Err() != nil {
				t.Errorf("of %v it waits for %v (%v), want %v", within, got, ctx.Err(), want)
			}
			done()
			cancel()
		}
	})
}
