package cli

import (
	"fmt"
	"sync"
	"time"

	"runnel.dev/runnel/client"
)

const (
	// noteAfter is how long nothing has to be acknowledged until a retry is worth a line: a failover is not.
	noteAfter = 3 * time.Second
	noteEvery = 30 * time.Second
)

// retryNotes says what a command waits for, since the client tries again for minutes without a word.
type retryNotes struct {
	client.NoHooks
	a *app
	// then ends a note: for how long it goes on.
	then string
	mu   struct {
		sync.Mutex
		since, noted time.Time // zero: nothing is being retried, nothing was said
	}
}

// Produced implements client.Hooks.
func (n *retryNotes) Produced(client.ProducedBatch) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.since = time.Time{}
}

// Fetched implements client.Hooks.
func (n *retryNotes) Fetched(client.FetchedFrame) { n.Produced(client.ProducedBatch{}) }

// Retried implements client.Hooks.
func (n *retryNotes) Retried(tp client.TopicPartition, err error, _ time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.a.Clock.Now()
	if n.mu.since.IsZero() {
		n.mu.since = now
	}
	if now.Sub(n.mu.since) < noteAfter || !n.mu.noted.IsZero() && now.Sub(n.mu.noted) < noteEvery {
		return
	}
	n.mu.noted = now
	fmt.Fprintf(n.a.Err, "%s: %s; trying again%s\n", sanitize(tp.String()), sanitize(err.Error()), n.then)
}
