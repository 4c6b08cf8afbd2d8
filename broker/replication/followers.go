package replication

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

// Dialer finds the connection to a peer; *peer.Conns is one. The connection's codec has to be a codec.Codec.
type Dialer interface {
	Conn(id int32, class peer.Class) (grpc.ClientConnInterface, error)
	// Retry lets the next call connect at once, whatever the back-off.
	Retry(id int32, class peer.Class)
}

// FollowersConfig is what Followers need.
type FollowersConfig struct {
	Settings
	Directory peer.Directory
	Dialer    Dialer
	Clock     clock.Clock
	Logger    *slog.Logger
}

// Followers keep the streams to leaders, and are the partition.Transport of this broker. Safe for concurrent use.
type Followers struct {
	cfg FollowersConfig

	// warned is when it was last logged that batches were not taken, Unix nanoseconds.
	warned atomic.Int64

	// work are goroutines of executors and streams.
	work sync.WaitGroup
	mu   struct {
		sync.Mutex
		ctx       context.Context //nolint:containedctx // of Run; nil before it
		stopped   bool
		links     map[int32]*link
		executors map[FollowerPartition]*executor
		// catchUp names the leader whose catch-up stream a partition has to use.
		catchUp map[metadata.PartitionRef]int32
	}
	// began guards work against Add beside Wait.
	began struct {
		sync.Mutex
		stopped bool
	}
}

var _ partition.Transport = (*Followers)(nil)

// link is the streams to one leader.
type link struct {
	tails   []*followerStream
	catchUp *followerStream
}

// followerSub is one subscription.
type followerSub struct {
	e    *executor
	st   *followerStream
	want partition.Subscription

	// Guarded by st.mu.
	id    uint32 // 0: the leader has not been asked
	ended bool
	ack   struct {
		epoch             int32
		flushed, logStart int64
		queued            bool
	}
}

// NewFollowers returns the followers' side, or the faults of cfg.Settings.
func NewFollowers(cfg FollowersConfig) (*Followers, error) {
	if err := cfg.Settings.Validate(); err != nil {
		return nil, err
	}
	cfg.Settings = cfg.Settings.WithDefaults()
	f := &Followers{cfg: cfg}
	f.mu.links, f.mu.executors, f.mu.catchUp = map[int32]*link{}, map[FollowerPartition]*executor{}, map[metadata.PartitionRef]int32{}
	return f, nil
}

// Run keeps streams open until ctx ends. Afterwards no partition is called any more.
func (f *Followers) Run(ctx context.Context) error {
	f.mu.Lock()
	f.mu.ctx = ctx
	for _, l := range f.mu.links {
		f.startLocked(ctx, l)
	}
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	f.mu.stopped = true
	for _, e := range f.mu.executors {
		e.mu.Lock()
		e.mu.sub = nil // what is queued is dropped
		e.mu.Unlock()
	}
	f.mu.Unlock()
	f.began.Lock()
	f.began.stopped = true
	f.began.Unlock()
	f.work.Wait()
	return nil
}

// begin runs g, unless Run has ended.
func (f *Followers) begin(g func()) bool {
	f.began.Lock()
	defer f.began.Unlock()
	if f.began.stopped {
		return false
	}
	f.work.Go(g)
	return true
}

// warnEvery bounds what a full disk with thousands of partitions writes to the log.
const warnEvery = 5 * time.Second

// mayWarn reports whether it is time to log again that batches were not taken.
func (f *Followers) mayWarn() bool {
	now, last := f.cfg.Clock.Now().UnixNano(), f.warned.Load()
	return now-last >= int64(warnEvery) && f.warned.CompareAndSwap(last, now)
}

func (f *Followers) startLocked(ctx context.Context, l *link) {
	for _, st := range append([]*followerStream{l.catchUp}, l.tails...) {
		f.begin(func() { st.run(ctx) })
	}
}

func (f *Followers) linkLocked(leader int32) *link {
	if l := f.mu.links[leader]; l != nil {
		return l
	}
	l := &link{catchUp: newFollowerStream(f, leader, true)}
	for range f.cfg.TailStreams {
		l.tails = append(l.tails, newFollowerStream(f, leader, false))
	}
	f.mu.links[leader] = l
	if f.mu.ctx != nil {
		f.startLocked(f.mu.ctx, l)
	}
	return l
}

// stream chooses the stream of a partition.
func (l *link) stream(p FollowerPartition, catchUp bool) *followerStream {
	if catchUp {
		return l.catchUp
	}
	return l.tails[hash(p.TopicID(), p.Number())%uint32(len(l.tails))]
}

func refOf(p FollowerPartition) metadata.PartitionRef {
	return metadata.PartitionRef{TopicID: p.TopicID(), Partition: p.Number()}
}

func hash(id ids.TopicID, n int32) uint32 {
	h := uint32(2166136261) // FNV-1a
	for _, b := range id {
		h = (h ^ uint32(b)) * 16777619
	}
	return (h ^ uint32(n)) * 16777619 >> 8
}

// Subscribe implements partition.Transport.
func (f *Followers) Subscribe(p *partition.Partition, sub partition.Subscription) {
	f.subscribe(p, sub)
}

// Unsubscribe implements partition.Transport.
func (f *Followers) Unsubscribe(p *partition.Partition, s replica.Session) { f.unsubscribe(p, s) }

// Ack implements partition.Transport.
func (f *Followers) Ack(p *partition.Partition, s replica.Session, epoch int32, flushed, logStart int64) {
	f.ack(p, s, epoch, flushed, logStart)
}

func (f *Followers) subscribe(p FollowerPartition, want partition.Subscription) {
	f.mu.Lock()
	if f.mu.stopped {
		f.mu.Unlock()
		return
	}
	e := f.mu.executors[p]
	if e == nil {
		e = &executor{f: f, p: p}
		f.mu.executors[p] = e
	}
	leader, catchUp := f.mu.catchUp[refOf(p)]
	if catchUp && leader != want.Leader {
		delete(f.mu.catchUp, refOf(p))
		catchUp = false
	}
	sub := &followerSub{e: e, st: f.linkLocked(want.Leader).stream(p, catchUp), want: want}
	e.mu.Lock()
	old := e.mu.sub
	e.mu.sub = sub
	e.mu.Unlock()
	f.mu.Unlock()
	if old != nil {
		old.st.remove(old)
	}
	sub.st.add(sub)
}

func (f *Followers) unsubscribe(p FollowerPartition, s replica.Session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.executors[p]
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.sub == nil || e.mu.sub.want.Session != s {
		return
	}
	e.mu.sub.st.remove(e.mu.sub)
	e.mu.sub = nil
	f.forgetLocked(e)
}

// forgetLocked drops an executor that has nothing to do and no subscription. Needs f.mu and e.mu.
func (f *Followers) forgetLocked(e *executor) {
	if e.mu.sub == nil && !e.mu.running && f.mu.executors[e.p] == e {
		delete(f.mu.executors, e.p)
	}
}

// idle: the executor's goroutine ends.
func (f *Followers) idle(e *executor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	f.forgetLocked(e)
}

// move notes which stream the partition of sub has to use at its leader.
func (f *Followers) move(sub *followerSub, catchUp bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if catchUp {
		f.mu.catchUp[refOf(sub.e.p)] = sub.want.Leader
		return
	}
	delete(f.mu.catchUp, refOf(sub.e.p))
}

func (f *Followers) ack(p FollowerPartition, s replica.Session, epoch int32, flushed, logStart int64) {
	f.mu.Lock()
	e := f.mu.executors[p]
	f.mu.Unlock()
	if e == nil {
		return
	}
	e.mu.Lock()
	sub := e.mu.sub
	e.mu.Unlock()
	if sub != nil && sub.want.Session == s {
		sub.st.ack(sub, epoch, flushed, logStart)
	}
}
