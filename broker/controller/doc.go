// Package controller runs the cluster: it places new partitions, elects leaders, declares registrations eligible and finishes
// deletions. Exactly one broker does so at a time, whoever holds the `controller` key in etcd.
//
// Decisions are pure functions from a metadata.State to a Plan (decide.go, elect.go, place.go); Controller.Run is the thin shell that holds
// the key and carries plans out. Every write compares the controller epoch and the revision it was decided on, so a controller that was
// replaced, or that decided on stale state, changes nothing. Nothing is kept between two decisions: whoever controls next goes on from
// what etcd shows.
//
// Rules that are decided here (docs/formats/metadata.md has the whole life of a partition):
//
//   - An epoch is led by one incarnation: a new registration of a leader means a new election under a higher epoch, even of the same
//     broker. A lapsed lease alone ends nothing while nobody else can lead.
//   - Only eligible registrations are elected, only from the ISR, and only as the identity (storage, log) that the entry names.
//   - A storage that was replaced leaves every ISR, even below the minimum, before its registration becomes eligible. A damaged log
//     leaves in the transaction that clears its mark.
package controller
