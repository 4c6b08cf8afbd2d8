package client

import (
	"context"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"runnel.dev/runnel/client/fakebroker"
)

// ackTime produces one record and says how long its acknowledgement took.
func ackTime(t *testing.T, p *Producer, topic, value string, partition int32) time.Duration {
	t.Helper()
	began := time.Now()
	if err := p.ProduceSync(t.Context(), &Record{Topic: topic, Partition: partition, Value: []byte(value)}); err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	return time.Since(began)
}

// TestANewLeaderIsFollowedAtOnce: however long the old leader has been away, and however long the pauses between attempts have grown, what metadata says
// is acted on when it says it.
func TestANewLeaderIsFollowedAtOnce(t *testing.T) {
	for name, fail := range map[string]func(*cluster, int32){
		"a leader that refuses connections": func(c *cluster, id int32) { c.StopBroker(id) },
		"a leader that hangs":               func(c *cluster, id int32) { c.HangBroker(id) },
	} {
		for _, away := range []time.Duration{10 * time.Millisecond, 600 * time.Millisecond, 9 * time.Second} {
			t.Run(fmt.Sprintf("%s for %v", name, away), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					cl := startAt(t, 3, "runnel://broker-1:7650") // metadata comes from a broker that lives
					cl.CreateTopic("t", 3)                        // led by 1, 2, 3
					p := cl.producer(t, Linger(0), ManualPartitioner())
					cs := cl.consumer(t, Partitions(TopicPartition{"t", 1}))
					for n := range int32(3) {
						ackTime(t, p, "t", "before", n)
					}
					got := make(chan time.Time, 10)
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan struct{})
					go func() {
						defer close(done)
						for _, err := range cs.Records(ctx) {
							if err == nil {
								got <- time.Now()
							}
						}
					}()
					<-got
					fail(cl, 2)
					var o outcomes
					for i := range 10 {
						o.produce(t.Context(), p, &Record{Topic: "t", Partition: 1, Value: fmt.Appendf(nil, "v%d", i)})
					}
					sleep(away)
					// The others do not wait for the one that is away.
					for _, n := range []int32{0, 2} {
						if took := ackTime(t, p, "t", "beside", n); took > 10*time.Millisecond {
							t.Errorf("partition %d took %v beside a broker that is away", n, took)
						}
					}
					moved := time.Now()
					cl.MoveLeader("t", 1, 3)
					for range 10 {
						at := <-got
						if d := at.Sub(moved); d > 50*time.Millisecond {
							t.Errorf("a record was read %v after the move", d)
						}
					}
					o.all()
					if d := time.Since(moved); d > 50*time.Millisecond {
						t.Errorf("acknowledged %v after the move", d)
					}
					if d := cmp.Diff(append([]string{"before"}, numbers("v", 0, 10)...), cl.values("t", 1)); d != "" {
						t.Error(d)
					}
					cancel()
					<-done
					cl.WakeBroker(2)
					cl.stop()
				})
			})
		}
	}
}

// TestARestartedBrokerIsFoundAtOnce: a leader that comes back under the same address is not waited for as long as the connection's back-off says.
func TestARestartedBrokerIsFoundAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 3)
		cl.CreateTopic("t", 3)
		p := cl.producer(t, Linger(0), ManualPartitioner())
		ackTime(t, p, "t", "before", 1)
		cl.StopBroker(2)
		var o outcomes
		o.produce(t.Context(), p, &Record{Topic: "t", Partition: 1, Value: []byte("v")})
		sleep(20 * time.Second)
		cl.StartBroker(2)
		began := time.Now()
		cl.MoveLeader("t", 1, 2) // elected again, in a new epoch
		o.all()
		if d := time.Since(began); d > 100*time.Millisecond {
			t.Errorf("acknowledged %v after the broker was elected", d)
		}
		cl.stop()
	})
}

// TestABrokerThatHangsIsNoticedByItsSilence: whichever broker a client follows metadata through, it learns in time that another leads.
func TestABrokerThatHangsIsNoticedByItsSilence(t *testing.T) {
	for id := range int32(3) {
		t.Run(fmt.Sprintf("broker %d", id+1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := start(t, 3)
				cl.CreateTopic("t", 3)
				p := cl.producer(t, Linger(0), ManualPartitioner())
				ackTime(t, p, "t", "before", id)
				sleep(5 * time.Second)
				began := time.Now()
				cl.HangBroker(id + 1)
				var o outcomes
				o.produce(t.Context(), p, &Record{Topic: "t", Partition: id, Value: []byte("v")})
				sleep(700 * time.Millisecond)
				cl.MoveLeader("t", id, (id+1)%3+1)
				o.all()
				if d := time.Since(began); d > 2*time.Second {
					t.Errorf("acknowledged after %v", d)
				}
				cl.WakeBroker(id + 1)
				cl.stop()
			})
		})
	}
}

// TestOpenPassesABrokerThatHangs: the first of the seeds may be the one.
func TestOpenPassesABrokerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakebroker.Start(fakebroker.Brokers(3))
		fake.HangBroker(1)
		fake.HangBroker(2)
		began := time.Now()
		c, err := Open(t.Context(), fake.URL(), Dialer(fake.Dial))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(began); d > 3*time.Second {
			t.Errorf("opened after %v", d)
		}
		if _, err := c.Admin().DescribeCluster(t.Context()); err != nil {
			t.Error(err)
		}
		_ = c.Close(t.Context())
		fake.Close()
	})
}

// TestFiveInFlightAcrossALeaderChange: of five batches that the old leader appended and did not acknowledge, the new one has any number. What it has is
// recognised, and what it lacks is sent again, in order.
func TestFiveInFlightAcrossALeaderChange(t *testing.T) {
	for kept := range int64(6) {
		t.Run(fmt.Sprint(kept), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := start(t, 2)
				cl.CreateTopic("t", 2) // led by 1, 2
				p := cl.producer(t, Linger(0), ManualPartitioner())
				ackTime(t, p, "t", "v0", 0)
				cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
					return fakebroker.Action{Lose: c.Method == "Produce" && c.Broker == 1}
				})
				var o outcomes
				for i := 1; i <= 12; i++ {
					o.produce(t.Context(), p, &Record{Topic: "t", Value: fmt.Appendf(nil, "v%d", i)})
					synctest.Wait()
				}
				if d := cmp.Diff(numbers("v", 0, 6), cl.values("t", 0)); d != "" {
					t.Fatal(d)
				}
				cl.LoseTail("t", 0, 1+kept)
				cl.MoveLeader("t", 0, 2)
				list := o.all()
				if d := cmp.Diff(numbers("v", 0, 13), cl.values("t", 0)); d != "" {
					t.Fatal(d)
				}
				for i, out := range list {
					if out.err != nil || out.offset != int64(i+1) {
						t.Errorf("callback %d: %+v", i, out)
					}
				}
				cl.stop()
			})
		})
	}
}

// TestAnyBroker: everything goes through the seed, also for leaders that the client could not reach.
func TestAnyBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := fakebroker.Start(fakebroker.Brokers(3))
		fake.CreateTopic("t", 3)
		var dialled []string
		var failing bool
		dial := fake.Dial
		c, err := Open(t.Context(), "runnel://broker-2:7650,broker-3:7650", AnyBroker(), Dialer(func(ctx context.Context, address string) (net.Conn, error) {
			dialled = append(dialled, address)
			failing = failing || address == "broker-1:7650"
			return dial(ctx, address)
		}))
		if err != nil {
			t.Fatal(err)
		}
		cl := &cluster{Cluster: fake, c: c}
		p := cl.producer(t, Linger(0), ManualPartitioner())
		for n := range int32(3) {
			ackTime(t, p, "t", "v", n)
		}
		cs := cl.consumer(t, Topics("t"), UntilEnd())
		read := 0
		for _, err := range cs.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			read++
		}
		if read != 3 || failing {
			t.Errorf("%d records, dialled %v", read, dialled)
		}
		// The seed in use goes; the other one takes over.
		for _, id := range []int32{2, 3} {
			fake.MoveLeader("t", 0, 1)
			fake.StopBroker(id)
			if took := ackTime(t, p, "t", "w", 0); took > time.Second {
				t.Errorf("%v after broker %d was stopped", took, id)
			}
			fake.StartBroker(id)
		}
		_ = c.Close(t.Context())
		fake.Close()
	})
}
