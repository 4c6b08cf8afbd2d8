package replication

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/partition/partitiontest"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/record"
)

const clusterID = "8a1f5c1e-4a4f-4f7e-9d6c-2f5a1f2b3c4d"

// patience is how long a test waits for what has to come.
const patience = 20 * time.Second

var topic = ids.NewTopicID()

var quiet = slog.New(slog.DiscardHandler)

// registry is the metadata that all nodes see at once.
type registry struct {
	mu    sync.Mutex
	peers map[int32]peer.Peer
}

func (r *registry) set(p peer.Peer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.peers == nil {
		r.peers = map[int32]peer.Peer{}
	}
	r.peers[p.ID] = p
}

// directory is one node's view of it.
type directory struct {
	*registry
	id      int32
	cluster string
}

func (d *directory) Self() peer.Credentials {
	p, _ := d.Peer(d.id)
	return peer.Credentials{ClusterID: d.cluster, ID: d.id, Epoch: p.Epoch, BootID: p.BootID}
}

func (d *directory) Peer(id int32) (peer.Peer, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.peers[id]
	return p, ok
}

func (d *directory) Peers() []peer.Peer {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []peer.Peer
	for _, p := range d.peers {
		if p.ID != d.id {
			out = append(out, p)
		}
	}
	return out
}

// node is one broker's transport over loopback TCP: both sides, and a server.
type node struct {
	testing.TB
	id        int32
	dir       *directory
	conns     *peer.Conns
	leaders   *Leaders
	followers *Followers
	grpc      *grpc.Server
	codec     *codec.Codec
	address   string

	mu         sync.Mutex
	partitions map[metadata.PartitionRef]LeaderPartition
	streams    int // Replicate streams opened so far
}

func (n *node) lookup(ref metadata.PartitionRef) (LeaderPartition, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.partitions[ref]
	return p, ok
}

func (n *node) host(p LeaderPartition, number int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.partitions[metadata.PartitionRef{TopicID: topic, Partition: number}] = p
}

// replicationServer is what the server does around the service.
type replicationServer struct {
	runnelv1.UnimplementedReplicationServer
	node    *node
	service *Service
}

func (s replicationServer) Replicate(g grpc.BidiStreamingServer[runnelv1.ReplicateRequest, runnelv1.ReplicateResponse]) error {
	s.node.mu.Lock()
	s.node.streams++
	s.node.mu.Unlock()
	return s.service.Replicate(g)
}

func (s replicationServer) Heartbeat(g grpc.BidiStreamingServer[runnelv1.HeartbeatRequest, runnelv1.HeartbeatResponse]) error {
	return s.service.Heartbeat(g)
}

func (s replicationServer) StartState(r *runnelv1.StartStateRequest, g grpc.ServerStreamingServer[runnelv1.StartStateResponse]) error {
	return s.service.StartState(r, g)
}

func (s replicationServer) Inventory(_ *runnelv1.InventoryRequest, g grpc.ServerStreamingServer[runnelv1.InventoryResponse]) error {
	return s.service.Inventory(g)
}

// start runs a broker of the registry and stops it with the test.
func start(t testing.TB, reg *registry, id int32, settings Settings) *node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reg.set(peer.Peer{ID: id, Epoch: int64(100 * id), BootID: [16]byte{byte(id)}, Address: l.Addr().String()})
	n := &node{
		TB: t, id: id, dir: &directory{registry: reg, id: id, cluster: clusterID}, codec: codec.New(), address: l.Addr().String(),
		partitions: map[metadata.PartitionRef]LeaderPartition{},
	}
	n.conns = peer.New(peer.Config{Directory: n.dir, Codec: n.codec, Logger: quiet})
	n.leaders, err = NewLeaders(LeadersConfig{
		Settings: settings, Directory: n.dir, Lookup: n.lookup, Pool: n.codec.Pool(), Clock: clock.System(), Logger: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	n.followers, err = NewFollowers(FollowersConfig{Settings: settings, Directory: n.dir, Dialer: n.conns, Clock: clock.System(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	n.serve(l)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = n.leaders.Run(ctx) })
	running.Go(func() { _ = n.followers.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		n.conns.Close()
		n.grpc.Stop()
	})
	return n
}

func (n *node) serve(l net.Listener) {
	n.grpc = grpc.NewServer(grpc.ForceServerCodecV2(n.codec), grpc.MaxRecvMsgSize(17<<20), grpc.WaitForHandlers(true),
		grpc.StaticStreamWindowSize(8<<20), grpc.StaticConnWindowSize(32<<20), grpc.ReadBufferSize(256<<10), grpc.WriteBufferSize(256<<10))
	runnelv1.RegisterReplicationServer(n.grpc, replicationServer{node: n, service: &Service{Directory: n.dir, Leaders: n.leaders}})
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := n.grpc.Serve(l); err != nil {
			n.Error(err)
		}
	})
	n.Cleanup(serving.Wait)
}

// source is the leader's side of a partition without the protocol: it grants whatever is asked for, over a real log.
type source struct {
	testing.TB
	log  *log.Log
	host *partitiontest.Host

	mu       sync.Mutex
	behind   int64 // what Behind says; -1: what the log says
	deposed  bool
	senders  map[replica.Session]partition.Sender
	asked    []replica.Member
	acked    map[replica.Session]int64
	gone     map[replica.Session]int
	sessions replica.Session
	answer   func(partition.Sender) // instead of granting
	changed  chan struct{}          // closed and replaced with every call
}

func newSource(t testing.TB, number int32) *source {
	h := partitiontest.NewHost(t, clock.System())
	s := &source{
		TB: t, host: h, log: h.Log(topic, number, logConfig()), behind: -1,
		senders: map[replica.Session]partition.Sender{}, acked: map[replica.Session]int64{}, gone: map[replica.Session]int{},
		changed: make(chan struct{}),
	}
	if err := s.log.AssignEpoch(1); err != nil {
		t.Fatal(err)
	}
	return s
}

// append appends one batch of about size bytes and returns its bytes.
func (s *source) append(size int) []byte {
	s.Helper()
	b := record.NewBuilder(record.CodecNone)
	b.Append(1, nil, make([]byte, size), nil)
	batch, err := b.Build(nil)
	if err != nil {
		s.Fatal(err)
	}
	h, err := record.ParseHeader(batch)
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.log.Append(batch, h, 1, time.Unix(1, 0)); err != nil {
		s.Fatal(err)
	}
	s.progress()
	return batch
}

func (s *source) progress() {
	s.mu.Lock()
	all := make([]partition.Sender, 0, len(s.senders))
	for _, x := range s.senders {
		all = append(all, x)
	}
	s.mu.Unlock()
	for _, x := range all {
		x.Progress()
	}
}

func (s *source) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits for ok, which is asked after every call, with the lock held.
func (s *source) until(what string, ok func() bool) {
	s.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			s.Fatalf("%s: did not come", what)
		}
	}
}

func (s *source) SubscribeFollower(
	x partition.Sender, p replica.Member, _ int64, _ replica.Session, _ int32, offset int64, _ int32, _ int64,
) replica.Session {
	s.mu.Lock()
	s.sessions++
	session, answer := s.sessions, s.answer
	s.asked = append(s.asked, p)
	if answer == nil {
		s.senders[session] = x
	}
	s.changedLocked()
	s.mu.Unlock()
	if answer != nil {
		answer(x)
	} else {
		x.Grant(offset)
	}
	return session
}

func (s *source) FollowerAck(session replica.Session, _ int64, _ int32, flushed, _ int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked[session] = flushed
	s.changedLocked()
}

func (s *source) FollowerGone(session replica.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.senders, session)
	s.gone[session]++
	s.changedLocked()
}

func (s *source) ReadForFollower(offset int64, maxBytes int) (log.Range, partition.FollowerLimits, error) {
	lim := partition.FollowerLimits{HighWatermark: s.log.HighWatermark(), LogStartPublished: s.log.LogStart(), LogStartWanted: s.log.LogStart(), Epoch: 1}
	r, err := s.log.ReadRange(offset, maxBytes, s.log.End())
	return r, lim, err
}

func (s *source) Behind(offset int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.behind >= 0 {
		return s.behind
	}
	return (s.log.End() - offset) * 1 << 10
}

func (s *source) Leads(int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.deposed
}

// sink is the follower's side of a partition without the protocol: it keeps what it is given.
type sink struct {
	testing.TB
	number int32
	f      *Followers

	mu       sync.Mutex
	busy     bool          // a call is in progress
	hold     chan struct{} // Deliver waits for it
	silent   bool          // no acks
	granted  []int64
	bytes    []byte
	next     int64
	hw       int64
	frames   int
	refused  []replica.Reason
	answers  []string
	sessions replica.Session
	changed  chan struct{}
}

func newSink(t testing.TB, f *Followers, number int32) *sink {
	return &sink{TB: t, f: f, number: number, changed: make(chan struct{})}
}

func (s *sink) TopicID() ids.TopicID { return topic }
func (s *sink) Number() int32        { return s.number }

// subscribe asks leader for what lies behind what the sink has.
func (s *sink) subscribe(leader int32) replica.Session {
	s.mu.Lock()
	s.sessions++
	session, next := s.sessions, s.next
	s.mu.Unlock()
	self := s.f.cfg.Directory.Self()
	s.f.subscribe(s, partition.Subscription{
		Session: session, Leader: leader, Self: replica.Member{BrokerID: self.ID, StorageID: ids.NewStorageID(), LogID: ids.NewLogID()},
		BrokerEpoch: self.Epoch, Epoch: 1, Offset: next, LastEpoch: -1,
	})
	return session
}

// enter checks that calls come one at a time.
func (s *sink) enter() func() {
	s.mu.Lock()
	if s.busy {
		s.Error("two calls at a time")
	}
	s.busy = true
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.busy = false
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

func (s *sink) Granted(session replica.Session, epoch int32, offset int64) {
	defer s.enter()()
	s.mu.Lock()
	s.granted = append(s.granted, offset)
	s.mu.Unlock()
	s.ack(session, epoch, offset)
}

func (s *sink) ack(session replica.Session, epoch int32, offset int64) {
	s.mu.Lock()
	silent := s.silent
	s.mu.Unlock()
	if !silent {
		s.f.ack(s, session, epoch, offset, 0)
	}
}

func (s *sink) DivergingAt(_ replica.Session, epoch int32, end int64) {
	defer s.enter()()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, "diverging", string(rune('0'+epoch)), string(rune('0'+end)))
}

func (s *sink) BelowStartAt(_ replica.Session, start int64) {
	defer s.enter()()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, "below", string(rune('0'+start)))
}

func (s *sink) Refused(_ replica.Session, reason replica.Reason) {
	defer s.enter()()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = append(s.refused, reason)
}

func (s *sink) Deliver(session replica.Session, epoch int32, hw, _, _, base int64, batches []byte) error {
	defer s.enter()()
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	s.mu.Lock()
	s.hw = max(s.hw, hw)
	if len(batches) > 0 {
		s.frames++
		if base != s.next {
			s.Errorf("batches from %d on, want %d", base, s.next)
		}
	}
	s.bytes = append(s.bytes, batches...)
	for rest := batches; len(rest) > 0; {
		var b []byte
		var err error
		if b, rest, err = record.NextFrame(rest); err != nil {
			s.Error(err)
			break
		}
		h, err := record.ParseHeader(b)
		if err != nil {
			s.Error(err)
		}
		s.next = h.NextOffset()
	}
	next := s.next
	s.mu.Unlock()
	if len(batches) > 0 {
		s.ack(session, epoch, next)
	}
	return nil
}

// until waits for ok, which is asked after every call, with the lock held.
func (s *sink) until(what string, ok func() bool) {
	s.Helper()
	timeout := time.After(patience)
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			s.Fatalf("%s: did not come", what)
		}
	}
}

// rawStream speaks the protocol as written, for what Followers would never say.
type rawStream struct {
	testing.TB
	grpc.ClientStream
}

// raw opens a stream to a node as another one, and has it welcomed.
func raw(from, to *node, kind runnelv1.ReplicateStream) *rawStream {
	to.Helper()
	conn, err := from.conns.Conn(to.id, peer.ClassData)
	if err != nil {
		to.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	to.Cleanup(cancel)
	s, err := runnelv1.NewReplicationClient(conn).Replicate(ctx)
	if err != nil {
		to.Fatal(err)
	}
	r := &rawStream{TB: to, ClientStream: s}
	r.say(&codec.ReplicateRequestFrame{Hello: &runnelv1.ReplicateHello{Stream: kind, LeaderBrokerId: to.id}})
	if f := r.hear(); f.Answer.GetWelcome().GetBrokerId() != to.id {
		to.Fatalf("got %+v, want a welcome", f)
	}
	return r
}

func (r *rawStream) say(f *codec.ReplicateRequestFrame) {
	r.Helper()
	if err := r.SendMsg(f); err != nil {
		r.Fatal(err)
	}
}

func (r *rawStream) hear() *codec.ReplicateFrame {
	r.Helper()
	f := &codec.ReplicateFrame{}
	if err := r.RecvMsg(f); err != nil {
		r.Fatal(err)
	}
	return f
}

// fails returns the error that ends the stream.
func (r *rawStream) fails() error {
	r.Helper()
	for range 1000 {
		if err := r.RecvMsg(&codec.ReplicateFrame{}); err != nil {
			if err == io.EOF {
				r.Fatal("the stream ended well")
			}
			return err
		}
	}
	r.Fatal("the stream goes on")
	return nil
}

// wish is a subscription as a well-meaning follower writes it.
func wish(from *node, id uint32, number int32) *runnelv1.ReplicateSubscribe {
	return &runnelv1.ReplicateSubscribe{
		SubscriptionId: id, TopicId: slices.Clone(topic[:]), Partition: number, StorageId: make([]byte, 16), LogId: make([]byte, 16),
		BrokerEpoch: from.dir.Self().Epoch, LeaderEpoch: 1, LastEpoch: -1, Session: uint64(id),
	}
}

func logConfig() log.Config {
	c := log.DefaultConfig()
	c.MaxBatchBytes, c.SegmentBytes = 16<<20, 256<<20
	return c
}

// listenDeaf returns the address of somebody who accepts connections and neither reads nor answers.
func listenDeaf(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
		for _, c := range conns {
			c.Close()
		}
	})
	return l.Addr().String()
}
