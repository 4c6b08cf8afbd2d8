package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
)

// Back-off between two attempts to open a stream: short, because failover takes less than a second.
const (
	leastBackoff = 50 * time.Millisecond
	mostBackoff  = 500 * time.Millisecond
)

// run keeps the stream until ctx ends.
func (st *followerStream) run(ctx context.Context) {
	delay := leastBackoff
	for ctx.Err() == nil {
		if !st.wanted() {
			select {
			case <-st.signal:
			case <-ctx.Done():
			}
			continue
		}
		welcomed, err := st.serve(ctx)
		st.breakAll()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			level := slog.LevelInfo
			if !welcomed && delay > leastBackoff {
				level = slog.LevelDebug // said before
			}
			st.f.cfg.Logger.Log(ctx, level, "replication stream to a leader ended", slog.Int("leader", int(st.leader)),
				slog.Bool("catch_up", st.catchUp), slog.Any("error", err))
		}
		if welcomed {
			delay = leastBackoff
		}
		if err == nil {
			continue
		}
		if clock.Sleep(ctx, st.f.cfg.Clock, delay-time.Duration(rand.Int64N(int64(delay)/5))) != nil {
			return
		}
		delay = min(delay*8/5, mostBackoff)
	}
}

// serve opens the stream and speaks on it until it breaks, or has had no subscription for a while.
func (st *followerStream) serve(ctx context.Context) (welcomed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	epoch := st.f.cfg.Directory.Self().Epoch
	stream, err := st.open(ctx, cancel)
	if err != nil {
		return false, err
	}
	var receiving sync.WaitGroup
	receiving.Go(func() { cancel(st.receive(stream)) })
	defer receiving.Wait()
	defer cancel(nil)

	idle := st.f.cfg.Clock.NewTimer(st.f.cfg.IdleTimeout)
	defer idle.Stop()
	var req codec.ReplicateRequestFrame
	for {
		if st.newer(epoch) {
			return true, errNewer
		}
		unused, empty := st.outgoing(&req)
		if !empty {
			if err := stream.SendMsg(&req); err != nil {
				cancel(err) // the receiver may know better
				return true, context.Cause(ctx)
			}
		}
		if !unused {
			idle.Reset(st.f.cfg.IdleTimeout)
		}
		select {
		case <-st.signal:
		case <-idle.C():
			if unused {
				_ = stream.CloseSend()
				return true, nil
			}
		case <-ctx.Done():
			return true, context.Cause(ctx)
		}
	}
}

// errNewer: the stream's credentials are those of an earlier registration than somebody subscribes under.
var errNewer = errors.New("this broker was registered anew")

// newer reports whether somebody wants to subscribe under a newer registration than epoch.
func (st *followerStream) newer(epoch int64) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.ContainsFunc(st.mu.fresh, func(s *followerSub) bool { return !s.ended && s.want.BrokerEpoch > epoch })
}

// open opens the stream, and checks that it is the right broker that answers.
func (st *followerStream) open(ctx context.Context, cancel context.CancelCauseFunc) (grpc.ClientStream, error) {
	st.f.cfg.Dialer.Retry(st.leader, st.class()) // this stream has a back-off of its own
	want, ok := st.f.cfg.Directory.Peer(st.leader)
	if !ok {
		return nil, fmt.Errorf("%w: broker %d", peer.ErrUnknown, st.leader)
	}
	conn, err := st.f.cfg.Dialer.Conn(st.leader, st.class())
	if err != nil {
		return nil, err
	}
	deadline := st.f.cfg.Clock.AfterFunc(st.f.cfg.OpenTimeout, func() {
		cancel(fmt.Errorf("%w: broker %d did not answer within %v", ErrProtocol, st.leader, st.f.cfg.OpenTimeout))
	})
	defer deadline.Stop()
	stream, err := runnelv1.NewReplicationClient(conn).Replicate(ctx)
	if err != nil {
		return nil, causeOr(ctx, err)
	}
	kind := runnelv1.ReplicateStream_REPLICATE_STREAM_TAIL
	if st.catchUp {
		kind = runnelv1.ReplicateStream_REPLICATE_STREAM_CATCH_UP
	}
	hello := &runnelv1.ReplicateHello{Stream: kind, LeaderBrokerId: want.ID, LeaderBrokerEpoch: want.Epoch}
	if err := stream.SendMsg(&codec.ReplicateRequestFrame{Hello: hello}); err != nil {
		return nil, causeOr(ctx, fmt.Errorf("open: %w", err))
	}
	var f codec.ReplicateFrame
	if err := stream.RecvMsg(&f); err != nil {
		return nil, causeOr(ctx, err)
	}
	f.Free()
	w := f.Answer.GetWelcome()
	if w == nil || w.GetBrokerId() != want.ID || w.GetBrokerEpoch() != want.Epoch {
		return nil, fmt.Errorf("%w: meant for broker %d of epoch %d, but broker %d of epoch %d answered",
			ErrProtocol, want.ID, want.Epoch, w.GetBrokerId(), w.GetBrokerEpoch())
	}
	return stream, nil
}

func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// receive hands on what the leader says until the stream breaks.
func (st *followerStream) receive(stream grpc.ClientStream) error {
	var f codec.ReplicateFrame
	defer f.Free()
	for {
		if err := stream.RecvMsg(&f); err != nil {
			return err
		}
		for i := range f.Offsets {
			o := &f.Offsets[i]
			if s := st.lookup(o.SubscriptionID); s != nil {
				s.e.push(task{
					kind: taskDeliver, sub: s, epoch: o.LeaderEpoch, offset: -1, hw: o.HighWatermark, wanted: o.LogStartWanted,
					published: o.LogStartPublished, offsetsUpdate: true,
				})
			}
		}
		if f.SubscriptionID == 0 {
			continue
		}
		s := st.lookup(f.SubscriptionID)
		if s == nil { // it ended while this was under way
			f.Free()
			continue
		}
		if f.Answer != nil {
			st.answered(s, &f)
		}
		if b := f.TakeBatch(); b != nil {
			t := task{
				kind: taskDeliver, sub: s, epoch: f.LeaderEpoch, offset: f.BaseOffset, hw: f.HighWatermark, wanted: f.LogStartWanted,
				published: f.LogStartPublished, batches: b,
			}
			if !s.e.push(t) {
				return fmt.Errorf("%w: more than %d bytes pushed to one partition", ErrProtocol, maxQueued)
			}
		}
	}
}

func (st *followerStream) lookup(id uint32) *followerSub {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.mu.subs[id]
}

// answered hands on the answer to a subscription.
func (st *followerStream) answered(s *followerSub, f *codec.ReplicateFrame) {
	t := task{sub: s, epoch: f.LeaderEpoch}
	switch a := f.Answer.GetAnswer().(type) {
	case *runnelv1.ReplicateAnswer_Granted:
		t.kind, t.offset = taskGranted, a.Granted.GetOffset()
	case *runnelv1.ReplicateAnswer_Diverging:
		t.kind, t.epoch, t.offset = taskDiverging, a.Diverging.GetEpoch(), a.Diverging.GetEndOffset()
	case *runnelv1.ReplicateAnswer_BelowStart:
		t.kind, t.offset = taskBelowStart, a.BelowStart.GetLogStart()
	case *runnelv1.ReplicateAnswer_Refused:
		t.kind = taskRefused
		st.refused(s, a.Refused)
		t.reason = reasons[a.Refused.GetReason()]
	default: // an answer of a newer version
		return
	}
	s.e.push(t)
}

// refused: the leader has ended the subscription.
func (st *followerStream) refused(s *followerSub, r *runnelv1.ReplicateRefused) {
	st.mu.Lock()
	st.endLocked(s)
	st.mu.Unlock()
	switch r.GetReason() { //nolint:exhaustive // the others are the partition's
	case runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_USE_CATCH_UP, runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_USE_TAIL:
		st.f.move(s, r.GetReason() == runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_USE_CATCH_UP)
	case runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_INVALID, runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_STORAGE:
		st.f.cfg.Logger.Warn("a leader refused a subscription", slog.Int("leader", int(st.leader)),
			slog.String("topic_id", s.e.p.TopicID().String()), slog.Int("partition", int(s.e.p.Number())), slog.String("message", r.GetMessage()))
	}
}

// reasons is refusals the other way round.
var reasons = func() map[runnelv1.ReplicateRefusal]replica.Reason {
	m := map[runnelv1.ReplicateRefusal]replica.Reason{}
	for reason, r := range refusals {
		m[r] = reason
	}
	return m
}()
