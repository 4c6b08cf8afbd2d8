package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/broker/topicconfig"
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
	return v.(*hosted).Partition, true //nolint:errcheck // only host stores into it
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

// plan is the work of one pass.
type plan struct {
	create  []creation
	roles   []assignment
	purge   []*metadata.Partition
	confirm []metadata.Confirmation
	marks   []metadata.Mark
	configs []*metadata.Topic
}

type creation struct {
	topic *metadata.Topic
	part  *metadata.Partition
}

type assignment struct {
	log  *log.Log
	ref  metadata.PartitionRef
	role partition.Role
}

// add looks at this broker's share of one topic.
func (w *plan) add(h *host, s *metadata.State, t *metadata.Topic) {
	hosted := false
	for _, p := range s.Partitions(t.ID) {
		if p == nil || !p.HasReplica(h.reg.BrokerID()) {
			continue
		}
		if t.State == metadata.TopicDeleting {
			w.purge = append(w.purge, p)
			continue
		}
		hosted = true
		w.addPartition(h, s, t, p)
	}
	if hosted {
		w.configs = append(w.configs, t)
	}
}

func (w *plan) addPartition(h *host, s *metadata.State, t *metadata.Topic, p *metadata.Partition) {
	l, ok := h.store.Log(p.TopicID, p.Partition)
	if !ok {
		switch st, known := h.store.State(p.TopicID, p.Partition); {
		case known:
			w.mark(h, s, p, st, ids.LogID{})
		case metadata.NeedsConfirmation(p, h.reg):
			w.create = append(w.create, creation{t, p})
		default:
			// The cluster counts on a log that is not here: the storage was lost or replaced.
			w.mark(h, s, p, log.State{Health: log.Failed, Err: errNoDirectory}, ids.LogID{})
		}
		return
	}
	if st := l.State(); st.Health == log.Quarantined || st.Health == log.Failed {
		w.mark(h, s, p, st, l.LogID())
	} else if metadata.NeedsConfirmation(p, h.reg) {
		w.confirm = append(w.confirm, metadata.Confirmation{Partition: p, LogID: l.LogID()})
	}
	w.roles = append(w.roles, assignment{log: l, ref: p.PartitionRef, role: h.role(t, p, l)})
}

// mark reports a log that lost what it had acknowledged, as long as the cluster counts on it. A zero id is that of the ISR's entry.
func (w *plan) mark(h *host, s *metadata.State, p *metadata.Partition, st log.State, id ids.LogID) {
	m, member := p.Member(h.reg.BrokerID())
	if !member || !id.IsZero() && m.LogID != id || m.StorageID != h.store.StorageID() {
		return
	}
	if r, ok := s.Storage(h.reg.BrokerID()); ok && r.Marked(p.PartitionRef) {
		return
	}
	kind := metadata.MarkQuarantined
	if st.Health == log.Failed {
		kind = metadata.MarkFailed
	}
	h.lg.Error("partition is damaged", "topic_id", p.TopicID, "partition", p.Partition, "health", st.Health.String(), "error", st.Err)
	w.marks = append(w.marks, metadata.Mark{Partition: p.PartitionRef, Kind: kind, LogID: m.LogID})
}

// role says what p means for this broker. It leads only under the registration that the partition names, and only with the log that
// the cluster counts on (DESIGN: an epoch is led by one incarnation).
func (h *host) role(t *metadata.Topic, p *metadata.Partition, l *log.Log) partition.Role {
	isr := make([]int32, 0, len(p.ISR))
	for _, m := range p.ISR {
		isr = append(isr, m.BrokerID)
	}
	me := h.reg.BrokerID()
	m, member := p.Member(me)
	usable := member && m.StorageID == h.store.StorageID() && m.LogID == l.LogID()
	var damage error
	if st := l.State(); st.Health == log.Quarantined {
		usable, damage = false, st.Err
	}
	return partition.Role{
		Damage:   damage,
		Leading:  usable && p.Leader == me && p.LeaderBrokerEpoch == h.reg.Epoch(),
		LeaderID: p.Leader,
		Epoch:    p.LeaderEpoch,
		Replicas: p.Replicas,
		ISR:      isr,
		MinISR:   topicconfig.Effective(t.Config, h.defaults, t.Replicas).GetMinInSyncReplicas(),
	}
}

// carryOut does the work; what fails is logged and reported.
func (h *host) carryOut(ctx context.Context, w *plan) (failed bool) {
	attempt := func(what string, err error) {
		if err != nil && ctx.Err() == nil {
			h.lg.Warn("applying metadata failed; will retry", "step", what, "error", err)
			failed = true
		}
	}
	attempt("purge", h.purge(ctx, w.purge))
	confirmed, err := h.createAll(ctx, w.create)
	attempt("create", err)
	attempt("confirm", h.confirm(ctx, append(w.confirm, confirmed...)))
	attempt("mark", h.reportMarks(ctx, w.marks))
	attempt("configure", h.configure(w.configs))
	attempt("assign", h.assign(w.roles))
	return failed
}

func (h *host) createAll(ctx context.Context, work []creation) ([]metadata.Confirmation, error) {
	done := make([]metadata.Confirmation, len(work))
	var g errgroup.Group
	g.SetLimit(hostParallelism)
	for i, c := range work {
		g.Go(func() error {
			info, err := topicInfo(c.topic.Name, c.topic.Config)
			if err != nil {
				return err
			}
			l, err := h.store.CreateLog(ctx, c.part.TopicID, c.part.Partition, info, log.StartState{})
			if err != nil {
				return err
			}
			done[i] = metadata.Confirmation{Partition: c.part, LogID: l.LogID()}
			return nil
		})
	}
	err := g.Wait()
	var ok []metadata.Confirmation
	for _, c := range done {
		if c.Partition != nil {
			ok = append(ok, c)
		}
	}
	return ok, err
}

func (h *host) confirm(ctx context.Context, c []metadata.Confirmation) error {
	if len(c) == 0 {
		return nil
	}
	r, err := h.client.ConfirmReplicas(ctx, h.reg, c)
	if err == nil && r.Count() < len(c) {
		err = fmt.Errorf("%d of %d confirmations were overtaken", len(c)-r.Count(), len(c))
	}
	return err
}

func (h *host) reportMarks(ctx context.Context, marks []metadata.Mark) error {
	if len(marks) == 0 {
		return nil
	}
	return h.client.MarkLogs(ctx, h.reg, marks)
}

// configure brings settings that changed into logs and directories.
func (h *host) configure(topics []*metadata.Topic) error {
	var errs []error
	for _, t := range topics {
		info, err := topicInfo(t.Name, t.Config)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if have, ok := h.applied[t.ID]; ok && have == string(info.Config) {
			continue
		}
		if err := h.store.UpdateConfig(t.ID, info); err != nil {
			errs = append(errs, err)
			continue
		}
		h.applied[t.ID] = string(info.Config)
	}
	return errors.Join(errs...)
}

func (h *host) assign(work []assignment) error {
	var errs []error
	for _, a := range work {
		v, _ := h.partitions.Load(a.ref)
		p, ok := v.(*hosted)
		if ok && p.log != a.log {
			p.Close()
			ok = false
		}
		if !ok {
			p = &hosted{partition.New(a.log, h.clk, h.store.CheckProduce), a.log}
		}
		if err := p.SetRole(a.role); err != nil {
			errs = append(errs, err)
		}
		if !ok {
			h.partitions.Store(a.ref, p)
		}
	}
	return errors.Join(errs...)
}

// purge removes the directories of deleted topics and says so.
func (h *host) purge(ctx context.Context, work []*metadata.Partition) error {
	var g errgroup.Group
	g.SetLimit(hostParallelism)
	for _, p := range work {
		g.Go(func() error {
			if v, ok := h.partitions.LoadAndDelete(p.PartitionRef); ok {
				v.(*hosted).Close() //nolint:errcheck // only host stores into it
			}
			return h.store.DeleteLog(storage.Tombstone{TopicID: p.TopicID, Partition: p.Partition})
		})
	}
	if err := g.Wait(); err != nil || len(work) == 0 {
		return err
	}
	for _, p := range work {
		delete(h.applied, p.TopicID)
	}
	_, err := h.client.ConfirmPurged(ctx, h.reg, work)
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

func (h *host) closeAll() {
	h.partitions.Range(func(k, v any) bool {
		h.partitions.Delete(k)
		v.(*hosted).Close() //nolint:errcheck // only host stores into it
		return true
	})
}
