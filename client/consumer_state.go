package client

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/internal/clock"
)

// subscription is one partition of a consumer. Guarded by the consumer's mu.
type subscription struct {
	tp          TopicPartition
	topicID     TopicID
	leader      int32
	leaderEpoch int32

	// want is the position to look up while resolved is false; then pos is where to go on, unless there is a claim.
	want      Position
	resolved  bool
	resolving bool
	seeks     uint64 // tells late look-ups apart
	pos       int64
	end       int64 // with UntilEnd, where to stop; -1: not known yet

	claim *claim

	paused bool
	failed bool // waits for a seek
	gone   bool // the topic is
	done   bool // read up to end

	back    backoff
	retryAt time.Time
	outage  outage
}

// claim is one uninterrupted reading of a partition.
type claim struct {
	sub *subscription
	// cursor is the offset of the next record to deliver, -1 once the claim is revoked.
	cursor atomic.Int64
	end    int64 // -1: none

	// Guarded by the consumer's mu.
	next    int64    // the next offset to fetch
	fetcher *fetcher // nil while it is fetched from nowhere
	id      uint32   // subscription id on the fetcher's current stream; 0: not added yet
	owed    int64    // credit to give back
}

func (cl *claim) revoked() bool { return cl.cursor.Load() < 0 }

// move advances the position from one offset to another; false means that the claim was revoked.
func (cl *claim) move(from, to int64) bool { return cl.cursor.CompareAndSwap(from, to) }

// jump sets the position unless the claim was revoked.
func (cl *claim) jump(to int64) {
	if at := cl.cursor.Load(); at >= 0 {
		cl.cursor.CompareAndSwap(at, to)
	}
}

func (cl *claim) reachedEnd() bool { return cl.end >= 0 && cl.cursor.Load() >= cl.end }

func (s *subscription) position() (int64, bool) {
	if s.claim != nil {
		if at := s.claim.cursor.Load(); at >= 0 {
			return at, true
		}
	}
	return s.pos, s.resolved
}

// update applies metadata; it is called in order.
func (cs *Consumer) update(snap *snapshot) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for name, t := range cs.mu.topics {
		if t.gone {
			continue
		}
		meta := snap.topics[name]
		switch {
		case meta == nil:
			if snap.isMissing(name) && !t.id.IsZero() {
				cs.goneLocked(name, t, fmt.Errorf("topic was deleted: %w", ErrUnknownTopic))
			}
		case !t.id.IsZero() && t.id != meta.id:
			cs.goneLocked(name, t, ErrTopicRecreated)
		default:
			cs.followLocked(name, t, meta)
		}
	}
	for _, f := range cs.mu.fetchers {
		f.readdressLocked(snap)
	}
	cs.wake()
}

// goneLocked ends a topic's partitions; a namesake is never read in its place.
func (cs *Consumer) goneLocked(name string, t *consumedTopic, cause error) {
	t.gone = true
	for tp, s := range cs.mu.subs {
		if tp.Topic == name {
			cs.revokeLocked(s)
			s.gone = true
			cs.pushLocked(item{err: &PartitionError{tp, cause}})
		}
	}
}

// followLocked adds partitions and follows leaders.
func (cs *Consumer) followLocked(name string, t *consumedTopic, meta *topicMeta) {
	first := t.id.IsZero()
	t.id = meta.id
	for i := range meta.partitions {
		n := int32(i)
		if !t.all && !slices.Contains(t.only, n) {
			continue
		}
		tp := TopicPartition{name, n}
		s := cs.mu.subs[tp]
		if s == nil {
			s = cs.newSubscription(tp, meta.id, first || !t.all)
		}
		if m := meta.partitions[i]; s.leader != m.leader || s.leaderEpoch != m.leaderEpoch {
			s.leader, s.leaderEpoch = m.leader, m.leaderEpoch
			s.back.reset()
			s.retryAt = time.Time{}
			if s.resolving { // whom it asks may never answer
				s.resolving = false
				s.seeks++
			}
		}
		cs.reconcileLocked(s)
	}
	if first {
		for _, n := range t.only {
			if int(n) >= len(meta.partitions) {
				cs.pushLocked(item{err: &PartitionError{TopicPartition{name, n}, fmt.Errorf("%w: the topic has %d", ErrUnknownPartition, len(meta.partitions))}})
			}
		}
	}
}

// newSubscription begins where the consumer does; a partition that was added to a topic later is read from its first record,
// because nothing in it was there before.
func (cs *Consumer) newSubscription(tp TopicPartition, id TopicID, initial bool) *subscription {
	s := &subscription{tp: tp, topicID: id, leader: -1, leaderEpoch: -1, end: -1}
	from := cs.cfg.from
	if !initial && from.kind != posTime {
		from = Earliest
	}
	wish := cs.mu.early[tp]
	delete(cs.mu.early, tp)
	if wish.seek != nil {
		from = *wish.seek
	}
	s.paused = wish.paused
	cs.mu.subs[tp] = s
	cs.wantLocked(s, from)
	return s
}

// wantLocked sets where to read; an offset needs no look-up, unless it has to be compared with the end.
func (cs *Consumer) wantLocked(s *subscription, pos Position) {
	s.want, s.resolved, s.resolving = pos, false, false
	s.seeks++
	if pos.kind == posOffset && !cs.cfg.untilEnd {
		s.pos, s.resolved = pos.value, true
	}
}

func (cs *Consumer) seekLocked(s *subscription, pos Position) {
	if s.gone {
		return
	}
	cs.revokeLocked(s)
	s.failed, s.done = false, false
	s.back.reset()
	s.retryAt = time.Time{}
	cs.wantLocked(s, pos)
	cs.reconcileLocked(s)
}

// revokeLocked ends the partition's claim and keeps the exact position.
func (cs *Consumer) revokeLocked(s *subscription) {
	cl := s.claim
	if cl == nil {
		return
	}
	cs.detachLocked(cl)
	s.claim = nil
	if at := cl.cursor.Swap(-1); at >= 0 {
		s.pos, s.resolved = at, true
	}
}

// reconcileLocked makes the partition be fetched from where it should be.
func (cs *Consumer) reconcileLocked(s *subscription) {
	if s.paused || s.failed || s.gone || s.done || cs.closed.Load() {
		if s.claim != nil {
			cs.detachLocked(s.claim)
		}
		return
	}
	if !s.resolved {
		select {
		case cs.resolve <- struct{}{}:
		default:
		}
		return
	}
	if s.claim == nil {
		s.claim = &claim{sub: s, next: s.pos, end: s.end}
		s.claim.cursor.Store(s.pos)
	}
	want := (*fetcher)(nil)
	if s.leader >= 0 && !s.retryAt.After(cs.c.cfg.clock.Now()) {
		want = cs.fetcherLocked(s.leader)
	}
	if s.claim.fetcher == want {
		return
	}
	cs.detachLocked(s.claim)
	if want != nil {
		want.attachLocked(s.claim)
	}
}

// retryLocked tries the partition again after a pause.
func (cs *Consumer) retryLocked(s *subscription, cause error) {
	s.outage.cause = cause
	wait := s.back.next()
	s.retryAt = cs.c.cfg.clock.Now().Add(wait)
	cs.c.cfg.hooks.Retried(s.tp, cause, wait)
	cs.wg.Go(func() {
		_ = clock.Sleep(cs.ctx, cs.c.cfg.clock, wait)
		cs.mu.Lock()
		defer cs.mu.Unlock()
		cs.reconcileLocked(s)
	})
}

// failLocked reports an error behind what was fetched before it; the partition waits for a seek.
func (cs *Consumer) failLocked(s *subscription, err error) {
	s.failed = true
	it := item{err: &PartitionError{s.tp, err}}
	if s.claim != nil {
		cs.detachLocked(s.claim)
		it.claim = s.claim
	}
	cs.pushLocked(it)
}

// doneLocked ends a partition that was read up to its end.
func (cs *Consumer) doneLocked(s *subscription) {
	cs.revokeLocked(s)
	s.done = true
}

// finishedLocked reports, with UntilEnd, whether nothing is left to read.
func (cs *Consumer) finishedLocked() bool {
	if !cs.cfg.untilEnd {
		return false
	}
	for _, t := range cs.mu.topics {
		if t.id.IsZero() && !t.failed {
			return false
		}
	}
	for _, s := range cs.mu.subs {
		if !s.done && !s.failed && !s.gone {
			return false
		}
	}
	return true
}

// awaitTopics reports topics that do not appear in time.
func (cs *Consumer) awaitTopics() {
	if clock.Sleep(cs.ctx, cs.c.cfg.clock, cs.c.cfg.topicWait) != nil {
		return
	}
	for name := range cs.topicNames() {
		// Metadata has to have said that the topic is missing; not knowing is not the same.
		known := func(s *snapshot) bool { return s.topics[name] != nil || s.isMissing(name) }
		if cs.c.meta.wait(cs.ctx, known) != nil {
			return
		}
		cs.mu.Lock()
		if t := cs.mu.topics[name]; t.id.IsZero() && cs.c.meta.snapshot().isMissing(name) {
			t.failed = true
			cs.pushLocked(item{err: &PartitionError{TopicPartition{name, -1}, fmt.Errorf("topic %q: %w", name, ErrUnknownTopic)}})
		}
		cs.mu.Unlock()
	}
}

func (cs *Consumer) topicNames() map[string]bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	names := make(map[string]bool, len(cs.mu.topics))
	for name := range cs.mu.topics {
		names[name] = true
	}
	return names
}

// resolveLoop looks positions up.
func (cs *Consumer) resolveLoop() {
	for {
		select {
		case <-cs.ctx.Done():
			return
		case <-cs.resolve:
		}
		for leader, subs := range cs.unresolved() {
			cs.wg.Go(func() { cs.lookUp(leader, subs) })
		}
	}
}

// lookup is one partition of a look-up.
type lookup struct {
	s     *subscription
	seeks uint64
	query offsetQuery
}

func (cs *Consumer) unresolved() map[int32][]lookup {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	groups := make(map[int32][]lookup)
	now := cs.c.cfg.clock.Now()
	for _, s := range cs.mu.subs {
		if s.resolved || s.resolving || s.paused || s.failed || s.gone || s.done || s.leader < 0 || s.retryAt.After(now) {
			continue
		}
		s.resolving = true
		q := offsetQuery{tp: s.tp, id: s.topicID, epoch: s.leaderEpoch, pos: s.want}
		if s.want.kind == posOffset {
			q.pos = Latest // only the end is asked for
		}
		groups[s.leader] = append(groups[s.leader], lookup{s, s.seeks, q})
	}
	return groups
}

func (cs *Consumer) lookUp(leader int32, subs []lookup) {
	qs := make([]offsetQuery, len(subs))
	for i := range subs {
		qs[i] = subs[i].query
	}
	results := cs.c.listOffsets(cs.ctx, leader, qs)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.ctx.Err() != nil {
		return
	}
	for i, l := range subs {
		if l.s.seeks != l.seeks || l.s.gone {
			continue
		}
		l.s.resolving = false
		cs.resolvedLocked(l.s, results[i])
	}
	cs.wake()
}

// resolvedLocked takes the answer to a look-up. An error is never taken for "no such offset": it is tried again, or reported.
func (cs *Consumer) resolvedLocked(s *subscription, r OffsetInfo) {
	switch {
	case r.Err != nil && transient(r.Err):
		cs.retryLocked(s, r.Err)
		return
	case r.Err != nil:
		cs.failLocked(s, fmt.Errorf("look up %v: %w", s.want, r.Err))
		return
	case cs.cfg.untilEnd && s.end < 0 && r.HighWatermark < 0:
		cs.retryLocked(s, &Error{Code: codes.Unavailable, Reason: reasonNotReady, Message: "the leader does not know yet where the end is", retriable: true})
		return
	}
	s.pos, s.resolved = r.Offset, true
	if s.want.kind == posOffset {
		s.pos = s.want.value
	}
	s.back.reset()
	if cs.cfg.untilEnd {
		if s.end < 0 {
			s.end = r.HighWatermark
		}
		// A position that nothing readable lies behind yet is fetched all the same: the leader knows whether it is out of range.
		if s.pos >= s.end && s.pos <= r.HighWatermark {
			s.done = true
		}
	}
	cs.reconcileLocked(s)
}
