// Package broker is the broker's composition root: it builds the parts in their order, runs them, and ends them in the reverse order.
//
// The map of what it joins:
//
//	config      settings
//	metadata    etcd: registration, watch cache, topics, partitions
//	controller  whichever broker holds the key places partitions and elects leaders
//	storage     the data directory: sync scheduler, journal, partitions' logs
//	log         one partition's log; segment below it; record below that
//	partition   one partition that this broker hosts: appends, acks, readers
//	server      gRPC services over all of them
//
// host.go makes the partitions of this broker what the metadata says they should be; sources.go shows metadata and partitions to the
// server; ops.go is the HTTP endpoint.
package broker
