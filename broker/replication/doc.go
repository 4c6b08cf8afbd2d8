// Package replication is the transport between the leaders and the followers of partitions, and the heartbeats between brokers. What is
// to be said is decided by package replica and carried out by package partition; this package brings it to the other broker.
//
// # Streams
//
// A follower broker opens two to four tail streams and one catch-up stream to each broker that leads something it follows; partitions
// are hashed onto the tail streams. [Followers] is that side, [Leaders] the other. The catch-up stream has a TCP connection and a token
// bucket of its own, so that tails never wait for it, nor for the disk reads that it needs. A follower that is not in the in-sync set and
// asks for what lies more than four windows behind the end, or falls eight behind, is told to subscribe on the catch-up stream; within half a
// window of the end, or once it is in sync, it is told to come back. Members of the in-sync set always stay on a tail: producers wait
// for their acks.
//
// # Fairness
//
// The leader serves the subscriptions of a stream by deficit round robin: each turn is worth Settings.Quantum bytes. Per subscription
// at most Settings.Window bytes are sent and not yet acknowledged as flushed; when a whole stream has Settings.StreamWindow in flight, a
// subscription may have one quantum only, so that slow ones keep what they have and the others go on. Offsets without batches (the high
// watermark moved) wait up to Settings.OffsetsDelay for batches to travel with, and those of many partitions share a message.
//
// At the follower every partition has an executor: a queue and at most one goroutine, which ends when the queue is empty. A log that is
// slow holds up its own queue, which the leader's window bounds, and nothing else.
//
// # Locks
//
// Leaders: partition's locks → leaderStream.mu. Followers: Followers.mu → executor.mu → followerStream.mu. The partition is called
// without any of them.
package replication
