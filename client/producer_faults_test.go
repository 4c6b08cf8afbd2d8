package client

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
)

func TestLostAckIsRetriedAndNotDuplicated(t *testing.T) {
	for name, a := range map[string]fakebroker.Action{
		"disconnected after the append": {DisconnectAfter: true}, "silent after the append": {Lose: true}, "disconnected before": {Disconnect: true},
		"outcome unknown": {Error: &fakebroker.Error{Code: codes.Unavailable, Reason: "OUTCOME_UNKNOWN", Retriable: true}},
		"retriable":       {Error: &fakebroker.Error{Code: codes.Unavailable, Reason: "NOT_ENOUGH_REPLICAS", Retriable: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := start(t, 1, RequestTimeout(5*time.Second))
				cl.CreateTopic("t", 1)
				cl.OnCall(failOnce(func(c fakebroker.Call) bool { return c.Sequence == 10 }, a))
				p := cl.producer(t, Linger(0), BatchBytes(1<<10))
				var o outcomes
				for i := range 40 {
					o.produce(t.Context(), p, rec("t", fmt.Sprintf("v%d", i)))
					synctest.Wait()
				}
				if err := p.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				for i, out := range o.all() {
					if out.offset != int64(i) {
						t.Fatalf("callback %d: %+v", i, out)
					}
				}
				if d := cmp.Diff(numbers("v", 0, 40), cl.values("t", 0)); d != "" {
					t.Fatal(d)
				}
				cl.stop()
			})
		})
	}
}

func TestOrderKeptOnFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		refusal := fakebroker.Action{Error: &fakebroker.Error{Code: codes.InvalidArgument, Reason: "INVALID_BATCH", Message: "no"}}
		cl.OnCall(failOnce(func(c fakebroker.Call) bool { return c.Sequence == 2 }, fakebroker.Action{Delay: time.Second, Error: refusal.Error}))
		p := cl.producer(t, Linger(0))
		var o outcomes
		for i := range 20 {
			o.produce(t.Context(), p, rec("t", fmt.Sprintf("v%d", i)))
			synctest.Wait() // one batch each, as far as they are sent
		}
		list := o.all()
		for i, out := range list {
			if out.value != fmt.Sprintf("v%d", i) {
				t.Fatalf("callback %d is about %s", i, out.value)
			}
			if (out.err == nil) != (i < 2) || (i >= 2 && (!errors.Is(out.err, ErrNotWritten) || errors.Is(out.err, ErrOutcomeUnknown))) {
				t.Fatalf("record %d: %v", i, out.err)
			}
		}
		var refused *Error
		if !errors.As(list[2].err, &refused) || refused.Reason != "INVALID_BATCH" || !errors.Is(list[19].err, ErrEarlierFailed) {
			t.Fatalf("causes: %v; %v", list[2].err, list[19].err)
		}
		if err := p.ProduceSync(t.Context(), rec("t", "again")); err != nil {
			t.Fatalf("after the failure: %v", err)
		}
		if d := cmp.Diff([]string{"v0", "v1", "again"}, cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestDeliveryTimeoutNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.MoveLeader("t", 0, -1)
		p := cl.producer(t, DeliveryTimeout(30*time.Second))
		began := time.Now()
		err := p.ProduceSync(t.Context(), rec("t", "a"), rec("t", "b"))
		if !errors.Is(err, ErrNotWritten) || errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrDeliveryTimeout) {
			t.Fatal(err)
		}
		if !strings.Contains(err.Error(), "no leader") {
			t.Fatalf("does not say why: %v", err)
		}
		if d := time.Since(began); d != 30*time.Second {
			t.Fatalf("timed out after %v", d)
		}
		cl.stop()
	})
}

func TestDeliveryTimeoutNotWrittenWhenEveryAttemptWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		var full atomic.Bool
		full.Store(true)
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "Produce" && full.Load() {
				return fakebroker.Action{Error: &fakebroker.Error{Code: codes.ResourceExhausted, Reason: "NO_SPACE", Retriable: true}}
			}
			return fakebroker.Action{}
		})
		p := cl.producer(t, DeliveryTimeout(30*time.Second))
		if err := p.ProduceSync(t.Context(), rec("t", "a")); !errors.Is(err, ErrNotWritten) || errors.Is(err, ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		full.Store(false)
		if err := p.ProduceSync(t.Context(), rec("t", "b")); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"b"}, cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestDeliveryTimeoutOutcomeUnknownIsSettledFirst(t *testing.T) {
	for _, reached := range []bool{true, false} {
		t.Run(fmt.Sprintf("written=%v", reached), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := start(t, 1, RequestTimeout(10*time.Second))
				cl.CreateTopic("t", 1)
				var away atomic.Bool
				away.Store(true)
				var idsTaken atomic.Int32
				cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
					switch {
					case c.Method == "InitProducer":
						idsTaken.Add(1)
					case c.Method == "Produce" && away.Load():
						return fakebroker.Action{Disconnect: !reached, DisconnectAfter: reached}
					}
					return fakebroker.Action{}
				})
				p := cl.producer(t, DeliveryTimeout(30*time.Second), Linger(0))
				var o outcomes
				o.produce(t.Context(), p, rec("t", "a"))
				list := o.all()
				if !errors.Is(list[0].err, ErrOutcomeUnknown) || errors.Is(list[0].err, ErrNotWritten) || !errors.Is(list[0].err, ErrDeliveryTimeout) {
					t.Fatal(list[0].err)
				}
				o.produce(t.Context(), p, rec("t", "b"))
				sleep(10 * time.Second)
				away.Store(false)
				if list = o.all(); list[1].err != nil {
					t.Fatal(list[1].err)
				}
				if d := cmp.Diff([]string{"a", "b"}, cl.values("t", 0)); d != "" {
					t.Fatal(d)
				}
				if n := idsTaken.Load(); n != 1 {
					t.Fatalf("%d producer ids were taken while an outcome was unknown", n)
				}
				cl.stop()
			})
		})
	}
}

func TestSequenceGoesOnAfterReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		var seqs []int32
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "Produce" {
				seqs = append(seqs, c.Sequence)
			}
			return fakebroker.Action{}
		})
		p := cl.producer(t)
		for i := range 6 {
			if i == 3 {
				cl.StopBroker(1)
				go func() { sleep(2 * time.Second); cl.StartBroker(1) }()
			}
			if err := p.ProduceSync(t.Context(), rec("t", fmt.Sprintf("v%d", i)), rec("t", "x")); err != nil {
				t.Fatal(err)
			}
		}
		if d := cmp.Diff([]int32{0, 2, 4, 6, 8, 10}, seqs); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestLeaderMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2)
		cl.CreateTopic("t", 1)
		p := cl.producer(t, Linger(0))
		var o outcomes
		for i := range 100 {
			if i%10 == 5 {
				cl.MoveLeader("t", 0, 3-cl.Leader("t", 0))
			}
			o.produce(t.Context(), p, rec("t", fmt.Sprintf("v%d", i)))
			if i%3 == 0 {
				synctest.Wait()
			}
		}
		began := time.Now()
		if err := p.Flush(t.Context()); err != nil || time.Since(began) > time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		if d := cmp.Diff(numbers("v", 0, 100), cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestLeaderThatHangsIsLeftAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2)
		cl.CreateTopic("t", 1)
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			return fakebroker.Action{Lose: c.Method == "Produce" && c.Broker == 1}
		})
		p := cl.producer(t)
		began := time.Now()
		go func() { sleep(time.Second); cl.MoveLeader("t", 0, 2) }()
		if err := p.ProduceSync(t.Context(), rec("t", "a")); err != nil || time.Since(began) > 1100*time.Millisecond {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		if d := cmp.Diff([]string{"a"}, cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestTopicRecreatedFailsWhatIsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 2)
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			return fakebroker.Action{Lose: c.Method == "Produce" && string(c.Topic) == "t" && c.Sequence == 0}
		})
		p := cl.producer(t, Linger(0), MaxInFlight(1), ManualPartitioner())
		var o outcomes
		o.produce(t.Context(), p, rec("t", "in flight"))
		synctest.Wait()
		o.produce(t.Context(), p, rec("t", "queued"))
		synctest.Wait()
		cl.OnCall(nil)
		cl.CreateTopic("t", 1)
		list := o.all()
		if !errors.Is(list[0].err, ErrOutcomeUnknown) || !errors.Is(list[0].err, ErrTopicRecreated) {
			t.Errorf("in flight: %v", list[0].err)
		}
		if !errors.Is(list[1].err, ErrNotWritten) || !errors.Is(list[1].err, ErrTopicRecreated) {
			t.Errorf("queued: %v", list[1].err)
		}
		if err := p.ProduceSync(t.Context(), rec("t", "new")); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"new"}, cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		r := rec("t", "cut off")
		r.Partition = 1
		if err := p.ProduceSync(t.Context(), r); !errors.Is(err, ErrUnknownPartition) || !errors.Is(err, ErrNotWritten) {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestDeletedTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1, TopicWait(2*time.Second))
		cl.CreateTopic("t", 1)
		p := cl.producer(t, Linger(time.Minute))
		var o outcomes
		o.produce(t.Context(), p, rec("t", "a"))
		cl.DeleteTopic("t")
		if err := o.all()[0].err; !errors.Is(err, ErrUnknownTopic) || !errors.Is(err, ErrNotWritten) {
			t.Fatal(err)
		}
		if err := p.ProduceSync(t.Context(), rec("t", "b")); !errors.Is(err, ErrUnknownTopic) {
			t.Fatal(err)
		}
		began := time.Now()
		if err := p.ProduceSync(t.Context(), rec("never", "b")); !errors.Is(err, ErrUnknownTopic) || time.Since(began) < 2*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		go func() { sleep(time.Second); cl.CreateTopic("late", 1) }()
		if err := cl.producer(t).ProduceSync(t.Context(), rec("late", "b")); err != nil {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestUnknownProducerTakesANewID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p := cl.producer(t, Linger(0))
		if err := p.ProduceSync(t.Context(), rec("t", "v0")); err != nil {
			t.Fatal(err)
		}
		cl.ForgetProducers("t", 0)
		var o outcomes
		for i := 1; i < 10; i++ {
			o.produce(t.Context(), p, rec("t", fmt.Sprintf("v%d", i)))
		}
		for i, out := range o.all() {
			if out.err != nil || out.offset != int64(i+1) {
				t.Fatalf("%+v", out)
			}
		}
		if d := cmp.Diff(numbers("v", 0, 10), cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestUnknownProducerWhileAnOutcomeIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p := cl.producer(t, Linger(0))
		if err := p.ProduceSync(t.Context(), rec("t", "v0")); err != nil {
			t.Fatal(err)
		}
		cl.OnCall(failOnce(anyBatch, fakebroker.Action{DisconnectAfter: true}))
		var o outcomes
		o.produce(t.Context(), p, rec("t", "v1"))
		synctest.Wait()
		cl.ForgetProducers("t", 0)
		if err := o.all()[0].err; !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		if err := p.ProduceSync(t.Context(), rec("t", "v2")); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(numbers("v", 0, 3), cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestTopicThatIsBeingCreatedIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1, TopicWait(5*time.Second))
		cl.CreateTopic("t", 0)
		go func() { sleep(time.Second); cl.AddPartitions("t", 2) }()
		p := cl.producer(t, ManualPartitioner())
		if err := p.ProduceSync(t.Context(), &Record{Topic: "t", Partition: 1}); err != nil {
			t.Fatal(err)
		}
		cl.CreateTopic("never", 0)
		if err := p.ProduceSync(t.Context(), rec("never", "a")); !errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrNotWritten) {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestCloseEndsWaitingForATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1, TopicWait(time.Hour))
		p := cl.producer(t)
		var o outcomes
		go o.produce(t.Context(), p, rec("never", "a"))
		sleep(time.Second)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := o.all()[0].err; !errors.Is(err, ErrClosed) || !errors.Is(err, ErrNotWritten) {
			t.Fatal(err)
		}
		cl.stop()
	})
}

// An error that says nothing of the batch leaves open whether it was written.
func TestAnInternalErrorLeavesTheOutcomeOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		for reason, code := range map[string]codes.Code{"INTERNAL": codes.Internal, "SOMETHING_NEW": codes.Unknown} {
			cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
				if c.Method != "Produce" {
					return fakebroker.Action{}
				}
				return fakebroker.Action{Error: &fakebroker.Error{Code: code, Reason: reason}}
			})
			p := cl.producer(t)
			if err := p.ProduceSync(t.Context(), rec("t", "v")); !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNotWritten) {
				t.Errorf("%s: %v", reason, err)
			}
		}
		cl.stop()
	})
}
