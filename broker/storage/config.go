package storage

import (
	"errors"
	"fmt"
	"time"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/record"
)

// Config holds the settings of a Store. Start from DefaultConfig.
type Config struct {
	// DataDir is the data directory. It is created if it is missing, with its parents.
	DataDir string
	// ClusterID is the cluster that the directory has to belong to, 1 to 255 bytes.
	ClusterID string
	// AllowNetworkStorage accepts network file systems, whose syncs and locks promise less. Default false.
	AllowNetworkStorage bool
	// ReserveBytes is the free space below which produce is refused, so that recovery and metadata can still write. 0 is the
	// smaller of 1 GiB and 2 % of the volume; range 0 to 1 TiB. Default 0.
	ReserveBytes int64
	// DiskInterval is how often free space is looked at, 10ms to 1m. Default 1s.
	DiskInterval time.Duration
	// SyncfsThreshold is the number of dirty logs above which a round is one syncfs instead of an fdatasync each, 1 to 1,000,000.
	// Default 32.
	SyncfsThreshold int
	// SyncWorkers bounds the fdatasyncs that run at the same time, 1 to 1024. Default 16.
	SyncWorkers int
	// JournalIdle is the time without a round after which the results of the last one are journaled with a sync of their own,
	// 1ms to 1m. Default 100ms.
	JournalIdle time.Duration
	// JournalBytes is the size at which the journal is replaced by a snapshot of itself, 4 KiB to 256 MiB. A snapshot that is
	// larger than a quarter of it raises the limit. Default 16 MiB.
	JournalBytes int64
	// OpenParallelism bounds the partitions that are opened at the same time, 1 to 1024. Default 16.
	OpenParallelism int
	// OpenFiles bounds the segment files that stay open without being in use, 1 to 1,000,000. Default 1024.
	OpenFiles int
	// IndexCacheBytes bounds the memory of loaded segment indexes, 64 KiB to 64 GiB. Default 64 MiB.
	IndexCacheBytes int64
	// LogConfig decodes the configuration in a partition's directory, which is what its topic's metadata said when it was last
	// seen. Nil: log.DefaultConfig for every partition. It must be safe for concurrent use.
	LogConfig func(topicConfig []byte) (log.Config, error)
	// RetentionInterval is the time between two looks for segments to roll or to delete, 100ms to 1h. Default 30s.
	RetentionInterval time.Duration
	// Retention is asked to move the start of l to target, in each retention pass in which the log begins below it: whoever replicates
	// the partition lets the others agree first, and calls l.PublishLogStart. It should return soon, since it holds up retention.
	// Nil: the pass moves the start itself.
	Retention func(l *log.Log, target int64)
	// OnSyncFailed is called once, when a sync has failed and before Run returns, with the *SyncFailedError: the one chance to hand over
	// what this broker leads. Nothing is acknowledged any more. It must not block: Run waits for it. Nil: nobody is told.
	OnSyncFailed func(error)
	// KeyObserver sees every batch that is appended as leader. Nil: nobody does.
	KeyObserver KeyObserver
}

// KeyObserver looks at what producers write, for example to find keys that are written most.
type KeyObserver interface {
	// ObserveBatch is called for each batch that was appended as leader (not again for duplicates), in the order of the log, while the
	// partition's appends wait: it must be quick, and must not block or call the log. batch is borrowed for the call, and may
	// be compressed. Safe for concurrent use by different partitions.
	ObserveBatch(ref PartitionRef, batch []byte, h record.Header)
}

// observer hands the batches of logs to a KeyObserver.
type observer struct{ keys KeyObserver }

// ObserveAppend implements log.Observer.
func (o observer) ObserveAppend(l *log.Log, batch []byte, h record.Header) {
	o.keys.ObserveBatch(PartitionRef{l.TopicID(), l.Partition()}, batch, h)
}

// DefaultConfig returns the defaults for a directory of a cluster.
func DefaultConfig(dataDir, clusterID string) Config {
	return Config{
		DataDir:           dataDir,
		ClusterID:         clusterID,
		DiskInterval:      time.Second,
		SyncfsThreshold:   32,
		SyncWorkers:       16,
		JournalIdle:       100 * time.Millisecond,
		JournalBytes:      16 << 20,
		OpenParallelism:   16,
		OpenFiles:         1024,
		IndexCacheBytes:   64 << 20,
		RetentionInterval: 30 * time.Second,
	}
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []error
	inRange := func(name string, value, low, high int64) {
		if value < low || value > high {
			faults = append(faults, fmt.Errorf("storage: %s is %d, want %d to %d", name, value, low, high))
		}
	}
	duration := func(name string, value, low, high time.Duration) {
		if value < low || value > high {
			faults = append(faults, fmt.Errorf("storage: %s is %v, want %v to %v", name, value, low, high))
		}
	}
	if c.DataDir == "" {
		faults = append(faults, errors.New("storage: DataDir is empty"))
	}
	inRange("length of ClusterID", int64(len(c.ClusterID)), 1, 255)
	inRange("ReserveBytes", c.ReserveBytes, 0, 1<<40)
	duration("DiskInterval", c.DiskInterval, 10*time.Millisecond, time.Minute)
	inRange("SyncfsThreshold", int64(c.SyncfsThreshold), 1, 1_000_000)
	inRange("SyncWorkers", int64(c.SyncWorkers), 1, 1024)
	duration("JournalIdle", c.JournalIdle, time.Millisecond, time.Minute)
	inRange("JournalBytes", c.JournalBytes, 4<<10, 256<<20)
	inRange("OpenParallelism", int64(c.OpenParallelism), 1, 1024)
	inRange("OpenFiles", int64(c.OpenFiles), 1, 1_000_000)
	inRange("IndexCacheBytes", c.IndexCacheBytes, 64<<10, 64<<30)
	duration("RetentionInterval", c.RetentionInterval, 100*time.Millisecond, time.Hour)
	return errors.Join(faults...)
}
