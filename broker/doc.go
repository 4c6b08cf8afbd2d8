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
// The host makes the partitions of this broker what the metadata says they should be: host.go is its loop, host_plan.go decides what is
// to be done, host_apply.go does it, host_serve.go answers the server. view.go shows clients what is in effect, topicadmin.go changes
// topics, lifecycle.go starts and stops parts in layers, ops.go is the HTTP endpoint.
package broker
