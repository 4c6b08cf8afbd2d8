package broker

import (
	"context"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
)

const (
	// snapshotInterval is the time between two cluster snapshots on the disks of two brokers.
	snapshotInterval = time.Minute
	// snapshotLook is how often a broker looks whether one is due: one that has just become one of the two saves its first at once.
	snapshotLook = time.Second
)

// snapshots keeps the whole metadata, as of at most snapshotInterval ago, on the disks of two brokers: the controller's and another's. With
// an emptied etcd it is what `runnel etcd recover` begins with.
type snapshots struct {
	p   *parts
	b   *Broker
	clk clock.Clock
}

// Run saves snapshots until ctx ends. A failure is logged, and made up for at the next time.
func (s *snapshots) Run(ctx context.Context) error {
	tick := s.clk.NewTicker(snapshotLook)
	defer tick.Stop()
	var saved int64
	var due time.Time
	for {
		if now := s.p.cache.Snapshot(); s.mine(now) && now.Revision() > saved && !s.clk.Now().Before(due) {
			due = s.clk.Now().Add(snapshotInterval)
			if err := s.save(ctx); err != nil && ctx.Err() == nil {
				s.b.lg.Warn("the cluster snapshot could not be saved; will retry", "error", err)
			} else if err == nil {
				saved = now.Revision()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

// mine reports whether this broker is one of the two: the controller, or the live one with the lowest id beside it.
func (s *snapshots) mine(now *metadata.State) bool {
	c := now.Controller()
	if c == nil {
		return false
	}
	me := s.p.reg.BrokerID()
	if c.BrokerID == me {
		return true
	}
	for _, b := range now.Brokers() {
		if b.ID != c.BrokerID {
			return b.ID == me
		}
	}
	return false
}

func (s *snapshots) save(ctx context.Context) error {
	image, err := s.p.client.SnapshotPrefix(ctx)
	if err != nil {
		return err
	}
	return s.p.store.SaveSnapshot(image)
}
