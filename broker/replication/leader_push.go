package replication

import (
	"errors"
	"log/slog"
	"math"
	"slices"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
)

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
	if r.Len == 0 {
		if !s.p.Leads(s.epoch) { // the offsets may be those of a later epoch
			return 0, partition.ErrNotLeader
		}
		s.seen = lim
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
	s.seen = lim
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
