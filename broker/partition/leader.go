package partition

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/replica"
)

// sessions numbers subscriptions of followers, unique within the process.
var sessions atomic.Uint64

// followers are the subscriptions that a leader serves. Guarded by pending.mu; pushed is what a produce looks at, without it.
type followers struct {
	all    map[replica.Session]*subscription
	pushed atomic.Pointer[[]Sender]
}

type subscription struct {
	sender  Sender
	granted bool
}

// publishLocked shows the granted subscriptions to those who push.
func (f *followers) publishLocked() {
	var out []Sender
	for _, s := range slices.Sorted(maps.Keys(f.all)) {
		if f.all[s].granted {
			out = append(out, f.all[s].sender)
		}
	}
	f.pushed.Store(&out)
}

// progress tells the followers that there is something new. Takes no lock.
func (p *Partition) progress() {
	if all := p.followers.pushed.Load(); all != nil {
		for _, s := range *all {
			s.Progress()
		}
	}
}

// SubscribeFollower begins a subscription: peer, under the registration peerEpoch and as its own session peerSession, wants batches from
// offset on; the epoch of its last record is lastEpoch, and logStart where its log begins. The answer goes to s, possibly before this
// returns.
func (p *Partition) SubscribeFollower(
	s Sender, peer replica.Member, peerEpoch int64, peerSession replica.Session, epoch int32, offset int64, lastEpoch int32, logStart int64,
) replica.Session {
	session := replica.Session(sessions.Add(1))
	p.pending.mu.Lock()
	if p.role.Load().closed != nil {
		p.pending.mu.Unlock()
		s.Refuse(replica.ReasonNotLeader)
		return session
	}
	if p.followers.all == nil {
		p.followers.all = map[replica.Session]*subscription{}
	}
	p.followers.all[session] = &subscription{sender: s}
	n, mine := p.stepLocked(replica.Event{
		Kind: replica.EventSubscribe, Session: session, Peer: peer, PeerEpoch: peerEpoch, PeerSession: peerSession,
		Epoch: epoch, Offset: offset, LastEpoch: lastEpoch, LogStart: logStart,
	})
	p.pending.mu.Unlock()
	p.notify(n)
	if mine {
		p.drain(waitsForAppends)
	}
	return session
}

// FollowerAck says that the follower of session s has flushed up to flushed in epoch, and has journaled logStart.
func (p *Partition) FollowerAck(s replica.Session, peerEpoch int64, epoch int32, flushed, logStart int64) {
	p.step(replica.Event{
		Kind: replica.EventAck, Session: s, PeerEpoch: peerEpoch, Epoch: epoch, Offset: flushed, LogStart: logStart,
	}, waitsForAppends)
}

// FollowerGone says that the follower of session s, or its stream, has ended. Unknown sessions are ignored.
func (p *Partition) FollowerGone(s replica.Session) {
	p.pending.mu.Lock()
	p.dropFollowerLocked(s)
	p.pending.mu.Unlock()
	p.step(replica.Event{Kind: replica.EventUnsubscribed, Session: s}, waitsForAppends)
}

func (p *Partition) dropFollowerLocked(s replica.Session) {
	f, ok := p.followers.all[s]
	if !ok {
		return
	}
	delete(p.followers.all, s)
	if f.granted {
		p.followers.publishLocked()
	}
}

// answer carries the machine's answer to a follower.
func (p *Partition) answer(e *effect) {
	p.pending.mu.Lock()
	f, ok := p.followers.all[e.Session]
	switch {
	case !ok: // gone
	case e.Kind == replica.EffectGrant:
		f.granted = true
		p.followers.publishLocked()
	case e.Kind == replica.EffectRefuse:
		p.dropFollowerLocked(e.Session)
	}
	p.pending.mu.Unlock()
	if !ok {
		return
	}
	switch e.Kind { //nolint:exhaustive // the others are not answers
	case replica.EffectGrant:
		f.sender.Grant(e.Offset)
	case replica.EffectDiverging:
		f.sender.Diverging(e.Epoch, e.Offset)
	case replica.EffectBelowStart:
		f.sender.BelowStart(e.Offset)
	case replica.EffectRefuse:
		f.sender.Refuse(e.Reason)
	}
}

// ReadForFollower finds whole batches from offset up to the log end, and says what a follower has to know beside them. The range is
// empty when there is nothing to push; otherwise it must be released. ErrNotLeader when this broker does not lead (any more),
// *log.OutOfRangeError when the log begins above offset. Takes no lock.
func (p *Partition) ReadForFollower(offset int64, maxBytes int) (log.Range, FollowerLimits, error) {
	r := p.role.Load()
	if err := r.admit(-1); err != nil {
		return log.Range{}, FollowerLimits{}, err
	}
	lim := FollowerLimits{HighWatermark: p.log.HighWatermark(), LogStartPublished: p.log.LogStart(), Epoch: r.Epoch}
	lim.LogStartWanted = max(p.wanted.Load(), lim.LogStartPublished)
	rng, err := p.log.ReadReplicaRange(offset, maxBytes)
	return rng, lim, err
}

// Leads reports whether this broker leads in epoch. True after batches were read proves that no newer epoch had appended before. Takes
// no lock.
func (p *Partition) Leads(epoch int32) bool {
	r := p.role.Load()
	return r.Leading && r.Epoch == epoch
}

// Behind is about how many bytes of the log lie at or above offset: a segment that holds it counts in proportion. Takes no lock.
func (p *Partition) Behind(offset int64) (bytes int64) {
	for _, s := range p.log.Segments() {
		switch {
		case s.Base >= offset:
			bytes += s.Size
		case s.End > offset:
			bytes += int64(float64(s.Size) * float64(s.End-offset) / float64(s.End-s.Base))
		}
	}
	return bytes
}

// StartStateAt is what a follower begins with that makes its log anew at offset, which is this log's start: the epochs of what lies
// below, and producer state. ErrNotLeader when this broker does not lead.
func (p *Partition) StartStateAt(offset int64) (log.StartState, error) {
	if err := p.role.Load().admit(-1); err != nil {
		return log.StartState{}, err
	}
	return p.log.StartStateAt(offset)
}

// WantLogStart asks that the log begin at offset, at most the high watermark: what retention would like. The leader moves it once all
// in-sync replicas have journaled it; on any other broker nothing happens.
func (p *Partition) WantLogStart(offset int64) {
	if r := p.role.Load(); r.Leading && offset > p.log.LogStart() {
		p.step(replica.Event{Kind: replica.EventWantLogStart, Offset: offset}, waitsForAppends)
	}
}

// DeleteRecords moves the log start up to before (-1: the high watermark) and returns it once every in-sync replica has journaled it.
// Until then it waits for ctx, after which the move still goes on. *log.OutOfRangeError above the high watermark, ErrNotReady while that may
// be higher than this leader knows.
func (p *Partition) DeleteRecords(ctx context.Context, before int64) (int64, error) {
	w := make(signal, 1)
	p.AddWaker(w)
	defer p.RemoveWaker(w)
	r := p.role.Load()
	if err := r.admit(-1); err != nil {
		return 0, err
	}
	if st := p.log.State(); st.Health == log.Failed || st.Health == log.Quarantined || st.Health == log.Offline {
		return 0, st.Err
	}
	start, hw := p.log.LogStart(), p.log.HighWatermark()
	if hw < r.epochStart && (before == -1 || before > hw) {
		return start, notReady(hw, r)
	}
	if before == -1 {
		before = hw
	}
	if before > hw || before < 0 {
		return start, &log.OutOfRangeError{Asked: before, Earliest: start, Latest: hw}
	}
	p.WantLogStart(before)
	for {
		if start := p.log.LogStart(); start >= before {
			return start, nil
		}
		if err := p.role.Load().admit(r.Epoch); err != nil {
			return p.log.LogStart(), err
		}
		select {
		case <-w:
		case <-ctx.Done():
			return p.log.LogStart(), errors.Join(errLogStartPending, ctx.Err())
		}
	}
}

// errLogStartPending: not all in-sync replicas have journaled the new log start.
var errLogStartPending = errors.New("the log start moves once every in-sync replica has journaled it")

// signal is a Waker for one goroutine that waits.
type signal chan struct{}

// Wake implements Waker.
func (s signal) Wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}
