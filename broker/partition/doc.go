// Package partition joins one partition's log with its place in the cluster: who leads it under which epoch, which produces
// wait for their acknowledgement, and whom to wake when the high watermark moves.
//
// Appends are serialised per partition, so the order of acknowledgements is the order of appends. A produce waits in a FIFO
// until the high watermark has passed its end in the same truncation generation; it is matched by (epoch, generation, offset),
// never by offset alone, because an offset can be given away twice when a log is truncated. What waits when leadership is lost,
// the log is truncated, or the partition goes away, ends with [ErrOutcomeUnknown].
//
// Reads and look-ups take no lock: role and offsets are immutable snapshots and atomics.
//
// Lock order: produceMu → pending.mu → a waiter's own lock. The flush callback takes pending.mu only, which is never held over
// I/O, so the sync goroutine never waits for a disk.
package partition
