package log

import (
	"context"

	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

// Host is the broker-wide part that a log relies on: the sync scheduler and the journal. Safe for concurrent use.
type Host interface {
	// MarkDirty says that l has bytes, files or epochs that no sync has covered yet. Never blocks. A log calls it once
	// per sync round, between two calls of PrepareSync.
	MarkDirty(l *Log)
	// JournalNow writes e to the journal and returns once it is durable. Blocks; serialised with sync rounds, and what
	// a round journals for the same log afterwards is taken from Log.JournalEntry after this call.
	JournalNow(ctx context.Context, e JournalEntry) error
	// Failed reports an error of l's files: a write that failed (l is read-only until it succeeds again) or a sync that
	// failed (l is failed, and the broker has to stop). Must not block and not call back into l's writers.
	Failed(l *Log, err error)
}

// Observer sees what a log appends as leader. It must not block, nor call the log's writers.
type Observer interface {
	// ObserveAppend is called behind each batch that was appended as leader, stamped, in the order of the log. batch is borrowed.
	ObserveAppend(l *Log, batch []byte, h record.Header)
}

// JournalEntry is what the journal keeps of a log.
type JournalEntry struct {
	TopicID   ids.TopicID
	Partition int32
	LogID     ids.LogID
	// Flushed is the lower bound of recovery: everything below it is durable.
	Flushed int64
	// HighWatermark is min(high watermark, Flushed).
	HighWatermark int64
	LogStart      int64
	// WantedStart is Log.JournaledLogStart as of this entry, at or above LogStart.
	WantedStart int64
	// AdoptedEpoch is Log.Adopted; it only ever rises.
	AdoptedEpoch int32
	// NewEpochs are the epoch starts that a round covers: the Host sets them, to those of SyncPoint.NewEpochs.
	NewEpochs []EpochStart
	// Truncated: Flushed replaces what the journal said before, even if it is lower, and every epoch start at or above
	// Flushed that the journal holds for this log is void.
	Truncated bool
}

// EpochStart says at which offset a leader epoch begins.
type EpochStart struct {
	Epoch int32
	Start int64
}

// Recovered is what the journal held of a log when its directory is opened.
type Recovered struct {
	Flushed, HighWatermark, LogStart int64
	Epochs                           []EpochStart
	// WantedStart is the journaled log start, at or above LogStart.
	WantedStart int64
	// AdoptedEpoch is the newest epoch that the replica took part in, 0: none.
	AdoptedEpoch int32
	// Known is false if the journal had nothing of this log: it was lost, or the directory is foreign to it. Every
	// valid batch from LogStart on is then kept, and Report says so. LogStart, WantedStart and AdoptedEpoch may be known
	// all the same, since they only ever move forward; the other fields do not count.
	Known bool
}
