package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/ids"
)

// maxOffsets is the most partitions whose offsets share a message.
const maxOffsets = 4096

// leaderStream is one stream to a follower. The receiver takes in subscriptions and acks, the handler sends.
//
// Invariant: a subscription that has something to send is in ready, or the handler is serving it, or it is blocked, in which case an ack
// puts it back.
type leaderStream struct {
	l       *Leaders
	from    peer.Peer
	catchUp bool
	grpc    grpc.ServerStream
	ctx     context.Context //nolint:containedctx // the stream's own

	signal chan struct{} // capacity 1
	mu     struct {
		sync.Mutex
		subs     map[uint32]*leaderSub
		ready    []*leaderSub
		head     int
		inFlight int64 // bytes of all subscriptions
		closed   bool  // the handler has ended
		eof      bool  // the follower will say nothing more
	}

	// Only the handler uses what follows.
	offsets []*leaderSub // subscriptions whose offsets moved
	due     time.Time    // when offsets are to be sent; zero: never
	frame   codec.ReplicateFrame
}

func (st *leaderStream) wakeUp() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

// enqueueLocked puts s at the end of ready, unless it stands there.
func (st *leaderStream) enqueueLocked(s *leaderSub) {
	if s.mu.ended || s.queued.Load() {
		return
	}
	s.queued.Store(true)
	if st.mu.head > 0 && len(st.mu.ready) == cap(st.mu.ready) { // reuse the front
		n := copy(st.mu.ready, st.mu.ready[st.mu.head:])
		clear(st.mu.ready[n:])
		st.mu.ready, st.mu.head = st.mu.ready[:n], 0
	}
	st.mu.ready = append(st.mu.ready, s)
}

// next takes the subscription that is to be served now.
func (st *leaderStream) next() *leaderSub {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.mu.head < len(st.mu.ready) {
		s := st.mu.ready[st.mu.head]
		st.mu.ready[st.mu.head] = nil
		st.mu.head++
		s.queued.Store(false) // before its state is looked at: who changes it later queues it again
		if !s.mu.ended {
			return s
		}
	}
	st.mu.ready, st.mu.head = st.mu.ready[:0], 0
	return nil
}

// send serves subscriptions until the stream ends.
func (st *leaderStream) send() error {
	defer st.frame.Free()
	timer := st.l.cfg.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		for s := st.next(); s != nil && st.ctx.Err() == nil; s = st.next() {
			if err := st.serve(s); err != nil {
				return err
			}
			if err := st.sendOffsetsDue(); err != nil {
				return err
			}
			select {
			case <-st.l.stopping:
				return ErrStopped
			default:
			}
		}
		if err := st.sendOffsetsDue(); err != nil {
			return err
		}
		if !st.due.IsZero() {
			timer.Reset(st.due.Sub(st.l.cfg.Clock.Now()))
		}
		st.mu.Lock()
		eof := st.mu.eof
		st.mu.Unlock()
		if eof {
			return nil
		}
		select {
		case <-st.signal:
		case <-timer.C():
		case <-st.l.stopping:
			return ErrStopped
		case <-st.ctx.Done():
			return context.Cause(st.ctx)
		}
	}
}

// moved notes that the offsets of s moved and no batches carried them.
func (st *leaderStream) moved(s *leaderSub) {
	if !s.offsetsPending {
		s.offsetsPending = true
		st.offsets = append(st.offsets, s)
	}
	if st.due.IsZero() {
		st.due = st.l.cfg.Clock.Now().Add(st.l.cfg.OffsetsDelay)
	}
}

// sendOffsetsDue sends the offsets that waited long enough.
func (st *leaderStream) sendOffsetsDue() error {
	if st.due.IsZero() || st.l.cfg.Clock.Now().Before(st.due) {
		return nil
	}
	st.due = time.Time{}
	f := &st.frame
	flush := func() error {
		if len(f.Offsets) == 0 {
			return nil
		}
		err := st.grpc.SendMsg(f)
		f.Offsets = f.Offsets[:0]
		return err
	}
	st.resetFrame()
	for i, s := range st.offsets {
		st.offsets[i] = nil
		if !s.offsetsPending || st.ended(s) {
			continue
		}
		s.offsetsPending = false
		s.told = s.seen
		f.Offsets = append(f.Offsets, codec.ReplicaOffsets{
			SubscriptionID: s.id, LeaderEpoch: s.epoch, HighWatermark: s.told.HighWatermark, LogStartWanted: s.told.LogStartWanted,
			LogStartPublished: s.told.LogStartPublished,
		})
		if len(f.Offsets) == maxOffsets {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	st.offsets = st.offsets[:0]
	return flush()
}

func (st *leaderStream) resetFrame() {
	st.frame.Free()
	st.frame = codec.ReplicateFrame{Offsets: st.frame.Offsets[:0]}
}

func (st *leaderStream) ended(s *leaderSub) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return s.mu.ended
}

// receive takes in what the follower says.
func (st *leaderStream) receive() error {
	var req codec.ReplicateRequestFrame
	for {
		if err := st.grpc.RecvMsg(&req); err != nil {
			if errors.Is(err, io.EOF) {
				st.mu.Lock()
				st.mu.eof = true
				st.mu.Unlock()
				st.wakeUp()
				return nil
			}
			return err
		}
		if req.Hello != nil {
			return fmt.Errorf("%w: a second hello", ErrProtocol)
		}
		for _, id := range req.Unsubscribe {
			if s := st.lookup(id); s != nil {
				st.end(s)
			}
		}
		for _, r := range req.Subscribe {
			if err := st.subscribe(r); err != nil {
				return err
			}
		}
		for i := range req.Acks {
			a := &req.Acks[i]
			if s := st.lookup(a.SubscriptionID); s != nil { // else: an ack that crossed the end of the subscription
				s.acked(a)
			}
		}
	}
}

func (st *leaderStream) lookup(id uint32) *leaderSub {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.mu.subs[id]
}

// subscribe begins a subscription. What is wrong with it alone refuses it alone.
func (st *leaderStream) subscribe(r *runnelv1.ReplicateSubscribe) error {
	s := &leaderSub{st: st, id: r.GetSubscriptionId(), epoch: r.GetLeaderEpoch(), peerEpoch: r.GetBrokerEpoch()}
	st.mu.Lock()
	switch {
	case st.mu.closed:
		st.mu.Unlock()
		return nil
	case s.id == 0 || st.mu.subs[s.id] != nil:
		st.mu.Unlock()
		return fmt.Errorf("%w: subscription id %d is 0 or in use", ErrProtocol, s.id)
	case len(st.mu.subs) >= maxSubscriptions:
		st.mu.Unlock()
		return fmt.Errorf("%w: more than %d subscriptions on a stream", ErrProtocol, maxSubscriptions)
	}
	st.mu.subs[s.id] = s
	st.mu.Unlock()

	if fault := st.check(r); fault != "" {
		s.refuse(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_INVALID, fault)
		return nil
	}
	ref := metadata.PartitionRef{TopicID: ids.TopicID(r.GetTopicId()), Partition: r.GetPartition()}
	p, ok := st.l.cfg.Lookup(ref)
	if !ok {
		s.refuse(runnelv1.ReplicateRefusal_REPLICATE_REFUSAL_NOT_LEADER, "the partition is not hosted here")
		return nil
	}
	s.p = p
	member := replica.Member{BrokerID: st.from.ID, StorageID: ids.StorageID(r.GetStorageId()), LogID: ids.LogID(r.GetLogId())}
	session := p.SubscribeFollower(
		s, member, s.peerEpoch, replica.Session(r.GetSession()), s.epoch, r.GetFetchOffset(), r.GetLastEpoch(), r.GetLogStart())
	s.bind(session)
	return nil
}

// check says what is wrong with a subscription's fields; "": nothing.
func (st *leaderStream) check(r *runnelv1.ReplicateSubscribe) string {
	switch {
	case len(r.GetTopicId()) != len(ids.TopicID{}):
		return fmt.Sprintf("topic id has %d bytes, want 16", len(r.GetTopicId()))
	case len(r.GetStorageId()) != len(ids.StorageID{}), len(r.GetLogId()) != len(ids.LogID{}):
		return fmt.Sprintf("storage id and log id have %d and %d bytes, want 16", len(r.GetStorageId()), len(r.GetLogId()))
	case r.GetBrokerEpoch() != st.from.Epoch:
		return fmt.Sprintf("broker epoch %d is not the one of the credentials, %d", r.GetBrokerEpoch(), st.from.Epoch)
	case r.GetPartition() < 0, r.GetFetchOffset() < 0, r.GetLogStart() < 0, r.GetLastEpoch() < -1:
		return fmt.Sprintf("partition %d, offset %d, log start %d, last epoch %d are impossible",
			r.GetPartition(), r.GetFetchOffset(), r.GetLogStart(), r.GetLastEpoch())
	}
	return ""
}

// end ends a subscription at the follower's wish, or because of an answer after which the follower has to subscribe again.
func (st *leaderStream) end(s *leaderSub) {
	st.mu.Lock()
	gone := st.endLocked(s)
	st.mu.Unlock()
	if gone {
		s.p.FollowerGone(s.session)
	}
}

// endLocked reports whether the partition has to be told now.
func (st *leaderStream) endLocked(s *leaderSub) bool {
	if s.mu.ended {
		return false
	}
	s.mu.ended = true
	delete(st.mu.subs, s.id)
	st.mu.inFlight -= s.mu.inFlight
	return s.mu.bound && !s.mu.refused
}

// close ends all subscriptions.
func (st *leaderStream) close() {
	st.mu.Lock()
	st.mu.closed = true
	var gone []*leaderSub
	for _, s := range st.mu.subs {
		if st.endLocked(s) {
			gone = append(gone, s)
		}
	}
	st.mu.ready, st.mu.head = nil, 0
	st.mu.Unlock()
	for _, s := range gone {
		s.p.FollowerGone(s.session)
	}
}
