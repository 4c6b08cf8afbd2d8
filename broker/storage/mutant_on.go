//go:build mutant_ack_before_sync

package storage

// ackBeforeSync makes the scheduler publish what it is about to sync before it has synced it. `make crash` builds a broker with
// this mistake and has to catch it, or the crash test proves nothing.
const ackBeforeSync = true
