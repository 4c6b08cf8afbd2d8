package broker

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
)

const (
	// handOverPoll is how often a stopping broker looks whether it still leads something that another could lead.
	handOverPoll = 10 * time.Millisecond
	// leaveTimeout bounds how long a broker that leads nothing any more waits to be out of the in-sync sets.
	leaveTimeout = time.Second
	// failedTimeout bounds the one attempt to hand over after a sync failed.
	failedTimeout = time.Second
)

// handOver is the first thing that ends on a stop: the heartbeats say that this broker is about to go, the controller moves its
// leaderships and takes it out of in-sync sets where the minimum allows it, and only then are clients sent away. What nobody else can
// lead is not waited for, so a cluster of one broker, or one that stops as a whole, loses no time.
type handOver struct {
	p       *parts
	timeout time.Duration
	clk     clock.Clock
	lg      *slog.Logger
	on      atomic.Bool
	began   atomic.Pointer[time.Time]
	once    sync.Once
}

func newHandOver(p *parts, timeout time.Duration, clk clock.Clock, lg *slog.Logger) *handOver {
	return &handOver{p: p, timeout: timeout, clk: clk, lg: lg}
}

// begun reports whether the broker is stopping.
func (h *handOver) begun() bool { return h.on.Load() }

// Run waits for the end of ctx, and then hands over. A quarter of the time is left to calls in flight.
func (h *handOver) Run(ctx context.Context) error {
	<-ctx.Done()
	h.run(h.timeout - h.timeout/4)
	return nil
}

// left is how much of the time for a stop calls in flight may still take. It is above 0.
func (h *handOver) left() time.Duration {
	left := h.timeout
	if began := h.began.Load(); began != nil {
		left -= h.clk.Since(*began)
	}
	return max(left, h.timeout/4, time.Millisecond)
}

// run hands over within a time. A second call waits for the first.
func (h *handOver) run(timeout time.Duration) { h.once.Do(func() { h.hand(timeout) }) }

func (h *handOver) hand(timeout time.Duration) {
	h.on.Store(true)
	started := h.clk.Now()
	h.began.Store(&started)
	if left := h.await(timeout, h.led); left > 0 {
		h.lg.Warn("not all partitions were handed over in time", "partitions", left, "timeout", timeout)
	}
	// Whoever is about to end must not be taken into an in-sync set again.
	h.p.host.retire()
	h.await(min(leaveTimeout, timeout), h.counted)
	if took := h.clk.Since(started); took > handOverPoll {
		h.lg.Info("partitions were handed over", "took", took)
	}
}

// await waits until count is 0, and returns what is left.
func (h *handOver) await(timeout time.Duration, count func(*metadata.State) int) int {
	deadline := h.clk.Now().Add(timeout)
	for {
		left := count(h.p.cache.Snapshot())
		if left == 0 || !h.clk.Now().Before(deadline) {
			return left
		}
		<-h.clk.After(handOverPoll)
	}
}

// led counts the partitions that this broker leads, or that name it, and that another could lead.
func (h *handOver) led(s *metadata.State) int {
	return h.count(s, func(p *metadata.Partition) bool { return p.Leader == h.p.reg.BrokerID() && h.others(s, p) > 0 })
}

// counted counts the partitions that have this broker in sync, and could do without.
func (h *handOver) counted(s *metadata.State) int {
	return h.count(s, func(p *metadata.Partition) bool {
		_, member := p.Member(h.p.reg.BrokerID())
		return member && len(p.ISR) > h.p.host.minISR(s, p) && h.others(s, p) > 0
	})
}

func (h *handOver) count(s *metadata.State, f func(*metadata.Partition) bool) (n int) {
	if h.p.reg.Err() != nil {
		return 0 // somebody has taken the broker id over
	}
	for _, t := range s.Topics() {
		if t.State == metadata.TopicDeleting {
			continue
		}
		for _, p := range s.Partitions(t.ID) {
			if p != nil && f(p) {
				n++
			}
		}
	}
	return n
}

// others counts the members of p that are alive and stay. Who hears nobody waits for nobody.
func (h *handOver) others(s *metadata.State, p *metadata.Partition) (n int) {
	v := h.p.beats.View()
	for _, m := range p.ISR {
		if m.BrokerID != h.p.reg.BrokerID() && s.Eligible(m.BrokerID) && slices.Contains(v.Beating, m.BrokerID) && !slices.Contains(v.Stopping, m.BrokerID) {
			n++
		}
	}
	return n
}
