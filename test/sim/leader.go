package sim

import (
	"errors"
	"slices"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/record"
)

// sub is a follower's subscription at its leader.
type sub struct {
	session  replica.Session
	follower *part
	theirs   replica.Session
	epoch    int64
	stream   *stream
	granted  bool
	next     int64
	// What was last told.
	hw, wanted, published int64
}

// waiting is a produce whose records the high watermark has yet to pass.
type waiting struct {
	end, base int64
	epoch     int32
	gen       uint64
	batch     []byte
	duplicate bool
	reply     func(produced)
}

// produced is what became of a produce.
type produced struct {
	base      int64
	epoch     int32
	duplicate bool
	err       error
}

// Errors that producers get; log errors come as they are.
var (
	errNotLeader     = errors.New("not the leader")
	errNotEnough     = errors.New("not enough in-sync replicas")
	errUnknownResult = errors.New("outcome unknown")
	errNotReady      = errors.New("not ready")
	errUnknownEpoch  = errors.New("unknown epoch")
)

// produce appends a batch as the leader does, and answers once its records are committed; with acksLeader at once.
func (pt *part) produce(batch []byte, epoch int32, acksLeader bool, reply func(produced)) {
	st := &pt.status
	switch {
	case !st.Leading || epoch >= 0 && epoch < st.Epoch:
		if epoch >= 0 && epoch < st.Epoch {
			pt.cov.hit(FencedProduces)
		}
		reply(produced{err: errNotLeader, epoch: st.Epoch})
		return
	case epoch > st.Epoch:
		reply(produced{err: errUnknownEpoch, epoch: st.Epoch})
		return
	case !st.Writable && !acksLeader:
		pt.cov.hit(BelowMinimumRefusals)
		reply(produced{err: errNotEnough, epoch: st.Epoch})
		return
	}
	batch = slices.Clone(batch)
	h, err := record.ParseHeader(batch)
	pt.must(err)
	a, err := pt.held.Append(batch, h, st.Epoch, simClock{w: pt.world, node: pt.node}.Now())
	if err != nil {
		pt.tracef("%s refuses a batch: %v", pt.name(), err)
		reply(produced{err: err, epoch: st.Epoch})
		return
	}
	pt.pumpAll()
	if acksLeader {
		reply(produced{base: a.Base, epoch: st.Epoch})
		return
	}
	if a.Duplicate {
		pt.cov.hit(IdempotentDuplicates)
	}
	pt.waiting = append(pt.waiting, waiting{
		end: a.End, base: a.Base, epoch: st.Epoch, gen: a.TruncationGen, batch: batch, duplicate: a.Duplicate, reply: reply,
	})
	pt.settle()
}

// settle answers the produces that the high watermark has passed.
func (pt *part) settle() {
	if !pt.status.Leading {
		return
	}
	hw, gen := pt.held.HighWatermark(), pt.held.TruncationGen()
	pt.waiting = slices.DeleteFunc(pt.waiting, func(w waiting) bool {
		switch {
		case w.epoch != pt.status.Epoch || w.gen != gen:
			w.reply(produced{err: errUnknownResult, epoch: pt.status.Epoch})
		case hw >= w.end:
			pt.check.acked(pt, &w)
			w.reply(produced{base: w.base, epoch: w.epoch, duplicate: w.duplicate})
		default:
			return false
		}
		return true
	})
}

func (pt *part) failWaiting() {
	for _, w := range pt.waiting {
		pt.cov.hit(OutcomesUnknown)
		w.reply(produced{err: errUnknownResult, epoch: w.epoch})
	}
	pt.waiting = nil
}

// propose writes another in-sync set, and answers only once it knows what became of it.
func (pt *part) propose(e *replica.Effect) {
	base := pt.record
	if base == nil || base.Revision != e.Revision {
		// The record has moved on since; the machine will hear of it, or has.
		pt.step(replica.Event{Kind: replica.EventProposalSettled, Proposal: e.Proposal, Record: replicaRecord(base, pt.fed.minISR)})
		return
	}
	ch := metadata.ISRChange{Partition: base}
	for _, m := range e.ISR {
		ch.ISR = append(ch.ISR, metadata.Member(m))
	}
	for _, a := range e.Added {
		ch.Added = append(ch.Added, metadata.AddedMember(a))
	}
	pt.check.proposes(pt, e)
	pt.tracef("%s proposes %s at %d", pt.name(), members(ch.ISR), base.Revision)
	pt.proposeAgain(e.Proposal, ch)
}

func (pt *part) proposeAgain(proposal uint64, ch metadata.ISRChange) {
	settled := func(p *metadata.Partition, applied bool) {
		ev := replica.Event{Kind: replica.EventProposalSettled, Proposal: proposal, Applied: applied}
		if p != nil {
			ev.Record = replicaRecord(p, pt.minISR(p))
			if pt.record == nil || p.Revision > pt.record.Revision {
				pt.record = p
			}
		}
		if !applied {
			pt.cov.hit(ProposalsLost)
		}
		pt.step(ev)
	}
	txs, errs := pt.build.ChangeISRs(pt.cache.state, pt.reg(), []metadata.ISRChange{ch})
	if errs[0] != nil {
		pt.tracef("%s proposal refused: %v", pt.name(), errs[0])
		if errors.Is(errs[0], metadata.ErrNotEligible) {
			pt.cov.hit(StaleGrowths)
		}
		if ch.Unsettled {
			pt.later(100*time.Millisecond, func() { pt.proposeAgain(proposal, ch) })
			return
		}
		pt.later(pt.between(time.Millisecond, 20*time.Millisecond), func() { settled(nil, false) })
		return
	}
	tx := txs[0]
	pt.commit(tx, requestTimeout, func(out metadata.Outcome, ok bool) {
		switch {
		case !ok:
			ch.Unsettled = true
			pt.proposeAgain(proposal, ch)
		case !out.Applied && len(out.Nested) == 0:
			// The registration is over, or nothing was written: the change stays pending until the new registration ends the leadership.
			if pt.etcdRefused(&out) {
				settled(nil, false)
			}
		default:
			r := pt.build.ISRResult(ch, tx.Nested[0], out.Nested[0])
			settled(r.Partition, r.Applied)
		}
	})
}

// etcdRefused: the outcome has no answer at all, which is that of a transaction that will never take effect.
func (pt *part) etcdRefused(out *metadata.Outcome) bool { return out.Answer.Revision == 0 }

// accept takes a follower's subscription in.
func (pt *part) accept(follower *part, theirs replica.Session, st *stream, ev replica.Event) {
	pt.lastSession++
	s := &sub{session: pt.lastSession, follower: follower, theirs: theirs, epoch: ev.PeerEpoch, stream: st, hw: -1, wanted: -1, published: -1}
	pt.subs = append(pt.subs, s)
	st.session, st.leader = s.session, pt
	st.onBreak[toLeader] = func() { pt.gone(s) }
	ev.Kind, ev.Session, ev.PeerSession = replica.EventSubscribe, s.session, theirs
	pt.step(ev)
}

func (pt *part) gone(s *sub) {
	if slices.Contains(pt.subs, s) {
		pt.drop(s)
		pt.step(replica.Event{Kind: replica.EventUnsubscribed, Session: s.session})
	}
}

func (pt *part) drop(s *sub) {
	pt.subs = slices.DeleteFunc(pt.subs, func(o *sub) bool { return o == s })
}

// dropAll ends all streams of a partition whose log goes away.
func (pt *part) dropAll() {
	for _, s := range slices.Clone(pt.subs) {
		pt.drop(s)
		s.stream.hangUp(toLeader)
	}
	pt.unsubscribe()
	pt.failWaiting()
}

// answerSub tells a follower what became of its subscription.
func (pt *part) answerSub(e *replica.Effect) {
	i := slices.IndexFunc(pt.subs, func(s *sub) bool { return s.session == e.Session })
	if i < 0 {
		return
	}
	s, f := pt.subs[i], pt.subs[i].follower
	ev := replica.Event{Session: s.theirs, Epoch: e.Epoch, Offset: e.Offset}
	switch e.Kind { //nolint:exhaustive // the caller passes these only
	case replica.EffectGrant:
		ev.Kind, ev.Epoch = replica.EventGranted, pt.status.Epoch
		s.granted, s.next = true, e.Offset
	case replica.EffectDiverging:
		ev.Kind = replica.EventDiverging
	case replica.EffectBelowStart:
		ev.Kind = replica.EventBelowStart
	case replica.EffectRefuse:
		if e.Reason == replica.ReasonLostStorage {
			pt.cov.hit(LostStorageRefusals)
		}
		ev.Kind, ev.Reason = replica.EventRefused, e.Reason
		pt.drop(s)
	}
	s.stream.send(toFollower, func() { f.fromLeader(ev, nil) })
	if e.Kind == replica.EffectGrant {
		pt.comeBack(pt.ghosts[f.node.id])
		pt.pump(s)
	}
}

func (pt *part) pumpAll() {
	for _, s := range slices.Clone(pt.subs) {
		pt.pump(s)
	}
}

// pump pushes what a follower has not been sent yet, and the limits.
func (pt *part) pump(s *sub) {
	if !s.granted || !pt.status.Leading || s.stream.broken {
		return
	}
	l := pt.held.Log
	for {
		var batches []byte
		base := s.next
		if s.next < l.End() {
			b, next, err := readBatches(l, s.next, 2<<10)
			if err != nil {
				if !errors.Is(err, log.ErrOffsetOutOfRange) && !errors.Is(err, log.ErrTruncated) && !pt.check.lost[l.LogID()] {
					pt.fail("leader-reads", "%s at %d: %v", pt.name(), s.next, err)
				}
				s.stream.tear(time.Millisecond)
				return
			}
			batches, s.next = b, next
		}
		hw, wanted, published := l.HighWatermark(), pt.machine.Status().LogStartWanted, l.LogStart()
		if len(batches) == 0 && hw == s.hw && wanted == s.wanted && published == s.published {
			return
		}
		s.hw, s.wanted, s.published = hw, wanted, published
		f := s.follower
		ev := replica.Event{
			Kind: replica.EventData, Session: s.theirs, Epoch: pt.status.Epoch, Offset: base, Length: len(batches), HighWatermark: hw, LogStart: wanted,
			Published: published,
		}
		s.stream.send(toFollower, func() { f.fromLeader(ev, batches) })
	}
}

// readBatches copies whole batches out of a log.
func readBatches(l *log.Log, from int64, maxBytes int) (batches []byte, next int64, err error) {
	r, err := l.ReadReplicaRange(from, maxBytes)
	if err != nil {
		return nil, from, err
	}
	defer r.Release()
	batches = make([]byte, r.Len)
	if err := r.ReadInto(batches); err != nil {
		return nil, from, err
	}
	if r.Len > 0 && r.First < from {
		return nil, from, errMisaligned
	}
	return batches, r.Next, nil
}

var errMisaligned = errors.New("the offset lies within a batch")

// latest answers where the committed records end.
func (pt *part) latest(epoch int32) (int64, int32, error) {
	st := &pt.status
	hw := pt.highWatermark()
	switch {
	case !st.Leading || epoch >= 0 && epoch < st.Epoch:
		return 0, st.Epoch, errNotLeader
	case hw < st.EpochStart:
		pt.cov.hit(LatestNotReady)
		return 0, st.Epoch, errNotReady
	}
	return hw, st.Epoch, nil
}
