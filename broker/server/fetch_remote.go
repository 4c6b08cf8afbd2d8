package server

import (
	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/ids"
)

// remoteSource is where a partition is read that another broker leads. A later leader ends the subscription, as it would there.
type remoteSource struct {
	topic  ids.TopicID
	number int32
	broker int32
	epoch  int32 // the client's
}

// readRemote fills f with the next frame from the other broker, and subscribes there first when that was not done yet.
func (st *fetchStream) readRemote(s *subscription, f *codec.FetchFrame) error {
	r := st.subscribe(s)
	if r == nil {
		return errNothing // it ended, or was paused
	}
	got, err := r.take()
	switch {
	case err != nil:
		return err
	case got == nil:
		return errNothing
	}
	*f = *got
	f.SubscriptionID = s.id
	// The number that the client knows may stay the same while batches that it has no use for are skipped, and never goes back.
	if f.FetchOffset < s.offset {
		f.FetchOffset = s.offset
	}
	return nil
}

// subscribe returns the subscription at the other broker, which it begins with all the credit that the client has left.
func (st *fetchStream) subscribe(s *subscription) *remoteSub {
	x := st.proxy(s.source.broker)
	st.mu.Lock()
	defer st.mu.Unlock()
	if s.remote == nil && !s.ended && !s.paused {
		s.remote = x.add(&runnelv1.FetchAdd{
			TopicId: s.source.topic[:], Partition: s.source.number, Offset: s.offset, LeaderEpoch: s.source.epoch,
			CreditBytes: s.credit, MaxFrameBytes: int32(s.maxFrame),
		}, s.Wake)
	}
	return s.remote
}

// proxy returns the stream to a broker, a new one when the last has failed. For the handler.
func (st *fetchStream) proxy(broker int32) *fetchProxy {
	if x := st.proxies[broker]; x != nil && !x.over() {
		return x
	}
	if st.proxies == nil {
		st.proxies = map[int32]*fetchProxy{}
		st.l.receive(st.cancel, st.watchMoves)
	}
	x, run := st.l.newFetchProxy(st.ctx, broker)
	st.proxies[broker] = x
	st.l.receive(st.cancel, func() error { run(); return nil })
	return x
}

func (s *subscription) unsubscribe() {
	s.st.mu.Lock()
	defer s.st.mu.Unlock()
	s.unsubscribeLocked()
}

// unsubscribeLocked ends what there is at the other broker. What the client was not sent is read again when the subscription goes on.
func (s *subscription) unsubscribeLocked() {
	if s.remote != nil {
		s.remote.close()
		s.remote = nil
	}
}

// watchMoves ends subscriptions whose partition is led elsewhere by now, when their broker does not say so itself.
func (st *fetchStream) watchMoves() error {
	for st.l.afterMove(st.ctx) {
		snap := st.l.cfg.Metadata.Snapshot()
		st.mu.Lock()
		var moved []*subscription
		for _, s := range st.mu.subs {
			if s.source == nil || s.err != nil {
				continue
			}
			if now, ok := snap.leaderOf(s.source.topic, s.source.number); ok && now.leader != s.source.broker {
				s.err = &partition.NotLeaderError{LeaderID: now.leader, LeaderEpoch: now.epoch}
				moved = append(moved, s)
			}
		}
		st.mu.Unlock()
		for _, s := range moved {
			s.Wake()
		}
	}
	return nil
}
