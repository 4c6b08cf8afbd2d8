package sim

import (
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// The invariants that are checked, by the names that a failing run prints.
const (
	invAckedDurable    = "an acknowledged record is on the disks of the minimum"
	invAckFlushed      = "a follower acknowledges only what is on its disk"
	invLeaderHasAll    = "a leader has every committed record"
	invIdentical       = "replicas are byte-identical below the high watermark"
	invHWAcked         = "the high watermark is what every member has acknowledged in the epoch"
	invHWForward       = "the high watermark never goes back"
	invNoCommittedCut  = "nothing committed is truncated"
	invOneIncarnation  = "an epoch is led by one incarnation"
	invEpochForward    = "leader epochs only grow, and name one leader each"
	invCleanElection   = "only members of the in-sync set are elected"
	invGrowth          = "a member is added under the registration that it acknowledged under"
	invEligible        = "a registration is eligible only once nothing of its lost storage is in sync"
	invMinimum         = "the in-sync set does not shrink below the minimum"
	invLogStart        = "the log start only moves forward, and no further than was asked"
	invLatest          = "the latest offset never goes back"
	invReadCommitted   = "readers see committed records only, in order and without gaps"
	invProducerState   = "a producer that was acknowledged is known to every later leader"
	invHistory         = "acknowledged records are read, once, in order, where they were acknowledged"
	invConverges       = "after healing everything is in sync and writable again"
	invSettles         = "records do not change for ever without a cause"
	invMachinePanicked = "no part of a broker panics"
)

// A partition's record may change so often in a window of time: far more often than faults come.
const (
	changeWindow = 10 * time.Second
	maxChanges   = 150
)

// violation ends a run.
type violation struct {
	invariant, detail string
}

func (w *world) fail(invariant, format string, args ...any) {
	panic(violation{invariant, fmt.Sprintf(format, args...)})
}

// must is for what cannot fail in a simulation.
func (w *world) must(err error) {
	if err != nil {
		w.fail("sim", "%v", err)
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checker knows the truth, and compares what brokers do with it.
type checker struct {
	*world
	ledgers       []*ledger
	leaderChanges int
	// lost are logs that are not there any more, whatever the metadata say.
	lost map[ids.LogID]bool
	// acks are what each log has acknowledged, ever.
	acks map[ids.LogID]*acks
}

// acks of one log: the highest offset ever and in each epoch, and the registrations that it was acknowledged under in the newest epoch.
type acks struct {
	most  int64
	in    map[int32]int64
	epoch int32
	under []int64
}

// ledger is the truth about one partition.
type ledger struct {
	ref      metadata.PartitionRef
	min      int
	batches  []committed
	end      int64
	ackedEnd int64
	// reached is how far the leaders of each epoch have committed.
	reached map[int32]int64
	// ackedEpoch is the newest epoch in which anything was acknowledged, or told as the latest offset, and latest the highest of those.
	ackedEpoch int32
	latest     int64
	leaders    map[int32]incarnation
	record     *metadata.Partition
	// asked is the highest log start that anybody wanted, published the highest that any leader has published.
	asked, published int64
	// losses are replicas that were lost since the partition was last known to be whole.
	losses     int
	wholeSince time.Duration
	// forced: somebody has had a leader elected that need not have everything. Nothing is promised about the records from then on.
	forced bool
	// changes is how often the record changed since the beginning of a window of time.
	changes     int
	changesFrom time.Duration
}

// committed is one batch below the high watermark of some replica.
type committed struct {
	base, next int64
	hash       uint32 // of all bytes
	crc        uint32 // of what the producer wrote
}

type incarnation struct {
	broker int32
	boot   metadata.BootID
	epoch  int64
}

func newChecker(w *world) *checker {
	return &checker{world: w, lost: map[ids.LogID]bool{}, acks: map[ids.LogID]*acks{}}
}

func (c *checker) ledger(ref metadata.PartitionRef) *ledger {
	for _, l := range c.ledgers {
		if l.ref == ref {
			return l
		}
	}
	return nil
}

// at finds the batch that begins at base, or where it would be.
func (l *ledger) at(base int64) (int, bool) {
	return slices.BinarySearchFunc(l.batches, base, func(b committed, t int64) int {
		switch {
		case b.base < t:
			return -1
		case b.base > t:
			return 1
		}
		return 0
	})
}

// compare walks a replica's batches from an offset on, up to another one, and compares them with the ledger; what is newly committed is
// added to it.
func (c *checker) compare(pt *part, from, to int64, add bool) {
	l := c.ledgers[pt.index]
	for from < to && !l.forced {
		r, err := pt.held.ReadReplicaRange(from, 64<<10)
		var buf []byte
		if err == nil {
			buf = make([]byte, r.Len)
			err = r.ReadInto(buf)
			r.Release()
		}
		if err != nil {
			if c.lost[pt.held.LogID()] {
				return // it was damaged on purpose, and this is how it shows
			}
			c.fail(invIdentical, "%s cannot be read at %d: %v", pt.name(), from, err)
		}
		if len(buf) == 0 {
			c.fail(invLeaderHasAll, "%s ends at %d, below %d", pt.name(), from, to)
		}
		for len(buf) > 0 && from < to {
			batch, rest, err := record.NextFrame(buf)
			c.must(err)
			h, err := record.ParseHeader(batch)
			c.must(err)
			c.compareBatch(pt, l, committed{base: h.BaseOffset, next: h.NextOffset(), hash: crc32.Checksum(batch, castagnoli), crc: h.CRC}, add)
			from, buf = h.NextOffset(), rest
		}
	}
}

func (c *checker) compareBatch(pt *part, l *ledger, b committed, add bool) {
	i, found := l.at(b.base)
	switch {
	case found && l.batches[i] != b:
		c.fail(invIdentical, "%s has other bytes than what was committed at %d", pt.name(), b.base)
	case found:
	case b.base < l.end:
		if len(l.batches) > 0 && b.base >= l.batches[0].base {
			c.fail(invIdentical, "%s has a batch at %d, inside of a committed one", pt.name(), b.base)
		}
	case b.base > l.end:
		c.fail(invIdentical, "%s has committed %d before %d", pt.name(), b.base, l.end)
	case add:
		l.batches = append(l.batches, b)
		l.end = b.next
	default:
		c.fail(invIdentical, "%s has uncommitted bytes at %d", pt.name(), b.base)
	}
}

// highWatermark: a replica's high watermark moved.
func (c *checker) highWatermark(pt *part, before, after int64) {
	if after < before {
		c.fail(invHWForward, "%s: from %d to %d", pt.name(), before, after)
	}
	c.compare(pt, max(before, pt.held.ReplicaStart()), after, true)
	if l := c.ledgers[pt.index]; pt.status.Leading {
		c.everyMember(pt, l, after)
		l.reached[pt.status.Epoch] = max(l.reached[pt.status.Epoch], after)
	}
}

// everyMember: a leader may commit only what every member that counts has acknowledged, as the log that the entry names, in this epoch.
func (c *checker) everyMember(pt *part, l *ledger, hw int64) {
	st := pt.machine.Status()
	if !st.Leading || l.forced || hw <= pt.held.JournaledLogStart() {
		return
	}
	for _, m := range st.Effective {
		acked := int64(-1)
		if m.BrokerID == pt.node.id {
			acked = pt.node.durable[pt.ref]
		} else if a := c.acks[m.LogID]; a != nil {
			acked = a.in[st.Epoch]
		}
		if acked < hw {
			c.fail(invHWAcked, "%s commits up to %d in epoch %d, %d/%s has acknowledged %d", pt.name(), hw, st.Epoch, m.BrokerID, short(m.LogID), acked)
		}
	}
}

// proposes: a leader wants another in-sync set. Who is new has acknowledged, in this epoch and as the log that the entry names, all that is committed
// and all that may have been before the epoch.
func (c *checker) proposes(pt *part, e *replica.Effect) {
	if c.ledgers[pt.index].forced || !pt.status.Leading || pt.status.Epoch != e.Epoch {
		return
	}
	for _, added := range e.Added {
		for _, m := range e.ISR {
			if m.BrokerID != added.BrokerID {
				continue
			}
			acked := int64(-1)
			if a := c.acks[m.LogID]; a != nil {
				acked = a.in[e.Epoch]
			}
			if acked < pt.status.EpochStart {
				c.fail(invGrowth, "%s proposes %d/%s in epoch %d, which starts at %d, and it has acknowledged %d", pt.name(), m.BrokerID, short(m.LogID), e.Epoch,
					pt.status.EpochStart, acked)
			}
		}
	}
}

// opened: a log came back from the disk.
func (c *checker) opened(pt *part) {
	l := c.ledgers[pt.index]
	if pt.damage != nil || l.forced {
		return
	}
	if hw := pt.held.HighWatermark(); hw > l.end {
		c.fail(invHWForward, "%s opens with high watermark %d, committed is %d", pt.name(), hw, l.end)
	}
	c.compare(pt, pt.held.ReplicaStart(), pt.held.HighWatermark(), false)
}

// leads: a replica has begun to lead an epoch.
func (c *checker) leads(pt *part) {
	l, epoch := c.ledgers[pt.index], pt.status.Epoch
	now := incarnation{pt.node.id, pt.boot, pt.epoch}
	if before, ok := l.leaders[epoch]; ok && before != now {
		c.fail(invOneIncarnation, "epoch %d of %s is led by broker %d, registration %d, and was by broker %d, registration %d", epoch, c.name(pt.ref),
			now.broker, now.epoch, before.broker, before.epoch)
	} else if ok {
		c.fail(invOneIncarnation, "epoch %d of %s is led again by broker %d, registration %d", epoch, c.name(pt.ref), now.broker, now.epoch)
	}
	l.leaders[epoch] = now
	if l.forced {
		return
	}
	// Somebody who learns late that it leads need not have what was committed in later epochs meanwhile.
	must := l.before(epoch)
	if end := pt.held.End(); end < must {
		c.fail(invLeaderHasAll, "%s leads epoch %d and ends at %d, committed before was %d, acknowledged %d", pt.name(), epoch, end, must, l.ackedEnd)
	}
	c.compare(pt, pt.held.ReplicaStart(), must, false)
	if start := pt.held.JournaledLogStart(); l.record.LeaderEpoch == epoch && start < l.published || pt.held.LogStart() > l.asked {
		c.fail(invLogStart, "%s leads epoch %d and begins at %d (%d), published was %d, asked for %d", pt.name(), epoch, pt.held.LogStart(), start,
			l.published, l.asked)
	}
}

// before returns how far the leaders of the epochs before have committed.
func (l *ledger) before(epoch int32) int64 {
	must := int64(0)
	for e, end := range l.reached {
		if e < epoch {
			must = max(must, end)
		}
	}
	return must
}

// cutting looks at the batch at which a replica is about to be cut.
func (c *checker) cutting(pt *part, to int64) (b committed) {
	r, err := pt.held.ReadReplicaRange(to, 1)
	if err != nil || r.Len == 0 {
		return committed{base: -1}
	}
	defer r.Release()
	buf := make([]byte, r.Len)
	if err := r.ReadInto(buf); err != nil {
		return committed{base: -1}
	}
	return committed{base: r.First, next: r.Next, hash: crc32.Checksum(buf, castagnoli)}
}

// truncated: a replica was cut at a batch. Neither what it knew to be committed may go, nor what had been committed in earlier epochs.
func (c *checker) truncated(pt *part, hw int64, cut committed) {
	l := c.ledgers[pt.index]
	if l.forced {
		return
	}
	if now := pt.held.End(); now < hw {
		c.fail(invNoCommittedCut, "%s is cut to %d, its high watermark was %d", pt.name(), now, hw)
	}
	if i, found := l.at(cut.base); found && l.batches[i].hash == cut.hash && cut.next <= l.before(pt.status.Epoch) {
		c.fail(invNoCommittedCut, "%s is cut to %d in epoch %d, up to %d was committed before", pt.name(), pt.held.End(), pt.status.Epoch, cut.next)
	}
}

// logStart: a replica published its log start.
func (c *checker) logStart(pt *part, before int64) {
	l := c.ledgers[pt.index]
	now := pt.held.LogStart()
	if now < before || now > max(l.asked, before) && !l.forced {
		c.fail(invLogStart, "%s: from %d to %d, asked for %d", pt.name(), before, now, l.asked)
	}
	if pt.status.Leading {
		l.published = max(l.published, now)
	}
}

// created: a log begins; as a copy, where its leader's does.
func (c *checker) created(pt *part) {
	l := c.ledgers[pt.index]
	if start := pt.held.LogStart(); start > l.asked {
		c.fail(invLogStart, "%s begins at %d, asked for was %d", pt.name(), start, l.asked)
	}
}

// sendsAck: a follower is about to acknowledge an offset.
func (c *checker) sendsAck(pt *part, epoch int32, registration, offset int64) {
	a := c.acks[pt.held.LogID()]
	if a == nil {
		a = &acks{in: map[int32]int64{}}
		c.acks[pt.held.LogID()] = a
	}
	if epoch > a.epoch {
		a.epoch, a.under = epoch, nil
	}
	if epoch == a.epoch && !slices.Contains(a.under, registration) {
		a.under = append(a.under, registration)
	}
	a.most, a.in[epoch] = max(a.most, offset), max(a.in[epoch], offset)
	if real := pt.node.durable[pt.ref]; offset > real {
		c.fail(invAckFlushed, "%s acknowledges %d, on its disk is %d", pt.name(), offset, real)
	}
}

// acked: a leader answers a produce.
func (c *checker) acked(pt *part, w *waiting) {
	c.cov.hit(Acks)
	l := c.ledgers[pt.index]
	h, err := record.ParseHeader(w.batch)
	c.must(err)
	if l.forced {
		return
	}
	i, found := l.at(w.base)
	if !found || l.batches[i].crc != h.CRC {
		c.fail(invIdentical, "%s acknowledges a batch at %d which is not what was committed there", pt.name(), w.base)
	}
	c.ackedDurable(pt, l, w)
	l.ackedEnd = max(l.ackedEnd, w.end)
	c.told(l, pt.status.Epoch, w.end)
}

// ackedDurable: what is acknowledged is on the disks of as many members of the in-sync set as the minimum asks for, those aside whose loss the
// leader could not know of yet.
func (c *checker) ackedDurable(pt *part, l *ledger, w *waiting) {
	if w.duplicate {
		return // of what may have been committed long ago
	}
	disks, unknown := 0, 0
	for _, m := range l.record.ISR {
		if !c.lost[m.LogID] && c.nodes[m.BrokerID].durable[pt.ref] >= w.end {
			disks++
		}
	}
	for _, m := range pt.status.ISR {
		if a := c.acks[m.LogID]; c.lost[m.LogID] && (a != nil && a.most >= w.end || m.BrokerID == pt.node.id) {
			unknown++ // it had it
		}
	}
	if disks+unknown < pt.status.MinISR {
		c.fail(invAckedDurable, "%s acknowledges up to %d, which is on %d disks of the members %s, %d needed", pt.name(), w.end, disks, members(l.record.ISR),
			pt.status.MinISR)
	}
}

// told: a client was told of an offset under an epoch.
func (c *checker) told(l *ledger, epoch int32, end int64) {
	l.ackedEpoch, l.latest = max(l.ackedEpoch, epoch), max(l.latest, end)
}

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
