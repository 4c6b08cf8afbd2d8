package server_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/broker/topicconfig"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const self, other = 1, 2

// fixture is a broker's front over real partitions, and a client of it.
type fixture struct {
	testing.TB
	host    *partitiontest.Host
	cluster *cluster
	srv     *server.Server
	codec   *codec.Codec
	conn    *grpc.ClientConn
	reg     *prometheus.Registry
	logged  *lines
	stop    context.CancelFunc
	stopped chan error

	producer runnelv1.ProducerClient
	consumer runnelv1.ConsumerClient
	admin    runnelv1.AdminClient
	meta     runnelv1.MetadataClient
}

type lines struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// cluster is metadata, partitions and topic administration of a test: a small, real one over in-memory logs.
type cluster struct {
	host    *partitiontest.Host
	nextID  atomic.Int64
	mu      sync.Mutex
	snap    *server.Snapshot
	parts   map[ids.TopicID][]*partition.Partition
	changed chan struct{} // of snap
	panics  bool
	broken  error
}

func (c *cluster) Snapshot() *server.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.panics {
		panic("metadata is broken")
	}
	return c.snap
}

// change publishes a new snapshot.
func (c *cluster) change(f func(*server.Snapshot)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.snap
	next := *old
	next.Topics, next.TopicsByID = maps.Clone(old.Topics), maps.Clone(old.TopicsByID)
	next.Brokers = slices.Clone(old.Brokers)
	next.Revision++
	changed := make(chan struct{})
	next.Changed = changed
	f(&next)
	c.snap = &next
	close(c.changed)
	c.changed = changed
}

func (c *cluster) Lookup(id ids.TopicID, n int32) (*partition.Partition, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return nil, c.broken
	}
	parts, ok := c.parts[id]
	if !ok {
		return nil, &partition.UnknownError{TopicID: id, Partition: n}
	}
	if int(n) >= len(parts) {
		return nil, &partition.UnknownError{TopicID: id, Partition: n, Partitions: int32(len(parts))}
	}
	if parts[n] == nil {
		return nil, &partition.NotLeaderError{LeaderID: other, LeaderEpoch: 4}
	}
	return parts[n], nil
}

func (c *cluster) Recover(_ context.Context, _ ids.TopicID, _ int32, accept bool) (server.RecoverPlan, error) {
	return server.RecoverPlan{KeptEnd: 5, LostEnd: 9, Detail: "damaged", Applied: accept}, nil
}

func (c *cluster) NextProducerID(context.Context) (int64, int16, error) {
	return c.nextID.Add(1), 0, nil
}

func (c *cluster) CreateTopic(_ context.Context, r *runnelv1.CreateTopicRequest) (*runnelv1.Topic, error) {
	if _, ok := c.Snapshot().Topics[r.GetName()]; ok {
		return nil, &metadata.TopicError{Name: r.GetName(), Err: metadata.ErrTopicExists}
	}
	if err := topicconfig.Validate(r.GetConfig(), nil, 1); err != nil {
		return nil, err
	}
	t := c.create(r.GetName(), max(int(r.GetPartitions()), 1), r.GetConfig())
	return &runnelv1.Topic{Name: t.Name, TopicId: t.ID[:], Partitions: int32(len(t.Partitions)), Config: t.Config}, nil
}

func (c *cluster) UpdateTopic(_ context.Context, r *runnelv1.UpdateTopicRequest) (*runnelv1.Topic, []*runnelv1.ConfigChange, error) {
	t, ok := c.Snapshot().Topics[r.GetName()]
	if !ok {
		return nil, nil, &metadata.TopicError{Name: r.GetName(), Err: metadata.ErrTopicNotFound}
	}
	if r.GetGeneration() != 0 && r.GetGeneration() != t.Generation {
		return nil, nil, &metadata.ConflictError{}
	}
	merged, err := topicconfig.Apply(t.Config, r.GetConfig(), r.GetResetFields())
	if err != nil {
		return nil, nil, err
	}
	return &runnelv1.Topic{Name: t.Name}, topicconfig.Diff(t.Config, merged), nil
}

func (c *cluster) DeleteTopic(_ context.Context, r *runnelv1.DeleteTopicRequest) error {
	t, ok := c.Snapshot().Topics[r.GetName()]
	if !ok || t.ID != ids.TopicID(r.GetTopicId()) {
		return &metadata.TopicError{Name: r.GetName(), Err: metadata.ErrTopicNotFound}
	}
	c.remove(t)
	return nil
}

func (c *cluster) remove(t *server.Topic) {
	c.change(func(s *server.Snapshot) {
		delete(s.Topics, t.Name)
		delete(s.TopicsByID, t.ID)
	})
	c.mu.Lock()
	parts := c.parts[t.ID]
	delete(c.parts, t.ID)
	c.mu.Unlock()
	for _, p := range parts {
		if p != nil {
			p.Close()
		}
	}
}

func (c *cluster) create(name string, partitions int, config *runnelv1.TopicConfig) *server.Topic {
	t := &server.Topic{
		Name: name, ID: ids.NewTopicID(), Replicas: 1, Config: topicconfig.Effective(config, nil, 1), Generation: 1,
		State: runnelv1.TopicState_TOPIC_STATE_ACTIVE, Created: time.UnixMilli(1),
	}
	cfg := log.DefaultConfig()
	cfg.MaxBatchBytes = int(t.Config.GetMaxBatchBytes())
	if t.Config.GetTimestampType() == runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME {
		cfg.TimestampType = log.LogAppendTime
	}
	var parts []*partition.Partition
	for n := range partitions {
		t.Partitions = append(t.Partitions, server.Partition{LeaderID: self, LeaderEpoch: 1, Replicas: []int32{self}, ISR: []int32{self}})
		parts = append(parts, c.host.Leader(t.ID, int32(n), self, cfg))
	}
	c.mu.Lock()
	c.parts[t.ID] = parts
	c.mu.Unlock()
	c.change(func(s *server.Snapshot) { s.Topics[name], s.TopicsByID[t.ID] = t, t })
	return t
}

func setup(t testing.TB, change ...func(*server.Config)) *fixture {
	t.Helper()
	host := partitiontest.NewHost(t, clock.System())
	changed := make(chan struct{})
	c := &cluster{host: host, parts: map[ids.TopicID][]*partition.Partition{}, changed: changed}
	c.snap = &server.Snapshot{
		Revision: 1, ClusterID: "test", ControllerID: self, Topics: map[string]*server.Topic{}, TopicsByID: map[ids.TopicID]*server.Topic{},
		Changed: changed, Brokers: []*server.Broker{
			{ID: self, Epoch: 7, Version: "v", Listeners: map[string]string{"client": "one:7650", "internal": "one.local:1"}},
			{ID: other, Epoch: 8, Listeners: map[string]string{"client": "two:7650"}},
		},
	}
	f := &fixture{TB: t, host: host, cluster: c, codec: codec.New(), reg: prometheus.NewRegistry(), logged: &lines{}, stopped: make(chan error, 1)}
	l := bufconn.Listen(1 << 20)
	cfg := server.Config{
		BrokerID: self, Listeners: []server.Listener{{Name: "client", Listener: l}}, Partitions: c, Topics: c, Metadata: c, ProducerIDs: c,
		Clock: clock.System(), Logger: slog.New(slog.NewTextHandler(f.logged, nil)), Registerer: f.reg,
	}
	for _, ch := range change {
		ch(&cfg)
	}
	srv, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.srv = srv
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	f.stop = cancel
	go func() { f.stopped <- srv.Run(ctx) }()
	f.dial(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })
	t.Cleanup(func() {
		f.conn.Close()
		cancel()
		if err := <-f.stopped; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

func (f *fixture) dial(dialer func(context.Context, string) (net.Conn, error), opts ...grpc.DialOption) {
	f.Helper()
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dialer),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(f.codec), grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	conn, err := grpc.NewClient("passthrough:///broker", opts...)
	if err != nil {
		f.Fatal(err)
	}
	f.conn = conn
	f.producer, f.consumer = runnelv1.NewProducerClient(conn), runnelv1.NewConsumerClient(conn)
	f.admin, f.meta = runnelv1.NewAdminClient(conn), runnelv1.NewMetadataClient(conn)
}

// syncing runs sync rounds until the test ends.
func (f *fixture) syncing() { f.Cleanup(f.host.StartSyncing()) }

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	f.Cleanup(cancel)
	return ctx
}

func (f *fixture) topic(name string, partitions int) *server.Topic {
	return f.cluster.create(name, partitions, nil)
}

// lead elects this broker again for all partitions of a topic.
func (f *fixture) lead(t *server.Topic, epoch int32) {
	f.Helper()
	for _, p := range f.cluster.parts[t.ID] {
		partitiontest.Lead(p, self, epoch)
	}
}

// produceStream sends and receives hot frames.
type produceStream struct {
	f *fixture
	grpc.BidiStreamingClient[runnelv1.ProduceRequest, runnelv1.ProduceResponse]
	next uint64
}

func (f *fixture) produce(ctx context.Context) *produceStream {
	f.Helper()
	st, err := f.producer.Produce(ctx)
	if err != nil {
		f.Fatal(err)
	}
	return &produceStream{f: f, BidiStreamingClient: st}
}

func (s *produceStream) send(t *server.Topic, n int32, batch []byte, change ...func(*codec.ProduceFrame)) uint64 {
	s.f.Helper()
	s.next++
	fr := &codec.ProduceFrame{CorrelationID: s.next, TopicID: t.ID, Partition: n, LeaderEpoch: -1}
	fr.SetBatchBytes(batch)
	for _, c := range change {
		c(fr)
	}
	if err := s.SendMsg(fr); err != nil {
		s.f.Fatal(err)
	}
	return s.next
}

func (s *produceStream) answer() *runnelv1.ProduceResponse {
	s.f.Helper()
	r, err := s.Recv()
	if err != nil {
		s.f.Fatal(err)
	}
	return r
}

func (f *fixture) batch(values ...string) []byte {
	b, _ := partitiontest.Batch(f, 1, values...)
	return b
}

// put appends values to a partition, one batch each, and waits for the acks.
func (f *fixture) put(t *server.Topic, n int32, values ...string) {
	f.Helper()
	s := f.produce(f.ctx())
	p := f.cluster.parts[t.ID][n]
	want := p.Status().Offsets.End + int64(len(values))
	for _, v := range values {
		s.send(t, n, f.batch(v))
	}
	waitFor(f, func() bool { f.host.Sync(); return p.Status().Offsets.HighWatermark >= want })
	for range values {
		if r := s.answer(); r.GetError() != nil {
			f.Fatal(r.GetError())
		}
	}
	if err := s.CloseSend(); err != nil {
		f.Fatal(err)
	}
}

// reasonOf returns the reason and metadata of a failed call.
func reasonOf(err error) (codes.Code, string, map[string]string) {
	st, _ := status.FromError(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return st.Code(), info.GetReason(), info.GetMetadata()
		}
	}
	return st.Code(), "", nil
}

func wantReason(t testing.TB, err error, code codes.Code, reason string) map[string]string {
	t.Helper()
	c, r, m := reasonOf(err)
	if c != code || r != reason {
		t.Fatalf("got %v %s (%v), want %v %s", c, r, err, code, reason)
	}
	return m
}

var errBroken = errors.New("secret detail of a broken part")

func contextWithCancel(f *fixture) (context.Context, context.CancelFunc) {
	return context.WithCancel(f.ctx())
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func registry() *prometheus.Registry { return prometheus.NewRegistry() }

// appendTo appends a batch without a stream, and does not wait.
func (f *fixture) appendTo(p *partition.Partition, batch []byte) {
	f.Helper()
	h, err := record.ParseHeader(batch)
	if err != nil {
		f.Fatal(err)
	}
	p.Produce(&partition.Produce{Batch: batch, Header: h, LeaderEpoch: -1, Waiter: nobody{}})
}

type nobody struct{}

func (nobody) Acked(partition.Result) {}
