package broker

import (
	"context"
	"testing"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
)

func TestDescribeConfigNamesWhatIsNotTheDefault(t *testing.T) {
	c := config.Default()
	c.Rack = "r1"
	c.Replication.LagTimeout = config.Duration(9 * time.Second)
	got := map[string]*runnelv1.ConfigEntry{}
	for _, e := range describeConfig(c) {
		got[e.GetName()] = e
	}
	for name, want := range map[string]struct {
		value   string
		changed bool
	}{
		"rack": {"r1", true}, "replication.lagTimeout": {"9s", true}, "cluster": {"runnel", false},
		"storage.dataDir": {"data", false}, "listeners[0].name": {"client", false}, "limits.maxInFlightBytes": {"256MiB", false},
	} {
		if e := got[name]; e.GetValue() != want.value || e.GetChanged() != want.changed {
			t.Errorf("%s: %v, want %q, changed %v", name, e, want.value, want.changed)
		}
	}
}

func TestSnapshotsAreKeptByTheControllerAndOneMore(t *testing.T) {
	f := newFixture(t)
	s := &snapshots{p: &parts{reg: f.reg}}
	with := func(controller int32, brokers ...int32) *metadata.State {
		var live []*metadata.Broker
		for _, id := range brokers {
			live = append(live, &metadata.Broker{BrokerInfo: metadata.BrokerInfo{ID: id}, Epoch: 1})
		}
		c := metadata.Contents{Brokers: live}
		if controller >= 0 {
			c.Controller = &metadata.ControllerInfo{BrokerID: controller}
		}
		return metadata.NewState(c)
	}
	for name, tt := range map[string]struct {
		state *metadata.State
		want  bool
	}{
		"the controller":           {with(me, 0, me), true},
		"the lowest beside it":     {with(5, me, 2, 5), true},
		"not the lowest":           {with(5, 0, me, 5), false},
		"the controller is lowest": {with(0, 0, me, 2), true},
		"no controller":            {with(-1, me), false},
	} {
		if got := s.mine(tt.state); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// A lapsed lease alone ends nothing: a broker that is not registered any more is still found, until it registers anew.
func TestDirectoryRemembersLapsedRegistrations(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.cache.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	d := newDirectory("c", "client", f.cache, f.reg)
	if s := d.Self(); s.ID != me || s.Epoch != f.reg.Epoch() || s.ClusterID != "c" {
		t.Errorf("self %+v", s)
	}
	other, err := f.client.Register(ctx, metadata.BrokerInfo{ID: 7, StorageID: f.store.StorageID(), Listeners: map[string]string{"client": "seven:1", "x": "no:1"}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.cache.WaitRevision(ctx, other.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	d.note(s)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- other.Run(running) }()
	if p, ok := d.Peer(7); !ok || p.Address != "seven:1" || p.Epoch != other.Epoch() || len(d.Peers()) != 1 {
		t.Errorf("%+v %v, %d peers", p, ok, len(d.Peers()))
	}
	stop() // revokes the lease
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := f.cache.Wait(ctx, func(s *metadata.State) bool { _, alive := s.Broker(7); return !alive }); err != nil {
		t.Fatal(err)
	}
	if p, ok := d.Peer(7); !ok || p.Epoch != other.Epoch() || len(d.Peers()) != 0 {
		t.Errorf("after the lapse: %+v %v, %d peers", p, ok, len(d.Peers()))
	}
	if _, ok := d.Peer(8); ok {
		t.Error("a broker that never was is known")
	}
}

// A change that is based on a record that is not the newest is answered at once, with the newest.
func TestISRChangesOfOldRecordsAreAnswered(t *testing.T) {
	f := newFixture(t)
	tp := topic("t")
	p := f.led(part(tp), f.log(part(tp)))
	f.pass(t.Context(), state(10, []*metadata.Topic{tp}, p), nil)
	here, _ := f.lookup(p.PartitionRef)
	w := newISRWriter(f.client, f.cache, f.reg, func(*metadata.State, *metadata.Partition) int { return 1 }, f.clk, quiet)
	w.ProposeISR(here, 1, 5, []replica.Member{{BrokerID: me}}, nil)
	if open := w.write(t.Context(), w.mu.queue); len(open) != 0 {
		t.Errorf("%d changes of a partition that is not there are open", len(open))
	}
	if !here.Role().Leading {
		t.Error("an answer without a record ended leading")
	}
	newer := p.Clone()
	newer.Revision, newer.LeaderEpoch, newer.Leader = 99, 2, me+1
	w.written[p.PartitionRef] = newer
	w.ProposeISR(here, 2, 5, []replica.Member{{BrokerID: me}}, nil)
	if open := w.write(t.Context(), w.mu.queue[1:]); len(open) != 0 {
		t.Errorf("%d open", len(open))
	}
	if r := here.Role(); r.Leading || r.LeaderID != me+1 {
		t.Errorf("the record that overtook the change did not arrive: %+v", r)
	}
	var _ partition.MetadataWriter = w
}
