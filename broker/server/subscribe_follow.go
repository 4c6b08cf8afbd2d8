package server

import (
	"context"
	"errors"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
)

// followEvery is how often a subscriber looks for the leader of a partition that it lost.
const followEvery = 100 * time.Millisecond

// begin finds the first offsets of partitions, and begins to read them. A partition that cannot be read is reported and left out; a bad position fails
// the call.
func (s *subscriber) begin(parts []*subscribed) error {
	ask := func(at *runnelv1.Position) ([]*runnelv1.OffsetResult, error) {
		req := &runnelv1.ListOffsetsRequest{}
		for _, p := range parts {
			req.Queries = append(req.Queries, &runnelv1.OffsetQuery{TopicId: p.topic.ID[:], Partition: p.number, LeaderEpoch: -1, At: at})
		}
		return s.l.listOffsets(s.ctx, req, s.follows)
	}
	starts, err := ask(s.req.GetFrom())
	if err != nil {
		return err
	}
	var ends []*runnelv1.OffsetResult
	if s.req.GetUntilEnd() {
		if ends, err = ask(&runnelv1.Position{At: &runnelv1.Position_Latest{Latest: true}}); err != nil {
			return err
		}
	}
	for i, p := range parts {
		answer := starts[i]
		if ends != nil && answer.GetError() == nil && ends[i].GetError() != nil {
			answer = ends[i]
		}
		if e := answer.GetError(); e != nil {
			if e.GetReason() == "INVALID_ARGUMENT" {
				return remote(e)
			}
			if err := s.lose(p, remote(e)); err != nil {
				return err
			}
			continue
		}
		p.offset = answer.GetOffset()
		if ends != nil {
			p.until = ends[i].GetOffset()
			p.over = p.offset >= p.until
		}
		if err := s.attach(p); err != nil {
			return err
		}
	}
	return nil
}

// attach begins to read p, whose offset is known, where its leader is.
func (s *subscriber) attach(p *subscribed) error {
	if p.over {
		return nil
	}
	if at, ok := s.l.elsewhere(p.topic.ID, p.number); ok && s.follows {
		p.remote = s.proxy(at.leader).add(&runnelv1.FetchAdd{
			TopicId: p.topic.ID[:], Partition: p.number, Offset: p.offset, LeaderEpoch: -1, CreditBytes: subscribeRead, MaxFrameBytes: subscribeRead,
		}, p.wake.Wake)
		p.wake.Wake()
		return nil
	}
	host, err := s.l.cfg.Partitions.Lookup(p.topic.ID, p.number)
	if err == nil {
		_, err = host.Limits(-1)
	}
	if err != nil {
		return s.lose(p, partitionFault(err))
	}
	s.found(p)
	p.p = host
	host.AddWaker(p.wake)
	p.wake.Wake()
	return nil
}

// proxy returns the stream to a broker, a new one when the last has failed.
func (s *subscriber) proxy(broker int32) *fetchProxy {
	if x := s.proxies[broker]; x != nil && !x.over() {
		return x
	}
	if s.proxies == nil {
		s.proxies = map[int32]*fetchProxy{}
		s.l.receive(s.cancel, func() error {
			for s.l.afterMove(s.ctx) {
				select {
				case s.moves <- struct{}{}:
				default:
				}
			}
			return nil
		})
	}
	x, run := s.l.newFetchProxy(s.ctx, broker)
	s.proxies[broker] = x
	s.l.receive(s.cancel, func() error { run(); return nil })
	return x
}

// detach stops reading p.
func (p *subscribed) detach() {
	if p.p != nil {
		p.p.RemoveWaker(p.wake)
		p.p = nil
	}
	if p.remote != nil {
		p.remote.close()
		p.remote = nil
	}
}

// readRemote sends the next batches that have come from another broker.
func (s *subscriber) readRemote(ctx context.Context, p *subscribed) (more bool, err error) {
	f, err := p.remote.take()
	if err != nil {
		return false, s.lose(p, err)
	}
	if f == nil {
		return false, nil
	}
	defer f.Free()
	s.found(p)
	p.wake.ready.Store(true)
	n := len(f.Batch())
	if n == 0 {
		return true, nil
	}
	s.l.metrics.fetchedBytes.Add(float64(n))
	from := p.remote
	more, err = s.batches(ctx, p, f.Batch(), int(p.topic.Config.GetMaxBatchBytes()))
	if p.remote == from {
		from.grant(int64(n))
	}
	return more, err
}

// movable are the reasons for which a partition is looked for elsewhere, or again.
var movable = map[string]bool{
	"NOT_LEADER": true, "LEADER_NOT_READY": true, "UNKNOWN_LEADER_EPOCH": true, "LOG_TRUNCATED": true, "STARTING": true, "SHUTTING_DOWN": true,
	"BROKER_UNREACHABLE": true, "BROKER_BUSY": true, "STORAGE_FAILED": true,
}

// lose stops reading p. A partition that may be led elsewhere, or soon will be, is looked for again for as long as a request may take; then, and for
// every other reason, it is reported and given up.
func (s *subscriber) lose(p *subscribed, err error) error {
	p.detach()
	reason := ""
	if r, ok := errors.AsType[*remoteError](err); ok {
		reason = r.answer.GetReason()
	} else if s.follows {
		reason = s.l.describe(err).reason
	}
	now := s.l.cfg.Clock.Now()
	if p.lostAt.IsZero() {
		p.lostAt = now
		s.lost++
	}
	if !s.follows || !movable[reason] || now.Sub(p.lostAt) > s.l.limits.UnaryTimeout {
		s.found(p)
		return s.fail(p, err)
	}
	p.retryAt = now.Add(followEvery)
	return nil
}

// found: there is somewhere to read p from again.
func (s *subscriber) found(p *subscribed) {
	if !p.lostAt.IsZero() {
		p.lostAt = time.Time{}
		s.lost--
	}
}

// retryTimer fires when a lost partition is to be looked for again.
func (s *subscriber) retryTimer() (<-chan time.Time, func()) {
	if s.lost == 0 {
		return nil, func() {}
	}
	var next time.Time
	for _, p := range s.parts {
		if p.lost() && (next.IsZero() || p.retryAt.Before(next)) {
			next = p.retryAt
		}
	}
	if next.IsZero() {
		return nil, func() {}
	}
	t := s.l.cfg.Clock.NewTimer(max(next.Sub(s.l.cfg.Clock.Now()), 0))
	return t.C(), func() { t.Stop() }
}

// lost: p is neither over nor being read.
func (p *subscribed) lost() bool {
	return !p.over && p.p == nil && p.remote == nil
}

// findAgain looks for lost partitions whose time has come.
func (s *subscriber) findAgain() error {
	now := s.l.cfg.Clock.Now()
	var unknown []*subscribed
	for _, p := range s.parts {
		switch {
		case !p.lost() || p.retryAt.After(now):
		case p.offset < 0:
			unknown = append(unknown, p)
		default:
			if err := s.attach(p); err != nil {
				return err
			}
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	return s.begin(unknown[:min(len(unknown), maxItems/2)])
}

// findMoved gives up on brokers that no longer lead what is read from them, and have not said so.
func (s *subscriber) findMoved() error {
	snap := s.l.cfg.Metadata.Snapshot()
	for _, p := range s.parts {
		if p.remote == nil {
			continue
		}
		if now, ok := snap.leaderOf(p.topic.ID, p.number); ok && now.leader != p.remote.x.broker {
			if err := s.lose(p, &partition.NotLeaderError{LeaderID: now.leader, LeaderEpoch: now.epoch}); err != nil {
				return err
			}
			p.retryAt = s.l.cfg.Clock.Now()
		}
	}
	return nil
}
