package replication

import (
	"context"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/liveness"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/internal/clock"
)

// beatNode is a broker that only beats, on a network in memory, in the time of a synctest bubble.
type beatNode struct {
	testing.TB
	*beatNet
	id    int32
	dir   *directory
	hb    *Heartbeats
	conns *peer.Conns
	grpc  *grpc.Server
	stop  func()

	mu     sync.Mutex
	local  Local
	hang   chan struct{} // beats wait for it
	load   []PartitionLoad
	loads  map[int32]int // entries by sender
	states []PushedState
}

// beatNet is the network.
type beatNet struct {
	reg       registry
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener // by address; absent: refused
}

func (n *beatNet) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	}
	return l.DialContext(ctx)
}

// beat starts broker id. It stops with stop, at the latest with the test.
func (n *beatNet) beat(t testing.TB, id int32, epoch int64) *beatNode {
	b := &beatNode{TB: t, beatNet: n, id: id, dir: &directory{registry: &n.reg, id: id, cluster: clusterID}, loads: map[int32]int{}}
	b.local.Controller = -1
	address := fmt.Sprint("broker-", id)
	n.reg.set(peer.Peer{ID: id, Epoch: epoch, BootID: [16]byte{byte(epoch)}, Address: address})
	c := codec.New()
	b.conns = peer.New(peer.Config{Directory: b.dir, Codec: c, Logger: quiet, Dial: n.dial})
	b.hb = NewHeartbeats(HeartbeatsConfig{
		Directory: b.dir, Dialer: b.conns, Detector: liveness.Config{Self: id}, Clock: clock.System(), Logger: quiet,
		Local: func() Local {
			b.mu.Lock()
			local, hang := b.local, b.hang
			b.mu.Unlock()
			if hang != nil {
				<-hang
			}
			return local
		},
		Load: func() []PartitionLoad { b.mu.Lock(); defer b.mu.Unlock(); return slices.Clone(b.load) },
		OnLoad: func(from int32, load []PartitionLoad) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.loads[from] = len(load)
		},
		OnStates: func(_ int32, states []PushedState) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.states = append(b.states, states...)
		},
	})
	l := bufconn.Listen(1 << 20)
	n.mu.Lock()
	if n.listeners == nil {
		n.listeners = map[string]*bufconn.Listener{}
	}
	n.listeners[address] = l
	n.mu.Unlock()
	b.grpc = grpc.NewServer(grpc.ForceServerCodecV2(c), grpc.WaitForHandlers(true))
	runnelv1.RegisterReplicationServer(b.grpc, replicationServer{service: &Service{Directory: b.dir, Heartbeats: b.hb}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.grpc.Serve(l); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		if err := b.hb.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	b.stop = sync.OnceFunc(func() {
		n.mu.Lock()
		delete(n.listeners, address)
		n.mu.Unlock()
		cancel()
		b.conns.Close()
		b.grpc.Stop()
		running.Wait()
	})
	return b
}

// settle lets d pass.
func settle(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestBrokersSeeEachOtherBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		var all []*beatNode
		for id := range int32(3) {
			b := n.beat(t, id, int64(id+1))
			defer b.stop()
			all = append(all, b)
		}
		settle(time.Second)
		for _, b := range all {
			if v := b.hb.View(); !slices.Equal(v.Beating, []int32{0, 1, 2}) || v.Hears != 2 || len(v.Suspects) != 0 {
				t.Fatalf("broker %d sees %+v", b.id, v)
			}
		}
		settle(10 * time.Minute)
		for _, b := range all {
			if v := b.hb.View(); len(v.Suspects) != 0 || v.Hears != 2 {
				t.Fatalf("broker %d sees %+v after ten quiet minutes", b.id, v)
			}
		}
	})
}

func TestKilledBrokerIsConfirmedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b, c := n.beat(t, 0, 1), n.beat(t, 1, 2), n.beat(t, 2, 3)
		defer a.stop()
		defer b.stop()
		settle(3 * time.Second)
		changed := a.hb.Changed()
		begin := time.Now()
		c.stop() // its connections end and new ones are refused
		for !slices.Contains(a.hb.View().Confirmed, 2) {
			<-changed
			changed = a.hb.Changed()
		}
		if took := time.Since(begin); took > 300*time.Millisecond {
			t.Fatalf("a killed broker was confirmed after %v", took)
		}
	})
}

func TestSilentBrokerIsConfirmedAfterSuspectAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b, c := n.beat(t, 0, 1), n.beat(t, 1, 2), n.beat(t, 2, 3)
		defer a.stop()
		defer b.stop()
		defer c.stop()
		settle(3 * time.Second)
		// It hangs: the connections stay, no beat comes.
		hang := make(chan struct{})
		c.mu.Lock()
		c.hang = hang
		c.mu.Unlock()
		begin := time.Now()
		changed := a.hb.Changed()
		for !slices.Contains(a.hb.View().Confirmed, 2) {
			<-changed
			changed = a.hb.Changed()
		}
		c.mu.Lock()
		c.hang = nil
		c.mu.Unlock()
		close(hang)
		if took := time.Since(begin); took < 400*time.Millisecond || took > 1200*time.Millisecond {
			t.Fatalf("a hung broker was confirmed after %v", took)
		}
		settle(time.Second)
		if v := a.hb.View(); len(v.Suspects) != 0 || v.Hears != 2 {
			t.Fatalf("once it beats again: %+v", v)
		}
	})
}

func TestRestartedBrokerIsHeardUnderItsNewRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b := n.beat(t, 0, 1), n.beat(t, 1, 2)
		defer a.stop()
		settle(3 * time.Second)
		b.stop()
		settle(300 * time.Millisecond)
		again := n.beat(t, 1, 9)
		defer again.stop()
		settle(3 * time.Second)
		for _, x := range []*beatNode{a, again} {
			if v := x.hb.View(); v.Hears != 1 || len(v.Suspects) != 0 {
				t.Fatalf("broker %d sees %+v", x.id, v)
			}
		}
	})
}

func TestBrokerThatIsRegisteredAnewGoesOnBeating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b := n.beat(t, 0, 1), n.beat(t, 1, 2)
		defer a.stop()
		defer b.stop()
		settle(3 * time.Second)
		p, _ := b.dir.Peer(1)
		p.Epoch = 7
		n.reg.set(p) // its lease had lapsed; the same process has another registration
		settle(3 * time.Second)
		for _, x := range []*beatNode{a, b} {
			if v := x.hb.View(); v.Hears != 1 || len(v.Suspects) != 0 {
				t.Fatalf("broker %d sees %+v", x.id, v)
			}
		}
	})
}

func TestStoppingIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b := n.beat(t, 0, 1), n.beat(t, 1, 2)
		defer a.stop()
		defer b.stop()
		settle(3 * time.Second)
		b.mu.Lock()
		b.local.Stopping = true
		b.mu.Unlock()
		settle(250 * time.Millisecond)
		if v := a.hb.View(); !slices.Equal(v.Stopping, []int32{1}) || len(v.Suspects) != 0 {
			t.Fatalf("broker 0 sees %+v", v)
		}
		if v := b.hb.View(); !slices.Equal(v.Stopping, []int32{1}) {
			t.Fatalf("the broker itself sees %+v", v)
		}
	})
}

func TestHangingDiskIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b := n.beat(t, 0, 1), n.beat(t, 1, 2)
		defer a.stop()
		defer b.stop()
		settle(3 * time.Second)
		b.mu.Lock()
		b.local.SyncAge = 5 * time.Second
		b.mu.Unlock()
		settle(500 * time.Millisecond)
		if v := a.hb.View(); !slices.Equal(v.Confirmed, []int32{1}) {
			t.Fatalf("broker 0 sees %+v", v)
		}
	})
}

func TestWhatTakesNoWritesIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b := n.beat(t, 0, 1), n.beat(t, 1, 2)
		defer a.stop()
		defer b.stop()
		settle(3 * time.Second)
		var logs []liveness.Log
		for i := range int32(MaxUnwritableLogs + 1) {
			logs = append(logs, liveness.Log{TopicID: topic, Partition: i})
		}
		say := func(unwritable bool, logs []liveness.Log) {
			b.mu.Lock()
			b.local.Unwritable, b.local.UnwritableLogs = unwritable, logs
			b.mu.Unlock()
			settle(250 * time.Millisecond)
		}
		say(true, logs)
		for _, x := range []*beatNode{a, b} {
			v := x.hb.View()
			if !slices.Equal(v.Unwritable, []int32{1}) || !slices.Equal(v.UnwritableLogs[1], logs[:MaxUnwritableLogs]) || len(v.Suspects) != 0 {
				t.Fatalf("broker %d sees %v, %d logs, suspects %v", x.id, v.Unwritable, len(v.UnwritableLogs[1]), v.Suspects)
			}
		}
		changed := a.hb.Changed()
		settle(time.Minute)
		select {
		case <-changed:
			t.Error("the view changes although nothing does")
		default:
		}
		say(false, nil)
		if v := a.hb.View(); v.Unwritable != nil || v.UnwritableLogs != nil {
			t.Fatalf("broker 0 sees %+v", v)
		}
	})
}

func TestLoadGoesToTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b := n.beat(t, 0, 1), n.beat(t, 1, 2)
		defer a.stop()
		defer b.stop()
		ref := metadata.PartitionRef{TopicID: topic, Partition: 3}
		for _, x := range []*beatNode{a, b} {
			x.mu.Lock()
			x.local.Controller = 0
			x.load = []PartitionLoad{{Ref: ref, BytesIn: 1}, {Ref: ref, BytesIn: 2}}
			x.mu.Unlock()
		}
		b.mu.Lock()
		for i := range MaxLoad + 10 {
			b.load = append(b.load, PartitionLoad{Ref: ref, BytesIn: float64(i)})
		}
		b.mu.Unlock()
		settle(11 * time.Second)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.loads[0] != 2 || a.loads[1] != MaxLoad {
			t.Fatalf("the controller got %v", a.loads)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.loads) != 0 {
			t.Fatal("a broker that is not the controller got reports")
		}
	})
}

func TestPushedStatesArriveAtOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n beatNet
		a, b := n.beat(t, 0, 1), n.beat(t, 1, 2)
		defer a.stop()
		defer b.stop()
		settle(3 * time.Second)
		var states []PushedState
		for i := range int64(maxPushMessage + 100) {
			states = append(states, PushedState{Ref: metadata.PartitionRef{TopicID: topic}, Era: 1, ModRevision: i, Value: []byte("v")})
		}
		begin := time.Now()
		a.hb.Push(states)
		synctest.Wait()
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.states) != len(states) || time.Since(begin) != 0 {
			t.Fatalf("%d of %d states arrived after %v", len(b.states), len(states), time.Since(begin))
		}
		for i, s := range b.states {
			if s.ModRevision != int64(i) || s.Ref.TopicID != topic || string(s.Value) != "v" {
				t.Fatalf("state %d is %+v", i, s)
			}
		}
	})
}

func TestPushesToADeafBrokerAreBounded(t *testing.T) {
	h := NewHeartbeats(HeartbeatsConfig{Clock: clock.System(), Logger: quiet})
	s := &beatSender{h: h, id: 1, poke: make(chan struct{}, 1)}
	h.mu.senders[1] = s
	for range 10 {
		h.Push(make([]PushedState, maxPushed/4))
	}
	if len(s.mu.states) > maxPushed {
		t.Fatalf("%d states wait", len(s.mu.states))
	}
}

// TestLoadsThatAreNoNumbersAreDropped: one of them would make every sum of the balancer's one as well.
func TestLoadsThatAreNoNumbersAreDropped(t *testing.T) {
	var got []PartitionLoad
	h := NewHeartbeats(HeartbeatsConfig{Clock: clock.System(), Logger: quiet, OnLoad: func(_ int32, load []PartitionLoad) { got = load }})
	req := &runnelv1.HeartbeatRequest{BrokerEpoch: 5, Load: []*runnelv1.PartitionLoad{
		{TopicId: topic[:], BytesIn: math.NaN()},
		{TopicId: topic[:], BytesOut: math.Inf(1)},
		{TopicId: topic[:], RecordsIn: -1},
		{TopicId: topic[:], Partition: 7, BytesIn: 1, BytesOut: 2, RecordsIn: 3},
	}}
	if err := h.take(peer.Peer{ID: 2, Epoch: 5}, req); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Ref.Partition != 7 {
		t.Fatalf("loads taken: %v", got)
	}
}

func TestBeatsThatMakeNoSenseEndTheirStream(t *testing.T) {
	h := NewHeartbeats(HeartbeatsConfig{Clock: clock.System(), Logger: quiet, OnLoad: func(int32, []PartitionLoad) {}})
	from := peer.Peer{ID: 2, Epoch: 5}
	for name, req := range map[string]*runnelv1.HeartbeatRequest{
		"another epoch":     {BrokerEpoch: 4},
		"too much load":     {BrokerEpoch: 5, Load: make([]*runnelv1.PartitionLoad, MaxLoad+1)},
		"too many states":   {BrokerEpoch: 5, States: make([]*runnelv1.PushedState, maxPushMessage+1)},
		"too many logs":     {BrokerEpoch: 5, UnwritableLogs: make([]*runnelv1.UnwritableLog, MaxUnwritableLogs+1)},
		"too many suspects": {BrokerEpoch: 5, Suspects: make([]int32, maxSuspects+1)},
	} {
		if h.take(from, req) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	ok := &runnelv1.HeartbeatRequest{
		BrokerEpoch: 5, SyncAgeUs: -1, Load: []*runnelv1.PartitionLoad{nil, {TopicId: []byte("short")}, {TopicId: topic[:], Partition: -1}},
		UnwritableLogs: []*runnelv1.UnwritableLog{nil, {TopicId: []byte("short")}, {TopicId: topic[:], Partition: -1}},
	}
	if err := h.take(from, ok); err != nil {
		t.Errorf("odd entries: %v", err)
	}
}
