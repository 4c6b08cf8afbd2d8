package replica

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// history is a log as pairs of (epoch, number of records).
func history(broker int32, runs ...int) *memLog {
	l := newMemLog(id(broker), 0)
	for i := 0; i < len(runs); i += 2 {
		if runs[i+1] == 0 {
			l.addEpoch(int32(runs[i]), l.End())
		}
		for range runs[i+1] {
			l.append(logEntry{int32(runs[i]), int(l.End())*10 + runs[i]})
		}
	}
	l.sync()
	return l
}

// reconcile lets a follower's and a leader's machine talk until the subscription is granted, and returns what was said.
func reconcile(t *testing.T, leaderLog, followerLog *memLog) []string {
	t.Helper()
	rec := &Record{
		Revision: 1, Leader: 2, LeaderEpoch: max(leaderLog.LatestEpoch(), followerLog.LatestEpoch()) + 1, LeaderBrokerEpoch: 20,
		Replicas: []int32{1, 2}, ISR: []Member{leaderLog.id, followerLog.id}, MinISR: 1,
	}
	leader, follower := New(Config{BrokerID: 2}, leaderLog), New(Config{BrokerID: 1}, followerLog)
	leader.Step(&Event{Kind: EventMetadata, Record: rec, BrokerEpoch: 20, Self: leaderLog.id, Usable: true})
	if err := leaderLog.assign(rec.LeaderEpoch); err != nil {
		t.Fatal(err)
	}
	leader.Step(&Event{Kind: EventEpochAssigned, Epoch: rec.LeaderEpoch, Offset: leaderLog.End()})
	leaderLog.sync()
	leader.Step(&Event{Kind: EventFlushed})
	var said []string
	todo := append([]Effect(nil), follower.Step(&Event{Kind: EventMetadata, Record: rec, BrokerEpoch: 10, Self: followerLog.id, Usable: true})...)
	for round := 0; len(todo) > 0; round++ {
		if round > 50 {
			t.Fatalf("no end: %v", said)
		}
		e := todo[0]
		todo = todo[1:]
		switch e.Kind {
		case EffectSubscribe:
			said = append(said, text(&e))
			for _, a := range leader.Step(&Event{
				Kind: EventSubscribe, Session: e.Session, Epoch: e.Epoch, Peer: followerLog.id, PeerEpoch: 10, PeerSession: e.Session,
				Offset: e.Offset, LastEpoch: e.LastEpoch, LogStart: e.LogStart,
			}) {
				said = append(said, text(&a))
				ev := Event{Session: e.Session, Epoch: a.Epoch, Offset: a.Offset}
				switch a.Kind {
				case EffectGrant:
					ev.Kind = EventGranted
				case EffectDiverging:
					ev.Kind = EventDiverging
				case EffectBelowStart:
					ev.Kind = EventBelowStart
				default:
					continue
				}
				todo = append(todo, follower.Step(&ev)...)
			}
		case EffectTruncate:
			said = append(said, text(&e))
			err := followerLog.truncate(e.Offset)
			todo = append(todo, follower.Step(&Event{Kind: EventTruncated, Err: err})...)
		default:
		}
	}
	if follower.Status().Following != "following" {
		t.Fatalf("the follower is %s after %v", follower.Status().Following, said)
	}
	return said
}

// The ways in which histories part. After the exchange, the follower's log is a prefix of the leader's, and nothing both had is gone.
func TestTruncation(t *testing.T) {
	tests := []struct {
		name             string
		leader, follower *memLog
		hw               int64 // the follower's: it must make no difference
		want             int64 // where the follower's log ends then
	}{
		{"KIP-101: high watermark truncation loses what the leader committed", history(2, 1, 2), history(1, 1, 2), 1, 2},
		{"KIP-101: replica divergence after both fail", history(2, 1, 1, 2, 1), history(1, 1, 2), 1, 1},
		{"KIP-101: the follower is behind in the same epoch", history(2, 1, 10), history(1, 1, 4), 4, 4},
		{"KIP-101: the follower is ahead in the same epoch", history(2, 1, 4), history(1, 1, 10), 2, 4},
		{"KIP-279: fast leader fail-over, epochs on both sides that the other lacks", history(2, 1, 2, 3, 3), history(1, 1, 2, 2, 4), 2, 2},
		{"KIP-279: the leader's epoch lies between two of the follower's", history(2, 1, 3, 3, 2), history(1, 1, 2, 2, 2, 4, 2), 2, 2},
		{"KIP-279: several exchanges", history(2, 1, 2, 3, 2, 5, 2), history(1, 1, 2, 2, 2, 4, 2, 6, 3), 0, 2},
		{"KIP-320: truncation after an unclean election", history(2, 1, 5, 4, 1), history(1, 1, 8, 2, 2, 3, 2), 12, 5},
		{"two fast elections without writes: empty epochs at the follower", history(2, 1, 5), history(1, 1, 5, 2, 0, 3, 0), 5, 5},
		{"two fast elections without writes: empty epochs at the leader", history(2, 1, 5, 2, 0, 3, 0), history(1, 1, 5), 5, 5},
		{"an empty epoch below a written one", history(2, 1, 5, 3, 2), history(1, 1, 5, 2, 0), 0, 5},
		{"an empty epoch is all the follower has", history(2, 1, 5), history(1, 3, 0), 0, 0},
		{"an empty follower", history(2, 1, 5, 2, 5), history(1), 0, 0},
		{"an empty leader", history(2), history(1, 1, 5), 0, 0},
		{"nothing in common", history(2, 2, 5), history(1, 1, 5), 3, 0},
		{"equal", history(2, 1, 5, 2, 5), history(1, 1, 5, 2, 5), 5, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.follower.SetHighWatermark(tt.hw)
			said := reconcile(t, tt.leader, tt.follower)
			if got := tt.follower.End(); got != tt.want {
				t.Errorf("the follower's log ends at %d, want %d, after %v", got, tt.want, said)
			}
			for i := range tt.follower.End() {
				if tt.follower.at(i).epoch != tt.leader.at(i).epoch {
					t.Errorf("offset %d differs", i)
				}
			}
		})
	}
}

// The leader has forgotten the epochs below its log start; a follower that ends exactly there, or is empty behind it, contradicts nothing.
func TestTruncationAtTheLogStart(t *testing.T) {
	trimmed := func() *script {
		s := newScript(t, nil)
		*s.log = *newMemLog(id(1), 20)
		s.log.fill(4, 10)
		return s.lead(func(r *Record) { r.ISR = members(1, 2) })
	}
	started := func(at int64) func(*Event) { return func(e *Event) { e.LogStart = at } }
	for _, tt := range []struct {
		name      string
		broker    int32
		offset    int64
		lastEpoch int32
		logStart  int64
		want      string
	}{
		{"ends where the log starts, in an epoch that is forgotten", 3, 20, 3, 0, "grant s1 @20"},
		{"ends behind the log start, in an epoch that the leader never had", 3, 25, 3, 0, "diverging s1 e-1 @-1"},
		{"below the log start", 3, 19, 3, 0, "below s1 @20"},
		{"empty at the log start", 3, 20, -1, 20, "grant s1 @20"},
		{"empty, begun further on", 3, 25, -1, 25, "grant s1 @25"},
		{"empty, begun behind the end", 3, 31, -1, 31, "below s1 @20"},
		{"would have to be cut below its own start", 3, 40, 5, 35, "below s1 @20"},
		{"without an epoch, but not empty", 3, 25, -1, 20, "diverging s1 e-1 @-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := trimmed()
			s.want(s.subscribe(1, tt.broker, tt.offset, tt.lastEpoch, started(tt.logStart)), tt.want)
		})
	}
	t.Run("a batch that holds the log start is sent whole", func(t *testing.T) {
		s := trimmed()
		s.log.batchLow, s.log.start, s.log.journal = 22, 25, 25
		s.want(s.subscribe(1, 3, 22, 4), "grant s1 @22")
		s.want(s.subscribe(2, 3, 21, 4), "refuse s1 overtaken; below s2 @22")
	})
}

// A replica whose log cannot be cut to where it would agree is made anew, if nobody counts on it.
func TestTruncationBelowTheOwnStart(t *testing.T) {
	s := newScript(t, nil)
	*s.log = *newMemLog(id(1), 30)
	s.log.fill(4, 10)
	session := s.follow(func(r *Record) { r.ISR = members(2, 3) })
	s.want(s.step(Event{Kind: EventDiverging, Session: session, Epoch: 3, Offset: 20}), "role; unsubscribe")
	s.want(s.tick(100*time.Millisecond), "role; subscribe b2 e5 @0 last e-1")
	s.want(s.step(Event{Kind: EventBelowStart, Session: s.r.follow.session, Offset: 10}), "role; unsubscribe; reset @10")
	s.want(s.tick(5*time.Second), "")
	s.want(s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch = 3, 6 }), "role")
	*s.log = *newMemLog(id(1, 1), 10)
	s.want(s.metadata(), "role")
	s.want(s.step(Event{Kind: EventTruncated}), "role; subscribe b3 e6 @10 last e-1")

	t.Run("granted from the beginning", func(t *testing.T) {
		s := newScript(t, nil)
		*s.log = *newMemLog(id(1), 30)
		session := s.follow(func(r *Record) { r.ISR = members(2, 3) })
		s.step(Event{Kind: EventDiverging, Session: session, Epoch: 3, Offset: 20})
		s.tick(100 * time.Millisecond)
		s.want(s.step(Event{Kind: EventGranted, Session: s.r.follow.session, Epoch: 5, Offset: 0}), "role; unsubscribe; reset @0")
	})
	t.Run("a member waits", func(t *testing.T) {
		s := newScript(t, nil)
		*s.log = *newMemLog(id(1), 30)
		session := s.follow()
		s.want(s.step(Event{Kind: EventDiverging, Session: session, Epoch: 3, Offset: 20}), "role; unsubscribe")
		s.want(s.tick(100*time.Millisecond), "role; subscribe b2 e5 @30 last e-1")
	})
	t.Run("a log that refuses to be cut", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.follow(func(r *Record) { r.ISR = members(2, 3) })
		for range maxCutFailures {
			s.want(s.step(Event{Kind: EventDiverging, Session: s.r.follow.session, Epoch: 4, Offset: 5}), "role; unsubscribe; truncate @5")
			s.want(s.step(Event{Kind: EventTruncated, Err: errors.New("within a batch")}), "role")
			s.tick(time.Second)
		}
		s.want(s.step(Event{Kind: EventBelowStart, Session: s.r.follow.session, Offset: 2}), "role; unsubscribe; reset @2")
	})
	t.Run("a cut that changes nothing", func(t *testing.T) {
		// The epoch of what lies below the start of an empty log, of which the leader knows nothing.
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		s.follow(func(r *Record) { r.ISR = members(2, 3) })
		s.want(s.step(Event{Kind: EventDiverging, Session: s.r.follow.session, Epoch: -1, Offset: -1}), "role; unsubscribe; truncate @0")
		s.want(s.step(Event{Kind: EventTruncated}), "role")
		s.want(s.tick(100*time.Millisecond), "role; subscribe b2 e5 @0 last e-1")
		s.want(s.step(Event{Kind: EventBelowStart, Session: s.r.follow.session, Offset: 2}), "role; unsubscribe; reset @2")
	})
	t.Run("an answer that changes nothing is not acted on", func(t *testing.T) {
		s := newScript(t, newMemLog(id(1), 0).fill(4, 10))
		session := s.follow()
		s.want(s.step(Event{Kind: EventDiverging, Session: session, Epoch: 4, Offset: 10}), "role; unsubscribe")
	})
}

// A follower that was granted remembers the epoch. If it alone did, and metadata were lost, its short log would be taken for the one that
// holds everything.
func TestNobodyIsGrantedBeforeTheLeadersOwnEpochIsDurable(t *testing.T) {
	s := newScript(t, nil)
	s.log.fill(4, 10)
	s.metadata()
	s.want(s.subscribe(7, 2, 0, -1), "") // not even an answer: it comes in time
	s.assigned()
	s.want(s.subscribe(8, 3, 10, 4), "")
	s.want(s.subscribe(9, 3, 10, 4), "refuse s8 overtaken")
	s.want(s.subscribe(6, 3, 10, 4), "refuse s6 overtaken") // delayed
	s.step(Event{Kind: EventUnsubscribed, Session: 7})
	s.want(s.sync(), "grant s9 @10")

	s = newScript(t, nil)
	s.metadata()
	s.subscribe(7, 2, 0, -1)
	got := s.metadata(func(r *Record) { r.Leader, r.LeaderEpoch, r.LeaderBrokerEpoch = 2, 6, 20 })
	if !strings.Contains(got, "refuse s7") {
		t.Errorf("leadership ended with %q, want the waiting subscription refused", got)
	}
}
