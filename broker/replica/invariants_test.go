package replica

import (
	"errors"
	"testing"
	"time"
)

// One incarnation leads an epoch: not one that re-registered, not the epoch it has left, not a restarted process.
func TestInvariantOneIncarnation(t *testing.T) {
	t.Run("a new registration ends leadership, and the same epoch is not led again", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.subscribe(1, 2, 0, -1)
		s.reg = 150
		s.want(s.metadata(), "role; refuse s1 not-leader")
		s.want(s.metadata(func(r *Record) { r.LeaderBrokerEpoch = 150 }), "role")
		s.want(s.status(), `leading=false epoch=5 writable=false isr=1,2,3 effective=1,2,3 following=""`)
		s.want(s.metadata(func(r *Record) { r.LeaderEpoch = 6 }), "role; assign e6")
	})
	t.Run("restart within the lease", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.crash()
		s.want(s.metadata(), "role")
		if s.r.Status().Leading || s.r.role != roleNone {
			t.Error("the epoch of the process before is led")
		}
	})
	t.Run("a log that failed does not take its epoch up again", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.want(s.step(Event{Kind: EventFailed}), "role")
		s.want(s.metadata(), "role")
		if s.r.Status().Leading {
			t.Error("it leads again")
		}
	})
	t.Run("an epoch older than the log's", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(7, 3))
		s.want(s.metadata(), "role")
	})
	t.Run("left while it was being assigned", func(t *testing.T) {
		s := newScript(t, nil)
		s.want(s.metadata(), "role; assign e5")
		s.want(s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch, r.LeaderBrokerEpoch = 2, 6, 20 }), "role; subscribe b2 e6 @0 last e-1")
		s.want(s.step(Event{Kind: EventEpochAssigned, Epoch: 5}), "")
	})
	t.Run("the log could not note the epoch", func(t *testing.T) {
		s := newScript(t, nil)
		s.metadata()
		s.want(s.step(Event{Kind: EventEpochAssigned, Epoch: 5, Err: errors.New("full")}), "")
		s.want(s.tick(100*time.Millisecond), "assign e5")
		s.want(s.assigned(), "role")
	})
}

// Truncation by epoch, on both sides; the cases of KIP-101, 279 and 320 are in truncate_test.go.
func TestInvariantEpochTruncation(t *testing.T) {
	t.Run("nothing is fetched or acknowledged before the history was compared", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.log.adopted, s.log.durable = 4, 4
		session := s.follow()
		s.want(s.sync(), "")
		s.want(s.data(10, 1, 5, 0), "")
		s.want(s.step(Event{Kind: EventDiverging, Session: session, Epoch: 3, Offset: 0}), "role; unsubscribe; truncate @0")
		s.want(s.tick(time.Second), "")
		if err := s.log.truncate(0); err != nil {
			t.Fatal(err)
		}
		s.want(s.step(Event{Kind: EventTruncated}), "role; subscribe b2 e5 @0 last e-1")
		if s.log.adopted == 5 {
			t.Error("adopted before the leader granted")
		}
		s.want(s.granted(), "role")
		s.want(s.sync(), "ack e5 @0 start 0")
	})
	t.Run("the high watermark decides nothing", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.log.SetHighWatermark(3)
		s.follow()
		s.want(s.granted(), "role")
		if s.log.End() != 10 {
			t.Errorf("the log ends at %d", s.log.End())
		}
	})
	t.Run("every epoch begins with a new comparison", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.follow()
		s.granted()
		s.want(s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch = 3, 6 }), "role; unsubscribe; subscribe b3 e6 @10 last e4")
		s.want(s.sync(), "")
	})
	t.Run("a new epoch waits for the truncation of the last", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		session := s.follow()
		s.want(s.step(Event{Kind: EventDiverging, Session: session, Epoch: 4, Offset: 8}), "role; unsubscribe; truncate @8")
		s.want(s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch = 3, 6 }), "role")
		_ = s.log.truncate(8)
		s.want(s.step(Event{Kind: EventTruncated}), "role; subscribe b3 e6 @8 last e4")
	})
	t.Run("so does leadership", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		session := s.follow()
		s.step(Event{Kind: EventDiverging, Session: session, Epoch: 4, Offset: 8})
		s.want(s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch, r.LeaderBrokerEpoch = 1, 6, reg }), "role")
		_ = s.log.truncate(8)
		s.want(s.step(Event{Kind: EventTruncated}), "role; assign e6")
	})
	t.Run("fenced in both directions", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.want(s.subscribe(1, 2, 0, -1, func(e *Event) { e.Epoch = 4 }), "refuse s1 fenced")
		s.want(s.subscribe(2, 2, 0, -1, func(e *Event) { e.Epoch = 6 }), "refuse s2 unknown-epoch")
		s.want(s.subscribe(3, 2, 0, 7), "refuse s3 unknown-epoch")
	})
	t.Run("a follower whose log is ahead of the record waits", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(7, 3))
		s.want(s.metadata(func(r *Record) { r.Leader = 2 }), "role")
	})
}

// The high watermark: of every member, of this epoch, with the minimum confirmed, forwards.
func TestInvariantHighWatermark(t *testing.T) {
	t.Run("the least of all members", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.subscribe(1, 2, 0, -1)
		s.subscribe(2, 3, 0, -1)
		s.want(s.produce(10), "")
		s.want(s.ack(1, 2, 10), "")
		s.want(s.ack(2, 3, 4), "hw 4")
		s.want(s.ack(2, 3, 3), "") // it never goes back
		s.want(s.ack(2, 3, 12), "")
		s.want(s.ack(2, 3, 10), "hw 10")
	})
	t.Run("the leader counts once it is durable that it leads", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.metadata(func(r *Record) { r.ISR, r.MinISR = members(1), 1 })
		s.want(s.assigned(), "role")
		s.want(s.step(Event{Kind: EventFlushed}), "") // of what came before the adoption
		s.want(s.sync(), "hw 10")
	})
	t.Run("not by what the leader has appended", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2) })
		s.log.append(logEntry{5, 0}, logEntry{5, 1})
		s.subscribe(1, 2, 0, -1)
		s.want(s.ack(1, 2, 2), "")
		s.want(s.sync(), "hw 2")
	})
	t.Run("not by another epoch's acknowledgement", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2) })
		s.subscribe(1, 2, 0, -1)
		s.produce(5)
		s.want(s.ack(1, 2, 5, func(e *Event) { e.Epoch = 4 }), "")
		s.want(s.ack(1, 2, 5, func(e *Event) { e.Epoch = 6 }), "")
		s.want(s.ack(1, 2, 5), "hw 5")
	})
	t.Run("what was acknowledged in the last epoch does not count in the next", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2) })
		s.subscribe(1, 2, 0, -1)
		s.log.append(logEntry{5, 0})
		s.want(s.ack(1, 2, 1), "")
		s.metadata(func(r *Record) { r.LeaderEpoch = 6 })
		s.assigned()
		s.want(s.sync(), "")
		if got := s.r.Status().Followers[0].Acked; got != -1 {
			t.Errorf("acked %d", got)
		}
	})
	t.Run("not while the confirmed set is below the minimum, nor with proposed members counted", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1) })
		s.want(s.produce(5), "")
		s.subscribe(1, 2, 5, 5)
		s.want(s.ack(1, 2, 5), "role; propose [1,2] +2@20")
		s.want(s.produce(1), "")
		s.want(s.ack(1, 2, 6), "")
		s.want(s.confirm(members(1, 2)), "role; hw 6")
	})
	t.Run("a minimum above the number of replicas", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.MinISR = 4 })
		s.subscribe(1, 2, 0, -1)
		s.subscribe(2, 3, 0, -1)
		s.produce(1)
		s.ack(1, 2, 1)
		s.want(s.ack(2, 3, 1), "")
		if s.r.Status().Writable {
			t.Error("writable")
		}
	})
	t.Run("a proposed member holds it back", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2) })
		s.subscribe(1, 2, 0, -1)
		s.subscribe(2, 3, 0, -1)
		s.want(s.ack(2, 3, 0), "role; propose [1,2,3] +3@30")
		s.produce(5)
		s.want(s.ack(1, 2, 5), "")
		s.want(s.ack(2, 3, 2), "hw 2")
	})
	t.Run("one who is being removed counts until that is confirmed", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.subscribe(1, 2, 0, -1)
		s.subscribe(2, 3, 0, -1)
		s.produce(5)
		for range 32 {
			s.ack(1, 2, 5)
			s.tick(100 * time.Millisecond)
		}
		if s.r.lead.proposal.id == 0 || len(s.r.lead.proposal.isr) != 2 {
			t.Fatalf("no shrink proposed: %v", s.r.lead.proposal)
		}
		s.want(s.ack(1, 2, 5), "")
		s.want(s.confirm(members(1, 2)), "role; hw 5")
	})
	t.Run("a follower's is the leader's, as far as its log goes", func(t *testing.T) {
		s := newScript(t, nil)
		s.follow()
		s.granted()
		s.want(s.data(0, 5, 5, 9), "append @0")
		s.want(s.tick(100*time.Millisecond), "hw 5")
		s.want(s.step(Event{Kind: EventFlushed}), "") // of what came before: the batches are not on disk yet
		s.want(s.sync(), "ack e5 @5 start 0")
		s.want(s.step(Event{Kind: EventData, Session: s.r.follow.session, Epoch: 5, HighWatermark: 3}), "")
	})
}

// Only a member leads.
func TestInvariantCleanElection(t *testing.T) {
	s := newScript(t, nil)
	s.want(s.metadata(func(r *Record) { r.ISR = members(2, 3) }), "role")
	if s.r.role != roleNone {
		t.Error("it leads without being in the in-sync set")
	}
	t.Run("one that is taken out while it leads stops", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.want(s.metadata(func(r *Record) { r.ISR = members(2, 3) }), "role")
		if s.r.Status().Leading {
			t.Error("it leads")
		}
	})
}

// What waits is answered by the high watermark; "latest" is known once that has reached the epoch's start.
func TestInvariantAck(t *testing.T) {
	s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
	s.log.SetHighWatermark(4)
	s.lead(func(r *Record) { r.ISR = members(1, 2) })
	latest := func() bool { return s.log.HighWatermark() >= s.r.Status().EpochStart }
	if st := s.r.Status(); st.EpochStart != 10 || latest() {
		t.Fatalf("epoch starts at %d, the high watermark is %d", st.EpochStart, s.log.HighWatermark())
	}
	s.subscribe(1, 2, 10, 4)
	s.want(s.ack(1, 2, 10), "hw 10")
	if !latest() {
		t.Error("latest is not known")
	}
	s.log.append(logEntry{5, 10})
	s.want(s.ack(1, 2, 11), "")
	s.want(s.sync(), "hw 11")
}

// A follower's log continues its leader's, byte for byte.
func TestInvariantByteIdentity(t *testing.T) {
	s := newScript(t, nil)
	s.follow()
	s.granted()
	s.want(s.data(0, 5, 5, 0), "append @0")
	s.want(s.data(2, 3, 5, 0), "") // again
	s.want(s.data(5, 1, 5, 0), "append @5")
	s.want(s.data(9, 1, 5, 0), "role; unsubscribe; subscribe b2 e5 @6 last e5") // a gap
	s.want(s.data(6, 1, 5, 0), "")                                              // not granted yet
	t.Run("an append that was under way when it subscribed", func(t *testing.T) {
		s := newScript(t, nil)
		s.follow()
		s.log.append(logEntry{4, 0})
		s.want(s.step(Event{Kind: EventGranted, Session: s.r.follow.session, Epoch: 5, Offset: 0}), "unsubscribe; subscribe b2 e5 @1 last e4")
	})
	t.Run("an append that failed", func(t *testing.T) {
		s := newScript(t, nil)
		s.follow()
		s.granted()
		s.data(0, 5, 5, 0)
		s.want(s.step(Event{Kind: EventAppendFailed, Err: errors.New("full")}), "role; unsubscribe")
		s.want(s.tick(100*time.Millisecond), "role; subscribe b2 e5 @5 last e5")
	})
}

// TestAFollowerOnAFullDiskDoesNotSpin: the leader grants each time and pushes the same batches again; the attempts become rare, and the
// first one that appends something ends that.
func TestAFollowerOnAFullDiskDoesNotSpin(t *testing.T) {
	s := newScript(t, nil)
	s.follow()
	attempts := 0
	// try pushes and fails for a time.
	try := func(d time.Duration) {
		for end := s.now + d; s.now < end; {
			if s.r.follow.state == stateSubscribing {
				attempts++
				s.granted()
				s.step(Event{Kind: EventData, Session: s.r.follow.session, Epoch: 5, Offset: s.log.End(), Length: 100})
				s.step(Event{Kind: EventAppendFailed, Err: errors.New("full")})
			}
			s.tick(50 * time.Millisecond)
		}
	}
	try(10 * time.Minute)
	if most := int(10*time.Minute/maxAppendBackOff) + 10; attempts > most || attempts < most/2 {
		t.Errorf("%d attempts within ten minutes, want about %d", attempts, most-10)
	}
	s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch = 3, 6 }) // another leader is asked at once
	s.step(Event{Kind: EventGranted, Session: s.r.follow.session, Epoch: 6, Offset: s.log.End()})
	s.want(s.step(Event{Kind: EventData, Session: s.r.follow.session, Epoch: 6, Length: 100}), "append @0")
	s.log.append(logEntry{6, 0})
	s.step(Event{Kind: EventAppendFailed, Err: errors.New("full again")})
	s.tick(100 * time.Millisecond)
	if s.r.follow.state != stateSubscribing {
		t.Error("after an append that was taken, it waits as long as before")
	}
}

// Nothing of an older epoch, session or registration counts.
func TestInvariantFencedPast(t *testing.T) {
	s := newScript(t, nil)
	old := s.follow()
	s.granted()
	s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch = 3, 6 })
	s.granted()
	past := Event{Kind: EventData, Session: old, Epoch: 5, Offset: 0, Length: 10, HighWatermark: 0}
	s.want(s.step(past), "")
	past.Session = s.r.follow.session
	s.want(s.step(past), "") // the session of today, the epoch of yesterday
	for _, k := range []EventKind{EventGranted, EventDiverging, EventBelowStart, EventRefused} {
		s.want(s.step(Event{Kind: k, Session: old, Epoch: 6}), "")
	}
	t.Run("a paused leader learns nothing that a later leader lacks", func(t *testing.T) {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2) })
		s.subscribe(1, 2, 0, -1)
		s.produce(3)
		s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch, r.LeaderBrokerEpoch = 2, 6, 20 })
		s.want(s.ack(1, 2, 3, func(e *Event) { e.Epoch = 5 }), "")
		s.want(s.step(Event{Kind: EventProposalSettled, Proposal: 1, Applied: true}), "")
		if s.log.HighWatermark() != 0 {
			t.Errorf("high watermark %d", s.log.HighWatermark())
		}
	})
	t.Run("the newer subscription of a broker wins", func(t *testing.T) {
		s := newScript(t, nil).lead()
		s.subscribe(1, 2, 0, -1)
		s.want(s.subscribe(2, 2, 0, -1), "refuse s1 overtaken; grant s2 @0")
		s.produce(1)
		s.ack(1, 2, 1)
		if got := s.r.lead.peer(2).acked; got != -1 {
			t.Errorf("acked %d", got)
		}
	})
}

// Only the newest record counts, and nothing before the first.
func TestInvariantNoStaleStart(t *testing.T) {
	s := newScript(t, nil)
	s.want(s.tick(time.Second), "")
	s.want(s.step(Event{Kind: EventMetadata, BrokerEpoch: reg, Self: id(1), Usable: true}), "")
	s.want(s.subscribe(1, 2, 0, -1), "refuse s1 unknown-epoch")
	s.want(s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch = 2, 6 }), "role; subscribe b2 e6 @0 last e-1")
	old := s.rec
	old.Revision, old.Leader, old.LeaderEpoch = 500, 1, 5
	s.want(s.step(Event{Kind: EventMetadata, Record: &old, BrokerEpoch: reg, Self: id(1), Usable: true}), "")
	s.want(s.status(), `leading=false epoch=6 writable=false isr=1,2,3 effective=1,2,3 following="subscribing"`)
	t.Run("a record of the same revision brings the topic's new minimum", func(t *testing.T) {
		s := newScript(t, nil).lead()
		rec := s.rec
		rec.MinISR = 4
		s.want(s.step(Event{Kind: EventMetadata, Record: &rec, BrokerEpoch: reg, Self: id(1), Usable: true}), "role")
		if st := s.r.Status(); st.MinISR != 4 || st.Writable {
			t.Errorf("status %+v", st)
		}
	})
	t.Run("a follower that registered again starts over", func(t *testing.T) {
		s := newScript(t, nil)
		s.follow()
		s.granted()
		s.reg = 150
		s.want(s.metadata(), "role; unsubscribe; subscribe b2 e5 @0 last e-1")
	})
}
