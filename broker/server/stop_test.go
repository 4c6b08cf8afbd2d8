package server_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/test/bufconn"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/internal/ids"
)

func TestGracefulStopAnswersWhatIsInFlightAndSaysGoodbye(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	p := f.cluster.parts[topic.ID][0]
	prod := f.produce(f.ctx())
	prod.send(topic, 0, f.batch("in flight"))
	waitFor(t, func() bool { return p.Waiting() == 1 })
	fetch := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, plenty)}})
	fetch.data()
	watch, err := f.meta.Watch(f.ctx(), &runnelv1.WatchRequest{AllTopics: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	sub, err := f.consumer.Subscribe(f.ctx(), &runnelv1.SubscribeRequest{Topics: []string{"t"}})
	if err != nil {
		t.Fatal(err)
	}
	f.stop()
	for name, err := range map[string]error{
		"fetch":     fetch.RecvMsg(&runnelv1.FetchResponse{}),
		"watch":     func() error { _, err := watch.Recv(); return err }(),
		"subscribe": func() error { _, err := sub.Recv(); return err }(),
	} {
		if c, r, m := reasonOf(err); c != codes.Unavailable || r != "SHUTTING_DOWN" || m["retriable"] != "true" {
			t.Fatalf("%s: %v", name, err)
		}
	}
	select {
	case err := <-f.stopped:
		t.Fatalf("stopped although a produce waits: %v", err)
	default:
	}
	f.host.Sync()
	if r := prod.answer(); r.GetError() != nil {
		t.Fatalf("what was in flight: %v", r)
	}
	_, err = prod.Recv()
	wantReason(t, err, codes.Unavailable, "SHUTTING_DOWN")
	if err := <-f.stopped; err != nil {
		t.Fatal(err)
	}
	f.stopped <- nil // for the cleanup
}

// slowLookup holds a look-up back until it is told to go on.
type slowLookup struct {
	server.Partitions
	entered, goOn chan struct{}
}

func (s slowLookup) Lookup(id ids.TopicID, n int32) (*partition.Partition, error) {
	s.entered <- struct{}{}
	<-s.goOn
	return s.Partitions.Lookup(id, n)
}

// TestAStreamDoesNotSayThatItStopsWhileABatchIsOnItsWayIn: brokers that forward conclude from it that nothing was done.
func TestAStreamDoesNotSayThatItStopsWhileABatchIsOnItsWayIn(t *testing.T) {
	slow := slowLookup{entered: make(chan struct{}, 1), goOn: make(chan struct{})}
	f := setup(t, func(c *server.Config) {
		slow.Partitions = c.Partitions
		c.Partitions = slow
	})
	topic := f.topic("t", 1)
	fetch := f.fetch(&runnelv1.FetchRequest{StreamCreditBytes: plenty})
	prod := f.produce(f.ctx())
	prod.send(topic, 0, f.batch("late"))
	<-slow.entered
	f.stop()
	if err := fetch.RecvMsg(&runnelv1.FetchResponse{}); err == nil { // every stream has been told by now
		t.Fatal("the server does not stop")
	}
	close(slow.goOn)
	f.syncing()
	if r := prod.answer(); r.GetError() != nil {
		t.Fatalf("what was appended: %v", r)
	}
	if err := <-f.stopped; err != nil {
		t.Fatal(err)
	}
	f.stopped <- nil // for the cleanup
}

func TestStopIsBounded(t *testing.T) {
	f := setup(t, func(c *server.Config) { c.Limits.StopTimeout = 1e6 })
	topic := f.topic("t", 1)
	s := f.produce(f.ctx())
	s.send(topic, 0, f.batch("never synced"))
	waitFor(t, func() bool { return f.cluster.parts[topic.ID][0].Waiting() == 1 })
	f.stop()
	if err := <-f.stopped; err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("%v", err)
	}
	f.stopped <- nil
}

func TestAFailingListenerStopsTheServer(t *testing.T) {
	f := setup(t)
	l := bufconn.Listen(1)
	_ = l.Close()
	srv, err := server.New(server.Config{
		BrokerID: 1, Listeners: []server.Listener{{Name: "x", Listener: failing{l}}}, Partitions: f.cluster, Topics: f.cluster,
		Metadata: f.cluster, ProducerIDs: f.cluster, Clock: f.host.Clock, Logger: discard(), Registerer: registry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "listener x") {
		t.Fatalf("%v", err)
	}
}

type failing struct{ net.Listener }

func (failing) Accept() (net.Conn, error) { return nil, errors.New("accept failed") }
