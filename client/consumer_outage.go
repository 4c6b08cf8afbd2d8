package client

import (
	"fmt"
	"slices"
	"time"
)

// outageLooks is how often, within a RequestTimeout, the consumer looks whether its partitions can be read.
const outageLooks = 8

// outage is what is known of a partition that should be read. Guarded by the consumer's mu.
type outage struct {
	since    time.Time // zero: it is being read, or need not be
	cause    error     // of the last retry
	asked    uint32    // the claim's subscription id at the last look
	reported bool
}

// watchOutages reports partitions that cannot be read, which would otherwise be waited for in silence: after a RequestTimeout, or
// sooner when a replica says that waiting will not help.
func (cs *Consumer) watchOutages() {
	ticker := cs.c.cfg.clock.NewTicker(max(cs.c.cfg.requestTimeout/outageLooks, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-cs.ctx.Done():
			return
		case <-ticker.C():
		}
		for replica, subs := range cs.unread() {
			cs.wg.Go(func() { cs.diagnose(replica, subs) })
		}
	}
}

// unread lists the partitions that were to be read for at least one look and are not: by a replica that may know why, or by -1 when
// there is none, or when their leader is being asked anyway.
func (cs *Consumer) unread() map[int32][]lookup {
	snap := cs.c.meta.snapshot()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	groups := make(map[int32][]lookup)
	now := cs.c.cfg.clock.Now()
	for tp, s := range cs.mu.subs {
		if s.claim != nil && s.claim.end >= 0 && s.claim.cursor.Load() > s.claim.end {
			// The leader did not call it out of range, so it lies in what is not readable yet. Once it is, the end is behind it.
			cs.revokeLocked(s)
			cs.wantLocked(s, At(s.pos))
			cs.reconcileLocked(s)
			continue
		}
		var asked uint32
		if s.claim != nil {
			asked = s.claim.id
		}
		idle := s.paused || s.failed || s.gone || s.done
		if s.claim != nil && s.claim.fetcher != nil && !s.claim.fetcher.roomLocked() {
			idle = true // what was fetched has to be read first
		}
		// One that is refused again and again has another id at each look.
		if idle || asked != 0 && asked == s.outage.asked {
			s.outage = outage{asked: asked}
			continue
		}
		s.outage.asked = asked
		switch {
		case s.outage.since.IsZero():
			s.outage.since = now
		case !s.outage.reported:
			replica := int32(-1)
			if t := snap.topics[tp.Topic]; !snap.listed(s.leader) && t != nil && t.id == s.topicID && int(tp.Partition) < len(t.partitions) {
				replicas := t.partitions[tp.Partition].replicas
				if i := slices.IndexFunc(replicas, snap.listed); i >= 0 {
					replica = replicas[i]
				}
			}
			groups[replica] = append(groups[replica], lookup{s, s.seeks, offsetQuery{tp: tp, id: s.topicID, epoch: -1, pos: Earliest}})
		}
	}
	return groups
}

// diagnose asks a replica why partitions cannot be read, and reports those that were waited for long enough, or need not be.
func (cs *Consumer) diagnose(replica int32, subs []lookup) {
	results := make([]OffsetInfo, len(subs))
	if replica >= 0 {
		qs := make([]offsetQuery, len(subs))
		for i := range subs {
			qs[i] = subs[i].query
		}
		results = cs.c.listOffsets(cs.ctx, replica, qs)
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.ctx.Err() != nil {
		return
	}
	for i, l := range subs {
		s, answer := l.s, results[i].Err
		if s.outage.since.IsZero() || s.outage.reported || s.seeks != l.seeks || s.failed || s.gone || s.done {
			continue
		}
		waited := cs.c.cfg.clock.Since(s.outage.since)
		hopeless := answer != nil && !transient(answer)
		if waited < cs.c.cfg.requestTimeout && !hopeless {
			continue
		}
		cause := s.outage.cause
		switch {
		case hopeless:
			cause = answer
		case s.leader < 0:
			cause = fmt.Errorf("%w: the partition has no leader", ErrUnavailable)
		case cause == nil:
			cause = fmt.Errorf("%w: its leader, broker %d, is not reached", ErrUnavailable, s.leader)
		}
		s.outage.reported = true
		err := fmt.Errorf("%w for %v: %w", ErrStalled, waited.Round(time.Millisecond), cause)
		if cs.cfg.untilEnd {
			cs.failLocked(s, err)
		} else {
			cs.pushLocked(item{err: &PartitionError{s.tp, err}})
		}
	}
}
