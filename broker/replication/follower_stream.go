package replication

import (
	"slices"
	"sync"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/peer"
)

// maxAcks and maxSubscribe are the most acknowledgements and subscriptions of one message; more go into the next.
const (
	maxAcks      = 8192
	maxSubscribe = 8192
)

// followerStream is one stream to a leader, opened when there is something to subscribe and opened anew when it breaks.
type followerStream struct {
	f       *Followers
	leader  int32
	catchUp bool

	signal chan struct{} // capacity 1
	mu     struct {
		sync.Mutex
		lastID uint32
		subs   map[uint32]*followerSub // those that the leader was asked for
		fresh  []*followerSub          // those to ask for
		gone   []uint32                // those to end
		acks   []*followerSub          // those with something to acknowledge
		active bool                    // serve is at work
	}
}

func newFollowerStream(f *Followers, leader int32, catchUp bool) *followerStream {
	st := &followerStream{f: f, leader: leader, catchUp: catchUp, signal: make(chan struct{}, 1)}
	st.mu.subs = map[uint32]*followerSub{}
	return st
}

func (st *followerStream) wakeUp() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

func (st *followerStream) class() peer.Class {
	if st.catchUp {
		return peer.ClassCatchup
	}
	return peer.ClassData
}

// add asks for a subscription.
func (st *followerStream) add(s *followerSub) {
	st.mu.Lock()
	if len(st.mu.fresh) == cap(st.mu.fresh) { // drop what has ended, so that a stream that is stuck does not collect
		st.mu.fresh = slices.DeleteFunc(st.mu.fresh, func(s *followerSub) bool { return s.ended })
	}
	st.mu.fresh = append(st.mu.fresh, s)
	st.mu.Unlock()
	st.wakeUp()
}

// remove ends a subscription at the follower's wish. Safe after it has ended.
func (st *followerStream) remove(s *followerSub) {
	st.mu.Lock()
	if !s.ended && s.id != 0 {
		st.mu.gone = append(st.mu.gone, s.id)
	}
	st.endLocked(s)
	st.mu.Unlock()
	st.wakeUp()
}

func (st *followerStream) endLocked(s *followerSub) {
	s.ended = true
	if s.id != 0 {
		delete(st.mu.subs, s.id)
	}
}

// ack acknowledges; the last value wins.
func (st *followerStream) ack(s *followerSub, epoch int32, flushed, logStart int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if s.ended || s.id == 0 {
		return
	}
	s.ack.epoch, s.ack.flushed, s.ack.logStart = epoch, flushed, logStart
	if !s.ack.queued {
		s.ack.queued = true
		st.mu.acks = append(st.mu.acks, s)
		st.wakeUp()
	}
}

// outgoing fills req with what is to be said. idle: there is no subscription; empty: there is nothing to say.
func (st *followerStream) outgoing(req *codec.ReplicateRequestFrame) (idle, empty bool) {
	*req = codec.ReplicateRequestFrame{Unsubscribe: req.Unsubscribe[:0], Acks: req.Acks[:0]}
	st.mu.Lock()
	defer st.mu.Unlock()
	req.Unsubscribe = append(req.Unsubscribe, st.mu.gone...)
	st.mu.gone = st.mu.gone[:0]
	k := min(len(st.mu.fresh), maxSubscribe)
	for _, s := range st.mu.fresh[:k] {
		if s.ended {
			continue
		}
		st.mu.lastID++
		s.id = st.mu.lastID
		st.mu.subs[s.id] = s
		req.Subscribe = append(req.Subscribe, s.message())
	}
	st.mu.fresh = slices.Delete(st.mu.fresh, 0, k)
	n := min(len(st.mu.acks), maxAcks)
	for _, s := range st.mu.acks[:n] {
		s.ack.queued = false
		if !s.ended {
			req.Acks = append(req.Acks, codec.ReplicaAck{
				SubscriptionID: s.id, LeaderEpoch: s.ack.epoch, Flushed: s.ack.flushed, LogStart: s.ack.logStart,
			})
		}
	}
	st.mu.acks = slices.Delete(st.mu.acks, 0, n)
	if len(st.mu.acks)+len(st.mu.fresh) > 0 {
		st.wakeUp()
	}
	return len(st.mu.subs) == 0, len(req.Unsubscribe)+len(req.Subscribe)+len(req.Acks) == 0
}

func (s *followerSub) message() *runnelv1.ReplicateSubscribe {
	topic := s.e.p.TopicID()
	w := &s.want
	return &runnelv1.ReplicateSubscribe{
		SubscriptionId: s.id, TopicId: topic[:], Partition: s.e.p.Number(), StorageId: w.Self.StorageID[:], LogId: w.Self.LogID[:],
		BrokerEpoch: w.BrokerEpoch, LeaderEpoch: w.Epoch, FetchOffset: w.Offset, LastEpoch: w.LastEpoch, LogStart: w.LogStart,
		Session: uint64(w.Session),
	}
}

// wanted reports whether there is anything to subscribe, so that the stream is to be opened.
func (st *followerStream) wanted() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.mu.active = len(st.mu.fresh) > 0
	return st.mu.active
}

// breakAll tells all subscriptions that the stream broke.
func (st *followerStream) breakAll() {
	st.mu.Lock()
	broken := st.mu.fresh
	for _, s := range st.mu.subs {
		broken = append(broken, s)
	}
	st.mu.fresh, st.mu.gone, st.mu.acks, st.mu.active = nil, nil, nil, false
	alive := broken[:0]
	for _, s := range broken {
		if !s.ended {
			st.endLocked(s)
			alive = append(alive, s)
		}
	}
	st.mu.Unlock()
	for _, s := range alive {
		s.e.push(task{kind: taskRefused, sub: s})
	}
}
