package controller

import (
	"context"
	"slices"
	"time"

	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
)

// inOffice returns this broker's tenure, if the metadata names its present registration as the controller.
func (c *Controller) inOffice(s *metadata.State) (metadata.Tenure, bool) {
	now := s.Controller()
	if now == nil || now.BrokerID != c.reg.BrokerID() || now.BrokerEpoch != c.reg.Epoch() {
		return metadata.Tenure{}, false
	}
	return metadata.Tenure{BrokerID: now.BrokerID, BrokerEpoch: now.BrokerEpoch, Epoch: now.Epoch}, true
}

// campaign takes the key when it is free, or when the one who has it is held for dead or has nothing to do but stop. wait is when to look
// again although nothing has changed; 0: not.
func (c *Controller) campaign(ctx context.Context, s *metadata.State, v liveness.View) (acted bool, wait time.Duration, err error) {
	id := c.reg.BrokerID()
	if slices.Contains(v.Stopping, id) && successors(s, v, id) > 0 {
		return false, 0, nil
	}
	var t metadata.Tenure
	var ok bool
	if metadata.ControllerFree(s) {
		t, ok, err = c.client.AcquireController(ctx, id, c.reg.Epoch())
	} else {
		seen := s.Controller()
		if c.alive(v, seen) || !vacant(s, v, seen) || slices.Contains(v.Confirmed, id) {
			c.suspected = suspicion{}
			return false, 0, nil
		}
		now := c.clk.Now()
		if c.suspected.tenure != seen.Epoch {
			c.suspected = suspicion{tenure: seen.Epoch, since: now}
		}
		// Those with lower ids go first; that two come at the same time would do no harm.
		if wait := c.suspected.since.Add(c.settings.TakeoverDelay * time.Duration(successorsBelow(s, v, id))).Sub(now); wait > 0 {
			return false, wait, nil
		}
		if t, ok, err = c.client.TakeController(ctx, c.reg, seen); ok {
			c.metrics.takeovers.Inc()
			c.lg.Warn("took the controller's office over", "from", seen.BrokerID, "stopping", slices.Contains(v.Stopping, seen.BrokerID))
		}
	}
	if err != nil || !ok {
		return false, 0, err // when it was not to be had, after all, the cache is behind; the next State tells
	}
	_, err = c.cache.WaitRevision(ctx, t.Epoch)
	return true, 0, err
}

// alive reports that a controller lives although it is suspected: it took the office while it was. What remains for it is the lease. Without
// this, two brokers that hold each other for dead would take the office from each other for ever, as fast as etcd writes. It has to be asked
// whenever the controller is looked at.
func (c *Controller) alive(v liveness.View, seen *metadata.ControllerInfo) bool {
	suspected := slices.Contains(v.Confirmed, seen.BrokerID)
	if c.holder.tenure != seen.Epoch {
		c.holder = holder{tenure: seen.Epoch, suspected: suspected}
	}
	c.holder.suspected = c.holder.suspected && suspected
	return c.holder.suspected
}

// holder is the controller of whom this broker knows, and whether it has been suspected ever since it took office.
type holder struct {
	tenure    int64
	suspected bool
}

// suspicion is when a tenure was first found to be vacant.
type suspicion struct {
	tenure int64
	since  time.Time
}

// vacant: the controller does not act, by this broker's own witness and another's; or it stops, and leads nothing any more.
func vacant(s *metadata.State, v liveness.View, seen *metadata.ControllerInfo) bool {
	if slices.Contains(v.Confirmed, seen.BrokerID) {
		return true
	}
	if !slices.Contains(v.Stopping, seen.BrokerID) {
		return false
	}
	leads := false
	each(s, func(_ *metadata.Topic, p *metadata.Partition) { leads = leads || p.Leader == seen.BrokerID })
	return !leads
}

// successors counts the other live brokers that could be the controller.
func successors(s *metadata.State, v liveness.View, self int32) int {
	n := 0
	for _, b := range s.Brokers() {
		if b.ID != self && !slices.Contains(v.Confirmed, b.ID) && !slices.Contains(v.Stopping, b.ID) {
			n++
		}
	}
	return n
}

// successorsBelow counts those with lower ids.
func successorsBelow(s *metadata.State, v liveness.View, self int32) int {
	n := 0
	for _, b := range s.Brokers() {
		if b.ID < self && !slices.Contains(v.Suspects, b.ID) && !slices.Contains(v.Stopping, b.ID) {
			n++
		}
	}
	return n
}

// patience remembers which living brokers were taken out of in-sync sets. A leader that hears a suspect adds it again as soon as it has
// caught up; after a few rounds the controller lets it be for a while.
type patience map[int32]*round

type round struct {
	n     int
	at    time.Time
	until time.Time
}

const (
	freeRounds   = 3
	calmRounds   = time.Minute
	longestPause = 30 * time.Second
)

// note counts a round of removals.
func (p patience) note(id int32, now time.Time) {
	r := p[id]
	if r == nil || now.Sub(r.at) > calmRounds {
		r = &round{}
		p[id] = r
	}
	r.n, r.at = r.n+1, now
	if over := r.n - freeRounds; over >= 0 {
		r.until = now.Add(min(time.Second<<min(over, 5), longestPause))
	}
}

// spared returns the brokers to leave alone, and when that next ends (0: never).
func (p patience) spared(now time.Time) (ids map[int32]bool, wait time.Duration) {
	for id, r := range p {
		left := r.until.Sub(now)
		if left <= 0 {
			continue
		}
		if ids == nil {
			ids = map[int32]bool{}
		}
		ids[id] = true
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return ids, wait
}
