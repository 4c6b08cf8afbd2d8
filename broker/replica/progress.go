package replica

import (
	"math"
	"time"
)

// never is before every time that counts.
const never = time.Duration(math.MinInt64 / 4)

// mark is a log end and when it was: a follower that acknowledges the end was caught up then. One is outstanding per follower, so a
// follower that is slow but moves is measured by how old the end is that it reaches.
type mark struct {
	set bool
	at  time.Duration
	end int64
}

// markProgress sets marks at a tick.
func (r *Replica) markProgress() {
	end := r.log.End()
	for i := range r.lead.peers {
		p := &r.lead.peers[i]
		if p.session == 0 || p.mark.set {
			continue
		}
		if p.acked >= end {
			p.caughtUp = r.now
			continue
		}
		p.mark = mark{set: true, at: r.now, end: end}
	}
}

// progressed draws the conclusions of an acknowledgement.
func (r *Replica) progressed(p *peer) {
	if p.mark.set && p.acked >= p.mark.end {
		p.caughtUp = max(p.caughtUp, p.mark.at)
		p.mark = mark{}
	}
	if p.acked >= r.log.End() {
		p.caughtUp = r.now
		p.mark = mark{}
	}
}

// keepsUp tells whether a peer was caught up within LagTimeout.
func (r *Replica) keepsUp(p *peer) bool { return r.now-p.caughtUp <= r.cfg.LagTimeout }

// forgive moves what is known of followers over a gap in which this process did not run.
func (l *leader) forgive(gap time.Duration) {
	for i := range l.peers {
		p := &l.peers[i]
		if p.caughtUp != never {
			p.caughtUp += gap
		}
		p.mark.at += gap
	}
}

// refreshWritable decides whether produce is taken: only while enough confirmed members keep up that it can be acknowledged.
func (r *Replica) refreshWritable() {
	n := 0
	for _, m := range r.rec.ISR {
		if m == r.lead.self {
			n++
			continue
		}
		if p := r.lead.peer(m.BrokerID); p != nil && !p.lost && (!p.known || p.id == m) && r.keepsUp(p) {
			n++
		}
	}
	r.lead.writable = n >= r.minISR()
}
