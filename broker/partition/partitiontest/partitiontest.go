// Package partitiontest makes real logs on an in-memory file system for tests, with sync rounds that the test decides on.
package partitiontest

import (
	"context"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/broker/segment"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs"
	"runnel.dev/runnel/internal/vfs/memfs"
	"runnel.dev/runnel/record"
)

// Host makes logs and syncs them: on demand by Sync, or by itself after StartSyncing.
type Host struct {
	FS    vfs.FS
	Clock clock.Clock

	t     testing.TB
	cache *segment.Cache
	dirty chan *log.Log
	mu    struct {
		sync.Mutex
		pending []*log.Log
		failed  []error
	}
}

// NewHost returns a host on an empty file system.
func NewHost(t testing.TB, clk clock.Clock) *Host {
	return &Host{FS: memfs.New(), Clock: clk, t: t, cache: segment.NewCache(64, 8<<20), dirty: make(chan *log.Log, 4096)}
}

// MarkDirty implements log.Host.
func (h *Host) MarkDirty(l *log.Log) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.pending = append(h.mu.pending, l)
	select {
	case h.dirty <- l:
	default:
	}
}

// JournalNow implements log.Host; nothing restarts here, so there is nothing to keep.
func (h *Host) JournalNow(context.Context, log.JournalEntry) error { return nil }

// Failed implements log.Host.
func (h *Host) Failed(_ *log.Log, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.failed = append(h.mu.failed, err)
}

// Sync runs one round over all dirty logs.
func (h *Host) Sync() {
	h.mu.Lock()
	dirty := h.mu.pending
	h.mu.pending = nil
	h.mu.Unlock()
	for _, l := range dirty {
		if err := l.SyncNow(func(log.JournalEntry) error { return nil }); err != nil {
			h.t.Errorf("sync: %v", err)
		}
	}
}

// StartSyncing runs rounds as logs become dirty, until the returned function is called.
func (h *Host) StartSyncing() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-h.dirty:
				h.Sync()
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

// Log makes a new, empty log. It is closed with the test.
func (h *Host) Log(id ids.TopicID, number int32, cfg log.Config) *log.Log {
	h.t.Helper()
	l, err := log.Create(context.Background(), log.OpenConfig{
		FS: h.FS, Dir: filepath.Join("data", id.String(), strconv.Itoa(int(number))), Config: cfg, Host: h, Clock: h.Clock,
		Logger: slog.New(slog.DiscardHandler), Cache: h.cache,
	}, log.Meta{TopicID: id, TopicName: "t", Partition: number, LogID: ids.NewLogID()}, log.StartState{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := l.Close(); err != nil {
			h.t.Error(err)
		}
	})
	return l
}

// Leader makes a partition that broker leads in epoch 1, alone, and returns once it does.
func (h *Host) Leader(id ids.TopicID, number, broker int32, cfg log.Config) *partition.Partition {
	h.t.Helper()
	p := partition.New(partition.Config{Context: context.Background(), Log: h.Log(id, number, cfg), Clock: h.Clock, Replica: replica.Config{BrokerID: broker}})
	Lead(p, broker, 1)
	h.Sync() // the epoch
	return p
}

// StorageID is the data directory of the partitions that Lead and Follow speak to.
var StorageID = ids.NewStorageID()

// Lead makes broker, whose partition p is, lead it alone under an epoch.
func Lead(p *partition.Partition, broker, epoch int32) {
	Set(p, replica.Record{
		Leader: broker, LeaderEpoch: epoch, LeaderBrokerEpoch: 1, Replicas: []int32{broker},
		ISR: []replica.Member{{BrokerID: broker, StorageID: StorageID, LogID: p.Log().LogID()}}, MinISR: 1,
	})
}

// Follow makes leader, another broker, lead p under an epoch.
func Follow(p *partition.Partition, leader, epoch int32) {
	Set(p, replica.Record{Leader: leader, LeaderEpoch: epoch, LeaderBrokerEpoch: 1, Replicas: []int32{leader}, MinISR: 1})
}

var revision atomic.Int64

// Set gives p a record, newer than any before it.
func Set(p *partition.Partition, r replica.Record) {
	r.Revision = revision.Add(1)
	p.SetRecord(partition.RecordUpdate{Record: &r, BrokerEpoch: 1, StorageID: StorageID, Usable: true})
}

// Batch returns a batch with one record per value, stamped ms, and its header.
func Batch(t testing.TB, ms int64, values ...string) ([]byte, record.Header) {
	t.Helper()
	return build(t, record.NewBuilder(record.CodecNone), ms, values)
}

// Idempotent is Batch with producer fields.
func Idempotent(t testing.TB, producer int64, sequence int32, values ...string) ([]byte, record.Header) {
	t.Helper()
	b := record.NewBuilder(record.CodecNone)
	b.SetProducer(producer, 0, sequence)
	return build(t, b, 1, values)
}

func build(t testing.TB, b *record.Builder, ms int64, values []string) ([]byte, record.Header) {
	t.Helper()
	for _, v := range values {
		b.Append(ms, nil, []byte(v), nil)
	}
	out, err := b.Build(nil)
	if err != nil {
		t.Fatal(err)
	}
	h, err := record.ParseHeader(out)
	if err != nil {
		t.Fatal(err)
	}
	return out, h
}
