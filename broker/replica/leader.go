package replica

import (
	"slices"
	"time"
)

// leader is the state of one epoch's leadership. It starts afresh with every epoch.
type leader struct {
	epoch        int32
	registration int64  // the broker epoch that the epoch is led under
	self         Member // the log that leads
	start        int64  // the log end when leadership began
	writable     bool

	// peers are the other replicas, in no order; few enough to search.
	peers []peer
	// effective is what counts towards the high watermark: confirmed members and those of the proposal. Replaced, never changed.
	effective []Member
	confirmed []Member // as of the last refresh
	// waiting are subscriptions that came before they could be answered.
	waiting []Event

	proposal     proposal
	nextProposal uint64
	proposeAt    time.Duration
	proposeDelay backOff

	assignAt    time.Duration
	assignDelay backOff

	// startFloor is the journaled log start when leadership began: what an earlier leader may have published.
	startFloor int64
}

// peer is what the leader knows of another replica, in this epoch.
type peer struct {
	broker int32
	known  bool // it has subscribed in this epoch; id and epoch are what it named
	id     Member
	epoch  int64 // registration

	number  Session // its own number of its newest subscription
	session Session // the granted subscription, 0: none
	heard   bool    // it has acknowledged something in that subscription

	// acked is what it has flushed, by acknowledgements of this registration and identity in this epoch; -1: none. It outlives a session:
	// what is on disk stays there when a stream breaks.
	acked int64
	// most is the same over all registrations of the identity.
	most int64
	// lost: it came back with less than it has acknowledged.
	lost     bool
	logStart int64 // journaled, -1: unknown

	caughtUp time.Duration
	mark     mark

	retryAt time.Duration // not to be proposed before
	delay   backOff
}

// beginLeading starts the epoch whose first offset is start.
func (r *Replica) beginLeading(start int64) {
	l := &r.lead
	r.role = roleLeading
	l.start = start
	if hw := r.log.HighWatermark(); hw > start {
		broken(InvariantHighWatermark, "high watermark %d above the start %d of epoch %d", hw, start, l.epoch)
	}
	r.log.AdoptEpoch(l.epoch)
	l.startFloor = r.log.JournaledLogStart()
	r.starts.wanted = 0
	if l.startFloor > r.log.LogStart() {
		// An earlier leader may have published it; it did not go above that leader's high watermark, so it is committed.
		r.starts.wanted = l.startFloor
		r.raiseHighWatermark(l.startFloor)
	}
	r.refreshMembers()
	r.answerEarly()
}

// refreshMembers makes peers and effective fit the record and the proposal, and does what has become possible.
func (r *Replica) refreshMembers() {
	l := &r.lead
	r.holdBack()
	r.settleByRecord()
	r.refreshEffective()
	l.peers = slices.DeleteFunc(l.peers, func(p peer) bool {
		if r.concerns(p.broker) {
			return false
		}
		r.dismiss(&p, ReasonNotReplica)
		return true
	})
	for _, id := range r.rec.Replicas {
		r.addPeer(id)
	}
	for _, m := range l.effective {
		r.addPeer(m.BrokerID)
	}
	for i := range l.peers {
		// A loss has been dealt with once no entry names the identity.
		if p := &l.peers[i]; p.lost && !slices.Contains(l.effective, p.id) {
			p.lost, p.most, p.acked = false, -1, -1
		}
	}
	r.advance()
	r.publishLogStart()
	r.refreshWritable()
	r.propose()
}

func (r *Replica) refreshEffective() {
	l := &r.lead
	effective := r.rec.ISR
	if l.proposal.id != 0 {
		for _, m := range l.proposal.isr {
			if !slices.Contains(effective, m) {
				effective = append(slices.Clip(effective), m)
			}
		}
	}
	if !slices.Equal(effective, l.effective) {
		l.effective = effective
	}
}

// holdBack keeps a member out for a while after it was taken out. Whoever did so, the controller as a rule, knows something that its
// acknowledgements do not show; without a pause the two would undo each other's changes as fast as the metadata takes them.
func (r *Replica) holdBack() {
	l := &r.lead
	for _, m := range l.confirmed {
		if p := l.peer(m.BrokerID); p != nil && p.id == m && !slices.Contains(r.rec.ISR, m) {
			p.retryAt = r.now + p.delay.next(maxBackOff/2)
		}
	}
	l.confirmed = r.rec.ISR
}

// concerns tells whether a broker is a replica or an entry that counts.
func (r *Replica) concerns(broker int32) bool {
	return slices.Contains(r.rec.Replicas, broker) ||
		slices.ContainsFunc(r.lead.effective, func(m Member) bool { return m.BrokerID == broker })
}

func (r *Replica) addPeer(broker int32) {
	l := &r.lead
	if broker == r.cfg.BrokerID || l.peer(broker) != nil {
		return
	}
	p := peer{broker: broker, acked: -1, most: -1, logStart: -1, caughtUp: never}
	if _, in := r.entry(broker); in {
		p.caughtUp = r.now // the grace of a new epoch
	}
	l.peers = append(l.peers, p)
}

func (l *leader) peer(broker int32) *peer {
	for i := range l.peers {
		if l.peers[i].broker == broker {
			return &l.peers[i]
		}
	}
	return nil
}

// bySession returns the peer whose granted subscription is s.
func (l *leader) bySession(s Session) *peer {
	for i := range l.peers {
		if l.peers[i].session == s && s != 0 {
			return &l.peers[i]
		}
	}
	return nil
}

// entry returns the confirmed in-sync entry of a broker.
func (r *Replica) entry(broker int32) (Member, bool) {
	for _, m := range r.rec.ISR {
		if m.BrokerID == broker {
			return m, true
		}
	}
	return Member{}, false
}

// inSync tells whether the peer, under the identity that it subscribed with, is a confirmed member.
func (r *Replica) inSync(p *peer) bool {
	m, in := r.entry(p.broker)
	return in && (!p.known || p.id == m)
}

// ackedBy returns the offset that counts for an entry: what the identity that it names has acknowledged in this epoch, -1 if nothing
// (InvariantStorageIdentity). The leader itself counts with what is flushed, once it is durable that it takes part in the epoch.
func (r *Replica) ackedBy(m Member) int64 {
	if m == r.lead.self {
		if r.log.AdoptedDurable() < r.lead.epoch {
			return -1
		}
		return r.log.Flushed()
	}
	if p := r.lead.peer(m.BrokerID); p != nil && p.known && p.id == m && !p.lost {
		return p.acked
	}
	return -1
}

// advance moves the high watermark (InvariantHighWatermark): to the least of what the effective members have acknowledged, while
// the confirmed ones alone are the minimum.
func (r *Replica) advance() {
	if len(r.rec.ISR) < r.minISR() {
		return
	}
	least := int64(-1)
	for i, m := range r.lead.effective {
		acked := r.ackedBy(m)
		if i == 0 || acked < least {
			least = acked
		}
	}
	r.raiseHighWatermark(least)
}

func (r *Replica) raiseHighWatermark(to int64) {
	before := r.log.HighWatermark()
	if to <= before {
		return
	}
	r.log.SetHighWatermark(to)
	after := r.log.HighWatermark()
	if after < before {
		broken(InvariantHighWatermark, "it went from %d to %d", before, after)
	}
	if after > before {
		r.emit(Effect{Kind: EffectHighWatermark, Offset: after})
	}
}

// onAck takes what a follower has flushed. It counts only in the epoch and the granted subscription it was sent in, and under the
// registration that subscribed (InvariantFencedPast).
func (r *Replica) onAck(ev *Event) {
	if r.role != roleLeading || ev.Epoch != r.lead.epoch {
		return
	}
	p := r.lead.bySession(ev.Session)
	if p == nil || ev.PeerEpoch != p.epoch || ev.Offset > r.log.End() {
		return
	}
	p.heard, p.acked = true, max(p.acked, ev.Offset)
	p.most = max(p.most, p.acked)
	p.logStart = max(p.logStart, ev.LogStart)
	r.progressed(p)
	r.advance()
	r.publishLogStart()
	if !r.lead.writable {
		r.refreshWritable()
	}
	if _, in := r.entry(p.broker); !in {
		r.propose()
	}
}

func (r *Replica) onUnsubscribed(ev *Event) {
	r.lead.waiting = slices.DeleteFunc(r.lead.waiting, func(w Event) bool { return w.Session == ev.Session })
	if r.role != roleLeading {
		return
	}
	if p := r.lead.bySession(ev.Session); p != nil {
		p.session = 0
		p.mark = mark{}
	}
}

// dismiss ends a peer's subscription, if it has one.
func (r *Replica) dismiss(p *peer, why Reason) {
	if p.session != 0 {
		r.refuse(p.session, why)
		p.session = 0
		p.mark = mark{}
	}
}

func (r *Replica) refuse(s Session, why Reason) {
	r.emit(Effect{Kind: EffectRefuse, Session: s, Reason: why})
}

func (r *Replica) tickLeader() {
	r.markProgress()
	r.advance()
	r.wantLogStart()
	r.publishLogStart()
	r.refreshWritable()
	r.propose()
}

// backOff is a delay that doubles up to maxBackOff.
type backOff time.Duration

func (b *backOff) next(first time.Duration) time.Duration {
	*b = backOff(min(max(2*time.Duration(*b), first), maxBackOff))
	return time.Duration(*b)
}
