package replica

import "slices"

// onSubscribe answers a follower: refused, told where the histories part or where the log begins, or granted.
func (r *Replica) onSubscribe(ev *Event) {
	if r.early(ev) {
		return
	}
	if why := r.subscribeFence(ev); why != 0 {
		r.refuse(ev.Session, why)
		return
	}
	p := r.lead.peer(ev.Peer.BrokerID)
	if r.overtaken(p, ev) {
		r.refuse(ev.Session, ReasonOvertaken)
		return
	}
	r.dismiss(p, ReasonOvertaken)
	r.identify(p, ev)
	if p.lost || r.hasLost(p, ev.Offset) {
		p.lost = true
		r.refuse(ev.Session, ReasonLostStorage)
		r.refreshWritable()
		r.propose()
		return
	}
	if r.rejects(ev) {
		r.propose()
		return
	}
	p.session, p.heard = ev.Session, false
	r.emit(Effect{Kind: EffectGrant, Session: ev.Session, Epoch: r.lead.epoch, Offset: ev.Offset})
	r.propose() // the entry may name another identity
}

// maxEarly bounds the subscriptions that wait; more than any partition has followers.
const maxEarly = 64

// early keeps a subscription that comes before it is durable that this replica takes part in its own epoch. A
// follower adopts the epoch when it is granted, and may have next to nothing yet; if it alone remembered the epoch, a recovery of lost
// metadata would take its log for the one that holds everything. The newest subscription of a broker counts.
func (r *Replica) early(ev *Event) bool {
	l := &r.lead
	leads := r.role == roleAssigning || r.role == roleLeading && r.log.AdoptedDurable() < l.epoch
	if !leads || ev.Epoch != l.epoch {
		return false
	}
	for i := range l.waiting {
		w := &l.waiting[i]
		if w.Peer.BrokerID != ev.Peer.BrokerID {
			continue
		}
		older := ev.Session
		if ev.PeerEpoch > w.PeerEpoch || ev.PeerEpoch == w.PeerEpoch && (ev.PeerSession == 0 || ev.PeerSession > w.PeerSession) {
			older = w.Session
			*w = *ev
		}
		r.refuse(older, ReasonOvertaken)
		return true
	}
	if len(l.waiting) == maxEarly {
		return false
	}
	l.waiting = append(l.waiting, *ev)
	return true
}

// answerEarly answers what has waited.
func (r *Replica) answerEarly() {
	l := &r.lead
	if len(l.waiting) == 0 || r.log.AdoptedDurable() < l.epoch {
		return
	}
	waiting := l.waiting
	l.waiting = nil
	for i := range waiting {
		r.onSubscribe(&waiting[i])
	}
}

// subscribeFence refuses who may not subscribe here at all, now, or in this epoch; 0 if nothing is wrong.
func (r *Replica) subscribeFence(ev *Event) Reason {
	if r.role != roleLeading {
		if r.rec == nil || ev.Epoch > r.rec.LeaderEpoch || r.role == roleAssigning && ev.Epoch == r.lead.epoch {
			return ReasonUnknownEpoch
		}
		return ReasonNotLeader
	}
	switch {
	case ev.Epoch < r.lead.epoch:
		return ReasonFencedEpoch
	case ev.Epoch > r.lead.epoch, ev.LastEpoch > r.lead.epoch:
		return ReasonUnknownEpoch
	case r.lead.peer(ev.Peer.BrokerID) == nil:
		return ReasonNotReplica
	}
	return 0
}

// overtaken tells whether a newer subscription of the same broker has been seen (InvariantFencedPast).
func (r *Replica) overtaken(p *peer, ev *Event) bool {
	if !p.known || ev.PeerEpoch > p.epoch {
		return false
	}
	return ev.PeerEpoch < p.epoch || ev.PeerSession != 0 && ev.PeerSession <= p.number
}

// identify notes who subscribes. Nothing that another identity has acknowledged counts for this one; what another registration
// of the same identity has, is only held against it.
func (r *Replica) identify(p *peer, ev *Event) {
	if !p.known {
		p.known, p.id, p.epoch = true, ev.Peer, ev.PeerEpoch
	}
	if p.id != ev.Peer {
		p.id, p.most, p.lost, p.logStart, p.acked, p.caughtUp = ev.Peer, -1, false, -1, -1, never
	}
	if p.epoch != ev.PeerEpoch {
		p.epoch, p.acked, p.logStart = ev.PeerEpoch, -1, -1
		p.retryAt, p.delay = 0, 0
	}
	p.number = ev.PeerSession
	p.logStart = max(p.logStart, ev.LogStart)
	p.mark = mark{}
}

// hasLost tells whether a subscription at offset proves that a member's log has lost records: it has acknowledged more in this epoch, or
// the log start, below which everything was committed while it was a member, is higher. Of a replica that does not count nothing is held.
func (r *Replica) hasLost(p *peer, offset int64) bool {
	less := offset < p.most
	if slices.Contains(r.lead.effective, p.id) {
		return less || offset < r.log.LogStart()
	}
	if less {
		p.most, p.acked = -1, -1
	}
	return false
}

// rejects answers a follower that cannot continue at ev.Offset, and tells whether it did. The follower's last epoch decides
// (InvariantEpochTruncation): if this log has that epoch, and it reaches as far, then everything before is the same too.
func (r *Replica) rejects(ev *Event) bool {
	start, end := r.log.ReplicaStart(), r.log.End()
	if ev.Offset < start {
		r.emit(Effect{Kind: EffectBelowStart, Session: ev.Session, Offset: start})
		return true
	}
	epoch, epochEnd := int32(-1), int64(-1)
	switch {
	case ev.LastEpoch >= 0:
		epoch, epochEnd = r.log.EndOffsetForEpoch(ev.LastEpoch)
		if epoch == ev.LastEpoch && ev.Offset <= epochEnd {
			return false
		}
		// The epochs below the log start may be forgotten: nothing of this history contradicts one that ends there.
		if epoch < 0 && ev.Offset == start {
			return false
		}
	case ev.Offset <= ev.LogStart && ev.Offset <= end:
		return false // empty: it contradicts nothing
	}
	if epoch >= 0 && epochEnd < ev.LogStart || ev.LastEpoch < 0 && ev.Offset > end {
		// It would have to truncate below its own start.
		r.emit(Effect{Kind: EffectBelowStart, Session: ev.Session, Offset: start})
		return true
	}
	r.emit(Effect{Kind: EffectDiverging, Session: ev.Session, Epoch: epoch, Offset: epochEnd})
	return true
}

// onDiverging truncates to where the leader's history parts from this one: to the end of the newest epoch that both have, on the
// side where it ends first. What is cut was never acknowledged by every member, and whatever the high watermark says decides nothing
// (InvariantEpochTruncation). Where no epoch is common, nothing of the log is.
func (r *Replica) onDiverging(ev *Event) {
	f := &r.follow
	if !r.current(ev, stateSubscribing) {
		return
	}
	start := r.log.LogStart()
	to, found := start, int32(-1)
	if ev.Epoch >= 0 {
		if found, to = r.log.EndOffsetForEpoch(ev.Epoch); found < 0 {
			to = start
		}
		to = min(to, ev.Offset)
	}
	if to >= r.log.End() && found == r.log.LatestEpoch() {
		r.retryLater() // it changes nothing, and would come again at once
		return
	}
	if to < start {
		r.startOver() // below its start the log cannot be cut
		return
	}
	r.unsubscribe()
	f.state, f.truncating = stateTruncating, true
	f.cutEnd, f.cutLatest = r.log.End(), r.log.LatestEpoch()
	r.emit(Effect{Kind: EffectTruncate, Offset: to})
}

// startOver has the log replaced, if nobody counts on it, because it cannot be cut to where it would agree with the leader's. The
// next subscription is that of an empty log, which tells where the leader's begins.
func (r *Replica) startOver() {
	r.follow.startOver = !slices.Contains(r.rec.ISR, r.self)
	r.retryLater()
}

// onBelowStart replaces the log if nobody counts on it. A member of the in-sync set has everything that was ever committed, so it cannot
// be below the leader's start: it touches nothing and asks again (InvariantStorageIdentity).
func (r *Replica) onBelowStart(ev *Event) {
	if r.current(ev, stateSubscribing) || r.current(ev, stateFollowing) {
		r.reset(ev.Offset)
	}
}

func (r *Replica) reset(offset int64) {
	f := &r.follow
	if slices.Contains(r.rec.ISR, r.self) || f.rebuilding() || r.starts.journaling {
		f.startOver = false
		r.retryLater()
		return
	}
	r.unsubscribe()
	f.state, f.resetting = stateResetting, true
	r.emit(Effect{Kind: EffectReset, Offset: offset, Leader: f.of.leader, Epoch: f.of.epoch})
}

// maxCutFailures is how often the log may refuse to be cut before it is replaced: a start within a batch cannot be cut to.
const maxCutFailures = 3

// onTruncated goes on with a log that is now what it was to become, or as it was if that failed.
func (r *Replica) onTruncated(ev *Event) {
	f := &r.follow
	if !f.rebuilding() {
		return
	}
	cut := f.truncating
	f.truncating, f.resetting = false, false
	if !cut {
		journaling := r.starts.journaling
		r.starts = logStart{journaling: journaling}
	}
	if ev.Err == nil {
		f.startOver, f.cutFailures = false, 0
	} else if cut {
		f.cutFailures++
	}
	switch {
	case r.role != roleFollowing:
		r.evaluate()
	case ev.Err == nil && cut && f.cutEnd == r.log.End() && f.cutLatest == r.log.LatestEpoch():
		r.startOver() // an empty log that remembers an epoch of which the leader knows nothing: it would be told the same again
	case ev.Err == nil:
		r.subscribe()
	case f.cutFailures >= maxCutFailures:
		r.startOver()
	default:
		r.retryLater()
	}
}
