package storage

import (
	"context"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/internal/ids"
)

// LogInventory is what the data directory holds of one partition: what is left to go by when the cluster's metadata is lost.
type LogInventory struct {
	Ref PartitionRef
	// TopicName and TopicConfig are the copy in the partition's directory; empty if it cannot be read.
	TopicName   string
	TopicConfig []byte
	// LogID is zero if neither directory nor journal says it.
	LogID ids.LogID
	// AdoptedEpoch is the newest leader epoch in which this replica may have acknowledged anything, 0: none. LatestEpoch is the newest
	// in its lineage, -1: none. Of all healthy replicas the one with the largest (AdoptedEpoch, LatestEpoch, Flushed) holds everything
	// that was acknowledged.
	AdoptedEpoch, LatestEpoch int32
	// LogStart is the published log start, Flushed the end of what is durable, End that of the log.
	LogStart, Flushed, End int64
	// MaxProducerID is the largest producer id that the log has seen, as far as it remembers; -1: none.
	MaxProducerID int64
	// Epochs are the leader epochs of the log and where they begin, oldest first: two logs with the same ones, and the same Flushed, are
	// the same. Empty for a damaged log.
	Epochs []log.EpochStart
	// Health says whether the log can be used. Of one that cannot, the rest is what the journal says.
	Health log.Health
}

// Inventory lists every partition that the data directory holds or should hold, ordered by topic ID and partition. It reads memory
// only, waits for appends in progress (and for the journal, if a log is damaged), and ends early with the error of ctx.
func (s *Store) Inventory(ctx context.Context) ([]LogInventory, error) {
	refs := s.Partitions()
	out := make([]LogInventory, 0, len(refs))
	for _, ref := range refs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if p, ok := s.get(partitionKey(ref)); ok {
			out = append(out, s.inventory(ref, p))
		}
	}
	return out, nil
}

func (s *Store) inventory(ref PartitionRef, p *partition) LogInventory {
	in := LogInventory{Ref: ref, LatestEpoch: -1, MaxProducerID: -1, Health: p.state().Health}
	if p.log != nil {
		m := p.log.Meta()
		in.TopicName, in.TopicConfig, in.LogID = m.TopicName, m.TopicConfig, m.LogID
	}
	if p.log == nil || in.Health == log.Quarantined { // whose memory may say 0 everywhere
		known := s.knownNow(partitionKey(ref), p)
		in.LogID, in.AdoptedEpoch = known.logID, known.adopted
		in.LogStart, in.Flushed, in.End = known.logStart, known.flushed, known.flushed
		if n := len(known.epochs); n > 0 {
			in.LatestEpoch = known.epochs[n-1].Epoch
		}
		return in
	}
	o := p.log.Offsets()
	in.AdoptedEpoch, in.LatestEpoch = p.log.AdoptedDurable(), p.log.LatestEpoch()
	in.LogStart, in.Flushed, in.End = o.LogStart, o.Flushed, o.End
	in.MaxProducerID, in.Epochs = p.log.MaxProducerID(), p.log.Epochs()
	return in
}
