package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"runnel.dev/runnel/internal/ids"
)

const reg = 100 // the broker epoch of broker 1

// id is the identity of a broker's log; gen counts logs that were made anew in place.
func id(broker int32, gen ...byte) Member {
	m := Member{BrokerID: broker, StorageID: ids.StorageID{byte(broker)}, LogID: ids.LogID{byte(broker)}}
	if len(gen) > 0 {
		m.LogID[1] = gen[0]
	}
	return m
}

func members(brokers ...int32) []Member {
	var ms []Member
	for _, b := range brokers {
		ms = append(ms, id(b))
	}
	return ms
}

// script drives the machine of broker 1 and writes down what it wants done.
type script struct {
	t   *testing.T
	r   *Replica
	log *memLog
	now time.Duration
	rec Record
	reg int64
}

func newScript(t *testing.T, log *memLog) *script {
	if log == nil {
		log = newMemLog(id(1), 0)
	}
	return &script{t: t, log: log, r: New(Config{BrokerID: 1}, log), now: time.Second, reg: reg, rec: Record{
		Revision: 1000, Leader: 1, LeaderEpoch: 5, LeaderBrokerEpoch: reg, Replicas: []int32{1, 2, 3}, ISR: members(1, 2, 3), MinISR: 2,
	}}
}

// step gives the machine an event and returns its effects as text, one per line.
func (s *script) step(ev Event) string {
	s.t.Helper()
	ev.Now = s.now
	var lines []string
	for _, e := range s.r.Step(&ev) {
		lines = append(lines, text(&e))
	}
	return strings.Join(lines, "\n")
}

// want compares effects with a text in which "; " stands for a new line.
func (s *script) want(got, want string) {
	s.t.Helper()
	if got = strings.ReplaceAll(got, "\n", "; "); got != want {
		s.t.Errorf("got  %s\nwant %s", got, want)
	}
}

// metadata hands the record over, at a newer revision.
func (s *script) metadata(change ...func(*Record)) string {
	s.t.Helper()
	for _, c := range change {
		c(&s.rec)
	}
	s.rec.Revision++
	rec := s.rec
	return s.step(Event{Kind: EventMetadata, Record: &rec, BrokerEpoch: s.reg, Self: s.log.id, Usable: true})
}

// lead makes broker 1 the leader of epoch 5 with a durable adoption.
func (s *script) lead(change ...func(*Record)) *script {
	s.t.Helper()
	s.metadata(change...)
	s.assigned()
	s.sync()
	if !s.r.Status().Leading {
		s.t.Fatal("it does not lead")
	}
	return s
}

// assigned carries EffectAssignEpoch out.
func (s *script) assigned() string {
	s.t.Helper()
	err := s.log.assign(s.rec.LeaderEpoch)
	return s.step(Event{Kind: EventEpochAssigned, Epoch: s.rec.LeaderEpoch, Offset: s.log.End(), Err: err})
}

func (s *script) sync() string {
	s.t.Helper()
	s.log.sync()
	return s.step(Event{Kind: EventFlushed})
}

// produce appends n records of the led epoch, flushed.
func (s *script) produce(n int) string {
	s.t.Helper()
	s.log.fill(s.rec.LeaderEpoch, n)
	return s.step(Event{Kind: EventFlushed})
}

func (s *script) tick(d time.Duration) string {
	s.t.Helper()
	var all []string
	for ; d > 0; d -= 100 * time.Millisecond {
		s.now += 100 * time.Millisecond
		if out := s.step(Event{Kind: EventTick}); out != "" {
			all = append(all, out)
		}
	}
	return strings.Join(all, "\n")
}

// subscribe is a subscription of another broker's log in the led epoch, numbered by session on both sides.
func (s *script) subscribe(session Session, broker int32, offset int64, lastEpoch int32, change ...func(*Event)) string {
	s.t.Helper()
	ev := Event{
		Kind: EventSubscribe, Session: session, PeerSession: session, Epoch: s.rec.LeaderEpoch, Peer: id(broker), PeerEpoch: 10 * int64(broker),
		Offset: offset, LastEpoch: lastEpoch,
	}
	for _, c := range change {
		c(&ev)
	}
	return s.step(ev)
}

func (s *script) ack(session Session, broker int32, offset int64, change ...func(*Event)) string {
	s.t.Helper()
	ev := Event{Kind: EventAck, Session: session, Epoch: s.rec.LeaderEpoch, PeerEpoch: 10 * int64(broker), Offset: offset}
	for _, c := range change {
		c(&ev)
	}
	return s.step(ev)
}

// follow makes broker 1 a follower of broker 2 in epoch 5, and returns its session.
func (s *script) follow(change ...func(*Record)) Session {
	s.t.Helper()
	s.metadata(append([]func(*Record){func(r *Record) { r.Leader, r.LeaderBrokerEpoch = 2, 20 }}, change...)...)
	if s.r.follow.state != stateSubscribing {
		s.t.Fatalf("state is %s", followNames[s.r.follow.state])
	}
	return s.r.follow.session
}

// granted is the leader's answer to a subscription that continues.
func (s *script) granted() string {
	s.t.Helper()
	return s.step(Event{Kind: EventGranted, Session: s.r.follow.session, Epoch: s.rec.LeaderEpoch, Offset: s.log.End()})
}

// data pushes n records of epoch at offset, and appends them if the machine says so.
func (s *script) data(offset int64, n int, epoch int32, hw int64, change ...func(*Event)) string {
	s.t.Helper()
	ev := Event{
		Kind: EventData, Session: s.r.follow.session, Epoch: s.rec.LeaderEpoch, Offset: offset, Length: 100 * n, HighWatermark: hw,
	}
	for _, c := range change {
		c(&ev)
	}
	out := s.step(ev)
	if strings.HasPrefix(out, "append") {
		for i := range n {
			s.log.append(logEntry{epoch, int(offset) + i})
		}
	}
	return out
}

// crash is a new process over what the disk holds, under a new registration.
func (s *script) crash() {
	s.log = s.log.crashed()
	s.reg += 50
	s.r = New(Config{BrokerID: 1}, s.log)
}

// status is the interesting part of Status.
func (s *script) status() string {
	st := s.r.Status()
	return fmt.Sprintf("leading=%v epoch=%d writable=%v isr=%s effective=%s following=%q",
		st.Leading, st.Epoch, st.Writable, names(st.ISR), names(st.Effective), st.Following)
}

// confirm settles the newest proposal as applied with the in-sync set isr.
func (s *script) confirm(isr []Member) string {
	s.t.Helper()
	s.rec.Revision++
	s.rec.ISR = isr
	rec := s.rec
	return s.step(Event{Kind: EventProposalSettled, Proposal: s.r.lead.proposal.id, Applied: true, Record: &rec})
}

func names(ms []Member) string {
	var out []string
	for _, m := range ms {
		name := fmt.Sprint(m.BrokerID)
		if m.LogID[1] > 0 {
			name += strings.Repeat("'", int(m.LogID[1]))
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

var reasons = map[Reason]string{
	ReasonNotLeader: "not-leader", ReasonFencedEpoch: "fenced", ReasonUnknownEpoch: "unknown-epoch", ReasonNotReplica: "not-replica",
	ReasonLostStorage: "lost", ReasonOvertaken: "overtaken",
}

// text writes an effect down.
func text(e *Effect) string {
	switch e.Kind {
	case EffectAssignEpoch:
		return fmt.Sprintf("assign e%d", e.Epoch)
	case EffectRole:
		return "role"
	case EffectHighWatermark:
		return fmt.Sprintf("hw %d", e.Offset)
	case EffectPropose:
		s := fmt.Sprintf("propose [%s]", names(e.ISR))
		for _, a := range e.Added {
			s += fmt.Sprintf(" +%d@%d", a.BrokerID, a.BrokerEpoch)
		}
		return s
	case EffectGrant:
		return fmt.Sprintf("grant s%d @%d", e.Session, e.Offset)
	case EffectDiverging:
		return fmt.Sprintf("diverging s%d e%d @%d", e.Session, e.Epoch, e.Offset)
	case EffectBelowStart:
		return fmt.Sprintf("below s%d @%d", e.Session, e.Offset)
	case EffectRefuse:
		return fmt.Sprintf("refuse s%d %s", e.Session, reasons[e.Reason])
	case EffectSubscribe:
		return fmt.Sprintf("subscribe b%d e%d @%d last e%d", e.Leader, e.Epoch, e.Offset, e.LastEpoch)
	case EffectUnsubscribe:
		return "unsubscribe"
	case EffectAppend:
		return fmt.Sprintf("append @%d", e.Offset)
	case EffectTruncate:
		return fmt.Sprintf("truncate @%d", e.Offset)
	case EffectReset:
		return fmt.Sprintf("reset @%d", e.Offset)
	case EffectAck:
		return fmt.Sprintf("ack e%d @%d start %d", e.Epoch, e.Offset, e.LogStart)
	case EffectJournalLogStart:
		return fmt.Sprintf("journal %d", e.Offset)
	case EffectPublishLogStart:
		return fmt.Sprintf("publish %d", e.Offset)
	}
	return fmt.Sprintf("effect %d?", e.Kind)
}
