package replica

import "slices"

// proposal is a change of the in-sync set that is not settled. Until it is, its members count towards the high watermark beside
// the confirmed ones, and those that it removes go on counting.
type proposal struct {
	id       uint64 // 0: none
	revision int64
	isr      []Member
	added    int32 // the broker that it adds, if adds
	adds     bool
	// applied: it is known to have been applied, the record that shows it is still to come.
	applied bool
}

// propose starts a change of the in-sync set if one is called for, one at a time and one kind at a time, so that a candidate whom the
// metadata refuses holds up nothing else: members that lost their storage leave; one that lags leaves, or at the minimum is replaced; one
// that has caught up is added.
func (r *Replica) propose() {
	l := &r.lead
	if l.proposal.id != 0 || r.now < l.proposeAt || !slices.Contains(r.rec.ISR, l.self) {
		return
	}
	if r.anyLost() {
		r.submit(r.without(r.lostStorage), nil)
		return
	}
	laggard, lags := r.stalest()
	if lags && len(r.rec.ISR) > r.minISR() {
		r.submit(r.without(func(m Member) bool { return m == laggard }), nil)
		return
	}
	p := r.candidate()
	if p == nil {
		return
	}
	var next []Member
	if lags && len(r.rec.ISR) == r.minISR() {
		// Both count until the change is confirmed (InvariantMinimumInSync).
		next = r.without(func(m Member) bool { return m == laggard })
	} else {
		next = slices.Clone(r.rec.ISR)
	}
	r.submit(append(next, p.id), p)
}

func (r *Replica) without(drop func(Member) bool) []Member {
	return slices.DeleteFunc(slices.Clone(r.rec.ISR), drop)
}

// lostStorage tells whether a confirmed member came back as another identity, or with less than it has acknowledged. It leaves even
// below the minimum (InvariantStorageIdentity): what it acknowledged is not there any more.
func (r *Replica) lostStorage(m Member) bool {
	p := r.lead.peer(m.BrokerID)
	return p != nil && p.known && (p.id != m || p.lost)
}

func (r *Replica) anyLost() bool {
	return slices.ContainsFunc(r.rec.ISR, r.lostStorage)
}

// stalest returns the member that was caught up longest ago, if that is longer than LagTimeout.
func (r *Replica) stalest() (Member, bool) {
	var found Member
	at, lags := r.now-r.cfg.LagTimeout, false
	for _, m := range r.rec.ISR {
		if p := r.lead.peer(m.BrokerID); p != nil && p.caughtUp < at {
			found, at, lags = m, p.caughtUp, true
		}
	}
	return found, lags
}

// candidate returns a replica that may be added (InvariantGrowth), nil if there is none. It has acknowledged, in this epoch and
// registration, everything that is committed and everything that may have been before the epoch; its subscription lives; and its
// log begins no lower than readers have been told.
func (r *Replica) candidate() *peer {
	l := &r.lead
	hw := r.log.HighWatermark()
	for i := range l.peers {
		p := &l.peers[i]
		if p.session == 0 || !p.heard || p.lost || p.acked < hw || p.acked < l.start || p.logStart < r.publishedFloor() || r.now < p.retryAt {
			continue
		}
		if _, in := r.entry(p.broker); in || !slices.Contains(r.rec.Replicas, p.broker) || !r.keepsUp(p) {
			continue
		}
		return p
	}
	return nil
}

// submit proposes an in-sync set. added is the new member, nil if there is none.
func (r *Replica) submit(isr []Member, added *peer) {
	l := &r.lead
	l.nextProposal++
	l.proposal = proposal{id: l.nextProposal, revision: r.rec.Revision, isr: isr}
	e := Effect{
		Kind: EffectPropose, Epoch: l.epoch, Proposal: l.nextProposal, Revision: r.rec.Revision, ISR: slices.Clone(isr),
	}
	if added != nil {
		l.proposal.added, l.proposal.adds = added.broker, true
		e.Added = []Added{{BrokerID: added.broker, BrokerEpoch: added.epoch}}
		if hw := r.log.HighWatermark(); added.acked < max(hw, l.start) {
			broken(InvariantGrowth, "broker %d acknowledged %d, the high watermark is %d, the epoch starts at %d", added.broker, added.acked, hw, l.start)
		}
	}
	if len(isr) < len(r.rec.ISR) && len(isr) < r.minISR() && !r.anyLost() {
		broken(InvariantMinimumInSync, "%d members left, %d needed", len(isr), r.minISR())
	}
	r.refreshEffective()
	r.emit(e)
}

// onProposalSettled takes the outcome of a change. Its record counts as any other.
func (r *Replica) onProposalSettled(ev *Event) {
	known := r.rec
	r.learn(ev.Record)
	if l := &r.lead; r.role == roleLeading && l.proposal.id != 0 && ev.Proposal == l.proposal.id {
		switch {
		case !ev.Applied:
			if r.rec.Revision <= l.proposal.revision {
				r.proposeLater()
			}
			l.proposal = proposal{}
		case ev.Record == nil && r.rec.Revision <= l.proposal.revision:
			l.proposal.applied = true
		default:
			l.proposal, l.proposeDelay = proposal{}, 0
		}
		known = nil
	}
	if r.rec != known {
		r.evaluate()
	}
}

// proposeLater backs off after a refusal that no newer record explains: the metadata are out of reach, or a candidate is not eligible.
func (r *Replica) proposeLater() {
	l := &r.lead
	if l.proposal.adds {
		if p := l.peer(l.proposal.added); p != nil {
			p.retryAt = r.now + p.delay.next(2*r.cfg.RetryDelay)
			return
		}
	}
	l.proposeAt = r.now + l.proposeDelay.next(2*r.cfg.RetryDelay)
}

// settleByRecord forgets a proposal that was applied once the record shows it.
func (r *Replica) settleByRecord() {
	if l := &r.lead; l.proposal.applied && r.rec.Revision > l.proposal.revision {
		l.proposal, l.proposeDelay = proposal{}, 0
	}
}
