// Package metadata keeps what the brokers of a cluster agree on, in etcd: who is alive, who controls, which topics exist, who leads
// which partition. docs/formats/metadata.md has the keys and values.
//
// # The parts
//
//   - Tx is a transaction as plain data, Builder makes every one that there is, Settlement is how its outcome becomes known (tx.go,
//     builder.go, settlement.go). None of them does I/O; the simulator uses them as they are.
//   - Client speaks to etcd. Every write is a Tx with compares (txn.go); reads are linearizable.
//   - Registration is this broker's live entry under brokers/<id> (register.go): lease, keep-alive, take-over, loss.
//   - Cache is a linearizable list, then a watch, published as immutable snapshots (cache.go, state.go).
//   - Topics, partitions, in-sync sets, reassignments, storages, the controller key and producer ids have a file each, with the writes that
//     are legal on them.
//   - Snapshot is the whole prefix as one file; PlanRecovery and Client.Restore are the way back after etcd was lost (recovery.go).
//
// # Rules that the code relies on
//
// Invariant: an unanswered transaction is in flight until a transaction on its compared key has settled it. A linearizable read may
// not see a proposal that commits a moment later, so nothing is ever decided by reading back. Client.commit repeats the very same
// compare-and-set: if the repetition succeeds, the earlier attempt can never succeed any more, because the key has a new mod
// revision; if it fails, the answer shows who won. An operation that has to give up before that says so (UnavailableError.Unsettled).
// The one compare that cannot be fenced for good is "the key is absent", which becomes true again after a deletion. It is used for
// values with an identity of their own only (a registration with its lease, a topic with a new topic ID, an epoch-less partition of
// that topic ID), for which a late creation is a creation and damages nothing.
//
// Invariant: (era, revision) never goes back. Every answer is checked against the etcd cluster and the highest position that this
// process, or through Config.Known an earlier one, has seen; a restored or foreign etcd is refused, for it would hand out epochs twice.
//
// Invariant: absence is not evidence. A topic is gone only through its state deleting; a lapsed lease alone ends nothing.
package metadata
