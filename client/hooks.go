package client

import "time"

// Hooks observes a client, for metrics and traces. Methods are called from the client's goroutines, concurrently, and must not
// block. Embed [NoHooks] to implement a part and to stay compatible with later methods.
type Hooks interface {
	// Produced is called once per batch, when its outcome is known to the producer.
	Produced(b ProducedBatch)
	// Fetched is called once per frame of batches that arrived from a broker.
	Fetched(f FetchedFrame)
	// Connected and Disconnected follow produce, fetch and metadata streams; err says why a stream ended.
	Connected(address, stream string)
	Disconnected(address, stream string, err error)
	// Retried is called when something will be tried again after wait.
	Retried(tp TopicPartition, err error, wait time.Duration)
	// Throttled is called when a broker asks to wait.
	Throttled(address string, wait time.Duration)
	// Reset is called when an out-of-range policy has moved a consumer.
	Reset(err *OffsetOutOfRangeError, to int64)
}

// ProducedBatch is what became of one batch.
type ProducedBatch struct {
	TopicPartition
	// Records and Bytes (on the wire, compressed; 0 when it was never sent).
	Records, Bytes int
	// Latency is the time since the batch's first record was queued.
	Latency time.Duration
	// Attempts is how often it was sent.
	Attempts int
	// Duplicate: an earlier attempt had been written, and was recognised.
	Duplicate bool
	// Err is nil when it was acknowledged.
	Err error
}

// FetchedFrame is what one frame of a fetch stream carried.
type FetchedFrame struct {
	TopicPartition
	Bytes int
	// NextOffset follows the frame's last record; HighWatermark is the partition's at that time.
	NextOffset, HighWatermark int64
}

// NoHooks implements Hooks and does nothing.
type NoHooks struct{}

var _ Hooks = NoHooks{}

// Produced implements Hooks.
func (NoHooks) Produced(ProducedBatch) {}

// Fetched implements Hooks.
func (NoHooks) Fetched(FetchedFrame) {}

// Connected implements Hooks.
func (NoHooks) Connected(string, string) {}

// Disconnected implements Hooks.
func (NoHooks) Disconnected(string, string, error) {}

// Retried implements Hooks.
func (NoHooks) Retried(TopicPartition, error, time.Duration) {}

// Throttled implements Hooks.
func (NoHooks) Throttled(string, time.Duration) {}

// Reset implements Hooks.
func (NoHooks) Reset(*OffsetOutOfRangeError, int64) {}
