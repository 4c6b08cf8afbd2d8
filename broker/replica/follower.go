package replica

import (
	"slices"
	"time"
)

// followState is how far a follower has come in the present epoch.
type followState uint8

const (
	stateNone        followState = iota
	stateWaiting                 // for the time of the next attempt
	stateSubscribing             // for the leader's answer
	stateTruncating              // for the log, before it subscribes again
	stateResetting               // for a new log
	stateFollowing               // granted
)

// followNames are Status.Following.
var followNames = [...]string{
	stateNone: "", stateWaiting: "waiting", stateSubscribing: "subscribing", stateTruncating: "truncating",
	stateResetting: "resetting", stateFollowing: "following",
}

// target is whom a follower follows, and as whom. Another one is another start.
type target struct {
	leader       int32
	epoch        int32
	registration int64
	self         Member
}

// follower is the follower's side.
type follower struct {
	of    target
	state followState

	session Session // the newest subscription
	live    bool    // it is not over
	since   time.Duration
	retryAt time.Duration
	delay   backOff

	// appendDelay grows while the log takes nothing at stuckAt, over sessions and epochs: that a leader grants proves nothing about the disk.
	appendDelay time.Duration
	stuckAt     int64

	// truncating and resetting: the effect is unanswered. They outlive the epoch: nothing is asked for before the log is what it will be.
	truncating, resetting bool

	// startOver: the log cannot be made to agree with the leader's, and is to be replaced.
	startOver   bool
	cutFailures int
	// cutEnd and cutLatest are the end and the latest epoch of the log that the newest EffectTruncate is to cut.
	cutEnd    int64
	cutLatest int32

	highWatermark int64 // the leader's
	ackedOffset   int64 // what was acknowledged last in this session, -1: nothing
	ackedStart    int64
	ackedAt       time.Duration
}

func (f *follower) rebuilding() bool { return f.truncating || f.resetting }

func (r *Replica) target() target {
	return target{leader: r.rec.Leader, epoch: r.rec.LeaderEpoch, registration: r.brokerEpoch, self: r.self}
}

// startFollowing begins with a leader epoch: whatever was granted before is over (InvariantFencedPast), the history is compared anew
// (InvariantEpochTruncation).
func (r *Replica) startFollowing() {
	f := &r.follow
	r.unsubscribe()
	f.of, f.delay, f.highWatermark = r.target(), 0, 0
	f.startOver, f.cutFailures = false, 0
	r.starts.wanted, r.starts.published = 0, 0
	r.subscribeWhenReady()
}

func (r *Replica) unfollow() {
	r.unsubscribe()
	r.follow.state = stateNone
	r.follow.of = target{}
}

func (r *Replica) unsubscribe() {
	if f := &r.follow; f.live {
		f.live = false
		r.emit(Effect{Kind: EffectUnsubscribe, Session: f.session})
	}
}

// subscribeWhenReady subscribes unless the log is about to change.
func (r *Replica) subscribeWhenReady() {
	switch f := &r.follow; {
	case f.resetting:
		f.state = stateResetting
	case f.truncating:
		f.state = stateTruncating
	default:
		r.subscribe()
	}
}

// subscribe asks the leader for everything behind the log end, and says which epoch the log ends in, so that the leader sees where
// the histories part.
func (r *Replica) subscribe() {
	f := &r.follow
	r.unsubscribe()
	// Time orders the sessions of a machine that was made anew within the process behind those of the one before it.
	f.session = max(f.session+1, Session(max(r.now, 0)))
	f.live, f.state, f.since = true, stateSubscribing, r.now
	f.ackedOffset, f.ackedStart = -1, -1
	e := Effect{Kind: EffectSubscribe, Session: f.session, Leader: f.of.leader, Epoch: f.of.epoch, LastEpoch: -1}
	if !f.startOver {
		e.Offset, e.LastEpoch, e.LogStart = r.log.End(), r.log.LatestEpoch(), r.log.JournaledLogStart()
	}
	r.emit(e)
}

// retryLater ends the subscription and tries again after a delay that grows.
func (r *Replica) retryLater() {
	f := &r.follow
	r.unsubscribe()
	f.state = stateWaiting
	f.retryAt = r.now + f.delay.next(r.cfg.RetryDelay)
}

func (r *Replica) tickFollower() {
	f := &r.follow
	switch f.state {
	case stateWaiting:
		if r.now >= f.retryAt {
			r.subscribeWhenReady()
		}
	case stateSubscribing:
		if r.now-f.since > r.cfg.LagTimeout {
			r.subscribe()
		}
	case stateFollowing:
		if r.unheard() {
			f.ackedOffset = -1
		}
		r.acknowledge()
		r.followLimits()
	case stateNone, stateTruncating, stateResetting:
	}
}

// unheard tells that the leader seems not to know what this replica has acknowledged: it would have moved its high watermark, or have
// proposed to add this replica. It is told again, so that nothing that was lost on the way stays so; where all is well this costs nothing.
func (r *Replica) unheard() bool {
	f := &r.follow
	return f.ackedOffset >= 0 && r.now-f.ackedAt >= maxBackOff &&
		(f.highWatermark < f.ackedOffset || !slices.Contains(r.rec.ISR, r.self))
}

// current tells whether an event belongs to the present subscription.
func (r *Replica) current(ev *Event, state followState) bool {
	f := &r.follow
	return r.role == roleFollowing && f.live && ev.Session == f.session && f.state == state
}

// onGranted begins to follow: the log ends where the leader's history goes on, so this replica takes part in the epoch.
func (r *Replica) onGranted(ev *Event) {
	f := &r.follow
	if !r.current(ev, stateSubscribing) || ev.Epoch != f.of.epoch {
		return
	}
	if f.startOver {
		r.reset(ev.Offset)
		return
	}
	if ev.Offset != r.log.End() {
		// An append of the subscription before was still under way when this one was made.
		r.subscribe()
		return
	}
	f.state, f.delay = stateFollowing, 0
	r.log.AdoptEpoch(f.of.epoch)
	r.acknowledge()
}

// onRefused tries again. A leader that does not know the epoch yet soon will.
func (r *Replica) onRefused(ev *Event) {
	f := &r.follow
	if r.role != roleFollowing || !f.live || ev.Session != f.session {
		return
	}
	if ev.Reason == ReasonUnknownEpoch {
		f.delay = 0
	}
	f.live = false
	r.retryLater()
}

// onData takes batches, or limits alone. Only what continues the log is appended (InvariantByteIdentity): what it has is dropped, and
// behind a gap it subscribes again.
func (r *Replica) onData(ev *Event) {
	f := &r.follow
	if !r.current(ev, stateFollowing) || ev.Epoch != f.of.epoch {
		return
	}
	f.highWatermark = max(f.highWatermark, ev.HighWatermark)
	r.starts.wanted = max(r.starts.wanted, ev.LogStart)
	r.starts.published = max(r.starts.published, ev.Published)
	if ev.Length > 0 {
		switch end := r.log.End(); {
		case ev.Offset == end:
			// The limits are followed once the batches are in the log: this effect comes alone.
			r.emit(Effect{Kind: EffectAppend, Session: f.session, Epoch: f.of.epoch, Offset: ev.Offset})
			return
		case ev.Offset > end:
			r.subscribe()
			return
		}
	}
	r.followLimits()
}

// followLimits moves high watermark and log start as far as the leader says and this log has come.
func (r *Replica) followLimits() {
	if r.follow.state != stateFollowing {
		return
	}
	r.raiseHighWatermark(min(r.follow.highWatermark, r.log.End()))
	r.followLogStart()
}

// acknowledge tells the leader what is flushed, if that is news, once it is durable that this replica takes part in the epoch.
func (r *Replica) acknowledge() {
	f := &r.follow
	if f.state != stateFollowing || r.log.AdoptedDurable() < f.of.epoch {
		return
	}
	flushed, start := r.log.Flushed(), r.log.JournaledLogStart()
	if flushed == f.ackedOffset && start == f.ackedStart {
		return
	}
	f.ackedOffset, f.ackedStart, f.ackedAt = flushed, start, r.now
	r.emit(Effect{Kind: EffectAck, Session: f.session, Epoch: f.of.epoch, Offset: flushed, LogStart: start})
}

// onAppendFailed tries again after a delay that grows as long as nothing is appended: on a full disk, leaders would push the same batches to
// all partitions over and over.
func (r *Replica) onAppendFailed() {
	f := &r.follow
	if r.role != roleFollowing || f.state != stateFollowing {
		return
	}
	if end := r.log.End(); end != f.stuckAt {
		f.stuckAt, f.appendDelay = end, 0
	}
	f.appendDelay = min(max(2*f.appendDelay, r.cfg.RetryDelay), maxAppendBackOff)
	r.retryLater()
	f.retryAt = r.now + f.appendDelay
}
