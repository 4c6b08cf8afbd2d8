package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
)

// retryDelay is how long the controller waits after a failure before it looks again.
const retryDelay = 200 * time.Millisecond

// Controller holds the controller key whenever it is free, and carries out what Decide asks for while it does. Every broker runs one.
type Controller struct {
	client   *metadata.Client
	cache    *metadata.Cache
	reg      *metadata.Registration
	defaults *runnelv1.TopicConfig
	clk      clock.Clock
	lg       *slog.Logger
	metrics  *metrics

	// tenure is used by Run's goroutine only.
	tenure metadata.Tenure
}

// New returns a controller for a registered broker. defaults are the cluster-wide topic settings, nil for the built-in ones.
func New(client *metadata.Client, cache *metadata.Cache, reg *metadata.Registration, defaults *runnelv1.TopicConfig, clk clock.Clock,
	lg *slog.Logger, registerer prometheus.Registerer,
) (*Controller, error) {
	m, err := newMetrics(registerer)
	if err != nil {
		return nil, fmt.Errorf("registering controller metrics: %w", err)
	}
	return &Controller{
		client: client, cache: cache, reg: reg, defaults: defaults, clk: clk, lg: lg.With("component", "controller"), metrics: m,
	}, nil
}

// Run campaigns and, while in office, acts, until ctx ends; it returns nil then. Failures are logged and tried again. Ending it leaves
// the key as it is: it is free as soon as the registration is gone.
func (c *Controller) Run(ctx context.Context) error {
	defer c.metrics.active.Set(0)
	for ctx.Err() == nil {
		s := c.cache.Snapshot()
		acted, err := c.step(ctx, s)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && acted:
			continue
		case err != nil && !errors.Is(err, metadata.ErrNotController):
			c.metrics.failures.Inc()
			c.lg.Warn("controller step failed, will try again", "error", err)
			if clock.Sleep(ctx, c.clk, retryDelay) != nil {
				return nil
			}
			continue
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
		}
	}
	return nil
}

// step does what one State asks for. acted is true when it wrote something; the cache then shows the result already.
func (c *Controller) step(ctx context.Context, s *metadata.State) (acted bool, err error) {
	epoch := c.reg.Epoch()
	if !s.Loaded() || s.Revision() < epoch {
		// Invariant: no stale start: nothing is decided on state from before one's own registration.
		_, err := c.cache.WaitRevision(ctx, epoch)
		return true, err
	}
	if now := s.Controller(); now == nil || now.BrokerID != c.reg.BrokerID() || now.BrokerEpoch != epoch {
		c.metrics.active.Set(0)
		return c.campaign(ctx, s, epoch)
	} else if c.tenure.Epoch != now.Epoch {
		c.tenure = metadata.Tenure{BrokerID: now.BrokerID, BrokerEpoch: now.BrokerEpoch, Epoch: now.Epoch}
		c.lg.Info("controlling", "controller_epoch", now.Epoch, "broker_epoch", epoch)
	}
	c.metrics.active.Set(1)
	plan := Decide(s, c.defaults, Input{Self: c.reg.BrokerID()})
	if plan.Empty() {
		return false, nil
	}
	revision, err := c.carryOut(ctx, plan)
	if err != nil {
		return false, err
	}
	_, err = c.cache.WaitRevision(ctx, revision)
	return true, err
}

// campaign takes the key if it is free. When it is not, after all, the cache is behind; the next State tells.
func (c *Controller) campaign(ctx context.Context, s *metadata.State, epoch int64) (acted bool, err error) {
	if !metadata.ControllerFree(s) {
		return false, nil
	}
	t, ok, err := c.client.AcquireController(ctx, c.reg.BrokerID(), epoch)
	if err != nil || !ok {
		return false, err
	}
	_, err = c.cache.WaitRevision(ctx, t.Epoch)
	return true, err
}

// carryOut executes a plan and returns the highest revision that it reached. Parts that were overtaken are left to the next decision.
func (c *Controller) carryOut(ctx context.Context, plan Plan) (int64, error) {
	w := &writer{}
	if len(plan.Update) > 0 {
		w.bulk(c.client.UpdatePartitions(ctx, c.tenure, plan.Update))
		c.metrics.updates.Add(float64(w.applied))
	}
	for _, d := range plan.Clear {
		if len(d.Stale) > 0 {
			w.one(func() (int64, error) { return c.client.DropMarks(ctx, c.tenure, d.Storage, d.Stale) })
			continue // the entry has a new revision: the rest is for the next decision
		}
		w.one(func() (int64, error) { return c.client.ClearMarks(ctx, c.tenure, d.Storage, d.Partitions) })
	}
	for _, st := range plan.Eligible {
		w.one(func() (int64, error) { return c.client.DeclareEligible(ctx, c.tenure, st) })
	}
	for _, work := range plan.Create {
		if w.err == nil {
			w.bulk(c.client.CreatePartitions(ctx, c.tenure, work.Topic, work.Partitions))
		}
	}
	for _, t := range plan.Finish {
		w.one(func() (int64, error) { return c.client.FinishTopic(ctx, c.tenure, t) })
	}
	for _, work := range plan.Purge {
		if w.err == nil {
			w.bulk(c.client.DeletePartitions(ctx, c.tenure, work.Topic, work.Partitions))
		}
	}
	for _, t := range plan.Forget {
		w.one(func() (int64, error) { return c.client.ForgetTopic(ctx, c.tenure, t) })
	}
	return w.revision, w.err
}

// writer collects results and stops at the first error.
type writer struct {
	revision int64
	applied  int
	err      error
}

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
	revision, err := write()
	w.revision, w.err = max(w.revision, revision), err
}
