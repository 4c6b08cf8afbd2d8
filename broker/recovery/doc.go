// Package recovery carries a recovery of the metadata through: it asks brokers what their data directories hold, has metadata.PlanRecovery
// decide what etcd has to hold, stops the brokers that use the etcd, and writes. `runnel etcd recover` is its only user.
//
// # Who may ask for an inventory
//
// A broker that is in a cluster shows it to brokers of the cluster only, which their registrations prove. One that refuses its etcd has
// no registrations to check against, serves nothing else, and shows its inventory to whoever reaches its listener: names of topics and
// their sizes, no records. So an operator needs no credentials of the brokers, and nobody learns anything of a cluster that works.
//
// # Every step may be repeated
//
//	look     brokers and etcd are asked; nothing changes
//	begin    the record of the cluster is marked: brokers that use this etcd stop, refuse it, and can be asked
//	look     now everybody's inventory is final: nobody acknowledges anything any more
//	restore  metadata.Client.Restore, and with the new era the brokers start by themselves
//
// Before begin nothing has happened. Between begin and the first write of restore a new run goes on from what is in etcd; after it, from
// the copy that the caller has kept. After the new era there is nothing to recover.
package recovery
