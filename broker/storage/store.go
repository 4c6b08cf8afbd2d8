package storage

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
)

// Store is an open data directory with all its partitions. Its methods are safe for concurrent use.
type Store struct {
	cfg     Config
	fsys    vfs.FS
	clk     clock.Clock
	lg      *slog.Logger
	reg     prometheus.Registerer
	metrics *metrics

	dir     *dataDir
	journal *journal
	syncer  *syncer
	cache   *segment.Cache
	disk    diskWatch
	full    atomic.Pointer[DiskFullError] // set while produce is refused

	// refusals are what the last look found; refusal, which finds it, is the disk watch's. refused holds a token for a look out of turn.
	refusals atomic.Pointer[Refusals]
	refusal  refusalWatch
	refused  chan struct{}

	report Report

	positionMu sync.Mutex // serialises replacing the position, and the cluster snapshot

	// dirMu serialises making and removing the directories of topics.
	dirMu sync.Mutex

	mu struct {
		sync.RWMutex
		partitions map[partitionKey]*partition
		busy       map[partitionKey]struct{} // being created, deleted or recovered
		running    bool
		closed     bool
	}
}

// partition is one that the data directory holds, or should hold.
//
// Invariant: log is nil if and only if broken says why there is none.
type partition struct {
	log    *log.Log
	broken *log.State
	known  logState // what the journal knew when the directory was opened
}

func (p *partition) state() log.State {
	if p.broken != nil {
		return *p.broken
	}
	return p.log.State()
}

// PartitionRef names a partition.
type PartitionRef struct {
	TopicID   ids.TopicID
	Partition int32
}

func (k partitionKey) ref() PartitionRef { return PartitionRef(k) }

// StorageID is the identity of the data directory.
func (s *Store) StorageID() ids.StorageID { return s.dir.meta.StorageID }

// ClusterID is the cluster that the data directory belongs to.
func (s *Store) ClusterID() string { return s.dir.meta.ClusterID }

// Report says what Open found.
func (s *Store) Report() Report { return s.report }

// Log returns the log of a partition, in whatever state it is; false if the data directory holds none, or none that opens (State
// tells which).
func (s *Store) Log(topic ids.TopicID, n int32) (*log.Log, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.mu.partitions[partitionKey{topic, n}]
	if !ok || p.log == nil {
		return nil, false
	}
	return p.log, true
}

// State returns the state of a partition; false if the data directory never held it. A partition whose directory is gone, or whose
// identity cannot be read, is quarantined: metadata must not take it for one that was never here.
func (s *Store) State(topic ids.TopicID, n int32) (log.State, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.mu.partitions[partitionKey{topic, n}]
	if !ok {
		return log.State{}, false
	}
	return p.state(), true
}

// Logs returns all open logs, ordered by topic ID and partition.
func (s *Store) Logs() []*log.Log {
	s.mu.RLock()
	defer s.mu.RUnlock()
	logs := make([]*log.Log, 0, len(s.mu.partitions))
	for _, k := range s.keysLocked() {
		if l := s.mu.partitions[k].log; l != nil {
			logs = append(logs, l)
		}
	}
	return logs
}

// Partitions returns all partitions that the data directory holds or should hold, ordered by topic ID and partition.
func (s *Store) Partitions() []PartitionRef {
	s.mu.RLock()
	defer s.mu.RUnlock()
	refs := make([]PartitionRef, 0, len(s.mu.partitions))
	for _, k := range s.keysLocked() {
		refs = append(refs, k.ref())
	}
	return refs
}

func (s *Store) keysLocked() []partitionKey { return sortedKeys(s.mu.partitions) }

func sortedKeys[V any](m map[partitionKey]V) []partitionKey {
	keys := make([]partitionKey, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

func compareKeys(a, b partitionKey) int {
	return cmp.Or(slices.Compare(a.TopicID[:], b.TopicID[:]), cmp.Compare(a.Partition, b.Partition))
}

// SyncAge is how long the present sync has been running, 0 when none is. A value that grows shows a disk that hangs.
func (s *Store) SyncAge() time.Duration { return s.syncer.age() }

// DiskUsage returns the space of the volume as of the last look.
func (s *Store) DiskUsage() Usage { return s.disk.usage() }

// CheckProduce returns nil, or a *DiskFullError (ErrDiskFull) while free space is below the reserve. Produce asks it before it
// appends; recovery, truncation and metadata do not. It takes no lock.
func (s *Store) CheckProduce() error {
	if err := s.full.Load(); err != nil {
		return err
	}
	return nil
}

// registered tells whether l is one of the store's logs.
func (s *Store) registered(l *log.Log) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.mu.partitions[partitionKey{l.TopicID(), l.Partition()}]
	return ok && p.log == l
}

// claim reserves a partition for a change of its directory; release ends it.
func (s *Store) claim(k partitionKey) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil, ErrClosed
	}
	if _, busy := s.mu.busy[k]; busy {
		return nil, ErrBusy
	}
	s.mu.busy[k] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.mu.busy, k)
	}, nil
}

func (s *Store) get(k partitionKey) (*partition, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.mu.partitions[k]
	return p, ok
}

func (s *Store) set(k partitionKey, p *partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.partitions[k] = p
}

// unset forgets a partition and takes its log out of the sync rounds.
func (s *Store) unset(k partitionKey) {
	s.mu.Lock()
	p := s.mu.partitions[k]
	delete(s.mu.partitions, k)
	s.mu.Unlock()
	if p != nil && p.log != nil {
		s.syncer.detach(p.log)
	}
}

func (s *Store) count(f func(*partition) bool) float64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := 0
	for _, p := range s.mu.partitions {
		if f(p) {
			n++
		}
	}
	return float64(n)
}

// host is what the logs see of the store.
type host struct{ s *Store }

var _ log.Host = host{}

// MarkDirty implements log.Host.
func (h host) MarkDirty(l *log.Log) { h.s.syncer.markDirty(l) }

// JournalNow implements log.Host.
func (h host) JournalNow(ctx context.Context, e log.JournalEntry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := newProgress(e)
	if r.kind == kindProgress {
		r.kind = kindLogStart
	}
	return h.s.commit(r)
}

// Failed implements log.Host.
func (h host) Failed(l *log.Log, err error) {
	lg := h.s.lg.With("topic_id", l.TopicID().String(), "partition", l.Partition(), "error", err)
	if errors.Is(err, log.ErrFailed) {
		if h.s.syncer.failure.Load() == nil { // the others of the round say the same
			lg.Error("A sync failed")
		}
		_ = h.s.syncer.fail("partition "+partitionKey{l.TopicID(), l.Partition()}.String(), err) // Run returns it
		return
	}
	level := slog.LevelWarn
	if h.s.noteRefusal(l, err) {
		level = slog.LevelDebug // it has been said of the volume, or of this log
	}
	lg.Log(context.Background(), level, "A write failed: the partition is read-only until the disk takes writes again")
}

// commit journals records durably. A sync that fails stops the store; a full disk does not.
func (s *Store) commit(records ...journalRecord) error {
	err := s.journal.commit(records)
	if err == nil || vfs.IsNoSpace(err) || errors.Is(err, ErrClosed) {
		return err
	}
	return s.syncer.fail(journalName, err)
}
