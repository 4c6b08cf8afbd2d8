// Package replication is the transport between the leaders and the followers of partitions, and the heartbeats between brokers. What is
// to be said is decided by package replica and carried out by package partition; this package brings it to the other broker.
//
// # Streams
//
// A follower broker opens two to four tail streams and one catch-up stream to each broker that leads something it follows; partitions
// are hashed onto the tail streams. [Followers] is that side, [Leaders] the other. A partition that is far behind (Settings.Window × 4)
// is told to subscribe on the catch-up stream, and back on a tail stream when it is within half a window of the end. The catch-up stream has
// a TCP connection and a token bucket of its own, so that tails never wait for it.
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
