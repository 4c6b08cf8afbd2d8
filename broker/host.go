package broker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

const (
	// hostParallelism bounds the directories that are created or removed at the same time.
	hostParallelism = 16
	// hostInterval is the time between two looks at what changes without metadata: work that failed, logs that were damaged.
	hostInterval = 500 * time.Millisecond
	// tickInterval is how often partitions with other replicas look at the time.
	tickInterval = 100 * time.Millisecond
	// diskWorkers bounds the truncations and moves of log starts that wait for the disk at the same time, resetWorkers the logs that are
	// made anew with their leader's state.
	diskWorkers  = 16
	resetWorkers = 8
)

// errNoDirectory: metadata names a log that this data directory never held.
var errNoDirectory = errors.New("the partition's directory does not exist")

// hostConfig is what a host joins.
type hostConfig struct {
	client *metadata.Client
	cache  *metadata.Cache
	reg    *metadata.Registration
	store  *storage.Store
	view   *view
	clk    clock.Clock
	lg     *slog.Logger
	// lagTimeout is how long an in-sync replica may stay behind.
	lagTimeout time.Duration
	// transport and starts reach the leaders of partitions that this broker follows, writer the metadata of those that it leads. Nil in a
	// cluster of one broker's tests.
	transport partition.Transport
	writer    partition.MetadataWriter
	starts    startStates
	// seen is told of each state before it is acted on; nil: nobody.
	seen func(*metadata.State)
}

// startStates asks a leader what a log begins with that is made anew at an offset.
type startStates interface {
	StartState(ctx context.Context, leader int32, ref metadata.PartitionRef, epoch int32, offset int64) (log.StartState, error)
}

// host makes the partitions of this broker what the metadata says: it creates and removes directories, applies roles and settings, and
// reports what it did. It is level-triggered: each pass looks at the whole difference, so a lost step is found by the next.
type host struct {
	hostConfig
	defaults *runnelv1.TopicConfig
	origin   time.Time // what partitions count their time from
	workers  *partition.Workers
	resets   *partition.Workers

	// partitions maps metadata.PartitionRef to *partition.Partition; look-ups take no lock.
	partitions sync.Map
	// missing counts the partitions that this broker should lead and does not; -1 before the first pass.
	missing atomic.Int64
	// failed: fail was called. Partitions that are made afterwards are closed at once.
	failed atomic.Bool
	// retired: the broker is about to end, and neither leads nor follows any more.
	retired atomic.Bool
	// again asks for a pass over everything.
	again chan struct{}

	// Only the goroutine of Run uses what follows.
	ctx     context.Context        // of the pass, without its end
	applied map[ids.TopicID]string // settings in force, as stored in the directories
	saved   metadata.Position
	// held are the epochs that this broker takes no part in before a position is saved.
	held map[metadata.PartitionRef]int32
}

func newHost(c hostConfig) *host {
	h := &host{
		hostConfig: c, defaults: c.view.defaults, origin: c.clk.Now(), workers: partition.NewWorkers(diskWorkers), resets: partition.NewWorkers(resetWorkers),
		applied: map[ids.TopicID]string{}, held: map[metadata.PartitionRef]int32{}, again: make(chan struct{}, 1),
	}
	h.missing.Store(-1)
	return h
}

// lookup returns a partition that this broker hosts.
func (h *host) lookup(ref metadata.PartitionRef) (*partition.Partition, bool) {
	v, ok := h.partitions.Load(ref)
	if !ok {
		return nil, false
	}
	return v.(*partition.Partition), true // only host stores into it
}

// Run follows the metadata until ctx ends, then closes all partitions. It acts on nothing older than this broker's registration.
func (h *host) Run(ctx context.Context) error {
	// Truncations and resets that are under way go on without their partitions, and end before the log does.
	defer h.workers.Wait()
	defer h.resets.Wait()
	defer h.closeAll()
	tick := h.clk.NewTicker(hostInterval)
	defer tick.Stop()
	var last *metadata.State
	damaged, failed := 0, false
	for {
		// A registration that lapsed is replaced by a newer one while this runs.
		state, err := h.cache.WaitRevision(ctx, h.reg.Epoch())
		if err != nil {
			return ignoreEnd(ctx, err)
		}
		if h.seen != nil {
			h.seen(state)
		}
		failed = h.pass(ctx, state, last) || failed && last != nil // a look at what changed makes up for nothing that failed before
		last = state
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return nil
			case <-state.Changed():
				again = true
			case <-h.again:
				last, again = nil, true
			case <-tick.C():
				// Logs are damaged, and work fails, without metadata changing: look at everything again.
				n := h.countDamaged()
				if again = failed || n != damaged; again {
					last, damaged = nil, n
				}
			}
		}
	}
}

// lookAgain asks for a pass over everything.
func (h *host) lookAgain() {
	select {
	case h.again <- struct{}{}:
	default:
	}
}

// Tick lets partitions with other replicas look at the time, until ctx ends.
func (h *host) Tick(ctx context.Context) error {
	tick := h.clk.NewTicker(tickInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			h.each((*partition.Partition).Tick)
		}
	}
}

func (h *host) each(f func(*partition.Partition)) {
	h.partitions.Range(func(_, v any) bool {
		f(v.(*partition.Partition)) // only host stores into it
		return true
	})
}

// retention is storage's wish that a log begin at target. Only a leader's counts.
func (h *host) retention(l *log.Log, target int64) {
	if p, ok := h.lookup(metadata.PartitionRef{TopicID: l.TopicID(), Partition: l.Partition()}); ok && p.Log() == l {
		p.WantLogStart(target)
	}
}

func (h *host) countDamaged() (n int) {
	for _, l := range h.store.Logs() {
		if st := l.State(); st.Health == log.Quarantined || st.Health == log.Failed {
			n++
		}
	}
	return n
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // what was cut short by the end has not failed
	}
	return err
}

// pass brings everything that changed from last (nil: all) to state into effect. It reports whether something has to be tried again.
func (h *host) pass(ctx context.Context, state, last *metadata.State) (failed bool) {
	unsaved := h.savePosition(state.Seen())
	var work plan
	for _, t := range h.changed(state, last) {
		work.add(h, state, t)
	}
	if unsaved != nil {
		h.lg.Error("saving the metadata position failed", "error", unsaved)
		work.withhold(h)
	} else {
		clear(h.held)
	}
	failed = h.carryOut(ctx, &work) || unsaved != nil
	h.missing.Store(h.countMissing(state))
	h.view.publish(state)
	return failed
}

// situationChanged reports whether this broker's own registration or registry entry changed: roles and marks depend on them.
func (h *host) situationChanged(state, last *metadata.State) bool {
	me := h.reg.BrokerID()
	now, _ := state.Broker(me)
	was, _ := last.Broker(me)
	entry, _ := state.Storage(me)
	before, _ := last.Storage(me)
	return now != was || entry != before
}

// changed lists the topics to look at: all of them when this broker's own situation may have changed.
func (h *host) changed(state, last *metadata.State) []*metadata.Topic {
	if last == nil {
		return state.Topics()
	}
	delta := state.Since(last)
	if h.situationChanged(state, last) {
		return state.Topics()
	}
	var out []*metadata.Topic
	for _, id := range delta.Topics {
		if t, ok := state.TopicByID(id); ok {
			out = append(out, t)
		}
	}
	return out
}

func (h *host) savePosition(p metadata.Position) error {
	if !h.saved.Before(p) && h.saved != (metadata.Position{}) {
		return nil
	}
	err := h.store.SavePosition(storage.Position{ClusterID: p.ClusterID, EtcdClusterID: p.EtcdClusterID, Era: p.Era, Revision: p.Revision})
	if err == nil {
		h.saved = p
	}
	return err
}

// countMissing counts partitions of which this broker is the named leader or the only replica, and which it does not lead.
func (h *host) countMissing(s *metadata.State) int64 {
	me, n := h.reg.BrokerID(), int64(0)
	for _, t := range s.Topics() {
		if t.State == metadata.TopicDeleting {
			continue
		}
		for _, p := range s.Partitions(t.ID) {
			if p == nil || p.Leader != me && (len(p.Replicas) != 1 || p.Replicas[0] != me) {
				continue
			}
			if here, ok := h.lookup(p.PartitionRef); (!ok || !here.Role().Leading) && !h.damaged(p) {
				n++
			}
		}
	}
	return n
}

// damaged partitions wait for a human; the broker is ready without them.
func (h *host) damaged(p *metadata.Partition) bool {
	st, ok := h.store.State(p.TopicID, p.Partition)
	return ok && (st.Health == log.Quarantined || st.Health == log.Failed)
}

// fail answers all that waits, and lets nothing more be produced: storage has ended, and no sync will come. Safe for concurrent use.
func (h *host) fail(cause error) {
	h.failed.Store(true)
	h.each(func(p *partition.Partition) {
		p.Fail(cause)
		p.Close()
	})
}

// retire ends following, for good, and leading once it is over: clients are then sent to who the metadata names. Safe for concurrent use.
func (h *host) retire() {
	h.retired.Store(true)
	h.partitions.Range(func(k, v any) bool {
		if !v.(*partition.Partition).Role().Leading { // only host stores into it
			h.closePartition(k.(metadata.PartitionRef))
		}
		return true
	})
}

func (h *host) closeAll() {
	h.partitions.Range(func(k, v any) bool {
		h.partitions.Delete(k)
		v.(*partition.Partition).Close() // only host stores into it
		return true
	})
}
