// Package fakebroker is a cluster of brokers in memory that speaks Runnel's protocol, for tests of programs that use the client,
// and for the client's own.
//
// It is honest where clients can tell: offsets, sequence numbers and duplicates, leader epochs, topic ids, credit, metadata that
// is pushed. It has no disk: everything is "durable" at once. And it misbehaves on demand: OnCall decides for each call whether it
// is refused, delayed, cut off before or after it took effect, or never answered; methods of Cluster move leaders, stop brokers,
// delete topics and records, and make brokers forget producers.
//
//	cluster := fakebroker.Start(fakebroker.Brokers(3))
//	defer cluster.Close()
//	cluster.CreateTopic("orders", 6)
//	c, err := client.Open(ctx, cluster.URL(), client.Dialer(cluster.Dial))
//
// Connections are in-memory pipes, so it works within testing/synctest.
package fakebroker
