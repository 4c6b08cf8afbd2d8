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
)

// errNoDirectory: metadata names a log that this data directory never held.
var errNoDirectory = errors.New("the partition's directory does not exist")

// host makes the partitions of this broker what the metadata says: it creates and removes directories, applies roles and settings, and
// reports what it did. It is level-triggered: each pass looks at the whole difference, so a lost step is found by the next.
type host struct {
	client   *metadata.Client
	cache    *metadata.Cache
	reg      *metadata.Registration
	store    *storage.Store
	defaults *runnelv1.TopicConfig
	view     *view
	clk      clock.Clock
	lg       *slog.Logger

	// partitions maps metadata.PartitionRef to *hosted; look-ups take no lock.
	partitions sync.Map
	// missing counts the partitions that this broker should lead and does not; -1 before the first pass.
	missing atomic.Int64
	// failed: fail was called. Partitions that are made afterwards are closed at once.
	failed atomic.Bool

	// Only the goroutine of Run uses what follows.
	applied map[ids.TopicID]string // settings in force, as stored in the directories
	saved   metadata.Position
}

// hosted is a partition and the log that it was made of: a recovered partition has another.
type hosted struct {
	*partition.Partition
	log *log.Log
}

func newHost(client *metadata.Client, cache *metadata.Cache, reg *metadata.Registration, store *storage.Store, view *view, clk clock.Clock, lg *slog.Logger) *host {
	h := &host{
		client: client, cache: cache, reg: reg, store: store, defaults: view.defaults, view: view, clk: clk, lg: lg,
		applied: map[ids.TopicID]string{},
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
	return v.(*hosted).Partition, true // only host stores into it
}

// Run follows the metadata until ctx ends, then closes all partitions. It acts on nothing older than this broker's registration.
func (h *host) Run(ctx context.Context) error {
	defer h.closeAll()
	state, err := h.cache.WaitRevision(ctx, h.reg.Epoch())
	if err != nil {
		return ignoreEnd(ctx, err)
	}
	tick := h.clk.NewTicker(hostInterval)
	defer tick.Stop()
	var last *metadata.State
	damaged := 0
	for {
		failed := h.pass(ctx, state, last)
		last = state
		for again := false; !again; {
			select {
			case <-ctx.Done():
				return nil
			case <-state.Changed():
				again = true
			case <-tick.C():
				// Logs are damaged, and work fails, without metadata changing: look at everything again.
				n := h.countDamaged()
				if again = failed || n != damaged; again {
					last, damaged = nil, n
				}
			}
		}
		state = h.cache.Snapshot()
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
	if err := h.savePosition(state.Position()); err != nil {
		h.lg.Error("saving the metadata position failed", "error", err)
		return true // leading under an epoch that a restart may not remember is not safe
	}
	var work plan
	for _, t := range h.changed(state, last) {
		work.add(h, state, t)
	}
	failed = h.carryOut(ctx, &work)
	h.missing.Store(h.countMissing(state))
	h.view.publish(state)
	return failed
}

// changed lists the topics to look at: all of them when a registration may have changed, since roles depend on it.
func (h *host) changed(state, last *metadata.State) []*metadata.Topic {
	if last == nil {
		return state.Topics()
	}
	delta := state.Since(last)
	if delta.Brokers {
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
	h.partitions.Range(func(_, v any) bool {
		v.(*hosted).Fail(cause)
		v.(*hosted).Close()
		return true
	})
}

func (h *host) closeAll() {
	h.partitions.Range(func(k, v any) bool {
		h.partitions.Delete(k)
		v.(*hosted).Close() // only host stores into it
		return true
	})
}
