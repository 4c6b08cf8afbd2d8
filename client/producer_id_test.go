package client

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
)

var noIDs = fakebroker.Action{Error: &fakebroker.Error{Code: codes.Unavailable, Reason: "METADATA_UNAVAILABLE", Retriable: true}}

// A partition that needs a new producer id while there is none to be had holds up no partition that still has one.
func TestAPartitionThatWaitsForAProducerIDHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 2)
		var mu sync.Mutex
		wrote := make(map[int32]map[int64]bool) // the producer ids that each partition's batches carried
		withheld, tries := true, 0
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			mu.Lock()
			defer mu.Unlock()
			switch c.Method {
			case "Produce":
				if wrote[c.Partition] == nil {
					wrote[c.Partition] = make(map[int64]bool)
				}
				wrote[c.Partition][c.ProducerID] = true
			case "InitProducer":
				if tries++; tries > 1 && withheld {
					return noIDs
				}
			}
			return fakebroker.Action{}
		})
		p := cl.producer(t, Linger(0), ManualPartitioner())
		at := func(partition int32, i int) *Record {
			return &Record{Topic: "t", Partition: partition, Value: fmt.Appendf(nil, "v%d", i)}
		}
		if err := p.ProduceSync(t.Context(), at(0, 0), at(1, 0)); err != nil {
			t.Fatal(err)
		}
		cl.ForgetProducers("t", 0)
		var waiting outcomes
		for i := 1; i < 4; i++ {
			waiting.produce(t.Context(), p, at(0, i))
		}
		sleep(10 * time.Second)
		began := time.Now()
		for i := 1; i < 20; i++ {
			if err := p.ProduceSync(t.Context(), at(1, i)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the partition that has an id was held up for %v", took)
		}
		if list := waiting.now(); len(list) != 0 {
			t.Fatalf("written without an id: %+v", list)
		}
		mu.Lock()
		withheld = false
		if tries < 5 || tries > 100 {
			t.Errorf("%d ids were asked for in 10 s", tries)
		}
		mu.Unlock()
		began = time.Now()
		for _, out := range waiting.all() {
			if out.err != nil {
				t.Fatal(out.err)
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the id was there, and used after %v", took)
		}
		for partition, want := range [][]string{numbers("v", 0, 4), numbers("v", 0, 20)} {
			if d := cmp.Diff(want, cl.values("t", int32(partition))); d != "" {
				t.Error(d)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(wrote[0]) != 2 || len(wrote[1]) != 1 {
			t.Errorf("producer ids by partition: %v", wrote)
		}
		cl.stop()
	})
}

// A producer id comes from any broker: one that gives none is not the end.
func TestAProducerIDComesFromAnyBroker(t *testing.T) {
	for name, fault := range map[string]fakebroker.Action{"refused": noIDs, "silent": {Lose: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := start(t, 2, RequestTimeout(4*time.Second))
				cl.CreateTopic("t", 1)
				cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
					if c.Method == "InitProducer" && c.Broker == 1 {
						return fault
					}
					return fakebroker.Action{}
				})
				began := time.Now()
				if err := cl.producer(t).ProduceSync(t.Context(), rec("t", "v")); err != nil || time.Since(began) > 5*time.Second {
					t.Fatalf("%v after %v", err, time.Since(began))
				}
				cl.stop()
			})
		})
	}
}

// Closing ends the wait for an id.
func TestCloseEndsTheWaitForAProducerID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "InitProducer" {
				return noIDs
			}
			return fakebroker.Action{}
		})
		p := cl.producer(t, DeliveryTimeout(5*time.Second))
		if err := p.ProduceSync(t.Context(), rec("t", "v")); err == nil {
			t.Fatal("written without an id")
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		cl.stop()
	})
}
