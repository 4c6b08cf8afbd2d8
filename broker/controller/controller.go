package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
)

const (
	// retryDelay is how long the controller waits after a failure before it looks again.
	retryDelay = 200 * time.Millisecond
	// loadsFor is how long a report of loads counts.
	loadsFor = time.Minute
	// lookEvery is how often the brokers' health is looked at without being woken. Wake is what makes it quick; this is what makes it certain.
	lookEvery = 250 * time.Millisecond
	// reachFor is how long the controller waits for a State to be complete before it looks at the brokers' health again.
	reachFor = 100 * time.Millisecond
	// surveyEvery is how often the controller counts what is wrong and under way.
	surveyEvery = time.Second
)

// Config is what a controller works with. Client, Cache, Registration, Clock, Logger and Registerer are required.
type Config struct {
	Client       *metadata.Client
	Cache        *metadata.Cache
	Registration *metadata.Registration
	// Defaults are the cluster-wide topic settings, nil for the built-in ones.
	Defaults   *runnelv1.TopicConfig
	Clock      clock.Clock
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Health is what this broker's failure detector thinks now. It must not block. nil: nobody is ever suspected.
	Health func() liveness.View
	// Wake gets a value whenever Health may have changed; a capacity of 1 is enough.
	Wake <-chan struct{}
	// Push gets the partitions that were just written, to tell other brokers before their watches do. It must not block. nil: nobody is told.
	Push func([]metadata.PartitionValue)
	// Settings with defaults for zero values.
	Settings Settings
}

// Controller holds the controller key whenever it is free, and carries out what Decide asks for while it does. Every broker runs one. Its
// requests, in admin.go, are safe for concurrent use, and work on the broker that is the controller.
type Controller struct {
	client   *metadata.Client
	cache    *metadata.Cache
	reg      *metadata.Registration
	defaults *runnelv1.TopicConfig
	clk      clock.Clock
	lg       *slog.Logger
	metrics  *metrics
	health   func() liveness.View
	wake     <-chan struct{}
	push     func([]metadata.PartitionValue)
	// look is lookEvery, or 0 without a detector.
	look     time.Duration
	settings Settings

	mu struct {
		sync.Mutex
		// loads are the last reports, by broker.
		loads map[int32]load
		// seen is what ListOperations shows, since when.
		seen map[operationKey]*Operation
	}

	// The rest is used by Run's goroutine only.

	tenure    int64
	suspected suspicion
	holder    holder
	patience  patience
	balanced  time.Time
	surveyed  time.Time
	// last is what the last decision that found nothing to do was made on.
	last struct {
		state *metadata.State
		view  liveness.View
	}
}

type load struct {
	report LoadReport
	at     time.Time
}

// New returns a controller for a registered broker.
func New(cfg Config) (*Controller, error) {
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, fmt.Errorf("registering controller metrics: %w", err)
	}
	c := &Controller{
		client: cfg.Client, cache: cfg.Cache, reg: cfg.Registration, defaults: cfg.Defaults, clk: cfg.Clock,
		lg: cfg.Logger.With("component", "controller"), metrics: m, health: cfg.Health, wake: cfg.Wake, push: cfg.Push, settings: cfg.Settings.withDefaults(),
		patience: patience{},
	}
	if c.health == nil {
		c.health = func() liveness.View { return liveness.View{} }
	} else {
		c.look = lookEvery
	}
	if c.push == nil {
		c.push = func([]metadata.PartitionValue) {}
	}
	c.mu.loads, c.mu.seen = map[int32]load{}, map[operationKey]*Operation{}
	return c, nil
}

// Run campaigns and, while in office, acts, until ctx ends; it returns nil then. Failures are logged and tried again. Ending it leaves
// the key as it is: it is free as soon as the registration is gone.
func (c *Controller) Run(ctx context.Context) error {
	defer c.metrics.leave()
	for ctx.Err() == nil {
		s := c.cache.Snapshot()
		acted, wait, err := c.step(ctx, s)
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
		c.sleep(ctx, s, wait)
	}
	return nil
}

// sleep waits for a newer State, another view of the brokers' health, or the time.
func (c *Controller) sleep(ctx context.Context, s *metadata.State, wait time.Duration) {
	var timer <-chan time.Time
	if c.look > 0 && (wait == 0 || c.look < wait) {
		wait = c.look
	}
	if wait > 0 {
		t := c.clk.NewTimer(wait)
		defer t.Stop()
		timer = t.C()
	}
	select {
	case <-s.Changed():
	case <-c.wake:
	case <-timer:
	case <-ctx.Done():
	}
}

// step does what one State asks for. acted is true when it wrote something; the cache then shows the result already. wait is when to look
// again although nothing has changed; 0: not.
func (c *Controller) step(ctx context.Context, s *metadata.State) (acted bool, wait time.Duration, err error) {
	if epoch := c.reg.Epoch(); !s.Loaded() || s.Revision() < epoch {
		// Invariant: no stale start: nothing is decided on state from before one's own registration.
		_, err := c.cache.WaitRevision(ctx, epoch)
		return true, 0, err
	}
	view := c.health()
	tenure, in := c.inOffice(s)
	if !in {
		if c.tenure != 0 {
			c.leave()
		}
		return c.campaign(ctx, s, view)
	}
	if c.tenure != tenure.Epoch {
		c.tenure, c.balanced = tenure.Epoch, c.clk.Now()
		c.lg.Info("controlling", "controller_epoch", tenure.Epoch, "broker_epoch", tenure.BrokerEpoch)
	}
	c.metrics.active.Set(1)
	c.metrics.suspects.Set(float64(len(view.Confirmed)))
	return c.govern(ctx, s, view, tenure)
}

// leave forgets the office.
func (c *Controller) leave() {
	c.tenure, c.patience, c.last.state = 0, patience{}, nil
	c.metrics.leave()
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.mu.loads)
	clear(c.mu.seen)
}

// govern decides and acts.
func (c *Controller) govern(
	ctx context.Context, s *metadata.State, view liveness.View, tenure metadata.Tenure,
) (acted bool, wait time.Duration, err error) {
	now := c.clk.Now()
	in, wait := c.input(s, view, now)
	if now.Sub(c.surveyed) >= surveyEvery {
		c.surveyed = now
		c.survey(s, in, now)
	}
	if !in.Balance && c.last.state == s && sameHealth(c.last.view, view) {
		return false, wait, nil
	}
	plan := Decide(s, c.defaults, in)
	if in.Balance {
		c.balanced = now
		if wait == 0 || c.settings.BalanceInterval < wait {
			wait = c.settings.BalanceInterval
		}
	}
	if plan.Empty() {
		if newest := newest(s); newest > s.Revision() {
			return c.reach(ctx, newest), wait, nil
		}
		if in.Spared == nil {
			c.last.state, c.last.view = s, view
		}
		return false, wait, nil
	}
	c.last.state = nil
	w := &writer{}
	c.carryOut(ctx, w, s, &in, tenure, plan)
	if w.err != nil {
		return false, wait, w.err
	}
	if _, err = c.cache.WaitRevision(ctx, w.revision); err == nil && w.idle() {
		// Everything had been overtaken, although the cache shows it all: do not hurry.
		return false, retryDelay, nil
	}
	return true, 0, err
}

// newest is the broker epoch of the last registration.
func newest(s *metadata.State) int64 {
	epoch := int64(0)
	for _, b := range s.Brokers() {
		epoch = max(epoch, b.Epoch)
	}
	return epoch
}

// reach has the cache ask for what it lacks of a State that shows a registration before the records of its time, which is what eligibility
// waits for. Nothing else waits for it, so it is short.
func (c *Controller) reach(ctx context.Context, revision int64) bool {
	ctx, cancel := context.WithTimeout(ctx, reachFor)
	defer cancel()
	_, err := c.cache.WaitRevision(ctx, revision)
	return err == nil
}

func sameHealth(a, b liveness.View) bool {
	return slices.Equal(a.Confirmed, b.Confirmed) && slices.Equal(a.Stopping, b.Stopping) && slices.Equal(a.Beating, b.Beating) && a.SameWrites(b)
}

// input gathers what a decision takes into account. wait is when another one is due.
func (c *Controller) input(s *metadata.State, view liveness.View, now time.Time) (in Input, wait time.Duration) {
	in = Input{Self: c.reg.BrokerID(), Health: HealthOf(view), Settings: c.settings}
	in.Spared, wait = c.patience.spared(now)
	if c.settings.BalanceInterval < 0 {
		return in, wait
	}
	due := c.balanced.Add(c.settings.BalanceInterval).Sub(now)
	if due <= 0 {
		in.Balance, in.Loads = true, c.loads(s, now)
	} else if wait == 0 || due < wait {
		wait = due
	}
	return in, wait
}

// loads joins the reports, if every live broker has sent one lately.
func (c *Controller) loads(s *metadata.State, now time.Time) map[metadata.PartitionRef]PartitionLoad {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[metadata.PartitionRef]PartitionLoad{}
	for _, b := range s.Brokers() {
		l, ok := c.mu.loads[b.ID]
		if !ok || now.Sub(l.at) > loadsFor {
			return nil
		}
		for ref, measured := range l.report.Partitions {
			// A leader that was deposed meanwhile may report still.
			if p, known := s.Partition(ref.TopicID, ref.Partition); known && p.Leader == b.ID {
				out[ref] = measured
			}
		}
	}
	return out
}
