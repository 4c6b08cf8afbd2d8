package client

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"runnel.dev/runnel/client/fakebroker"
)

// disconnects collects the streams that ended, by address and purpose.
type disconnects struct {
	NoHooks
	mu   sync.Mutex
	list []string
}

func (d *disconnects) Disconnected(address, purpose string, _ error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = append(d.list, address+" "+purpose)
}

func (d *disconnects) now() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.list...)
}

// A lapsed lease alone ends nothing: a leader that is not listed any more is used until somebody else leads.
func TestALeaderWhoseLeaseLapsedIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakebroker.Start(fakebroker.Brokers(2))
		defer fake.Close()
		fake.CreateTopic("t", 1)
		fake.MoveLeader("t", 0, 2)
		var seen disconnects
		c, err := Open(t.Context(), "runnel://broker-1:7650", Dialer(fake.Dial), Observe(&seen))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		cs, err := c.NewConsumer(Topics("t"))
		if err != nil {
			t.Fatal(err)
		}
		exchange := func(value string) {
			t.Helper()
			began := time.Now()
			if err := p.ProduceSync(t.Context(), rec("t", value)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for r, err := range cs.Records(ctx) {
				if err != nil || string(r.Value) != value {
					t.Fatalf("%v %v", r, err)
				}
				break
			}
			if took := time.Since(began); took > time.Second {
				t.Fatalf("%s took %v", value, took)
			}
		}
		exchange("a")
		fake.LapseLease(2)
		synctest.Wait()
		exchange("b")
		if _, err := c.Admin().EndOffsets(t.Context(), "t"); err != nil {
			t.Error(err)
		}
		fake.CreateTopic("other", 1) // a change of something else
		c.meta.watch("other")
		sleep(time.Second)
		exchange("c")
		for _, d := range seen.now() {
			if d != "broker-1:7650 metadata" { // for more topics
				t.Errorf("disconnected: %s", d)
			}
		}
		fake.MoveLeader("t", 0, 1)
		exchange("d")
		sleep(time.Second)
		if address := c.meta.snapshot().address(2); address != "" {
			t.Errorf("broker 2 leads nothing and is not listed, and is still at %s", address)
		}
		for key := range c.conns.mu.byKey {
			if key.address == "broker-2:7650" {
				t.Error("a connection to broker 2 is kept for nothing")
			}
		}
		fake.RenewLease(2)
		fake.MoveLeader("t", 0, 2)
		exchange("e")
	})
}
