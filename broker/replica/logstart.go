package replica

import "time"

// logStart moves the log start. The leader is its authority: it journals where the log is to begin, followers journal the same, and
// once every effective member has, the leader publishes it, then they do. So whoever leads next finds in its own journal what was
// published, and nothing is unlinked that a member may still show.
type logStart struct {
	// wanted is where this leader wants the log to begin; of a follower, what its leader wants. 0: nothing.
	wanted    int64
	published int64 // a follower's leader's log start

	journaling bool // an EffectJournalLogStart is unanswered
	journalAt  time.Duration
	delay      backOff

	publishing   int64 // the newest EffectPublishLogStart
	publishingAt time.Duration
}

func (r *Replica) onWantLogStart(ev *Event) {
	if r.role != roleLeading {
		return
	}
	// What is not committed cannot be deleted: a later leader might not know that it ever was.
	r.starts.wanted = max(r.starts.wanted, min(ev.Offset, r.log.HighWatermark()))
	r.wantLogStart()
	r.publishLogStart()
}

// wantLogStart has the leader's own log journal what is wanted.
func (r *Replica) wantLogStart() { r.journalLogStart(r.starts.wanted) }

func (r *Replica) journalLogStart(to int64) {
	s := &r.starts
	if s.journaling || r.now < s.journalAt || to <= r.log.JournaledLogStart() || to > min(r.log.HighWatermark(), r.log.Flushed()) {
		return
	}
	s.journaling = true
	r.emit(Effect{Kind: EffectJournalLogStart, Offset: to, LogStart: to})
}

func (r *Replica) onLogStartJournaled(ev *Event) {
	s := &r.starts
	s.journaling = false
	if ev.Err != nil {
		s.journalAt = r.now + s.delay.next(2*r.cfg.RetryDelay)
		return
	}
	s.delay = 0
	switch r.role {
	case roleLeading:
		r.wantLogStart() // it may have moved on
		r.publishLogStart()
	case roleFollowing:
		r.acknowledge()
		r.followLimits()
	case roleNone, roleAssigning:
	}
}

// publishLogStart publishes what every effective member has journaled, this log among them.
func (r *Replica) publishLogStart() {
	l := &r.lead
	to := min(r.starts.wanted, r.log.JournaledLogStart())
	if to <= r.log.LogStart() {
		return
	}
	for _, m := range l.effective {
		if m == l.self {
			continue
		}
		p := l.peer(m.BrokerID)
		if p == nil || !p.known || p.id != m || p.lost {
			return
		}
		to = min(to, p.logStart)
	}
	r.publish(to)
}

func (r *Replica) publish(to int64) {
	s := &r.starts
	if to <= r.log.LogStart() || to <= s.publishing && r.now < s.publishingAt+maxBackOff {
		return
	}
	s.publishing, s.publishingAt = to, r.now
	r.emit(Effect{Kind: EffectPublishLogStart, Offset: to})
}

// publishedFloor is where the log of a new member has to begin, at least: what has been published, is about to be, or may have been by
// an earlier leader.
func (r *Replica) publishedFloor() int64 {
	return max(r.log.LogStart(), r.lead.startFloor, r.starts.publishing)
}

// followLogStart journals and publishes what the leader says, as far as this log has come.
func (r *Replica) followLogStart() {
	s := &r.starts
	reach := min(r.log.HighWatermark(), r.log.Flushed())
	to := int64(0)
	for _, start := range [...]int64{s.published, s.wanted} {
		if start <= reach {
			to = max(to, start)
		}
	}
	r.journalLogStart(to)
	r.publish(min(s.published, r.log.JournaledLogStart()))
}
