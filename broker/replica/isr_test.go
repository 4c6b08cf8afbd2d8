package replica

import (
	"testing"
	"time"
)

// The set does not shrink below the minimum; at the minimum a member is replaced.
func TestInvariantMinimumInSync(t *testing.T) {
	silent := func(t *testing.T, isr ...int32) *script {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(isr...) })
		s.subscribe(1, 2, 0, -1)
		s.produce(5)
		return s
	}
	t.Run("at the minimum nobody leaves, and produce is refused", func(t *testing.T) {
		s := silent(t, 1, 2)
		s.want(s.tick(3*time.Second), "")
		s.want(s.tick(5*time.Second), "role")
		s.want(s.status(), `leading=true epoch=5 writable=false isr=1,2 effective=1,2 following=""`)
		s.want(s.ack(1, 2, 5), "role; hw 5")
	})
	t.Run("at the minimum a dead member is replaced in one change", func(t *testing.T) {
		s := silent(t, 1, 2)
		s.tick(4 * time.Second)
		s.subscribe(2, 3, 0, -1)
		s.want(s.ack(2, 3, 5), "role; propose [1,3] +3@30")
		if got := names(s.r.Status().Effective); got != "1,2,3" {
			t.Errorf("effective %s", got)
		}
		s.want(s.confirm(members(1, 3)), "role; hw 5")
		if !s.r.Status().Writable {
			t.Error("not writable")
		}
	})
	t.Run("above it the one who lags longest leaves", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.subscribe(1, 2, 0, -1)
		s.subscribe(2, 3, 0, -1)
		s.ack(1, 2, 0)
		s.tick(500 * time.Millisecond)
		s.step(Event{Kind: EventUnsubscribed, Session: 2})
		s.tick(500 * time.Millisecond)
		s.step(Event{Kind: EventUnsubscribed, Session: 1})
		s.want(s.tick(2700*time.Millisecond), "propose [1,2]")
		s.want(s.confirm(members(1, 2)), "role")
		s.want(s.tick(10*time.Second), "role")
	})
	t.Run("a set that is below already does not shrink", func(t *testing.T) {
		s := silent(t, 1, 2)
		s.metadata(func(r *Record) { r.MinISR = 3 })
		s.want(s.tick(10*time.Second), "")
	})
	t.Run("growth comes before anything else below it", func(t *testing.T) {
		s := silent(t, 1, 2)
		s.metadata(func(r *Record) { r.MinISR = 3 })
		s.tick(4 * time.Second)
		s.subscribe(2, 3, 0, -1)
		s.want(s.ack(2, 3, 5), "role; propose [1,2,3] +3@30")
	})
}

// Growth by what was acknowledged here and now.
func TestInvariantGrowth(t *testing.T) {
	start := func(t *testing.T) *script {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.log.SetHighWatermark(6)
		s.log.sync()
		return s.lead(func(r *Record) { r.ISR = members(1, 2) })
	}
	t.Run("not before the epoch's start, though above the high watermark", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 3, 7, 4)
		s.want(s.ack(1, 3, 9), "")
		s.want(s.ack(1, 3, 10), "role; propose [1,2,3] +3@30")
	})
	t.Run("not below the high watermark", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 2, 10, 4)
		s.produce(5)
		s.want(s.ack(1, 2, 15), "hw 15")
		s.subscribe(2, 3, 10, 4)
		s.want(s.ack(2, 3, 14), "")
		s.want(s.ack(2, 3, 15), "role; propose [1,2,3] +3@30")
	})
	t.Run("not by where it fetches", func(t *testing.T) {
		s := start(t)
		s.want(s.subscribe(1, 3, 10, 4), "grant s1 @10")
		s.want(s.tick(time.Second), "")
	})
	t.Run("not by another session, registration or epoch", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 3, 10, 4)
		s.want(s.ack(9, 3, 10), "")
		s.want(s.ack(1, 3, 10, func(e *Event) { e.PeerEpoch = 31 }), "")
		s.want(s.ack(1, 3, 10, func(e *Event) { e.Epoch = 4 }), "")
	})
	t.Run("not once its subscription is gone", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 3, 10, 4)
		s.ack(1, 3, 9)
		s.step(Event{Kind: EventUnsubscribed, Session: 1})
		s.want(s.ack(1, 3, 10), "")
		s.want(s.tick(time.Second), "")
	})
	t.Run("not by what it acknowledged before its subscription ended", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 3, 10, 4)
		s.want(s.ack(1, 3, 10), "role; propose [1,2,3] +3@30")
		s.step(Event{Kind: EventUnsubscribed, Session: 1})
		s.want(s.step(Event{Kind: EventProposalSettled, Proposal: 1}), "role")
		s.want(s.tick(time.Second), "")
		s.want(s.subscribe(2, 3, 10, 4), "grant s2 @10")
		s.want(s.tick(time.Second), "")
		s.want(s.ack(2, 3, 10), "role; propose [1,2,3] +3@30")
	})
	t.Run("with the registration that acknowledged", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 3, 10, 4)
		s.ack(1, 3, 9)
		s.want(s.subscribe(2, 3, 10, 4, func(e *Event) { e.PeerEpoch = 77 }), "refuse s1 overtaken; grant s2 @10")
		s.want(s.tick(time.Second), "")
		s.want(s.ack(2, 3, 10, func(e *Event) { e.PeerEpoch = 77 }), "role; propose [1,2,3] +3@77")
	})
	t.Run("a replica only", func(t *testing.T) {
		s := start(t)
		s.want(s.subscribe(1, 4, 10, 4), "refuse s1 not-replica")
		s.subscribe(2, 3, 10, 4)
		s.want(s.metadata(func(r *Record) { r.Replicas = []int32{1, 2} }), "role; refuse s2 not-replica")
		s.want(s.ack(2, 3, 10), "")
	})
	t.Run("not with a log that begins below what readers were told", func(t *testing.T) {
		s := start(t)
		s.log.start, s.log.journal = 5, 5
		s.subscribe(1, 3, 10, 4)
		s.want(s.ack(1, 3, 10, func(e *Event) { e.LogStart = 4 }), "")
		s.want(s.ack(1, 3, 10, func(e *Event) { e.LogStart = 5 }), "role; propose [1,2,3] +3@30")
	})
	t.Run("a refused one is tried again, later each time, and holds up nobody", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1) })
		s.subscribe(1, 2, 0, -1)
		s.want(s.ack(1, 2, 0), "role; propose [1,2] +2@20")
		s.want(s.step(Event{Kind: EventProposalSettled, Proposal: 1}), "role")
		s.subscribe(2, 3, 0, -1)
		s.want(s.ack(2, 3, 0), "role; propose [1,3] +3@30")
		s.want(s.step(Event{Kind: EventProposalSettled, Proposal: 2}), "role")
		s.want(s.tick(100*time.Millisecond), "role; propose [1,2] +2@20")
		s.want(s.step(Event{Kind: EventProposalSettled, Proposal: 3}), "role; propose [1,3] +3@30")
		s.want(s.step(Event{Kind: EventProposalSettled, Proposal: 4}), "role")
		s.want(s.tick(100*time.Millisecond), "")
		s.want(s.tick(100*time.Millisecond), "role; propose [1,2] +2@20")
	})
	t.Run("one that the controller took out is not added again at once", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.subscribe(1, 3, 0, -1)
		s.ack(1, 3, 0)
		for _, wait := range []time.Duration{500 * time.Millisecond, time.Second, time.Second} {
			s.want(s.metadata(func(r *Record) { r.ISR = members(1, 2) }), "role")
			s.want(s.tick(wait-100*time.Millisecond), "")
			s.want(s.tick(100*time.Millisecond), "role; propose [1,2,3] +3@30")
			s.confirm(members(1, 2, 3))
		}
	})
	t.Run("a change that was overtaken is made again at once", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 3, 10, 4)
		s.ack(1, 3, 10)
		s.rec.Revision += 5
		rec := s.rec
		s.want(s.step(Event{Kind: EventProposalSettled, Proposal: 1, Record: &rec}), "role; propose [1,2,3] +3@30")
		if s.r.lead.proposal.revision != rec.Revision {
			t.Errorf("revision %d", s.r.lead.proposal.revision)
		}
	})
	t.Run("one that is not answered is not repeated, and counts", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 3, 10, 4)
		s.ack(1, 3, 10)
		s.want(s.metadata(), "role")
		s.want(s.tick(time.Second), "")
		if got := names(s.r.Status().Effective); got != "1,2,3" {
			t.Errorf("effective %s", got)
		}
	})
	t.Run("applied, and the record is still to come", func(t *testing.T) {
		s := start(t)
		s.subscribe(1, 3, 10, 4)
		s.ack(1, 3, 10)
		s.want(s.step(Event{Kind: EventProposalSettled, Proposal: 1, Applied: true}), "")
		s.want(s.tick(time.Second), "")
		s.want(s.metadata(func(r *Record) { r.ISR = members(1, 2, 3) }), "role")
		if s.r.lead.proposal.id != 0 {
			t.Error("the proposal is still there")
		}
	})
}

// Identities: what another log acknowledged counts for nobody.
func TestInvariantStorageIdentity(t *testing.T) {
	fresh := func(e *Event) { e.Peer = id(e.Peer.BrokerID, 1) }
	renewed := func(e *Event) { fresh(e); e.PeerEpoch++ }
	t.Run("storage loss inside the lease: it leaves, even below the minimum", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2) })
		s.subscribe(1, 2, 0, -1)
		s.produce(5)
		s.ack(1, 2, 3)
		s.want(s.subscribe(2, 2, 0, -1, renewed), "refuse s1 overtaken; grant s2 @0; propose [1]")
		if got := s.r.lead.peer(2).acked; got != -1 {
			t.Errorf("the new log inherits %d", got)
		}
		s.want(s.ack(2, 2, 5, renewed), "")
		s.want(s.confirm(members(1)), "role; propose [1,2'] +2@21")
		s.want(s.confirm([]Member{id(1), id(2, 1)}), "role; hw 5")
	})
	t.Run("a log that was rebuilt in place", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.want(s.subscribe(1, 2, 0, -1, fresh), "grant s1 @0; propose [1,3]")
		s.produce(1)
		s.want(s.ack(1, 2, 1), "")
	})
	t.Run("a fetch below its own acknowledgement of the epoch", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2) })
		s.subscribe(1, 2, 0, -1)
		s.produce(5)
		s.want(s.ack(1, 2, 5), "hw 5")
		s.want(s.subscribe(2, 2, 4, 5, func(e *Event) { e.PeerEpoch++ }), "role; refuse s1 overtaken; refuse s2 lost; propose [1]")
		s.want(s.subscribe(3, 2, 5, 5, func(e *Event) { e.PeerEpoch++ }), "refuse s3 lost")
		s.want(s.confirm(members(1)), "role")
		s.want(s.subscribe(4, 2, 4, 5, func(e *Event) { e.PeerEpoch++ }), "grant s4 @4")
	})
	t.Run("a subscription that was delayed in the network loses nobody its place", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.subscribe(7, 2, 0, -1)
		s.produce(5)
		s.ack(7, 2, 5)
		late := func(e *Event) { e.PeerSession = 3 }
		s.want(s.subscribe(8, 2, 2, 5, late), "refuse s8 overtaken")
		s.want(s.subscribe(9, 2, 0, -1, func(e *Event) { late(e); fresh(e) }), "refuse s9 overtaken")
		s.want(s.subscribe(10, 2, 2, 5, func(e *Event) { e.PeerEpoch-- }), "refuse s10 overtaken")
		s.want(s.ack(7, 2, 5), "")
		if s.r.lead.proposal.id != 0 {
			t.Error("a change was proposed")
		}
	})
	t.Run("a member below the log start", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.log.start, s.log.journal = 5, 5
		s.lead()
		s.want(s.subscribe(1, 2, 4, 4), "refuse s1 lost; propose [1,3]")
	})
	t.Run("a replica that does not count may have less than before", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2); r.MinISR = 3 })
		s.produce(5)
		s.subscribe(1, 3, 0, -1)
		s.step(Event{Kind: EventProposalSettled, Proposal: 1})
		s.ack(1, 3, 5)
		s.step(Event{Kind: EventProposalSettled, Proposal: 1})
		s.want(s.subscribe(2, 3, 2, 5, func(e *Event) { e.PeerEpoch++ }), "refuse s1 overtaken; grant s2 @2")
		if got := s.r.lead.peer(3).acked; got != -1 {
			t.Errorf("acked %d", got)
		}
	})
	t.Run("the leader's own log is another than the entry names", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.log.id = id(1, 1)
		s.want(s.metadata(), "role")
		if s.r.Status().Leading {
			t.Error("it leads")
		}
	})
	t.Run("a log that a member holds is not replaced", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 3))
		session := s.follow()
		s.want(s.step(Event{Kind: EventBelowStart, Session: session, Offset: 20}), "role; unsubscribe")
		s.want(s.metadata(func(r *Record) { r.ISR = members(2, 3) }), "role")
		s.tick(100 * time.Millisecond)
		s.want(s.step(Event{Kind: EventBelowStart, Session: s.r.follow.session, Offset: 20}), "role; unsubscribe; reset @20")
		*s.log = *newMemLog(id(1, 1), 20)
		s.want(s.metadata(), "role")
		s.want(s.step(Event{Kind: EventTruncated}), "role; subscribe b2 e5 @20 last e-1")
	})
}
