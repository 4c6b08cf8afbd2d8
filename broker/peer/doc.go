// Package peer is how brokers of one cluster reach and recognise each other.
//
// [Credentials] travel in the header of every call: cluster, broker, registration, and the boot id, which only the broker itself and the
// metadata store know. [Verify] compares them with the registration that the receiver's own view of the metadata has. A caller that is
// no broker of this cluster is told so; one whose registration has not arrived here yet is told to try again.
//
// [Conns] keeps one connection per peer and [Class]: large transfers must not hold up small messages, and nothing must hold up a
// heartbeat.
package peer
