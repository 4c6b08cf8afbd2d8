package sim

import (
	"slices"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// recordChanged: a key changed in etcd.
func (c *checker) recordChanged(ch *change) {
	if ch.deleted {
		return
	}
	contents := c.decode(ch.KV)
	for _, st := range contents.Storages {
		c.storageChanged(st)
	}
	for _, p := range contents.Partitions {
		if l := c.ledger(p.PartitionRef); l != nil {
			c.partitionChanged(l, p)
		}
	}
}

func (c *checker) storageChanged(st *metadata.Storage) {
	for _, l := range c.ledgers {
		if l.record == nil {
			continue
		}
		if m, ok := l.record.Member(st.BrokerID); ok && st.EligibleEpoch > 0 && m.StorageID != st.StorageID {
			c.fail(invEligible, "broker %d is eligible with storage %s, and %s has %s in sync", st.BrokerID, short(st.StorageID), c.name(l.ref),
				members(l.record.ISR))
		}
	}
}

func (c *checker) partitionChanged(l *ledger, p *metadata.Partition) {
	old := l.record
	l.record = p
	c.tracef("record %s: leader %d/%d epoch %d isr %s replicas %v", c.name(p.PartitionRef), p.Leader, p.LeaderBrokerEpoch, p.LeaderEpoch, members(p.ISR),
		p.Replicas)
	if old == nil {
		return
	}
	if c.now-l.changesFrom > changeWindow {
		l.changes, l.changesFrom = 0, c.now
	}
	if l.changes++; l.changes > maxChanges {
		c.fail(invSettles, "%s changed %d times in %s", c.name(l.ref), l.changes, c.now-l.changesFrom)
	}
	switch {
	case p.LeaderEpoch < old.LeaderEpoch:
		c.fail(invEpochForward, "%s: epoch %d after %d", c.name(l.ref), p.LeaderEpoch, old.LeaderEpoch)
	case p.LeaderEpoch == old.LeaderEpoch && (p.Leader != old.Leader || p.LeaderBrokerEpoch != old.LeaderBrokerEpoch):
		c.fail(invEpochForward, "%s: epoch %d is led by broker %d (%d), and was by broker %d (%d)", c.name(l.ref), p.LeaderEpoch, p.Leader,
			p.LeaderBrokerEpoch, old.Leader, old.LeaderBrokerEpoch)
	}
	if p.LeaderEpoch > old.LeaderEpoch && p.Leader != metadata.NoLeader {
		c.cov.hit(Elections)
		if p.Leader != old.Leader {
			c.cov.hit(LeaderChanges)
			c.leaderChanges++
		}
		if m, ok := p.Member(p.Leader); (!ok || !slices.Contains(old.ISR, m)) && !l.forced {
			c.fail(invCleanElection, "%s: broker %d is elected, in sync were %s", c.name(l.ref), p.Leader, members(old.ISR))
		}
	}
	c.inSyncChanged(l, old, p)
}

func (c *checker) inSyncChanged(l *ledger, old, p *metadata.Partition) {
	added, removed := 0, 0
	shrinksByLoss := true
	for _, m := range old.ISR {
		if !slices.Contains(p.ISR, m) {
			removed++
			shrinksByLoss = shrinksByLoss && c.lost[m.LogID]
		}
	}
	for _, m := range p.ISR {
		if !slices.Contains(old.ISR, m) {
			added++
			c.added(l, old, p, m)
		}
	}
	switch {
	case old.LeaderEpoch == 0:
	case added > 0 && removed > 0:
		c.cov.hit(ISRReplacements)
	case added > 0:
		c.cov.hit(ISRGrows)
	case removed > 0:
		c.cov.hit(ISRShrinks)
	}
	if old.LeaderEpoch > 0 && len(p.ISR) < len(old.ISR) && len(p.ISR) < l.min && !shrinksByLoss && !l.forced {
		c.fail(invMinimum, "%s: from %s to %s, the minimum is %d", c.name(l.ref), members(old.ISR), members(p.ISR), l.min)
	}
}

// added: a member came into the in-sync set.
func (c *checker) added(l *ledger, old, p *metadata.Partition, m metadata.Member) {
	if old.LeaderEpoch == 0 || old.LeaderEpoch != p.LeaderEpoch || l.forced {
		return
	}
	now := c.etcd.get(c.build.BrokerKey(m.BrokerID)).Revision
	if a := c.acks[m.LogID]; a == nil || a.epoch != p.LeaderEpoch || !slices.Contains(a.under, now) {
		c.fail(invGrowth, "%s: %d/%s is added in epoch %d, registered under %d, and acknowledged under %+v", c.name(l.ref), m.BrokerID, short(m.LogID),
			p.LeaderEpoch, now, a)
	}
}

// loses notes that logs of a broker are gone.
func (c *checker) loses(n *node, ref metadata.PartitionRef, id ids.LogID) {
	c.lost[id] = true
	delete(n.durable, ref)
	if l := c.ledger(ref); l.record != nil && slices.Contains(l.record.Replicas, n.id) {
		l.losses++
		l.wholeSince = -1
	}
}

// mayLose reports whether a broker's replica of a partition may be lost now without losing what the design promises to keep: the losses of
// one disk less than the minimum, until the partition is whole again.
func (c *checker) mayLose(n *node, ref metadata.PartitionRef) bool {
	l := c.ledger(ref)
	if l == nil || l.record == nil || l.forced {
		return false
	}
	return !slices.Contains(l.record.Replicas, n.id) || l.losses+1 <= l.min-1
}

// watchWhole forgives losses once a partition has been whole, on storage that the metadata know, for long enough that no change from before
// can come any more.
func (c *checker) watchWhole() {
	for _, l := range c.ledgers {
		if l.record == nil || l.losses == 0 {
			continue
		}
		whole := len(l.record.ISR) >= l.min && len(l.record.ISR) == len(l.record.Replicas)
		for _, m := range l.record.ISR {
			whole = whole && !c.lost[m.LogID]
		}
		switch {
		case !whole:
			l.wholeSince = -1
		case l.wholeSince < 0:
			l.wholeSince = c.now
		case c.now-l.wholeSince > 12*time.Second:
			l.losses = 0
		}
	}
}
