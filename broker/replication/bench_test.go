package replication

import (
	"sync/atomic"
	"testing"

	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/ids"
)

// counter is a follower that acknowledges what it gets and keeps nothing.
type counter struct {
	f      *Followers
	number int32
	all    int64 // offsets that end a round
	done   chan struct{}
	bytes  atomic.Int64
	frames atomic.Int64
}

func (c *counter) TopicID() ids.TopicID                        { return topic }
func (c *counter) Number() int32                               { return c.number }
func (c *counter) DivergingAt(replica.Session, int32, int64)   {}
func (c *counter) BelowStartAt(replica.Session, int64)         {}
func (c *counter) Refused(s replica.Session, r replica.Reason) { panic(r) }
func (c *counter) Granted(s replica.Session, e int32, o int64) { c.f.ack(c, s, e, o, 0) }

func (c *counter) Deliver(s replica.Session, epoch int32, _, _, _, base int64, batches []byte) error {
	if len(batches) == 0 {
		return nil
	}
	c.bytes.Add(int64(len(batches)))
	c.frames.Add(1)
	next := base + int64(len(batches)/batchBytes)
	c.f.ack(c, s, epoch, next, 0)
	if next == c.all {
		c.done <- struct{}{}
	}
	return nil
}

// batchBytes is what the batches of benchmarks take, header and record included.
const batchBytes = 16 << 10

// BenchmarkReplicate moves logs from a leader to a follower over loopback TCP: 16 KiB batches, four partitions, acknowledged as they
// come. It measures the transport; the follower writes nothing.
func BenchmarkReplicate(b *testing.B) {
	const partitions, batches = 4, 4000
	leader, follower := pair(b, Settings{})
	sinks := make([]*counter, partitions)
	for i := range sinks {
		src := newSource(b, int32(i))
		for range batches {
			if n := len(src.append(batchBytes - 72)); n != batchBytes {
				b.Fatalf("a batch takes %d bytes, want %d", n, batchBytes)
			}
		}
		src.behind = 0
		leader.host(src, int32(i))
		sinks[i] = &counter{f: follower.followers, number: int32(i), all: batches, done: make(chan struct{})}
	}
	self := follower.dir.Self()
	b.SetBytes(partitions * batches * batchBytes)
	b.ReportAllocs()
	session := replica.Session(0)
	for b.Loop() {
		session++
		for _, s := range sinks {
			follower.followers.subscribe(s, partition.Subscription{
				Session: session, Leader: 1, Self: replica.Member{BrokerID: 2, StorageID: ids.StorageID{1}, LogID: ids.LogID{1}}, BrokerEpoch: self.Epoch, Epoch: 1,
			})
		}
		for _, s := range sinks {
			<-s.done
		}
	}
	var frames int64
	for _, s := range sinks {
		frames += s.frames.Load()
	}
	b.ReportMetric(float64(frames)/float64(b.N), "frames/op")
}

// BenchmarkReplicateSmall is one small batch at a time, from append to the leader's having the ack.
func BenchmarkReplicateSmall(b *testing.B) {
	leader, follower := pair(b, Settings{})
	src := newSource(b, 0)
	leader.host(src, 0)
	dst := newSink(b, follower.followers, 0)
	dst.subscribe(1)
	dst.until("the grant", func() bool { return len(dst.granted) == 1 })
	n := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		src.append(100)
		n++
		src.until("the ack", func() bool { return src.acked[1] == n })
	}
}
