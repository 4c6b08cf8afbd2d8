package replica

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// world is three machines, what they say to each other, and the one key of the metadata that they and a controller change. Whatever
// can happen happens in any order: messages come late, twice or not, processes and disks die.
type world struct {
	rng   *rand.Rand
	now   time.Duration
	nodes [3]*node

	rec      Record // as etcd has it
	revision int64
	eligible [3]int64
	reg      [3]int64
	self     [3]Member // what is in the machine's slot now

	mail    []*letter
	changes []*change
	value   int

	committed []logEntry // by offset
	published int64
	telling   bool // history is written
	history   []string
	seen      map[string]int
}

// node is one process.
type node struct {
	w     *world
	id    int32
	log   *memLog
	r     *Replica
	known int64 // the revision it was last given
	subs  map[Session]*sub
	gens  int
	// What the follower's side of the shell does.
	leader int32
}

type sub struct {
	peer   int32
	theirs Session
	epoch  int64
	next   int64
	live   bool
}

type letter struct {
	to      int32
	ev      Event
	batches []logEntry
	theirs  Session // EventAck, EventUnsubscribed: the follower's number
	from    int32
}

type change struct {
	from    int32
	reg     int64
	effect  Effect
	done    bool
	applied bool
}

var lastSession Session

// failure is what world.fail panics with.
type failure string

func newWorld(seed uint64, telling bool) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0)), revision: 100, seen: map[string]int{}, telling: telling}
	for i := range w.nodes {
		w.revision++
		w.reg[i], w.eligible[i], w.self[i] = w.revision, w.revision, id(int32(i))
		w.nodes[i] = &node{w: w, id: int32(i)}
		w.nodes[i].start(newMemLog(w.self[i], 0))
	}
	w.revision++
	w.rec = Record{
		Revision: w.revision, Leader: 0, LeaderEpoch: 1, LeaderBrokerEpoch: w.reg[0], Replicas: []int32{0, 1, 2}, ISR: slices.Clone(w.self[:]), MinISR: 2,
	}
	return w
}

func (w *world) say(format string, args ...any) {
	if w.telling {
		w.history = append(w.history, fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(format string, args ...any) {
	panic(failure(fmt.Sprintf(format, args...)))
}

func (n *node) start(log *memLog) {
	n.log, n.subs, n.known = log, map[Session]*sub{}, 0
	n.r = New(Config{BrokerID: n.id}, log)
}

func (n *node) step(ev Event, batches []logEntry) {
	w := n.w
	ev.Now = w.now
	before, wasLeading, epoch := n.log.hw, n.r.role == roleLeading, n.r.lead.epoch
	effects := slices.Clone(n.r.Step(&ev))
	if n.log.hw < before && ev.Kind != EventTruncated {
		w.fail("broker %d: the high watermark went from %d to %d", n.id, before, n.log.hw)
	}
	leads := n.r.role == roleLeading
	if leads && (!wasLeading || epoch != n.r.lead.epoch) {
		w.seen["election"]++
		w.checkLeader(n)
	}
	if leads {
		for at := int64(len(w.committed)); at < n.log.hw; at++ {
			w.committed = append(w.committed, n.log.at(at))
			w.seen["commit"]++
		}
	}
	for i := range effects {
		n.carryOut(&effects[i], &ev, batches)
	}
	w.checkBytes(n)
}

// checkLeader: a leader holds everything that was committed, and begins no lower than what was published.
func (w *world) checkLeader(n *node) {
	if end := n.log.End(); end < int64(len(w.committed)) {
		w.fail("broker %d leads epoch %d up to %d, %d was committed", n.id, n.r.lead.epoch, end, len(w.committed))
	}
	if n.log.journal < w.published {
		w.fail("broker %d leads with log start %d, %d was published", n.id, n.log.journal, w.published)
	}
	w.checkAgainst(n, int64(len(w.committed)))
}

// checkBytes: below its high watermark a replica holds what was committed.
func (w *world) checkBytes(n *node) {
	if n.log.hw > int64(len(w.committed)) {
		w.fail("broker %d: high watermark %d, %d was committed", n.id, n.log.hw, len(w.committed))
	}
	w.checkAgainst(n, n.log.hw)
}

func (w *world) checkAgainst(n *node, to int64) {
	for at := n.log.start; at < to; at++ {
		if n.log.at(at) != w.committed[at] {
			w.fail("broker %d holds %v at %d, committed was %v", n.id, n.log.at(at), at, w.committed[at])
		}
	}
}

func (n *node) carryOut(e *Effect, ev *Event, batches []logEntry) {
	w := n.w
	if w.telling {
		w.say("  %d: %s", n.id, text(e))
	}
	switch e.Kind {
	case EffectAssignEpoch:
		err := n.log.assign(e.Epoch)
		n.step(Event{Kind: EventEpochAssigned, Epoch: e.Epoch, Offset: n.log.End(), Err: err}, nil)
	case EffectPropose:
		w.seen["proposal"]++
		w.changes = append(w.changes, &change{from: n.id, reg: w.reg[n.id], effect: *e})
	case EffectGrant, EffectDiverging, EffectBelowStart, EffectRefuse:
		n.answer(e)
	case EffectSubscribe:
		n.leader = e.Leader
		w.post(&letter{to: e.Leader, from: n.id, theirs: e.Session, ev: Event{
			Kind: EventSubscribe, Peer: n.log.id, PeerEpoch: w.reg[n.id], PeerSession: e.Session, Epoch: e.Epoch, Offset: e.Offset,
			LastEpoch: e.LastEpoch, LogStart: e.LogStart,
		}})
	case EffectUnsubscribe:
		w.post(&letter{to: n.leader, from: n.id, theirs: e.Session, ev: Event{Kind: EventUnsubscribed}})
	case EffectAppend:
		n.log.append(batches...)
	case EffectTruncate:
		w.seen["truncation"]++
		err := n.log.truncate(e.Offset)
		n.step(Event{Kind: EventTruncated, Err: err}, nil)
	case EffectReset:
		n.reset(e.Offset)
	case EffectAck:
		w.post(&letter{to: n.leader, from: n.id, theirs: e.Session, ev: Event{
			Kind: EventAck, Epoch: e.Epoch, PeerEpoch: w.reg[n.id], Offset: e.Offset, LogStart: e.LogStart,
		}})
	case EffectJournalLogStart:
		n.log.journal = max(n.log.journal, e.Offset)
		n.step(Event{Kind: EventLogStartJournaled, Offset: e.Offset}, nil)
	case EffectPublishLogStart:
		n.log.start = max(n.log.start, e.Offset)
		w.published = max(w.published, n.log.start)
		w.seen["publish"]++
	case EffectRole, EffectHighWatermark:
	}
	_ = ev
}

// answer tells a subscriber what its leader says.
func (n *node) answer(e *Effect) {
	s := n.subs[e.Session]
	if s == nil {
		return
	}
	out := Event{Session: s.theirs, Epoch: e.Epoch, Offset: e.Offset}
	switch e.Kind {
	case EffectGrant:
		out.Kind, s.live, s.next = EventGranted, true, e.Offset
	case EffectDiverging:
		out.Kind = EventDiverging
	case EffectBelowStart:
		out.Kind = EventBelowStart
	default:
		out.Kind, out.Reason, s.live = EventRefused, e.Reason, false
	}
	n.w.post(&letter{to: s.peer, ev: out})
}

// reset makes the log anew from the leader's state, if there is a leader to ask.
func (n *node) reset(offset int64) {
	w := n.w
	w.seen["reset"]++
	from := w.nodes[n.leader].log
	if offset < from.start || offset > from.End() {
		n.step(Event{Kind: EventTruncated, Err: fmt.Errorf("%d is not there", offset)}, nil)
		return
	}
	n.gens++
	l := newMemLog(id(n.id, byte(n.gens)), offset)
	for _, e := range from.epochs {
		if e.start < offset {
			l.epochs = append(l.epochs, epochStart{e.epoch, min(e.start, offset)})
		}
	}
	l.hw = offset
	if offset > int64(len(w.committed)) {
		w.fail("broker %d was reset to %d, %d was committed", n.id, offset, len(w.committed))
	}
	l.sync()
	*n.log = *l
	w.self[n.id] = l.id
	w.tell(n, w.rec)
	n.step(Event{Kind: EventTruncated}, nil)
}

func (w *world) tell(n *node, rec Record) {
	n.known = max(n.known, rec.Revision)
	n.step(Event{Kind: EventMetadata, Record: &rec, BrokerEpoch: w.reg[n.id], Self: n.log.id, Usable: true}, nil)
}

func (w *world) post(l *letter) {
	if len(w.mail) < 60 {
		w.mail = append(w.mail, l)
	}
}

// deliver hands a letter over; copies may come again.
func (w *world) deliver(l *letter) {
	n := w.nodes[l.to]
	ev := l.ev
	switch ev.Kind { //nolint:exhaustive // the others carry their session
	case EventSubscribe:
		lastSession++
		ev.Session = lastSession
		n.subs[ev.Session] = &sub{peer: l.from, theirs: l.theirs, epoch: ev.PeerEpoch}
	case EventAck, EventUnsubscribed:
		for s, to := range n.subs {
			if to.peer == l.from && to.theirs == l.theirs && (ev.PeerEpoch == 0 || to.epoch == ev.PeerEpoch) && to.live {
				ev.Session = s
			}
		}
		if ev.Session == 0 {
			return
		}
		if ev.Kind == EventUnsubscribed {
			n.subs[ev.Session].live = false
		}
	}
	w.say("%d gets event %d: session %d epoch %d offset %d", n.id, ev.Kind, ev.Session, ev.Epoch, ev.Offset)
	n.step(ev, l.batches)
}

// lose drops a letter. But for acknowledgements, which are repeated, the stream that it was on breaks, as streams do.
func (w *world) lose(l *letter) {
	w.say("event %d to %d is lost", l.ev.Kind, l.to)
	switch l.ev.Kind {
	case EventSubscribe:
		w.nodes[l.from].step(Event{Kind: EventRefused, Session: l.theirs}, nil)
	case EventAck, EventUnsubscribed:
	default:
		w.nodes[l.to].step(Event{Kind: EventRefused, Session: l.ev.Session}, nil)
	}
}

// push sends what a leader has for its followers.
func (n *node) push() {
	if n.r.role != roleLeading {
		return
	}
	sessions := make([]Session, 0, len(n.subs))
	for s, to := range n.subs {
		if to.live {
			sessions = append(sessions, s)
		}
	}
	slices.Sort(sessions)
	for _, s := range sessions {
		to := n.subs[s]
		ev := Event{
			Kind: EventData, Session: to.theirs, Epoch: n.r.lead.epoch, Offset: to.next, HighWatermark: n.log.hw,
			LogStart: n.r.Status().LogStartWanted, Published: n.log.start,
		}
		var batches []logEntry
		if end := n.log.End(); to.next >= n.log.base && to.next >= n.log.start && to.next < end {
			batches = slices.Clone(n.log.slice(to.next, min(end, to.next+3)))
			to.next += int64(len(batches))
		} else if to.next < n.log.start {
			n.w.post(&letter{to: to.peer, ev: Event{Kind: EventBelowStart, Session: to.theirs, Offset: n.log.start}})
			continue
		}
		ev.Length = len(batches)
		n.w.post(&letter{to: to.peer, ev: ev, batches: batches})
	}
}

// tryChange carries a change of the in-sync set out, as the metadata do; it is told later.
func (w *world) tryChange(c *change) {
	if c.done {
		return
	}
	c.done = true
	if c.effect.Revision != w.rec.Revision || w.reg[c.from] != c.reg {
		return
	}
	for _, a := range c.effect.Added {
		if w.reg[a.BrokerID] != a.BrokerEpoch || w.eligible[a.BrokerID] != a.BrokerEpoch {
			return
		}
	}
	c.applied = true
	w.setISR(c.effect.ISR)
	w.put("isr")
}

// setISR replaces the in-sync set; below the minimum only what was lost may go.
func (w *world) setISR(isr []Member) {
	if len(isr) < len(w.rec.ISR) && len(isr) < w.rec.MinISR {
		for _, m := range w.rec.ISR {
			if !slices.Contains(isr, m) && w.self[m.BrokerID] == m {
				w.fail("broker %d has lost nothing and left the in-sync set %v", m.BrokerID, names(isr))
			}
		}
	}
	w.rec.ISR = isr
}

func (w *world) put(why string) {
	w.revision++
	w.rec.Revision = w.revision
	w.say("etcd: %s: leader %d epoch %d isr %s", why, w.rec.Leader, w.rec.LeaderEpoch, names(w.rec.ISR))
}
