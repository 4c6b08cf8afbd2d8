// Package server is Runnel's gRPC front: it checks what comes in, hands it to partitions, topics and metadata through small
// interfaces, and turns every error into one canonical answer. It holds no logic of the log and none of the cluster.
//
// One gRPC server runs per listener, because transport credentials and advertised addresses belong to the listener; all share
// one service implementation.
//
// Memory is bounded: a message by the largest batch, what producers have in flight by a budget per stream and one per broker
// (a stream that is over budget is not read from, so HTTP/2 flow control slows its producer down), a fetch stream by one frame,
// a metadata watcher by the difference between the snapshot it has and the newest one.
//
// Forwarding: any broker takes every request. What another one leads, or the controller has to do, goes on to that broker, one hop, in an envelope that
// only counts together with the credentials of a broker of the cluster (origin.go). Batches are passed on without being copied or decoded; the order of
// answers per partition, credits, and the errors of single subscriptions stay what they are at the leader. Clients that go to leaders themselves say
// so (runnel-route: direct) and are told when they are wrong. A broker that hangs costs those who wait for it, within bounds per broker, and nobody
// once metadata names another leader.
//
// Errors: errors.go is the only place that knows codes and reasons. An error that it does not know becomes INTERNAL with an id,
// and its text goes to the log alone.
//
// Each bidirectional stream has two goroutines: the handler sends, the other receives. The handler ends the stream; the receiver
// ends when the stream does. Run waits for both kinds.
package server
