package broker

import (
	"maps"
	"slices"
	"sync"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/internal/clock"
)

// meter turns the counters of the logs that this broker leads into rates.
type meter struct {
	host *host
	clk  clock.Clock

	mu   sync.Mutex
	at   time.Time
	last map[metadata.PartitionRef]counters
	// rates are those of the last report.
	rates map[metadata.PartitionRef]replication.PartitionLoad
}

type counters struct{ recordsIn, bytesIn, bytesOut uint64 }

func newMeter(h *host, clk clock.Clock) *meter {
	return &meter{host: h, clk: clk, at: clk.Now(), last: map[metadata.PartitionRef]counters{}}
}

// report returns what each partition was used for since the last call, per second. Those without traffic are left out.
func (m *meter) report() []replication.PartitionLoad {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clk.Now()
	seconds := max(now.Sub(m.at), time.Millisecond).Seconds()
	var out []replication.PartitionLoad
	next := make(map[metadata.PartitionRef]counters, len(m.last))
	m.host.each(func(p *partition.Partition) {
		if !p.Role().Leading {
			return
		}
		ref := metadata.PartitionRef{TopicID: p.TopicID(), Partition: p.Number()}
		var c counters
		c.recordsIn, c.bytesIn, c.bytesOut = p.Log().Counters()
		next[ref] = c
		was, ok := m.last[ref]
		if !ok || c == was || c.bytesIn < was.bytesIn {
			return
		}
		out = append(out, replication.PartitionLoad{
			Ref: ref, BytesIn: float64(c.bytesIn-was.bytesIn) / seconds, BytesOut: float64(c.bytesOut-was.bytesOut) / seconds,
			RecordsIn: float64(c.recordsIn-was.recordsIn) / seconds,
		})
	})
	rates := make(map[metadata.PartitionRef]replication.PartitionLoad, len(next))
	for ref := range next {
		rates[ref] = replication.PartitionLoad{Ref: ref}
	}
	for _, l := range out {
		rates[l.Ref] = l
	}
	m.at, m.last, m.rates = now, next, rates
	return out
}

// rate returns the last rates of a partition; false when it was not measured yet.
func (m *meter) rate(ref metadata.PartitionRef) (replication.PartitionLoad, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.rates[ref]
	return r, ok
}

// all returns the last rates of all partitions.
func (m *meter) all() []replication.PartitionLoad {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.rates))
}
