package sim

import (
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"runnel.dev/runnel/broker/replica"
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
	if onDisk := pt.node.durable[pt.ref]; offset > onDisk {
		c.fail(invAckFlushed, "%s acknowledges %d, on its disk is %d", pt.name(), offset, onDisk)
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
