//go:build !mutant_ack_before_sync

package storage

// ackBeforeSync is false in every build that anybody should use.
const ackBeforeSync = false
