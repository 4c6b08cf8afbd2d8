package server

import (
	"errors"
	"fmt"
	"io"
	"math"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
)

// receive applies control frames until the client has no more. A client that closes its side ends the stream.
func (st *fetchStream) receive() error {
	var req runnelv1.FetchRequest
	for first := true; ; first = false {
		if err := st.grpc.RecvMsg(&req); err != nil {
			if errors.Is(err, io.EOF) {
				st.mu.Lock()
				st.mu.closed = true
				st.mu.Unlock()
				st.wakeUp()
				return nil
			}
			return err
		}
		if first && req.GetStreamCreditBytes() <= 0 {
			return invalid("stream_credit_bytes", req.GetStreamCreditBytes(), "more than 0 in the first frame")
		}
		if err := st.apply(&req); err != nil {
			return err
		}
		st.wakeUp()
	}
}

// apply applies one control frame. What concerns one subscription ends that alone; what breaks the protocol ends the stream.
func (st *fetchStream) apply(req *runnelv1.FetchRequest) error {
	if n := req.GetStreamCreditBytes(); n < 0 {
		return invalid("stream_credit_bytes", n, "0 or more")
	}
	for _, a := range req.GetAdd() {
		if err := st.add(a); err != nil {
			return err
		}
	}
	for _, id := range req.GetRemove() {
		st.remove(id)
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.subs == nil {
		return nil // the handler has left
	}
	st.mu.credit = addCredit(st.mu.credit, req.GetStreamCreditBytes())
	for _, id := range req.GetPause() {
		if s := st.mu.subs[id]; s != nil {
			s.paused = true
			s.unsubscribeLocked()
		}
	}
	for _, id := range req.GetResume() {
		if s := st.mu.subs[id]; s != nil {
			s.paused = false
			st.enqueueLocked(s)
		}
	}
	for _, c := range req.GetCredit() {
		if c.GetBytes() < 0 {
			return invalid("credit.bytes", c.GetBytes(), "0 or more")
		}
		if s := st.mu.subs[c.GetSubscriptionId()]; s != nil {
			s.credit = addCredit(s.credit, c.GetBytes())
			if s.remote != nil {
				s.remote.grant(c.GetBytes())
			}
			st.enqueueLocked(s)
		}
	}
	return nil
}

// addCredit adds without overflow.
func addCredit(have, more int64) int64 {
	if have > 0 && more > math.MaxInt64-have {
		return math.MaxInt64
	}
	return have + more
}

func (st *fetchStream) add(a *runnelv1.FetchAdd) error {
	switch {
	case a.GetCreditBytes() < 0:
		return invalid("add.credit_bytes", a.GetCreditBytes(), "0 or more")
	case a.GetMaxFrameBytes() < 0:
		return invalid("add.max_frame_bytes", a.GetMaxFrameBytes(), "0 or more")
	}
	s := &subscription{st: st, id: a.GetSubscriptionId(), offset: a.GetOffset(), credit: a.GetCreditBytes(), maxFrame: maxFrame, told: -1}
	if n := int(a.GetMaxFrameBytes()); n > 0 {
		s.maxFrame = min(n, maxFrame)
	}
	s.p, s.source, s.err = st.find(a)
	st.mu.Lock()
	switch {
	case st.mu.subs == nil:
		st.mu.Unlock()
		return nil
	case st.mu.subs[s.id] != nil:
		st.mu.Unlock()
		return invalid("add.subscription_id", s.id, "an id that is not in use on this stream")
	case len(st.mu.subs) >= st.l.limits.Subscriptions:
		st.mu.Unlock()
		return invalid("add", fmt.Sprintf("subscription number %d", st.l.limits.Subscriptions+1), fmt.Sprintf("at most %d subscriptions per stream", st.l.limits.Subscriptions))
	}
	st.mu.subs[s.id] = s
	st.enqueueLocked(s)
	st.mu.Unlock()
	if s.p != nil {
		s.p.AddWaker(s)
		// The handler may have left between the two steps, and would not know the waker.
		st.mu.Lock()
		gone := s.ended
		st.mu.Unlock()
		if gone {
			s.p.RemoveWaker(s)
		}
	}
	return nil
}

// find returns the partition here, or where else it is.
func (st *fetchStream) find(a *runnelv1.FetchAdd) (*partition.Partition, *remoteSource, error) {
	id, err := topicID(a.GetTopicId())
	if err != nil {
		return nil, nil, err
	}
	if a.GetPartition() < 0 {
		return nil, nil, invalid("partition", a.GetPartition(), "0 or more")
	}
	if a.GetOffset() < 0 {
		return nil, nil, invalid("offset", a.GetOffset(), "0 or more")
	}
	if st.routes {
		if at, ok := st.l.elsewhere(id, a.GetPartition()); ok {
			return nil, &remoteSource{topic: id, number: a.GetPartition(), broker: at.leader, epoch: a.GetLeaderEpoch()}, nil
		}
	}
	p, err := st.l.cfg.Partitions.Lookup(id, a.GetPartition())
	if err != nil {
		return nil, nil, partitionFault(err)
	}
	if _, err := p.Limits(a.GetLeaderEpoch()); err != nil {
		return nil, nil, err
	}
	return p, nil, nil
}

func (st *fetchStream) remove(id uint32) {
	st.mu.Lock()
	s := st.mu.subs[id]
	if s != nil {
		s.ended = true
		delete(st.mu.subs, id)
		s.unsubscribeLocked()
	}
	st.mu.Unlock()
	if s != nil && s.p != nil {
		s.p.RemoveWaker(s)
	}
}
