package peer

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// broker is the other end: it says who called.
type broker struct {
	runnelv1.UnimplementedReplicationServer
	dir     *directory
	address string
	mu      sync.Mutex
	callers []Peer
}

func (b *broker) Inventory(_ *runnelv1.InventoryRequest, s grpc.ServerStreamingServer[runnelv1.InventoryResponse]) error {
	p, err := Verify(s.Context(), b.dir)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.callers = append(b.callers, p)
	b.mu.Unlock()
	return nil
}

func (b *broker) Heartbeat(s grpc.BidiStreamingServer[runnelv1.HeartbeatRequest, runnelv1.HeartbeatResponse]) error {
	if err := s.Send(&runnelv1.HeartbeatResponse{}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

// serve starts a broker as id 1 and stops it with the test.
func serve(t *testing.T, address string) *broker {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{dir: newDirectory(), address: l.Addr().String()}
	g := grpc.NewServer(grpc.ForceServerCodecV2(codec.New()))
	runnelv1.RegisterReplicationServer(g, b)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := g.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { g.Stop(); wg.Wait() })
	return b
}

// caller is broker 2's view.
func caller(address string) *directory {
	return &directory{
		self:  Credentials{ClusterID: cluster, ID: 2, Epoch: 20, BootID: [16]byte{2}},
		peers: map[int32]Peer{1: {ID: 1, Epoch: 10, BootID: [16]byte{1}, Address: address}},
	}
}

func open(t *testing.T, dir *directory) *Conns {
	t.Helper()
	c := New(Config{Directory: dir, Codec: codec.New(), Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(c.Close)
	return c
}

func call(t *testing.T, c *Conns) error {
	t.Helper()
	conn, err := c.Conn(1, ClassData)
	if err != nil {
		return err
	}
	s, err := runnelv1.NewReplicationClient(conn).Inventory(t.Context(), &runnelv1.InventoryRequest{})
	if err != nil {
		return err
	}
	_, err = s.Recv()
	return err
}

func TestCallsCarryCredentials(t *testing.T) {
	b := serve(t, "127.0.0.1:0")
	if err := call(t, open(t, caller(b.address))); status.Code(err) != codes.Unknown && err.Error() != "EOF" {
		t.Fatal(err)
	}
	if len(b.callers) != 1 || b.callers[0].ID != 2 || b.callers[0].Epoch != 20 {
		t.Fatalf("the server saw %+v", b.callers)
	}
}

func TestClassesHaveConnectionsOfTheirOwn(t *testing.T) {
	b := serve(t, "127.0.0.1:0")
	c := open(t, caller(b.address))
	seen := map[grpc.ClientConnInterface]bool{}
	for class := range Class(classes) {
		conn, err := c.Conn(1, class)
		if err != nil {
			t.Fatal(err)
		}
		seen[conn] = true
		if again, err := c.Conn(1, class); err != nil || again != conn {
			t.Fatalf("class %v is not kept: %v", class, err)
		}
	}
	if len(seen) != classes {
		t.Fatalf("%d connections, want %d", len(seen), classes)
	}
}

func TestRefusedConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close() // nobody listens there any more
	c := open(t, caller(address))
	if c.Refused(1, ClassData) {
		t.Fatal("refused before anybody tried")
	}
	if err := call(t, c); status.Code(err) != codes.Unavailable {
		t.Fatalf("got %v, want Unavailable", err)
	}
	if !c.Refused(1, ClassData) || c.Refused(1, ClassHeartbeat) {
		t.Fatal("the refused connection is not known as such, or another one is")
	}
	b := serve(t, address)
	c.Retry(1, ClassData)
	for { // the back-off is reset, but a dial may be under way
		if err := call(t, c); status.Code(err) != codes.Unavailable {
			break
		}
	}
	if c.Refused(1, ClassData) {
		t.Fatal("still refused")
	}
	if b.callers[0].ID != 2 {
		t.Fatalf("the server saw %+v", b.callers)
	}
}

func TestAnotherAddressOrRegistrationIsDialedAnew(t *testing.T) {
	for name, change := range map[string]func(*Peer, string){
		"address":      func(p *Peer, other string) { p.Address = other },
		"registration": func(p *Peer, _ string) { p.Epoch++ },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := serve(t, "127.0.0.1:0"), serve(t, "127.0.0.1:0")
			dir := caller(a.address)
			c := open(t, dir)
			conn, err := c.Conn(1, ClassHeartbeat)
			if err != nil {
				t.Fatal(err)
			}
			s, err := runnelv1.NewReplicationClient(conn).Heartbeat(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err != nil {
				t.Fatal(err)
			}
			c.Prune() // nothing changed: the stream goes on
			if again, err := c.Conn(1, ClassHeartbeat); err != nil || again != conn {
				t.Fatalf("dialed anew without a reason: %v", err)
			}
			p, _ := dir.Peer(1)
			change(&p, b.address)
			dir.set(p)
			c.Prune()
			if _, err := s.Recv(); err == nil {
				t.Fatal("the stream to what is no longer there goes on")
			}
			if again, err := c.Conn(1, ClassHeartbeat); err != nil || again == conn {
				t.Fatalf("the old connection is kept: %v", err)
			}
		})
	}
}

func TestUnknownBrokerAndClosedConns(t *testing.T) {
	c := open(t, caller("127.0.0.1:1"))
	if _, err := c.Conn(7, ClassData); !errors.Is(err, ErrUnknown) {
		t.Fatalf("got %v, want ErrUnknown", err)
	}
	c.Close()
	if _, err := c.Conn(1, ClassData); !errors.Is(err, ErrClosed) {
		t.Fatalf("got %v, want ErrClosed", err)
	}
}

func TestCredentialsThatTheCallerSetStay(t *testing.T) {
	b := serve(t, "127.0.0.1:0")
	c := open(t, caller(b.address))
	conn, err := c.Conn(1, ClassForward)
	if err != nil {
		t.Fatal(err)
	}
	ctx := Outgoing(t.Context(), Credentials{ClusterID: "another", ID: 2, Epoch: 20})
	s, err := runnelv1.NewReplicationClient(conn).Inventory(ctx, &runnelv1.InventoryRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err == nil || err.Error() == "EOF" {
		t.Fatalf("got %v, want a refusal", err)
	}
}
