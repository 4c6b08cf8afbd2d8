// Package broker is the broker's composition root: it builds the parts in their order, runs them, and ends them in the reverse order.
//
// The map of what it joins:
//
//	config       settings
//	metadata     etcd: registration, watch cache, topics, partitions
//	controller   whichever broker holds the key places partitions, elects leaders, moves replicas
//	liveness     who is alive, by heartbeats and witnesses
//	peer         connections to other brokers, and who calls
//	replication  streams between leaders and followers; heartbeats
//	storage      the data directory: sync scheduler, journal, partitions' logs
//	log          one partition's log; segment below it; record below that
//	partition    one partition that this broker hosts: log, replication protocol (replica), producers, readers
//	server       gRPC services over all of them
//
// The host makes the partitions of this broker what the metadata says they should be: host.go is its loop, host_plan.go decides what is
// to be done, host_apply.go does it, host_reset.go makes logs anew, host_serve.go answers the server. isr.go writes changes of in-sync sets for
// all of them. view.go shows clients what is in effect, topicadmin.go changes topics, clusteradmin.go brokers and placement.
//
// assemble.go makes the parts, lifecycle.go starts and stops them in layers, handover.go gives leaderships away before a stop, refuse.go waits
// out an etcd that went back in time, snapshots.go and inventory.go keep and tell what a recovery needs, ops.go is the HTTP endpoint.
package broker
