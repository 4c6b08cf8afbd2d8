package controller

import (
	"context"
	"slices"

	"runnel.dev/runnel/broker/metadata"
)

// carryOut executes a plan. Parts that were overtaken are left to the next decision.
func (c *Controller) carryOut(ctx context.Context, w *writer, s *metadata.State, in *Input, tenure metadata.Tenure, plan Plan) {
	removed := map[int32]bool{}
	for chunk := range slices.Chunk(plan.Update, metadata.BulkSize) {
		// One transaction at a time, so that whoever leads is told while the next is on its way.
		r, err := c.client.UpdatePartitions(ctx, tenure, chunk)
		c.push(r.Written)
		w.bulk(r, err)
		c.metrics.updates.Add(float64(r.Count()))
		applied(r, chunk, func(next *metadata.Partition) { c.count(s, in, next, removed) })
		if w.err != nil {
			break
		}
	}
	for id := range removed {
		c.patience.note(id, c.clk.Now())
	}
	for _, d := range plan.Clear {
		if len(d.Stale) > 0 {
			w.one(func() (int64, error) { return c.client.DropMarks(ctx, tenure, d.Storage, d.Stale) })
			continue // the entry has a new revision: the rest is for the next decision
		}
		w.one(func() (int64, error) { return c.client.ClearMarks(ctx, tenure, d.Storage, d.Partitions) })
	}
	for _, st := range plan.Eligible {
		w.one(func() (int64, error) { return c.client.DeclareEligible(ctx, tenure, st) })
	}
	for _, work := range plan.Create {
		if w.err == nil {
			w.bulk(c.client.CreatePartitions(ctx, tenure, work.Topic, work.Partitions))
		}
	}
	for _, t := range plan.Finish {
		w.one(func() (int64, error) { return c.client.FinishTopic(ctx, tenure, t) })
	}
	for _, work := range plan.Purge {
		if w.err == nil {
			w.bulk(c.client.DeletePartitions(ctx, tenure, work.Topic, work.Partitions))
		}
	}
	for _, t := range plan.Forget {
		w.one(func() (int64, error) { return c.client.ForgetTopic(ctx, tenure, t) })
	}
	c.rearrange(ctx, w, s, tenure, plan)
}

// rearrange carries out the part of a plan that nobody waits for.
func (c *Controller) rearrange(ctx context.Context, w *writer, s *metadata.State, tenure metadata.Tenure, plan Plan) {
	if w.err == nil && len(plan.Reassign) > 0 {
		r, err := c.client.SetReassignment(ctx, tenure, plan.Reassign)
		w.bulk(r, err)
		c.metrics.reassigned.WithLabelValues("started").Add(float64(r.Count()))
		c.metrics.updates.Add(float64(r.Count()))
	}
	if w.err == nil && len(plan.Moves) > 0 {
		r, err := c.client.UpdatePartitions(ctx, tenure, plan.Moves)
		c.push(r.Written)
		w.bulk(r, err)
		c.metrics.updates.Add(float64(r.Count()))
		applied(r, plan.Moves, func(next *metadata.Partition) {
			cause := "load"
			if p, ok := s.Partition(next.TopicID, next.Partition); ok && p.Replicas[0] == next.Leader {
				cause = "preferred"
			}
			c.metrics.moves.WithLabelValues(cause).Inc()
		})
	}
}

// applied calls f for the items of a bulk change that took effect.
func applied(r metadata.BulkResult, items []*metadata.Partition, f func(*metadata.Partition)) {
	for i, ok := range r.Applied {
		if ok {
			f(items[i])
		}
	}
}

// writer collects results and stops at the first error.
type writer struct {
	revision int64
	// applied items of bulk changes took effect; singles were tried one by one.
	applied, singles int
	err              error
}

// idle: there were bulk changes only, and none took effect.
func (w *writer) idle() bool { return w.singles == 0 && w.applied == 0 }

func (w *writer) bulk(r metadata.BulkResult, err error) {
	w.revision = max(w.revision, r.Revision)
	w.applied += r.Count()
	if err != nil && w.err == nil {
		w.err = err
	}
}

func (w *writer) one(write func() (int64, error)) {
	if w.err != nil {
		return
	}
	w.singles++
	revision, err := write()
	w.revision, w.err = max(w.revision, revision), err
}
