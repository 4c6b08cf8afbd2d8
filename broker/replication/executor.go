package replication

import (
	"log/slog"
	"sync"

	"google.golang.org/grpc/mem"

	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/ids"
)

// FollowerPartition is what the follower's side needs of a partition; *partition.Partition is one. Values have to be comparable. Its
// methods are called one at a time.
type FollowerPartition interface {
	TopicID() ids.TopicID
	Number() int32
	Granted(s replica.Session, epoch int32, offset int64)
	DivergingAt(s replica.Session, epoch int32, end int64)
	BelowStartAt(s replica.Session, logStart int64)
	Refused(s replica.Session, reason replica.Reason)
	// Deliver blocks for the write to the page cache. batches is borrowed.
	Deliver(s replica.Session, epoch int32, hw, wanted, published, base int64, batches []byte) error
}

// maxQueued is what a leader may push to one partition before it is taken for broken: far more than any window.
const maxQueued = 256 << 20

// executor runs everything that one partition is told, in order, on at most one goroutine, which ends when there is nothing left.
type executor struct {
	f *Followers
	p FollowerPartition

	mu struct {
		sync.Mutex
		sub     *followerSub // present subscription; nil: none
		queue   []task
		head    int
		bytes   int // of batches in queue
		running bool
	}
}

type taskKind uint8

const (
	taskGranted taskKind = iota
	taskDiverging
	taskBelowStart
	taskRefused
	taskDeliver
)

// task is one call of the partition. Which fields count depends on kind.
type task struct {
	kind          taskKind
	sub           *followerSub
	epoch         int32
	offset        int64
	hw            int64
	wanted        int64
	published     int64
	reason        replica.Reason
	batches       mem.Buffer // owned
	offsetsUpdate bool       // a delivery without batches
}

// push queues a task; it reports false when the queue is too large.
func (e *executor) push(t task) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	if t.batches != nil {
		n = t.batches.Len()
	}
	if e.mu.sub != t.sub || e.mu.bytes+n > maxQueued && e.mu.bytes > 0 {
		t.free()
		return e.mu.sub != t.sub // what is over is dropped
	}
	if last := len(e.mu.queue) - 1; t.offsetsUpdate && last >= e.mu.head && e.mu.queue[last].offsetsUpdate && e.mu.queue[last].sub == t.sub {
		e.mu.queue[last] = t // newer offsets; so that they never pile up
		return true
	}
	if e.mu.head > 0 && len(e.mu.queue) == cap(e.mu.queue) {
		k := copy(e.mu.queue, e.mu.queue[e.mu.head:])
		clear(e.mu.queue[k:])
		e.mu.queue, e.mu.head = e.mu.queue[:k], 0
	}
	e.mu.queue = append(e.mu.queue, t)
	e.mu.bytes += n
	if !e.mu.running {
		e.mu.running = e.f.begin(e.run)
	}
	return true
}

func (t *task) free() {
	if t.batches != nil {
		t.batches.Free()
		t.batches = nil
	}
}

// run carries out what is queued.
func (e *executor) run() {
	for {
		t, ok := e.pop()
		if !ok {
			e.f.idle(e)
			return
		}
		e.do(&t)
		t.free()
	}
}

// pop takes the oldest task of the present subscription.
func (e *executor) pop() (task, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.mu.head < len(e.mu.queue) {
		t := e.mu.queue[e.mu.head]
		e.mu.queue[e.mu.head] = task{}
		e.mu.head++
		if t.batches != nil {
			e.mu.bytes -= t.batches.Len()
		}
		if t.sub == e.mu.sub {
			return t, true
		}
		t.free()
	}
	e.mu.queue, e.mu.head, e.mu.running = emptied(e.mu.queue), 0, false
	return task{}, false
}

func (e *executor) do(t *task) {
	s := t.sub.want.Session
	switch t.kind {
	case taskGranted:
		e.p.Granted(s, t.epoch, t.offset)
	case taskDiverging:
		e.p.DivergingAt(s, t.epoch, t.offset)
	case taskBelowStart:
		e.p.BelowStartAt(s, t.offset)
	case taskRefused:
		e.p.Refused(s, t.reason)
		e.mu.Lock()
		if e.mu.sub == t.sub { // the partition has not subscribed anew yet, and may never
			e.mu.sub = nil
		}
		e.mu.Unlock()
	case taskDeliver:
		var batches []byte
		if t.batches != nil {
			batches = t.batches.ReadOnlyData()
		}
		if err := e.p.Deliver(s, t.epoch, t.hw, t.wanted, t.published, t.offset, batches); err != nil && e.f.mayWarn() {
			e.f.cfg.Logger.Warn("batches of the leader were not taken", slog.String("topic_id", e.p.TopicID().String()),
				slog.Int("partition", int(e.p.Number())), slog.Int64("offset", t.offset), slog.Any("error", err))
		}
	}
}
