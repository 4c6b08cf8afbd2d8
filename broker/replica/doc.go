// Package replica is the replication protocol of one partition on one broker, as a deterministic state machine: events in, effects
// out. It does no I/O, reads no clock and starts nothing, so that a simulator can drive it through every interleaving; package
// partition and the transport are the thin shell that carries effects out and turns what happens into events.
//
// # The protocol
//
// A follower subscribes at the leader with (leader epoch, fetch offset, epoch of its last record). The leader grants the subscription,
// or answers where the histories diverge, and the follower truncates and subscribes again. From then on the leader pushes batches, and the
// follower acknowledges what it has flushed. The high watermark is the smallest acknowledged offset of all members of the in-sync
// set, confirmed ones and those of a change that is under way alike, and moves only while the confirmed set holds at least
// min_in_sync_replicas members.
package replica
