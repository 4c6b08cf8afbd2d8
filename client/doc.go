// Package client is Runnel's Go client: a [Producer], a [Consumer], and [Admin] calls over one [Client].
//
// The map of the package:
//
//	client.go, options.go, url.go, conns.go   opening and closing, connections by broker and purpose
//	metadata.go, snapshot.go                  the cluster as brokers push it; immutable snapshots
//	producer*.go                              queue → batch → sender (one per broker) → answer → callbacks
//	consumer*.go                              subscription → claim → fetcher (one per broker) → frame → records
//	admin*.go, offsets.go, delete_records.go  single requests
//	strings.go                                how what embeds a TopicPartition prints
//	errors.go                                 every error, and what brokers' reasons mean
//
// What is promised of producing: a retry never duplicates a record; each produce error is exactly one of [ErrNotWritten] and
// [ErrOutcomeUnknown]; after a failure, what is queued behind the record in its partition fails as well, in order, so that order
// is never silently broken; callbacks run exactly once, in order.
//
// Not obvious, and learned from other clients:
//
//   - A record whose outcome was reported as unknown is still resolved behind the scenes before anything else is sent to its
//     partition. Taking a new producer id instead would let the old batch arrive late, behind newer records.
//   - A topic is identified by its id. A namesake that was created in its place gets nothing that was meant for the old one, and a
//     consumer never goes on in it.
//   - An error while looking an offset up is never taken for "there is no offset": the consumer tries again, or reports it.
//   - The lock order is metadata, topic, partition, producer; callbacks and hooks of data run without locks.
package client
