package replication

import (
	"sync"
	"testing"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// source is the leader's side of a partition without the protocol: it grants whatever is asked for, over a real log.
type source struct {
	testing.TB
	log  *log.Log
	host *partitiontest.Host

	mu       sync.Mutex
	behind   int64 // what Behind says; -1: what the log says
	deposed  bool
	isr      []int32
	senders  map[replica.Session]partition.Sender
	asked    []replica.Member
	acked    map[replica.Session]int64
	gone     map[replica.Session]int
	sessions replica.Session
	answer   func(partition.Sender) // instead of granting
	changed  chan struct{}          // closed and replaced with every call
}

func newSource(t testing.TB, number int32) *source {
	h := partitiontest.NewHost(t, clock.System())
	s := &source{
		TB: t, host: h, log: h.Log(topic, number, logConfig()), behind: -1,
		senders: map[replica.Session]partition.Sender{}, acked: map[replica.Session]int64{}, gone: map[replica.Session]int{},
		changed: make(chan struct{}),
	}
	if err := s.log.AssignEpoch(1); err != nil {
		t.Fatal(err)
	}
	return s
}

// append appends one batch of about size bytes and returns its bytes.
func (s *source) append(size int) []byte {
	s.Helper()
	b := record.NewBuilder(record.CodecNone)
	b.Append(1, nil, make([]byte, size), nil)
	batch, err := b.Build(nil)
	if err != nil {
		s.Fatal(err)
	}
	h, err := record.ParseHeader(batch)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.log.Append(batch, h, 1, time.Unix(1, 0)); err != nil {
		s.Fatal(err)
	}
	s.progress()
	return batch
}

func (s *source) progress() {
	s.mu.Lock()
	all := make([]partition.Sender, 0, len(s.senders))
	for _, x := range s.senders {
		all = append(all, x)
	}
	s.mu.Unlock()
	for _, x := range all {
		x.Progress()
	}
}

func (s *source) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits for ok, which is asked after every call, with the lock held.
func (s *source) until(what string, ok func() bool) {
	s.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			s.Fatalf("%s: did not come", what)
		}
	}
}

func (s *source) SubscribeFollower(
	x partition.Sender, p replica.Member, _ int64, _ replica.Session, _ int32, offset int64, _ int32, _ int64,
) replica.Session {
	s.mu.Lock()
	s.sessions++
	session, answer := s.sessions, s.answer
	s.asked = append(s.asked, p)
	if answer == nil {
		s.senders[session] = x
	}
	s.changedLocked()
	s.mu.Unlock()
	if answer != nil {
		answer(x)
	} else {
		x.Grant(offset)
	}
	return session
}

func (s *source) FollowerAck(session replica.Session, _ int64, _ int32, flushed, _ int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked[session] = flushed
	s.changedLocked()
}

func (s *source) FollowerGone(session replica.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.senders, session)
	s.gone[session]++
	s.changedLocked()
}

func (s *source) ReadForFollower(offset int64, maxBytes int) (log.Range, partition.FollowerLimits, error) {
	lim := partition.FollowerLimits{HighWatermark: s.log.HighWatermark(), LogStartPublished: s.log.LogStart(), LogStartWanted: s.log.LogStart(), Epoch: 1}
	r, err := s.log.ReadRange(offset, maxBytes, s.log.End())
	return r, lim, err
}

func (s *source) Behind(offset int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.behind >= 0 {
		return s.behind
	}
	return (s.log.End() - offset) * 1 << 10
}

func (s *source) Role() partition.Role {
	s.mu.Lock()
	defer s.mu.Unlock()
	return partition.Role{Leading: true, LeaderID: 1, Epoch: 1, ISR: s.isr}
}

func (s *source) Leads(int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.deposed
}

// sink is the follower's side of a partition without the protocol: it keeps what it is given.
type sink struct {
	testing.TB
	number int32
	f      *Followers

	mu       sync.Mutex
	busy     bool          // a call is in progress
	hold     chan struct{} // Deliver waits for it
	silent   bool          // no acks
	granted  []int64
	bytes    []byte
	next     int64
	hw       int64
	frames   int
	refused  []replica.Reason
	answers  []string
	sessions replica.Session
	changed  chan struct{}
}

func newSink(t testing.TB, f *Followers, number int32) *sink {
	return &sink{TB: t, f: f, number: number, changed: make(chan struct{})}
}

func (s *sink) TopicID() ids.TopicID { return topic }
func (s *sink) Number() int32        { return s.number }

// subscribe asks leader for what lies behind what the sink has.
func (s *sink) subscribe(leader int32) replica.Session {
	s.mu.Lock()
	s.sessions++
	session, next := s.sessions, s.next
	s.mu.Unlock()
	self := s.f.cfg.Directory.Self()
	s.f.subscribe(s, partition.Subscription{
		Session: session, Leader: leader, Self: replica.Member{BrokerID: self.ID, StorageID: ids.NewStorageID(), LogID: ids.NewLogID()},
		BrokerEpoch: self.Epoch, Epoch: 1, Offset: next, LastEpoch: -1,
	})
	return session
}

// enter checks that calls come one at a time.
func (s *sink) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		s.Error("two calls at a time")
	}
	s.busy = true
}

func (s *sink) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *sink) Granted(session replica.Session, epoch int32, offset int64) {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	s.granted = append(s.granted, offset)
	s.mu.Unlock()
	s.ack(session, epoch, offset)
}

func (s *sink) ack(session replica.Session, epoch int32, offset int64) {
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	if !silent {
		s.f.ack(s, session, epoch, offset, 0)
	}
}

func (s *sink) DivergingAt(_ replica.Session, epoch int32, end int64) {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, "diverging", string(rune('0'+epoch)), string(rune('0'+end)))
}

func (s *sink) BelowStartAt(_ replica.Session, start int64) {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, "below", string(rune('0'+start)))
}

func (s *sink) Refused(_ replica.Session, reason replica.Reason) {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, reason)
}

func (s *sink) Deliver(session replica.Session, epoch int32, hw, _, _, base int64, batches []byte) error {
	s.enter()
	defer s.leave()
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	s.mu.Lock()
	s.hw = max(s.hw, hw)
	if len(batches) > 0 {
		s.frames++
		if base != s.next {
			s.Errorf("batches from %d on, want %d", base, s.next)
		}
	}
	s.bytes = append(s.bytes, batches...)
	for rest := batches; len(rest) > 0; {
		var b []byte
		var err error
		if b, rest, err = record.NextFrame(rest); err != nil {
			s.Error(err)
			break
		}
		h, err := record.ParseHeader(b)
		if err != nil {
			s.Error(err)
		}
		s.next = h.NextOffset()
	}
	next := s.next
	s.mu.Unlock()
	if len(batches) > 0 {
		s.ack(session, epoch, next)
	}
	return nil
}

// until waits for ok, which is asked after every call, with the lock held.
func (s *sink) until(what string, ok func() bool) {
	s.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			s.Fatalf("%s: did not come", what)
		}
	}
}

func logConfig() log.Config {
	c := log.DefaultConfig()
	c.MaxBatchBytes, c.SegmentBytes = 16<<20, 256<<20
	return c
}
