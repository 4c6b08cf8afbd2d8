package replication

import (
	"sync/atomic"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
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
