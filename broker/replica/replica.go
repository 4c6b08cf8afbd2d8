package replica

import (
	"slices"
	"time"
)

// Defaults of Config.
const (
	defaultLagTimeout = 3 * time.Second
	defaultRetryDelay = 50 * time.Millisecond
	// maxBackOff bounds the growing delays: between attempts to subscribe, and between proposals.
	maxBackOff = time.Second
	// maxAppendBackOff bounds the delay of a follower whose log takes no batches.
	maxAppendBackOff = 5 * time.Second
)

// role is what the replica does at present.
type role uint8

const (
	roleNone      role = iota // not usable, or there is nobody to follow
	roleAssigning             // to lead, once the log has the epoch
	roleLeading
	roleFollowing
)

// Replica is the state machine of one partition on one broker. Its methods are not safe for concurrent use.
type Replica struct {
	cfg Config
	log Log

	now  time.Duration
	role role

	// What the metadata says, and this broker's own situation.
	rec         *Record
	brokerEpoch int64
	self        Member
	usable      bool
	// spent is the newest epoch that this replica has led, or was about to lead, and does not lead any more.
	//
	// Invariant: InvariantOneIncarnation: no epoch ≤ spent is led.
	spent int32

	lead   leader
	follow follower
	starts logStart

	out   []Effect
	shown shown
}

// New returns the machine of a partition whose log is log. It neither leads nor follows before the first EventMetadata.
func New(cfg Config, log Log) *Replica {
	if cfg.LagTimeout <= 0 {
		cfg.LagTimeout = defaultLagTimeout
	}
	if cfg.RetryDelay <= 0 {
		cfg.RetryDelay = defaultRetryDelay
	}
	r := &Replica{cfg: cfg, log: log, spent: -1}
	r.shown = r.toShow()
	return r
}

// Step takes one event and returns what has to be done about it, in order. The slice is valid until the next call.
func (r *Replica) Step(ev *Event) []Effect {
	r.out = r.out[:0]
	r.advanceClock(ev.Now)
	switch ev.Kind {
	case EventMetadata:
		r.onMetadata(ev)
	case EventEpochAssigned:
		r.onEpochAssigned(ev)
	case EventFlushed:
		r.onFlushed()
	case EventTick:
		r.onTick()
	case EventSubscribe:
		r.onSubscribe(ev)
	case EventAck:
		r.onAck(ev)
	case EventUnsubscribed:
		r.onUnsubscribed(ev)
	case EventProposalSettled:
		r.onProposalSettled(ev)
	case EventWantLogStart:
		r.onWantLogStart(ev)
	case EventGranted:
		r.onGranted(ev)
	case EventDiverging:
		r.onDiverging(ev)
	case EventBelowStart:
		r.onBelowStart(ev)
	case EventRefused:
		r.onRefused(ev)
	case EventData:
		r.onData(ev)
	case EventAppendFailed:
		r.onAppendFailed()
	case EventTruncated:
		r.onTruncated(ev)
	case EventLogStartJournaled:
		r.onLogStartJournaled(ev)
	case EventFailed:
		r.usable = false
		r.evaluate()
	}
	r.show()
	return r.out
}

// advanceClock moves the machine's time. A leader that met no event for long was paused, and its followers are not to blame for it.
func (r *Replica) advanceClock(now time.Duration) {
	if gap := now - r.now; gap > 0 {
		if gap > r.cfg.LagTimeout/2 && r.role == roleLeading {
			r.lead.forgive(gap)
		}
		r.now = now
	}
}

func (r *Replica) onFlushed() {
	switch r.role {
	case roleLeading:
		r.answerEarly()
		r.advance()
		r.publishLogStart()
	case roleFollowing:
		r.acknowledge()
		r.followLimits()
	case roleNone, roleAssigning:
	}
}

func (r *Replica) onTick() {
	switch r.role {
	case roleLeading:
		r.tickLeader()
	case roleAssigning:
		r.retryAssign()
	case roleFollowing:
		r.tickFollower()
	case roleNone:
	}
}

func (r *Replica) emit(e Effect) { r.out = append(r.out, e) }

// shown is the part of Status whose change makes an EffectRole.
type shown struct {
	role      role
	leader    int32
	epoch     int32
	writable  bool
	following followState
	rec       *Record
	effective *Member // of the first element: the slice is replaced when it changes
	members   int
}

func (r *Replica) toShow() shown {
	s := shown{role: r.role, leader: -1, rec: r.rec}
	if r.rec != nil {
		s.leader, s.epoch = r.rec.Leader, r.rec.LeaderEpoch
	}
	switch r.role {
	case roleLeading:
		s.writable = r.lead.writable
		if s.members = len(r.lead.effective); s.members > 0 {
			s.effective = &r.lead.effective[0]
		}
	case roleFollowing:
		s.following = r.follow.state
	case roleNone, roleAssigning:
	}
	return s
}

// show puts an EffectRole before the step's other effects if what requests and people see has changed: who waits for an epoch that has
// ended is told so before anything else happens.
func (r *Replica) show() {
	if s := r.toShow(); s != r.shown {
		r.shown = s
		r.out = slices.Insert(r.out, 0, Effect{Kind: EffectRole})
	}
}

// Status describes the machine as it is after the last Step.
func (r *Replica) Status() Status {
	s := Status{LeaderID: -1, Following: followNames[stateNone]}
	if r.rec == nil {
		return s
	}
	s.LeaderID, s.Epoch = r.rec.Leader, r.rec.LeaderEpoch
	s.ISR, s.Effective, s.MinISR = r.rec.ISR, r.rec.ISR, r.minISR()
	switch r.role {
	case roleLeading:
		l := &r.lead
		s.Leading, s.Epoch, s.EpochStart = true, l.epoch, l.start
		s.Writable, s.Effective = l.writable, l.effective
		s.LogStartWanted = r.starts.wanted
		s.Followers = make([]FollowerStatus, 0, len(l.peers))
		for i := range l.peers {
			p := &l.peers[i]
			m := p.id
			if !p.known {
				m = Member{BrokerID: p.broker}
			}
			s.Followers = append(s.Followers, FollowerStatus{
				Peer: m, PeerEpoch: p.epoch, Acked: p.acked, CaughtUp: p.caughtUp, InSync: r.inSync(p),
			})
		}
	case roleFollowing:
		s.Following = followNames[r.follow.state]
	case roleNone, roleAssigning:
	}
	return s
}

// minISR is the topic's minimum, at least 1.
func (r *Replica) minISR() int { return max(r.rec.MinISR, 1) }
