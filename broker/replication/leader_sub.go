package replication

import (
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
)

// leaderSub is one partition of one follower, and the partition.Sender of it.
type leaderSub struct {
	st        *leaderStream
	id        uint32
	p         LeaderPartition
	epoch     int32
	peerEpoch int64
	session   replica.Session // valid once bound

	// queued: it stands in ready. Set under st.mu; looked at without, to make Progress cheap.
	queued atomic.Bool
	// blocked: it waits for an ack, so that progress changes nothing. Set under st.mu.
	blocked atomic.Bool

	// Guarded by st.mu.
	mu struct {
		answer   *runnelv1.ReplicateAnswer // to be sent
		granted  bool                      // and next is valid
		bound    bool                      // session is valid
		refused  bool                      // the partition has ended the session by itself
		ended    bool
		sent     sentQueue
		inFlight int64
		end      int64 // behind everything that was sent
	}

	// Only the handler uses what follows.
	next           int64
	deficit        int
	pushing        bool
	seen, told     partition.FollowerLimits
	offsetsPending bool
}

// bind sets the session, which the partition gave only after it may have answered.
func (s *leaderSub) bind(session replica.Session) {
	s.st.mu.Lock()
	s.session, s.mu.bound = session, true
	gone := s.mu.ended && !s.mu.refused
	s.st.mu.Unlock()
	if gone {
		s.p.FollowerGone(session)
	}
}

func (s *leaderSub) answer(a *runnelv1.ReplicateAnswer, granted, refused bool) {
	s.st.mu.Lock()
	// A refusal is the last word; nothing comes after it.
	if !s.mu.refused {
		s.mu.answer, s.mu.granted, s.mu.refused = a, granted, refused
	}
	s.st.enqueueLocked(s)
	s.st.mu.Unlock()
	s.st.wakeUp()
}

// Grant implements partition.Sender.
func (s *leaderSub) Grant(offset int64) {
	s.answer(&runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_Granted{Granted: &runnelv1.ReplicateGranted{Offset: offset}}}, true, false)
}

// Diverging implements partition.Sender.
func (s *leaderSub) Diverging(epoch int32, end int64) {
	s.answer(&runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_Diverging{
		Diverging: &runnelv1.ReplicateDiverging{Epoch: epoch, EndOffset: end},
	}}, false, false)
}

// BelowStart implements partition.Sender.
func (s *leaderSub) BelowStart(logStart int64) {
	s.answer(belowStart(logStart), false, false)
}

// Refuse implements partition.Sender.
func (s *leaderSub) Refuse(reason replica.Reason) { s.refuse(refusals[reason], "") }

func (s *leaderSub) refuse(reason runnelv1.ReplicateRefusal, message string) {
	s.answer(refused(reason, message), false, true)
}

// expel ends the subscription of a follower that makes no sense.
func (s *leaderSub) expel(message string) {
	s.st.mu.Lock()
	gone := s.mu.bound && !s.mu.refused && !s.mu.ended
	s.st.mu.Unlock()
	s.refuse(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_INVALID, message)
	if gone {
		s.p.FollowerGone(s.session)
	}
}

// Progress implements partition.Sender.
func (s *leaderSub) Progress() {
	if s.queued.Load() || s.blocked.Load() {
		return
	}
	s.st.mu.Lock()
	s.st.enqueueLocked(s)
	s.st.mu.Unlock()
	s.st.wakeUp()
}

var refusals = map[replica.Reason]runnelv1.ReplicateRefusal{
	replica.ReasonNotLeader:    runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_NOT_LEADER,
	replica.ReasonFencedEpoch:  runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_FENCED_EPOCH,
	replica.ReasonUnknownEpoch: runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_UNKNOWN_EPOCH,
	replica.ReasonNotReplica:   runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_NOT_REPLICA,
	replica.ReasonLostStorage:  runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_LOST_STORAGE,
	replica.ReasonOvertaken:    runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_OVERTAKEN,
}

func refused(reason runnelv1.ReplicateRefusal, message string) *runnelv1.ReplicateAnswer {
	return &runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_Refused{
		Refused: &runnelv1.ReplicateRefused{Reason: reason, Message: message},
	}}
}

func belowStart(logStart int64) *runnelv1.ReplicateAnswer {
	return &runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_BelowStart{BelowStart: &runnelv1.ReplicateBelowStart{LogStart: logStart}}}
}

// acked takes in an acknowledgement.
func (s *leaderSub) acked(a *codec.ReplicaAck) {
	st := s.st
	st.mu.Lock()
	over := s.mu.ended || s.mu.refused || !s.mu.bound
	valid := s.mu.granted && a.Flushed <= s.mu.end && a.Flushed >= 0 && a.LogStart >= 0
	st.mu.Unlock()
	switch {
	case over:
		return
	case !valid:
		s.expel("an acknowledgement of what was not sent")
		return
	}
	s.p.FollowerAck(s.session, s.peerEpoch, a.LeaderEpoch, a.Flushed, a.LogStart)
	st.mu.Lock()
	n := s.mu.sent.acked(a.Flushed)
	if s.mu.ended { // endLocked has given everything back
		n = 0
	}
	s.mu.inFlight -= n
	st.mu.inFlight -= n
	woken := n > 0 && s.blocked.Load()
	if woken {
		s.blocked.Store(false)
		st.enqueueLocked(s)
	}
	st.mu.Unlock()
	if woken {
		st.wakeUp()
	}
}

// admit says how many bytes s may be sent now; 0: it waits for an ack.
func (st *leaderStream) admit(s *leaderSub) int {
	st.mu.Lock()
	defer st.mu.Unlock()
	window := st.l.cfg.Window
	if st.mu.inFlight >= st.l.cfg.StreamWindow {
		window = int64(st.l.cfg.Quantum)
	}
	if s.mu.inFlight >= window {
		s.blocked.Store(true)
		return 0
	}
	return st.l.cfg.Quantum
}

// serve sends what s has to say: its answer, or one frame of batches, or nothing.
func (st *leaderStream) serve(s *leaderSub) error {
	st.mu.Lock()
	answer, granted := s.mu.answer, s.mu.granted
	s.mu.answer = nil
	st.mu.Unlock()
	if answer != nil {
		if g := answer.GetGranted(); g != nil {
			answer = st.begin(s, g.GetOffset())
		}
		if err := st.sendAnswer(s, answer); err != nil {
			return err
		}
	}
	if !granted || !s.pushing {
		return nil
	}
	// Progress that comes between here and the end finds queued false, and queues s again.
	allowed := st.admit(s)
	if allowed == 0 {
		return nil
	}
	if st.catchUp {
		if err := st.l.catchUp.wait(st.ctx); err != nil {
			return err
		}
	}
	s.deficit = min(s.deficit+allowed, st.l.cfg.Quantum)
	if s.deficit <= 0 { // it still pays for a batch larger than its turn
		st.again(s)
		return nil
	}
	return st.push(s)
}

// begin decides whether s belongs on this stream.
func (st *leaderStream) begin(s *leaderSub, offset int64) *runnelv1.ReplicateAnswer {
	switch {
	case !st.catchUp && st.isFar(s, offset, 4):
		return refused(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_USE_CATCH_UP, "")
	case st.catchUp && st.isNear(s, offset):
		return refused(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_USE_TAIL, "")
	}
	s.next, s.pushing, s.deficit = offset, true, 0
	s.told = partition.FollowerLimits{HighWatermark: math.MinInt64} // the follower knows nothing yet
	st.mu.Lock()
	s.mu.end = offset
	st.mu.Unlock()
	return &runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_Granted{Granted: &runnelv1.ReplicateGranted{Offset: offset}}}
}

// isFar: what the follower wants next lies more than so many windows behind the end, and nobody waits for its acks. Members of the
// in-sync set stay on the tail, throttled they would hold up every producer; they are dropped from the set before they are far behind.
func (st *leaderStream) isFar(s *leaderSub, offset, windows int64) bool {
	return s.p.Behind(offset) > windows*st.l.cfg.Window && !st.inSync(s)
}

func (st *leaderStream) isNear(s *leaderSub, offset int64) bool {
	return s.p.Behind(offset) < st.l.cfg.Window/2 || st.inSync(s)
}

func (st *leaderStream) inSync(s *leaderSub) bool { return slices.Contains(s.p.Role().ISR, st.from.ID) }

// sendAnswer sends an answer; refusals end the subscription.
func (st *leaderStream) sendAnswer(s *leaderSub, a *runnelv1.ReplicateAnswer) error {
	if a.GetRefused() != nil {
		s.pushing = false
		st.end(s)
	}
	st.resetFrame()
	st.frame.SubscriptionID, st.frame.LeaderEpoch, st.frame.Answer = s.id, s.epoch, a
	err := st.grpc.SendMsg(&st.frame)
	st.frame.Answer = nil
	return err
}

func (st *leaderStream) again(s *leaderSub) {
	st.mu.Lock()
	st.enqueueLocked(s)
	st.mu.Unlock()
}

// push sends one frame of batches, if there are any.
func (st *leaderStream) push(s *leaderSub) error {
	st.resetFrame()
	n, err := st.fill(s)
	if err != nil {
		return st.fault(s, err)
	}
	if n == 0 {
		s.deficit = 0
		if s.seen != s.told {
			st.moved(s)
		}
		return nil
	}
	s.deficit -= n
	s.told, s.offsetsPending = s.seen, false
	if st.catchUp {
		st.l.catchUp.take(n)
	}
	// Before it is sent: its ack may be faster than the return of SendMsg.
	st.mu.Lock()
	s.mu.end = s.next
	if !s.mu.ended {
		s.mu.sent.push(s.next, int64(n))
		s.mu.inFlight += int64(n)
		st.mu.inFlight += int64(n)
	}
	st.enqueueLocked(s)
	st.mu.Unlock()
	err = st.grpc.SendMsg(&st.frame)
	st.frame.Free()
	switch {
	case err != nil:
		return err
	case st.catchUp && st.isNear(s, s.next):
		return st.sendAnswer(s, refused(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_USE_TAIL, ""))
	case !st.catchUp && n >= st.l.cfg.Quantum/2 && st.isFar(s, s.next, 8): // full frames: it falls behind
		return st.sendAnswer(s, refused(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_USE_CATCH_UP, ""))
	}
	return nil
}

// fill reads the next batches of s into the frame, and returns their size.
func (st *leaderStream) fill(s *leaderSub) (int, error) {
	r, lim, err := s.p.ReadForFollower(s.next, min(s.deficit, st.l.cfg.Quantum))
	if err != nil {
		return 0, err
	}
	defer r.Release()
	if lim.Epoch != s.epoch {
		return 0, partition.ErrNotLeader
	}
	s.seen = lim
	if r.Len == 0 {
		return 0, nil
	}
	buf, b := st.l.cfg.Pool.Buffer(r.Len)
	if err := r.ReadInto(b); err != nil {
		buf.Free()
		return 0, err
	}
	// Still the leader of the epoch after the bytes were read: then nobody of a later one had written them.
	if !s.p.Leads(s.epoch) {
		buf.Free()
		return 0, partition.ErrNotLeader
	}
	f := &st.frame
	f.SubscriptionID, f.LeaderEpoch, f.BaseOffset = s.id, s.epoch, r.First
	f.HighWatermark, f.LogStartWanted, f.LogStartPublished = lim.HighWatermark, lim.LogStartWanted, lim.LogStartPublished
	f.SetBatch(buf)
	s.next = r.Next
	return r.Len, nil
}

// fault ends s because of an error of its partition.
func (st *leaderStream) fault(s *leaderSub, err error) error {
	var oor *log.OutOfRangeError
	switch {
	case errors.Is(err, log.ErrTruncated):
		st.again(s) // look again
		return nil
	case errors.As(err, &oor) && oor.Asked < oor.Earliest:
		s.pushing = false
		return st.sendAnswer(s, belowStart(oor.Earliest)) // the follower subscribes again
	case errors.Is(err, partition.ErrNotLeader), errors.Is(err, partition.ErrClosed):
		return st.sendAnswer(s, refused(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_NOT_LEADER, ""))
	}
	st.l.cfg.Logger.Warn("a follower cannot be sent its batches",
		slog.Int("follower", int(st.from.ID)), slog.Int64("offset", s.next), slog.Any("error", err))
	return st.sendAnswer(s, refused(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_STORAGE, "the leader cannot read the partition"))
}
