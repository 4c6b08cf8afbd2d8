package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
)

// Errors to test for with errors.Is.
var (
	// ErrProtocol: the other side said something that makes no sense; its stream ends.
	ErrProtocol = errors.New("replication protocol error")
	// ErrStopped: this side is stopping.
	ErrStopped = errors.New("replication is stopping")
)

// maxSubscriptions bounds the partitions of one stream.
const maxSubscriptions = 100_000

// LeaderPartition is what the leader's side needs of a partition; *partition.Partition is one. Safe for concurrent use.
type LeaderPartition interface {
	SubscribeFollower(
		s partition.Sender, peer replica.Member, peerEpoch int64, peerSession replica.Session, epoch int32, offset int64, lastEpoch int32,
		logStart int64,
	) replica.Session
	FollowerAck(s replica.Session, peerEpoch int64, epoch int32, flushed, logStart int64)
	FollowerGone(s replica.Session)
	ReadForFollower(offset int64, maxBytes int) (log.Range, partition.FollowerLimits, error)
	// Behind is roughly how many bytes lie between offset and the log end. Takes no lock.
	Behind(offset int64) int64
	// Leads reports whether this broker leads the partition in epoch. Takes no lock.
	Leads(epoch int32) bool
	// Role says, among other things, which brokers are in sync. Takes no lock.
	Role() partition.Role
}

// LeadersConfig is what Leaders need.
type LeadersConfig struct {
	Settings
	Directory peer.Directory
	// Lookup finds a partition that this broker hosts. It does not block.
	Lookup func(metadata.PartitionRef) (LeaderPartition, bool)
	// Pool is where buffers for batches come from.
	Pool   *codec.Pool
	Clock  clock.Clock
	Logger *slog.Logger
}

// Leaders serve the Replicate streams of followers. Safe for concurrent use. It starts nothing by itself.
type Leaders struct {
	cfg     LeadersConfig
	catchUp *bucket

	stopping chan struct{}
	streams  sync.WaitGroup // receiving goroutines, which end after their streams
	mu       struct {
		sync.Mutex
		stopped bool
	}
}

// NewLeaders returns the leaders' side, or the faults of cfg.Settings.
func NewLeaders(cfg LeadersConfig) (*Leaders, error) {
	if err := cfg.Settings.Validate(); err != nil {
		return nil, err
	}
	cfg.Settings = cfg.Settings.WithDefaults()
	return &Leaders{cfg: cfg, catchUp: newBucket(cfg.Clock, cfg.CatchUpRate), stopping: make(chan struct{})}, nil
}

// CatchUpRate returns Settings.CatchUpRate as it is now.
func (l *Leaders) CatchUpRate() int64 { return l.catchUp.rate() }

// SetCatchUpRate changes Settings.CatchUpRate, bytes/s; 0: unlimited.
func (l *Leaders) SetCatchUpRate(bytesPerSecond int64) { l.catchUp.setRate(bytesPerSecond) }

// Run waits for the end of ctx, then ends all streams and returns when they have ended. New ones are refused from then on.
func (l *Leaders) Run(ctx context.Context) error {
	<-ctx.Done()
	l.mu.Lock()
	if !l.mu.stopped {
		l.mu.stopped = true
		close(l.stopping)
	}
	l.mu.Unlock()
	l.streams.Wait()
	return nil
}

// receiving runs f beside a stream's handler, unless Run has ended.
func (l *Leaders) receiving(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stopped {
		return false
	}
	l.streams.Go(f)
	return true
}

// Replicate serves one stream of a follower until it ends. from is who opened it, verified by the caller. The stream's codec has to be
// a codec.Codec.
func (l *Leaders) Replicate(from peer.Peer, stream grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	st := &leaderStream{l: l, from: from, grpc: stream, ctx: ctx, signal: make(chan struct{}, 1)}
	st.mu.subs = map[uint32]*leaderSub{}
	defer st.close()
	if err := st.open(); err != nil {
		return err
	}
	if !l.receiving(func() {
		if err := st.receive(); err != nil {
			cancel(err)
		}
	}) {
		return ErrStopped
	}
	return st.send()
}

// open reads the first message and answers it.
func (st *leaderStream) open() error {
	var req codec.ReplicateRequestFrame
	if err := st.grpc.RecvMsg(&req); err != nil {
		return err
	}
	self := st.l.cfg.Directory.Self()
	h := req.Hello
	switch {
	case h == nil:
		return fmt.Errorf("%w: the first message has no hello", ErrProtocol)
	case len(req.Subscribe)+len(req.Unsubscribe)+len(req.Acks) > 0:
		return fmt.Errorf("%w: the first message has more than a hello", ErrProtocol)
	case h.GetStream() != runnelv1.ReplicateStream_REPLICATE_STREAM_TAIL && h.GetStream() != runnelv1.ReplicateStream_REPLICATE_STREAM_CATCH_UP:
		return fmt.Errorf("%w: stream kind %d, want 1 or 2", ErrProtocol, h.GetStream())
	case h.GetLeaderBrokerId() != self.ID:
		return fmt.Errorf("%w: the stream is meant for broker %d, this is broker %d", ErrProtocol, h.GetLeaderBrokerId(), self.ID)
	case h.GetLeaderBrokerEpoch() != self.Epoch:
		return fmt.Errorf("%w: the stream is meant for registration %d, this is %d", ErrProtocol, h.GetLeaderBrokerEpoch(), self.Epoch)
	}
	st.catchUp = h.GetStream() == runnelv1.ReplicateStream_REPLICATE_STREAM_CATCH_UP
	return st.grpc.SendMsg(&codec.ReplicateFrame{Answer: &runnelv1.ReplicateAnswer{Answer: &runnelv1.ReplicateAnswer_Welcome{
		Welcome: &runnelv1.ReplicateWelcome{BrokerId: self.ID, BrokerEpoch: self.Epoch},
	}}})
}
