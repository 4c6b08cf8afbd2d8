package sim

import (
	"time"

	"runnel.dev/runnel/broker/metadata"
)

// What a broker's client of etcd allows: the defaults of metadata.Config.
const (
	attemptTimeout = 1250 * time.Millisecond
	requestTimeout = 5 * time.Second
	minBackOff     = 20 * time.Millisecond
	maxBackOff     = time.Second
)

// attempt makes one request. serve runs in etcd, at most once and possibly long after done was called; done runs in the broker, once,
// unless the broker dies. served tells whether serve had taken effect by then: for the trace, not for the broker.
func (p *proc) attempt(serve func() any, done func(answer any, result metadata.Attempt)) {
	e, answered := p.etcd, false
	finish := func(answer any, result metadata.Attempt) {
		p.do(func() {
			if !answered {
				answered = true
				done(answer, result)
			}
		})
	}
	if p.node.etcdCut && p.chance(0.5) {
		p.after(p.between(time.Millisecond, 50*time.Millisecond), func() { finish(nil, metadata.Unsent) })
		return
	}
	p.after(attemptTimeout, func() { finish(nil, metadata.Unanswered) })
	delay := p.between(300*time.Microsecond, 3*time.Millisecond)
	late := false
	switch k := &p.knobs; {
	case p.node.etcdCut:
		return // lost on the way
	case p.chance(k.etcdLoss):
		return
	case p.chance(k.etcdLate):
		delay, late = p.between(attemptTimeout, 9*time.Second), true
	}
	var arrive func()
	arrive = func() {
		if e.down() {
			switch p.rng.IntN(3) {
			case 0: // refused, without a hint whether it was proposed
				p.after(p.between(time.Millisecond, 100*time.Millisecond), func() { finish(nil, metadata.Unanswered) })
			case 1: // proposed, and committed by the next leader
				p.after(e.downUntil-p.now+p.between(0, 2*time.Second), arrive)
			}
			return
		}
		if late {
			p.cov.hit(LateTxns)
		}
		answer := serve()
		if p.node.etcdCut || p.chance(p.knobs.etcdLoss) {
			return
		}
		p.after(p.between(300*time.Microsecond, 3*time.Millisecond), func() { finish(answer, metadata.Answered) })
	}
	p.after(delay, arrive)
}

// get is a linearizable read, repeated until it is answered.
func get[T any](p *proc, read func() T, done func(T)) {
	p.attempt(func() any { return read() }, func(answer any, result metadata.Attempt) {
		if v, ok := answer.(T); ok && result == metadata.Answered {
			done(v)
			return
		}
		p.later(p.between(minBackOff, maxBackOff/4), func() { get(p, read, done) })
	})
}

// commit carries a transaction out, and repeats it, by the real rule of settlement, until its outcome is known. With patience > 0 it gives up
// then, like a caller that goes away: ok is false, and an attempt may still take effect.
func (p *proc) commit(tx metadata.Tx, patience time.Duration, done func(out metadata.Outcome, ok bool)) {
	c := &commit{p: p, tx: &tx, done: done, until: p.now + patience, bounded: patience > 0}
	c.settlement = metadata.Settle(c.tx)
	c.try()
}

type commit struct {
	p          *proc
	tx         *metadata.Tx
	settlement metadata.Settlement
	done       func(metadata.Outcome, bool)
	until      time.Duration
	bounded    bool
	backOff    time.Duration
	attempts   int
	applied    bool // some attempt was, unknown to the broker
}

func (c *commit) try() {
	c.attempts++
	n := c.attempts
	serve := func() any {
		if c.p.etcd.leaseGone(c.tx) {
			return nil // an error that does not say whether an earlier attempt took effect
		}
		answer := c.p.etcd.apply(c.tx)
		c.p.tracef("etcd %s by %d attempt %d: %v rev %d", c.tx.Op, c.p.node.id, n, answer.Succeeded, answer.Revision)
		if !answer.Succeeded && n < c.attempts {
			c.p.cov.hit(FencedAttempts)
		}
		c.applied = c.applied || answer.Succeeded
		return answer
	}
	c.p.attempt(serve, func(answer any, result metadata.Attempt) {
		a, ok := answer.(metadata.Answer)
		if !ok && result == metadata.Answered {
			result = metadata.Unanswered
		}
		if result == metadata.Unanswered {
			c.p.cov.hit(AmbiguousTxns)
			if c.applied {
				c.p.cov.hit(AmbiguousApplied)
			}
		}
		verdict, out := c.settlement.Step(result, a)
		switch {
		case verdict == metadata.Settled:
			c.done(out, true)
		case verdict == metadata.Failed:
			c.done(metadata.Outcome{}, true)
		case c.bounded && c.p.now >= c.until:
			c.done(metadata.Outcome{}, false)
		default:
			c.backOff = min(max(2*c.backOff, minBackOff), maxBackOff)
			c.p.later(c.p.between(c.backOff/2, c.backOff), c.try)
		}
	})
}
