package sim

import (
	"time"

	"runnel.dev/runnel/broker/controller"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/replica"
)

// wantLogStart is a DeleteRecords call at the leader.
func (pt *part) wantLogStart(to int64) {
	pt.step(replica.Event{Kind: replica.EventWantLogStart, Offset: to})
	pt.pumpAll()
}

// reassign moves a partition to other brokers, or cancels that.
func (f *faults) reassign() {
	p := f.controllerProc()
	if p == nil || !f.class.reassigns {
		return
	}
	record := f.aPartition(p)
	if record == nil {
		return
	}
	var next *metadata.Partition
	if controller.Moving(record) && f.chance(0.5) {
		next = controller.Cancel(record)
	} else {
		target := controller.Target(record)
		ids := make([]int32, 0, len(f.nodes))
		for _, n := range f.nodes {
			ids = append(ids, n.id)
		}
		f.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		next = controller.Retarget(record, ids[:len(target)])
	}
	if next == nil {
		return
	}
	f.cov.hit(Reassignments)
	f.tracef("reassign %s: replicas %v adding %v removing %v", f.name(record.PartitionRef), next.Replicas, next.Adding, next.Removing)
	txs, err := p.build.SetReassignment(p.control.tenure, []*metadata.Partition{next})
	f.must(err)
	p.commitAll(txs, func() {})
}

// drain has the controller move everything off a broker, for as long as the faults last.
func (f *faults) drain() {
	if !f.class.reassigns || len(f.nodes) < 4 {
		return
	}
	for _, n := range f.nodes {
		if st := f.storage(n.id); st != nil && st.State != metadata.StorageActive {
			return // one at a time
		}
	}
	if f.setStorage(f.node().id, metadata.StorageDraining) {
		f.cov.hit(Drains)
		f.after(f.between(5*time.Second, 20*time.Second), f.undrain)
	}
}

func (f *faults) undrain() {
	for _, n := range f.nodes {
		if st := f.storage(n.id); st != nil && st.State == metadata.StorageDraining {
			f.setStorage(n.id, metadata.StorageActive)
		}
	}
}

func (f *faults) storage(id int32) *metadata.Storage {
	if p := f.controllerProc(); p != nil {
		if st, ok := p.cache.state.Storage(id); ok {
			return st
		}
	}
	return nil
}

func (f *faults) setStorage(id int32, state metadata.StorageState) bool {
	st, p := f.storage(id), f.controllerProc()
	if st == nil || p == nil {
		return false
	}
	next := *st
	next.State = state
	tx, err := p.build.SetStorageState(p.control.tenure, &next)
	f.must(err)
	f.tracef("storage of %d becomes %d", id, state)
	p.commit(tx, requestTimeout, func(metadata.Outcome, bool) {})
	return true
}

// forceLeader makes a replica the whole in-sync set, whoever else was in it.
func (f *faults) forceLeader() {
	p := f.node().proc
	if p == nil || p.node.paused || !f.class.unclean || p.epoch == 0 {
		return
	}
	record := f.aPartition(p)
	if record == nil || !record.HasReplica(p.node.id) {
		return
	}
	for i, l := range f.check.ledgers {
		if l.ref != record.PartitionRef || p.parts[i] == nil || p.parts[i].log() == nil || p.parts[i].damaged() {
			continue
		}
		txs, err := p.build.AcceptUnclean(p.cache.state, p.reg(), record, p.parts[i].held.LogID())
		if err != nil {
			return
		}
		f.cov.hit(UncleanElections)
		f.tracef("force %s to broker %d", f.name(l.ref), p.node.id)
		l.forced = true
		p.commitAll(txs, func() {})
	}
}
