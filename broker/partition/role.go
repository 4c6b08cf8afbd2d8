package partition

import (
	"slices"

	"runnel.dev/runnel/broker/replica"
)

// Role is what this broker does for a partition at one moment, and what the cluster's metadata says of it.
type Role struct {
	// Leading: this broker leads in Epoch, under its current registration.
	Leading bool
	// Writable: while leading, enough in-sync replicas keep up.
	Writable bool
	// LeaderID is the leader's broker id, -1 while there is none.
	LeaderID int32
	// Epoch is the leader epoch; 0 before the first election.
	Epoch int32
	// Replicas and ISR are broker ids. They must not be changed.
	Replicas, ISR []int32
	// MinISR is how many in-sync replicas an append needs.
	MinISR int32
	// Damage, when set, is why this broker cannot serve with what it has; requests are told that instead of who leads.
	Damage error
}

// role is the snapshot that requests look at.
type role struct {
	Role
	// epochStart is the log end when leadership began.
	epochStart int64
	closed     error
}

// admit checks the epoch that a request names and that this broker leads. Epochs begin at 1; 0, which is what a plain client sends
// that does not set the field, and -1 stand for any.
func (r *role) admit(epoch int32) error {
	switch {
	case r.closed != nil:
		return r.closed
	case r.Damage != nil:
		return r.Damage
	case epoch > r.Epoch:
		return &UnknownEpochError{Asked: epoch, Known: r.Epoch}
	case !r.Leading || epoch > 0 && epoch < r.Epoch:
		return r.lost()
	}
	return nil
}

// lost is what those are told who meant this broker to lead.
func (r *role) lost() error {
	if r.closed != nil {
		return r.closed
	}
	return &NotLeaderError{LeaderID: r.LeaderID, LeaderEpoch: r.Epoch}
}

// SetRecord applies metadata. When this broker is to lead, leading has begun when SetRecord returns, unless the epoch could not be
// recorded. What waits for an epoch that is not led any more fails with ErrOutcomeUnknown. Blocks for an append that is in
// progress.
func (p *Partition) SetRecord(u RecordUpdate) {
	p.produceMu.Lock()
	p.pending.mu.Lock()
	if known := p.update.Record; known != nil && known.Revision > u.Record.Revision {
		u.Record = known
	}
	p.update = u
	p.ticks.Store(u.Record.Leader != p.cfg.Replica.BrokerID || len(u.Record.Replicas) > 1)
	n, mine := p.stepLocked(replica.Event{
		Kind: replica.EventMetadata, Record: u.Record, BrokerEpoch: u.BrokerEpoch, Self: p.selfLocked(), Usable: u.Usable,
	})
	p.pending.mu.Unlock()
	p.produceMu.Unlock()
	p.notify(n)
	if mine {
		p.drain(waitsForAppends)
	}
}

// selfLocked is this replica's identity. Needs pending.mu.
func (p *Partition) selfLocked() replica.Member {
	return replica.Member{BrokerID: p.cfg.Replica.BrokerID, StorageID: p.update.StorageID, LogID: p.log.LogID()}
}

// publishRoleLocked shows requests what the machine says, if it is something else than before. Needs pending.mu.
func (p *Partition) publishRoleLocked() notes {
	old, st := p.role.Load(), p.machine.Status()
	if old.closed != nil {
		return 0
	}
	r := &role{epochStart: st.EpochStart, Role: Role{
		Leading: st.Leading, Writable: st.Writable, LeaderID: st.LeaderID, Epoch: st.Epoch, MinISR: int32(st.MinISR), // a topic's replicas
		Damage: p.update.Damage,
	}}
	for _, m := range st.ISR {
		r.ISR = append(r.ISR, m.BrokerID)
	}
	if p.update.Record != nil {
		r.Replicas = p.update.Record.Replicas
	}
	if r.same(old) {
		return 0
	}
	p.wanted.Store(st.LogStartWanted)
	p.role.Store(r)
	if old.Leading && (!r.Leading || old.Epoch != r.Epoch) {
		p.failPendingLocked(r.lost())
	}
	return noteReaders | noteFollowers
}

func (r *role) same(o *role) bool {
	a, b := r.Role, o.Role
	return a.Leading == b.Leading && a.Writable == b.Writable && a.LeaderID == b.LeaderID && a.Epoch == b.Epoch && a.MinISR == b.MinISR &&
		(a.Damage == nil) == (b.Damage == nil) && r.epochStart == o.epochStart && slices.Equal(a.Replicas, b.Replicas) && slices.Equal(a.ISR, b.ISR)
}

// Role returns the role in force. Its slices must not be changed.
func (p *Partition) Role() Role { return p.role.Load().Role }

// Fail ends everything that waits with ErrOutcomeUnknown and cause, e.g. because the log failed. The partition stays, and neither leads
// nor follows until SetRecord says that it is usable.
func (p *Partition) Fail(cause error) {
	p.pending.mu.Lock()
	p.failPendingLocked(cause)
	n, mine := p.stepLocked(replica.Event{Kind: replica.EventFailed})
	p.pending.mu.Unlock()
	p.notify(n | noteReaders)
	if mine {
		p.drain(waitsForNothing)
	}
}

// Closed reports whether Close was called.
func (p *Partition) Closed() bool { return p.role.Load().closed != nil }

// Close ends the partition: waiting produces fail with ErrOutcomeUnknown, later calls with ErrClosed; subscriptions end. The log is
// its owner's to close, afterwards. Blocks for an append that is in progress.
func (p *Partition) Close() {
	p.produceMu.Lock()
	p.pending.mu.Lock()
	p.failPendingLocked(ErrClosed)
	_, mine := p.stepLocked(replica.Event{Kind: replica.EventFailed})
	r := *p.role.Load()
	r.Leading, r.closed = false, ErrClosed
	p.role.Store(&r)
	p.ticks.Store(false)
	p.pending.mu.Unlock()
	p.produceMu.Unlock()
	p.stopFlushed()
	if mine {
		p.drain(waitsForNothing)
	}
	p.wake()
}
