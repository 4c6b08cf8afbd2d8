package replication

import (
	"context"
	"errors"
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
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
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
	ctx, cancel := context.WithCancel(t.Context())
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
	r.say(&codec.ReplicateRequestFrame{Hello: &runnelv1.ReplicateHello{Stream: kind, LeaderBrokerId: to.id, LeaderBrokerEpoch: to.dir.Self().Epoch}})
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
			if errors.Is(err, io.EOF) {
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
