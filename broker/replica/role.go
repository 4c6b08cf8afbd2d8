package replica

import "slices"

// onMetadata takes a record and the broker's own situation.
func (r *Replica) onMetadata(ev *Event) {
	r.learn(ev.Record)
	r.brokerEpoch, r.self, r.usable = ev.BrokerEpoch, ev.Self, ev.Usable
	r.evaluate()
}

// learn keeps the record with the highest revision (InvariantNoStaleStart). One of the same revision may differ in what is not in the
// partition's key: the topic's minimum.
func (r *Replica) learn(rec *Record) {
	if rec != nil && (r.rec == nil || rec.Revision >= r.rec.Revision) {
		r.rec = rec
	}
}

// mayLead tells whether this replica leads the record's epoch: the record names this very registration (InvariantOneIncarnation) and
// this very log (InvariantCleanElection, InvariantStorageIdentity), the epoch was not led and left before, and the log knows no newer one.
func (r *Replica) mayLead() bool {
	rec := r.rec
	return r.usable && rec != nil && rec.Leader == r.cfg.BrokerID && rec.LeaderBrokerEpoch == r.brokerEpoch &&
		rec.LeaderEpoch > r.spent && !r.follow.rebuilding() && slices.Contains(rec.ISR, r.self) && !r.ahead()
}

// mayFollow tells whether there is a leader to follow.
func (r *Replica) mayFollow() bool {
	rec := r.rec
	return r.usable && rec != nil && rec.Leader >= 0 && rec.Leader != r.cfg.BrokerID && slices.Contains(rec.Replicas, r.cfg.BrokerID) &&
		!r.ahead()
}

// ahead tells that the log has seen a newer epoch than the record: the record is of the past.
func (r *Replica) ahead() bool {
	return max(r.log.LatestEpoch(), r.log.AdoptedDurable()) > r.rec.LeaderEpoch
}

// evaluate makes the role what record and situation call for.
func (r *Replica) evaluate() {
	if r.rec == nil {
		return
	}
	switch r.role {
	case roleLeading:
		if r.stillLeads() {
			r.refreshMembers()
			return
		}
		r.resign()
	case roleAssigning:
		if r.stillLeads() {
			return
		}
		r.resign()
	case roleFollowing:
		if r.mayFollow() && r.follow.of == r.target() {
			return
		}
	case roleNone:
	}
	switch {
	case r.mayLead():
		r.unfollow()
		r.assign()
	case r.mayFollow():
		r.role = roleFollowing
		r.startFollowing()
	default:
		r.unfollow()
		r.role = roleNone
	}
}

// stillLeads tells whether what it leads, or is about to, is what it may lead now.
func (r *Replica) stillLeads() bool {
	l := &r.lead
	return r.mayLead() && l.epoch == r.rec.LeaderEpoch && l.registration == r.brokerEpoch && l.self == r.self
}

// assign has the log note the start of the epoch that this replica is to lead.
func (r *Replica) assign() {
	r.role = roleAssigning
	r.lead = leader{
		epoch: r.rec.LeaderEpoch, registration: r.brokerEpoch, self: r.self,
		peers: r.lead.peers[:0], nextProposal: r.lead.nextProposal,
	}
	r.emit(Effect{Kind: EffectAssignEpoch, Epoch: r.lead.epoch})
}

func (r *Replica) onEpochAssigned(ev *Event) {
	if r.role != roleAssigning || ev.Epoch != r.lead.epoch {
		return
	}
	if ev.Err != nil {
		r.lead.assignAt = r.now + r.lead.assignDelay.next(r.cfg.RetryDelay)
		return
	}
	r.beginLeading(ev.Offset)
}

// retryAssign repeats what failed: the log was full or busy for a moment. A log that fails for good is reported by EventFailed.
func (r *Replica) retryAssign() {
	if l := &r.lead; l.assignDelay > 0 && l.assignAt != 0 && r.now >= l.assignAt {
		l.assignAt = 0
		r.emit(Effect{Kind: EffectAssignEpoch, Epoch: l.epoch})
	}
}

// resign ends leadership, or the way to it, for good: this epoch is spent (InvariantOneIncarnation).
func (r *Replica) resign() {
	r.spent = max(r.spent, r.lead.epoch)
	for i := range r.lead.peers {
		r.dismiss(&r.lead.peers[i], ReasonNotLeader)
	}
	for i := range r.lead.waiting {
		r.refuse(r.lead.waiting[i].Session, ReasonNotLeader)
	}
	r.lead.waiting = nil
	r.lead.peers = r.lead.peers[:0]
	r.lead.proposal = proposal{}
	r.starts.wanted = 0
	r.role = roleNone
}
