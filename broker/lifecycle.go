package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
)

// readinessInterval is how often the gRPC health service is brought up to date.
const readinessInterval = 50 * time.Millisecond

// readinessPatience is how long a broker may take to become ready until its log says what is missing.
const readinessPatience = 10 * time.Second

// stopGrace is what ending may take beyond ShutdownTimeout: syncing what was written, giving the registration back.
const stopGrace = 10 * time.Second

// ErrStopTimedOut says that parts of the broker have not ended in time after it was told to stop.
var ErrStopTimedOut = errors.New("the broker did not stop in time")

// bounded runs f, and leaves it behind when it has not returned within limit of the end of ctx.
func bounded(ctx context.Context, clk clock.Clock, limit time.Duration, lg *slog.Logger, f func(context.Context) error) error {
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	timer := clk.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C():
		stacks := make([]byte, 1<<20)
		lg.Error("parts of the broker did not end", "within", limit, "stacks", string(stacks[:runtime.Stack(stacks, true)]))
		return fmt.Errorf("%w: not within %v", ErrStopTimedOut, limit)
	}
}

// layer is parts that are stopped together. A part blocks until everything that it started has ended.
type layer []func(context.Context) error

// runLayers runs all parts until ctx ends or any part returns, then stops the layers from the last to the first, each only when the
// one above has ended: what a part still has to finish can rely on everything below it. The error joins those of all parts.
func runLayers(ctx context.Context, layers ...layer) error {
	stop := make(chan struct{})
	var once sync.Once
	var mu struct {
		sync.Mutex
		errs []error
	}
	cancels := make([]context.CancelFunc, len(layers))
	running := make([]sync.WaitGroup, len(layers))
	for i, l := range layers {
		part, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancels[i] = cancel
		for _, run := range l {
			running[i].Go(func() {
				err := run(part)
				mu.Lock()
				mu.errs = append(mu.errs, err)
				mu.Unlock()
				once.Do(func() { close(stop) })
			})
		}
	}
	select {
	case <-ctx.Done():
	case <-stop:
	}
	for i := len(layers) - 1; i >= 0; i-- {
		cancels[i]()
		running[i].Wait()
	}
	return errors.Join(mu.errs...)
}

// conditions say what keeps the broker from being ready. It takes no lock that the data path uses.
func (b *Broker) conditions() []condition {
	p := b.running.Load()
	if p == nil {
		return []condition{{Name: "started", Reason: *b.phase.Load()}}
	}
	s := p.cache.Snapshot()
	missing := p.host.missing.Load()
	reason := fmt.Sprintf("%d partitions are not led yet", missing)
	if missing < 0 {
		reason = "partitions were not looked at yet"
	}
	return []condition{
		check("metadata", s.Loaded(), "the metadata was not read yet"),
		check("eligible", s.Eligible(b.cfg.BrokerID), whyNotEligible(s, b.cfg.BrokerID)),
		check("controller", !metadata.ControllerFree(s), "no live broker controls the cluster"),
		check("partitions", missing == 0, reason),
	}
}

// whyNotEligible tells what somebody has decided from what will be settled in a moment.
func whyNotEligible(s *metadata.State, id int32) string {
	st, known := s.Storage(id)
	b, live := s.Broker(id)
	if known && live && st.StorageID == b.StorageID {
		switch st.State {
		case metadata.StorageActive, metadata.StorageDraining:
		case metadata.StorageDecommissioned:
			return fmt.Sprintf("this data directory was decommissioned: start with an empty one, or run: runnel cluster undrain %d", id)
		case metadata.StorageFenced:
			return fmt.Sprintf("this data directory was fenced: start with an empty one, or run: runnel cluster unfence %d", id)
		}
	}
	return "the controller has not declared this registration eligible"
}

// lacking is the first condition that is not met.
func lacking(conditions []condition) string {
	for _, c := range conditions {
		if !c.OK {
			return c.Name + ": " + c.Reason
		}
	}
	return ""
}

func check(name string, ok bool, reason string) condition {
	if ok {
		reason = ""
	}
	return condition{Name: name, OK: ok, Reason: reason}
}

// followReadiness shows readiness in the gRPC health service. What keeps the broker from it for longer than usual is logged.
func (b *Broker) followReadiness(ctx context.Context) error {
	server := b.running.Load().server
	tick := b.deps.Clock.NewTicker(readinessInterval)
	defer tick.Stop()
	was, since, said := false, b.deps.Clock.Now(), ""
	for {
		conditions := b.conditions()
		now := ready(conditions)
		if now != was {
			server.SetReady(now)
			b.lg.Info("readiness changed", "ready", now)
			was, since, said = now, b.deps.Clock.Now(), ""
		}
		if why := lacking(conditions); !now && why != said && b.deps.Clock.Since(since) >= readinessPatience {
			b.lg.Warn("the broker is not ready", "reason", why)
			said, since = why, b.deps.Clock.Now()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}
