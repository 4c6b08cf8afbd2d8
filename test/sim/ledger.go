package sim

import (
	"slices"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

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
