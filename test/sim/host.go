package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs/memfs"
)

const dataDir = "/data"

// disk is what outlives a process, until it is replaced.
type disk struct {
	fs      *memfs.Mem
	storage ids.StorageID
	journal *journal
}

func (w *world) newDisk() *disk {
	d := &disk{fs: memfs.NewWith(memfs.Options{Clock: simClock{w: w}}), storage: ids.StorageID(w.id16()), journal: newJournal()}
	if err := d.fs.MkdirAll(dataDir); err != nil {
		w.fail("disk", "%v", err)
	}
	d.fs.SyncAll()
	return d
}

func partitionDir(ref metadata.PartitionRef) string {
	return dataDir + "/" + ref.TopicID.String() + "/" + string(rune('0'+ref.Partition))
}

// host is the log.Host of a process: rounds of syncs, one at a time, each covering what was appended before it began.
type host struct {
	p       *proc
	dirty   []*log.Log
	results []*log.Log // what finished rounds have made durable and the journal does not say yet
	since   time.Duration
	running bool
	rounds  int
}

var errSync = errors.New("input/output error (injected)")

// MarkDirty implements log.Host.
func (h *host) MarkDirty(l *log.Log) {
	if !slices.Contains(h.dirty, l) {
		h.dirty = append(h.dirty, l)
	}
	h.kick()
}

// JournalNow implements log.Host.
func (h *host) JournalNow(_ context.Context, e log.JournalEntry) error {
	j := h.p.node.disk.journal
	j.write(e)
	j.sync()
	return nil
}

// Failed implements log.Host. A failed sync stops the broker, damage is reported.
func (h *host) Failed(_ *log.Log, err error) {
	if errors.Is(err, log.ErrFailed) {
		h.p.later(0, func() { h.p.node.crash(true) })
		return
	}
	h.p.later(0, h.p.stateChanged)
}

func (h *host) kick() {
	if h.running || len(h.dirty) == 0 || h.p.dead {
		return
	}
	h.running = true
	h.p.later(h.p.between(0, 100*time.Microsecond), h.round)
}

// syncAge is the age of the sync that is under way.
func (h *host) syncAge() time.Duration {
	if !h.running || h.since == 0 {
		return 0
	}
	return h.p.now - h.since
}

func (h *host) round() {
	h.rounds++
	h.since = h.p.now
	j := h.p.node.disk.journal
	var points []log.SyncPoint
	for _, l := range h.dirty {
		pt := l.PrepareSync()
		points = append(points, pt)
		if len(pt.NewEpochs()) > 0 || pt.NewAdopted() > 0 {
			e := l.JournalEntry()
			e.NewEpochs = pt.NewEpochs()
			j.write(e)
		}
	}
	h.dirty = h.dirty[:0]
	h.writeResults()
	h.wait(h.p.node.syncDelay(), func() { h.finish(points) })
}

// wait lets a disk operation take its time; on a hung disk, until it is well again.
func (h *host) wait(d time.Duration, done func()) {
	h.p.later(d, func() {
		if left := h.p.node.hungUntil - h.p.now; left > 0 {
			h.wait(left, done)
			return
		}
		done()
	})
}

func (h *host) finish(points []log.SyncPoint) {
	var err error
	if h.p.node.failSync {
		h.p.node.failSync = false
		h.p.cov.hit(SyncFailures)
		err = errSync
	}
	for _, pt := range points {
		if err == nil {
			err = pt.SyncFiles()
		}
	}
	if err == nil {
		h.p.node.disk.journal.sync()
	}
	for _, pt := range points {
		l := pt.Log()
		if part := h.p.hosting(l); part != nil && err == nil {
			part.madeDurable(pt.End())
		}
		l.CompleteSync(pt, err)
		h.results = append(h.results, l)
	}
	h.running, h.since = false, 0
	if err != nil {
		return
	}
	h.kick()
	if !h.running {
		n := h.rounds
		h.p.later(100*time.Millisecond, func() {
			if !h.running && h.rounds == n {
				h.writeResults()
				h.p.node.disk.journal.sync()
			}
		})
	}
}

func (h *host) writeResults() {
	for _, l := range h.results {
		if h.p.hosting(l) != nil {
			h.p.node.disk.journal.write(l.JournalEntry())
		}
	}
	h.results = h.results[:0]
}

// simClock shows a node's wall clock. Nothing in the simulation waits on a clock.
type simClock struct {
	w    *world
	node *node
}

var wallStart = time.Date(2031, 5, 1, 12, 0, 0, 0, time.UTC)

// Now implements clock.Clock.
func (c simClock) Now() time.Time {
	t := wallStart.Add(c.w.now)
	if c.node != nil {
		t = t.Add(c.node.clockOffset)
	}
	return t
}

// Since implements clock.Clock.
func (c simClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

var errNoTimers = errors.New("sim: the simulation's clock has no timers")

// NewTimer implements clock.Clock.
func (simClock) NewTimer(time.Duration) clock.Timer { panic(errNoTimers) }

// NewTicker implements clock.Clock.
func (simClock) NewTicker(time.Duration) clock.Ticker { panic(errNoTimers) }

// After implements clock.Clock.
func (simClock) After(time.Duration) <-chan time.Time { panic(errNoTimers) }

// AfterFunc implements clock.Clock.
func (simClock) AfterFunc(time.Duration, func()) clock.Timer { panic(errNoTimers) }
