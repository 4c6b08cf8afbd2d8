// Package partition is one partition on one broker: the shell around its log and its replication protocol. What happens (metadata,
// acknowledgements, syncs, time) becomes an event of the machine in package replica; what the machine wants becomes a call of the
// log, of the transport, or of who writes metadata. On top of that it serves producers and readers.
//
// Appends are serialised per partition, so the order of acknowledgements is the order of appends. A produce waits in a FIFO
// until the high watermark has passed its end in the same truncation generation; it is matched by (epoch, generation, offset),
// never by offset alone, because an offset can be given away twice when a log is truncated. What waits when leadership is lost,
// the log is truncated, or the partition goes away, ends with [ErrOutcomeUnknown].
//
// Reads and look-ups take no lock: role and offsets are immutable snapshots and atomics.
//
// # The machine and its effects
//
// The machine is stepped under pending.mu. Roles and the high watermark, which are memory only, take effect in the same critical
// section: nothing is acknowledged, and nothing appended, in a role that the machine has left. All other effects go to a queue that one
// goroutine at a time carries out, in order; when one waits for the disk, a worker goes on with the queue, so the sync goroutine
// and streams of followers never wait for a truncation.
//
// Invariant: leading or following begins and ends (EventMetadata and its like) with produceMu held, so that an append is either
// over, and part of the log end that the machine sees, or finds the new role.
//
// Lock order: produceMu → pending.mu → a waiter's own lock. The flush callback takes pending.mu only, which is never held over
// I/O, so the sync goroutine never waits for a disk.
package partition
