// Package sim is a cluster in one goroutine: the real replication machine, log, controller decisions, failure detector and metadata
// transactions, on top of models of the network, the disks, the clients and etcd, driven by a seeded scheduler in virtual time.
//
// A run is a function of its seed: there are no goroutines, no real clock and no order of map iteration in it, so the same seed gives the same
// trace, and a failing one can be looked at again. docs/simulation.md says what is modelled, what is not, and how to replay.
//
// # The parts
//
//   - sched.go: the event queue; trace.go: what happened, and its hash; coverage.go: how often what kind of thing happened.
//   - etcd.go: revisions, leases, transactions, history; etcdclient.go: what a broker sees of it, with loss and delay; cache.go: its watches.
//   - network.go: messages and streams between brokers. host.go: a broker's disk, sync rounds and journal.
//   - node.go, broker.go, partition.go, stream.go, control.go: a broker, which is the thin shell around the real machines.
//   - clients.go: producers and consumers; faults.go: what goes wrong and when; check.go, check_record.go, ledger.go, judge.go: what must hold all the same.
package sim
