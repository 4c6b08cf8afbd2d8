// Package controller runs the cluster: it places new partitions, elects leaders, moves replicas, declares registrations eligible and
// finishes deletions. Exactly one broker does so at a time, whoever holds the `controller` key in etcd.
//
// Decisions are pure functions from a metadata.State, and an Input of what the failure detector and the brokers report, to a Plan: Decide
// (decide.go) with Next for one partition (elect.go), reassign.go, place.go and balance.go. Controller is the thin shell that holds the
// key and carries plans out (controller.go, office.go, carryout.go), and takes requests (admin.go; what they mean is in requests.go,
// removal.go and elections.go, pure again). Every write compares the controller epoch and the revision it was decided on, so a controller
// that was replaced, or that decided on stale state, changes nothing. Nothing that matters is kept between two decisions: whoever
// controls next goes on from what etcd shows.
//
// Rules that are decided here (docs/formats/metadata.md has the whole life of a partition):
//
//   - An epoch is led by one incarnation: a new registration of a leader means a new election under a higher epoch, even of the same
//     broker. A lapsed lease alone ends nothing while its broker beats, or while nobody else can lead.
//   - Only eligible registrations are elected, only from the ISR, and only as the identity (storage, log) that the entry names. Suspects
//     come last, stopping and draining brokers before them; a leader gives way to somebody better only, so suspicion of the only usable
//     member changes nothing.
//   - Dead followers (gone, suspected, stopping) leave the ISR while it stays at the minimum or above, so that the high watermark moves.
//     At the minimum they stay, until the leader replaces them. Without a leader that is well nobody leaves.
//   - A storage that was replaced, or fenced, leaves every ISR, even below the minimum, before its registration becomes eligible. A
//     damaged log leaves in the transaction that clears its mark.
//   - Reassignments keep old and new replicas until the new ones are in sync and enough of them; draining, a storage that is lost
//     for good and a change of the number of replicas are reassignments that the controller begins by itself, so many at a time.
//   - What is merely nicer elsewhere moves only while nothing is wrong, and rarely.
package controller
