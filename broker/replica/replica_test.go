package replica

import (
	"errors"
	"testing"
	"time"
)

// Log starts are journaled by every member before one of them publishes.
func TestLogStart(t *testing.T) {
	started := func(at int64) func(*Event) { return func(e *Event) { e.LogStart = at } }
	lead := func(t *testing.T) *script {
		s := newScript(t, nil).lead(func(r *Record) { r.ISR = members(1, 2) })
		s.subscribe(1, 2, 0, -1)
		s.produce(10)
		s.ack(1, 2, 10)
		return s
	}
	journaled := func(s *script, to int64) string {
		s.log.journal = to
		return s.step(Event{Kind: EventLogStartJournaled, Offset: to})
	}
	t.Run("the leader journals, followers journal, the leader publishes", func(t *testing.T) {
		s := lead(t)
		s.want(s.step(Event{Kind: EventWantLogStart, Offset: 6}), "journal 6")
		if got := s.r.Status().LogStartWanted; got != 6 {
			t.Errorf("wanted %d", got)
		}
		s.want(s.ack(1, 2, 10, started(4)), "")
		s.want(journaled(s, 6), "publish 4")
		s.log.start = 4
		s.want(s.ack(1, 2, 10, started(6)), "publish 6")
		s.want(s.tick(500*time.Millisecond), "")
		s.want(s.tick(time.Second), "publish 6") // it may have failed
	})
	t.Run("never above the high watermark", func(t *testing.T) {
		s := lead(t)
		s.produce(5)
		s.want(s.step(Event{Kind: EventWantLogStart, Offset: 15}), "journal 10")
	})
	t.Run("a dead member at the minimum blocks it", func(t *testing.T) {
		s := lead(t)
		s.step(Event{Kind: EventUnsubscribed, Session: 1})
		s.step(Event{Kind: EventWantLogStart, Offset: 6})
		s.want(journaled(s, 6), "")
		s.want(s.tick(2*time.Second), "")
	})
	t.Run("members of a proposal count, other identities do not", func(t *testing.T) {
		s := lead(t)
		s.subscribe(2, 3, 10, 5)
		s.want(s.ack(2, 3, 10), "role; propose [1,2,3] +3@30")
		s.step(Event{Kind: EventWantLogStart, Offset: 6})
		journaled(s, 6)
		s.want(s.ack(1, 2, 10, started(6)), "")
		s.want(s.subscribe(3, 3, 10, 5, func(e *Event) { e.Peer, e.LogStart = id(3, 1), 6 }), "refuse s2 overtaken; grant s3 @10")
		s.want(s.tick(300*time.Millisecond), "")
	})
	t.Run("a journal that refuses is asked again later", func(t *testing.T) {
		s := lead(t)
		s.step(Event{Kind: EventWantLogStart, Offset: 6})
		s.want(s.step(Event{Kind: EventWantLogStart, Offset: 7}), "") // one at a time
		s.want(s.step(Event{Kind: EventLogStartJournaled, Offset: 6, Err: errors.New("full")}), "")
		s.want(s.tick(100*time.Millisecond), "journal 7")
	})
	t.Run("a new leader wants what it has journaled, and adds nobody whose log begins below", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.log.journal = 6
		s.want(s.metadata(func(r *Record) { r.ISR = members(1, 2) }), "role; assign e5")
		s.want(s.assigned(), "role; hw 6")
		if got := s.r.Status().LogStartWanted; got != 6 {
			t.Errorf("wanted %d", got)
		}
		s.sync()
		s.subscribe(2, 3, 10, 4, started(5))
		s.want(s.ack(2, 3, 10, started(5)), "")
		s.subscribe(1, 2, 10, 4, started(6))
		s.want(s.tick(100*time.Millisecond), "publish 6")
		s.want(s.ack(2, 3, 10, started(6)), "role; propose [1,2,3] +3@30")
	})
	t.Run("a follower journals what is wanted once it has it, and publishes what was", func(t *testing.T) {
		s := newScript(t, nil)
		s.follow()
		s.granted()
		wanted := func(e *Event) { e.LogStart, e.Published = 4, 2 }
		s.want(s.data(0, 3, 5, 3, wanted), "append @0")
		s.want(s.sync(), "ack e5 @3 start 0; hw 3; journal 2")
		s.want(journaled(s, 2), "ack e5 @3 start 2; publish 2")
		s.log.start = 2
		s.want(s.data(3, 3, 5, 6, wanted), "append @3")
		s.want(s.sync(), "ack e5 @6 start 2; hw 6; journal 4")
		s.want(journaled(s, 4), "ack e5 @6 start 4")
		s.want(s.data(6, 0, 5, 6, func(e *Event) { e.LogStart, e.Published = 4, 4 }), "publish 4")
	})
	t.Run("a follower that comes late journals what was published, though nothing is wanted", func(t *testing.T) {
		s := newScript(t, nil)
		s.follow()
		s.granted()
		s.data(0, 3, 5, 3, func(e *Event) { e.Published = 2 })
		s.want(s.sync(), "ack e5 @3 start 0; hw 3; journal 2")
	})
	t.Run("an old epoch's wish is forgotten", func(t *testing.T) {
		s := newScript(t, nil)
		s.follow()
		s.granted()
		s.data(0, 3, 5, 0, func(e *Event) { e.LogStart = 3 })
		s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch = 3, 6 })
		s.granted()
		s.want(s.data(3, 0, 5, 3, func(e *Event) { e.Epoch = 6 }), "hw 3")
		s.want(s.sync(), "ack e6 @3 start 0")
	})
	t.Run("only a leader is asked", func(t *testing.T) {
		s := newScript(t, nil)
		s.follow()
		s.want(s.step(Event{Kind: EventWantLogStart, Offset: 6}), "")
	})
}

// A leader that was paused does not blame its followers.
func TestPausedLeader(t *testing.T) {
	s := newScript(t, nil).lead()
	s.subscribe(1, 2, 0, -1)
	s.subscribe(2, 3, 0, -1)
	s.produce(5)
	s.tick(500 * time.Millisecond)
	s.now += time.Minute
	s.want(s.step(Event{Kind: EventTick}), "")
	s.want(s.tick(2*time.Second), "")
	if !s.r.Status().Writable {
		t.Error("not writable")
	}
	s.want(s.tick(2*time.Second), "role; propose [1,3]")
}

// A follower that is slow but moves is measured by the age of the end that it reaches.
func TestCaughtUp(t *testing.T) {
	s := newScript(t, nil).lead()
	s.subscribe(1, 2, 0, -1)
	s.subscribe(2, 3, 0, -1)
	caughtUp := func() time.Duration { return s.now - s.r.lead.peer(3).caughtUp }
	end := int64(0)
	for range 50 { // it is one second behind
		s.produce(10)
		end += 10
		s.tick(100 * time.Millisecond)
		s.ack(1, 2, end)
		s.ack(2, 3, max(0, end-100))
		if got := caughtUp(); got > 2200*time.Millisecond {
			t.Fatalf("caught up %v ago", got)
		}
	}
	s.ack(2, 3, end)
	if got := caughtUp(); got != 0 {
		t.Errorf("caught up %v ago", got)
	}
	// An idle one stays caught up while it is subscribed.
	s.tick(10 * time.Second)
	if got := caughtUp(); got > 200*time.Millisecond {
		t.Errorf("caught up %v ago", got)
	}
	s.step(Event{Kind: EventUnsubscribed, Session: 2})
	s.want(s.tick(3200*time.Millisecond), "propose [1,2]")
}

// Refused subscriptions are repeated, later each time; a leader that does not know the epoch yet is asked again soon.
func TestRetry(t *testing.T) {
	s := newScript(t, nil)
	s.follow()
	waits := func(why Reason) time.Duration {
		t.Helper()
		s.want(s.step(Event{Kind: EventRefused, Session: s.r.follow.session, Reason: why}), "role")
		for d := 10 * time.Millisecond; d < 5*time.Second; d += 10 * time.Millisecond {
			s.now += 10 * time.Millisecond
			if s.step(Event{Kind: EventTick}) != "" {
				return d
			}
		}
		t.Fatal("never again")
		return 0
	}
	for _, want := range []time.Duration{50, 100, 200, 400, 800, 1000, 1000} {
		if got := waits(0); got != want*time.Millisecond {
			t.Errorf("waited %v, want %v ms", got, want)
		}
	}
	for range 3 {
		if got := waits(ReasonUnknownEpoch); got != 50*time.Millisecond {
			t.Errorf("waited %v", got)
		}
	}
	// No answer at all.
	before := s.r.follow.session
	s.want(s.tick(3200*time.Millisecond), "unsubscribe; subscribe b2 e5 @0 last e-1")
	if s.r.follow.session <= before {
		t.Error("the session is not newer")
	}
}

// Acknowledgements that got lost are repeated, until the leader is seen to know; where all is well nothing is.
func TestLostAcknowledgement(t *testing.T) {
	s := newScript(t, nil)
	s.follow()
	s.granted()
	s.data(0, 5, 5, 0)
	s.want(s.sync(), "ack e5 @5 start 0")
	s.want(s.tick(1500*time.Millisecond), "ack e5 @5 start 0")
	s.want(s.data(5, 0, 5, 5), "hw 5")
	s.want(s.tick(5*time.Second), "")
	s.metadata(func(r *Record) { r.ISR = members(2, 3) })
	s.want(s.tick(1000*time.Millisecond), "ack e5 @5 start 0")
}

// A machine that is made anew in the same process goes on with newer sessions.
func TestSessionsOfANewMachine(t *testing.T) {
	s := newScript(t, nil)
	before := s.follow()
	for range 10 {
		s.step(Event{Kind: EventRefused, Session: s.r.follow.session})
		s.tick(time.Second)
		before = s.r.follow.session
	}
	s.r = New(Config{BrokerID: 1}, s.log)
	s.now += time.Microsecond
	s.metadata()
	if after := s.r.follow.session; after <= before {
		t.Errorf("session %d after %d", after, before)
	}
}

// What happens all the time costs no allocation.
func TestAllocations(t *testing.T) {
	check := func(name string, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(200, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	s := newScript(t, nil).lead()
	s.subscribe(1, 2, 0, -1)
	s.subscribe(2, 3, 0, -1)
	s.log.fill(5, 1000)
	ev := Event{Kind: EventAck, Session: 1, Epoch: 5, PeerEpoch: 20, Now: s.now}
	other := Event{Kind: EventAck, Session: 2, Epoch: 5, PeerEpoch: 30, Now: s.now}
	moved := 0
	check("EventAck", func() {
		ev.Offset, other.Offset = ev.Offset+1, other.Offset+1
		s.r.Step(&ev)
		moved += len(s.r.Step(&other))
	})
	if moved < 200 {
		t.Errorf("%d effects", moved)
	}
	flushed := Event{Kind: EventFlushed, Now: s.now}
	check("EventFlushed as leader", func() { s.r.Step(&flushed) })
	tick := Event{Kind: EventTick, Now: s.now}
	check("EventTick as leader", func() { tick.Now += 100 * time.Microsecond; s.r.Step(&tick) })

	f := newScript(t, nil)
	f.follow()
	f.granted()
	f.sync()
	f.log.entries = make([]logEntry, 0, 4096)
	data := Event{Kind: EventData, Session: f.r.follow.session, Epoch: 5, Length: 1, Now: f.now}
	flushed.Now = f.now
	appended, acked := 0, 0
	check("EventData, EventFlushed as follower", func() {
		data.Offset = f.log.End()
		data.HighWatermark = data.Offset
		for _, e := range f.r.Step(&data) {
			if e.Kind == EffectAppend {
				appended++
				f.log.entries = append(f.log.entries, logEntry{})
			}
		}
		f.log.flushed = f.log.End()
		acked += len(f.r.Step(&flushed))
	})
	if appended < 200 || acked < 200 {
		t.Errorf("%d appended, %d effects", appended, acked)
	}
	tick.Now = f.now
	check("EventTick as follower", func() { tick.Now += 100 * time.Microsecond; f.r.Step(&tick) })
}

// Events that come in a role in which they mean nothing do nothing.
func TestEventsOutOfPlace(t *testing.T) {
	none := newScript(t, nil)
	none.metadata(func(r *Record) { r.Leader = -1 })
	leads := newScript(t, nil).lead()
	follows := newScript(t, nil)
	follows.follow()
	follows.granted()
	follows.sync()
	for k := EventEpochAssigned; k < EventFailed; k++ {
		if k == EventSubscribe || k == EventAppendFailed {
			continue // the one is always answered, the other names no session
		}
		for name, s := range map[string]*script{"none": none, "leads": leads, "follows": follows} {
			if got := s.step(Event{Kind: k, Session: 999, Epoch: 5, Offset: 3}); got != "" {
				t.Errorf("%s: event %d: %s", name, k, got)
			}
		}
	}
}
