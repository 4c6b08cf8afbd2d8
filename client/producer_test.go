package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/client/fakebroker"
)

func TestProduceSetsOffsetPartitionAndTimestamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 3)
		p := cl.producer(t)
		now := time.Now()
		for i := range 3 {
			r := &Record{Topic: "t", Key: []byte("k"), Value: []byte("v"), Headers: []Header{{"h", []byte("x")}, {"h", nil}}}
			if err := p.ProduceSync(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if r.Offset != int64(i) || r.Timestamp.Before(now) {
				t.Fatalf("record %d: offset %d, timestamp %v", i, r.Offset, r.Timestamp)
			}
			got := cl.Records("t", r.Partition)
			if len(got) != i+1 || string(got[i].Key) != "k" || len(got[i].Headers) != 2 || got[i].Headers[0].GetKey() != "h" {
				t.Fatalf("log of partition %d: %v", r.Partition, got)
			}
		}
		cl.stop()
	})
}

func TestOrderKeptWithinAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 3)
		cl.CreateTopic("t", 4)
		p := cl.producer(t, ManualPartitioner(), BatchBytes(1<<10))
		var o [4]outcomes
		for i := range 1000 {
			r := rec("t", fmt.Sprintf("v%d", i))
			r.Partition = int32(i % 4)
			o[i%4].produce(t.Context(), p, r)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range o {
			list := o[n].all()
			for i, out := range list {
				if out.err != nil || out.offset != int64(i) || out.value != fmt.Sprintf("v%d", i*4+n) {
					t.Fatalf("partition %d, callback %d: %+v", n, i, out)
				}
			}
			if len(list) != 250 || len(cl.values("t", int32(n))) != 250 {
				t.Fatalf("partition %d: %d callbacks, %d records", n, len(list), len(cl.values("t", int32(n))))
			}
		}
		cl.stop()
	})
}

func TestLingerWaitsForMoreRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		var batches atomic.Int32
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "Produce" {
				batches.Add(1)
			}
			return fakebroker.Action{}
		})
		p := cl.producer(t, Linger(time.Second))
		var o outcomes
		o.produce(t.Context(), p, rec("t", "a"))
		time.Sleep(999 * time.Millisecond)
		o.produce(t.Context(), p, rec("t", "b"))
		synctest.Wait()
		if n := batches.Load(); n != 0 {
			t.Fatalf("%d batches before the linger time has passed", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := batches.Load(); n != 1 || len(o.now()) != 2 {
			t.Fatalf("%d batches, %d outcomes after the linger time", n, len(o.now()))
		}
		cl.stop()
	})
}

func TestFlushDoesNotLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p := cl.producer(t, Linger(time.Minute))
		var o outcomes
		o.produce(t.Context(), p, rec("t", "a"))
		began := time.Now()
		if err := p.Flush(t.Context()); err != nil || len(o.now()) != 1 || time.Since(began) > time.Second {
			t.Fatalf("flush: %v, %d outcomes after %v", err, len(o.now()), time.Since(began))
		}
		cl.stop()
	})
}

func failOnce(match func(fakebroker.Call) bool, a fakebroker.Action) func(fakebroker.Call) fakebroker.Action {
	var done atomic.Bool
	return func(c fakebroker.Call) fakebroker.Action {
		if c.Method == "Produce" && match(c) && !done.Swap(true) {
			return a
		}
		return fakebroker.Action{}
	}
}

func anyBatch(fakebroker.Call) bool { return true }

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

func TestCancelBeforeSendDropsTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p := cl.producer(t, Linger(time.Minute))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var o outcomes
		o.produce(t.Context(), p, rec("t", "before"))
		o.produce(ctx, p, rec("t", "cancelled"))
		o.produce(t.Context(), p, rec("t", "behind"))
		time.Sleep(time.Second)
		cancel()
		list := o.all()
		if list[0].err != nil || !errors.Is(list[1].err, context.Canceled) || !errors.Is(list[1].err, ErrNotWritten) {
			t.Fatalf("outcomes: %v; %v; %v", list[0].err, list[1].err, list[2].err)
		}
		if !errors.Is(list[2].err, ErrNotWritten) || !errors.Is(list[2].err, ErrEarlierFailed) {
			t.Fatalf("queued behind it: %v", list[2].err)
		}
		if d := cmp.Diff([]string{"before"}, cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestCancelAfterSendAwaitsTheOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.OnCall(failOnce(anyBatch, fakebroker.Action{Delay: 3 * time.Second}))
		p := cl.producer(t, Linger(0))
		ctx, cancel := context.WithCancel(t.Context())
		var o outcomes
		o.produce(ctx, p, rec("t", "sent"))
		synctest.Wait()
		cancel()
		time.Sleep(time.Second)
		if len(o.now()) != 0 {
			t.Fatal("a sent record was dropped")
		}
		if list := o.all(); list[0].err != nil || list[0].offset != 0 {
			t.Fatalf("%+v", list)
		}
		cl.stop()
	})
}

func TestCancelledRecordIsDroppedWhileItsBrokerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p := cl.producer(t)
		if err := p.ProduceSync(t.Context(), rec("t", "a")); err != nil {
			t.Fatal(err)
		}
		cl.StopBroker(1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := p.ProduceSync(ctx, rec("t", "b"))
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrNotWritten) || time.Since(began) != time.Second {
			t.Fatalf("after %v: %v", time.Since(began), err)
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

// A record whose outcome was reported as unknown is still settled before anything newer is sent, under the same producer id.
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
				time.Sleep(10 * time.Second)
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
				go func() { time.Sleep(2 * time.Second); cl.StartBroker(1) }()
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
		go func() { time.Sleep(time.Second); cl.MoveLeader("t", 0, 2) }()
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
		go func() { time.Sleep(time.Second); cl.CreateTopic("late", 1) }()
		if err := cl.producer(t).ProduceSync(t.Context(), rec("late", "b")); err != nil {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestBufferFullBlocksAndUnblocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.OnCall(failOnce(anyBatch, fakebroker.Action{Delay: 5 * time.Second}))
		p := cl.producer(t, BufferBytes(1<<10), Linger(0))
		var o outcomes
		big := strings.Repeat("x", 400)
		o.produce(t.Context(), p, rec("t", big))
		o.produce(t.Context(), p, rec("t", big))
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.ProduceSync(ctx, rec("t", big))
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrNotWritten) || time.Since(began) != time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		o.produce(t.Context(), p, rec("t", big))
		if d := time.Since(began); d != 5*time.Second {
			t.Fatalf("unblocked after %v", d)
		}
		if err := p.ProduceSync(t.Context(), rec("t", strings.Repeat("x", 2000))); !errors.Is(err, ErrRecordTooLarge) {
			t.Fatal(err)
		}
		if len(o.all()) != 3 || len(cl.values("t", 0)) != 3 {
			t.Fatal("lost records")
		}
		cl.stop()
	})
}

func TestRecordTooLargeNamesSizeAndLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		limit := int32(2 << 10)
		cl.Configure("t", func(c *runnelv1.TopicConfig) { c.MaxBatchBytes = &limit })
		p := cl.producer(t, BatchBytes(1<<10))
		fits := strings.Repeat("x", 2<<10-61-9)
		if err := p.ProduceSync(t.Context(), rec("t", fits)); err != nil {
			t.Fatalf("a record that just fits: %v", err)
		}
		err := p.ProduceSync(t.Context(), rec("t", fits+"x"))
		var e *RecordTooLargeError
		if !errors.As(err, &e) || e.Limit != 2<<10 || e.Size != 2<<10+1 || !errors.Is(err, ErrRecordTooLarge) || !errors.Is(err, ErrNotWritten) {
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

// The broker forgets the producer between an append and its retry: whether the batch is in the log cannot be told any more.
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

func TestCloseFlushes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p := cl.producer(t, Linger(time.Minute))
		var o outcomes
		o.produce(t.Context(), p, rec("t", "a"))
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if list := o.now(); len(list) != 1 || list[0].err != nil {
			t.Fatalf("%+v", list)
		}
		if err := p.ProduceSync(t.Context(), rec("t", "b")); !errors.Is(err, ErrClosed) || !errors.Is(err, ErrNotWritten) {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestCloseCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action { return fakebroker.Action{Lose: c.Method == "Produce"} })
		p := cl.producer(t, Linger(0), MaxInFlight(1))
		var o outcomes
		o.produce(t.Context(), p, rec("t", "sent"))
		synctest.Wait()
		o.produce(t.Context(), p, rec("t", "queued"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		list := o.now()
		if len(list) != 2 || !errors.Is(list[0].err, ErrClosed) || !errors.Is(list[0].err, ErrOutcomeUnknown) ||
			!errors.Is(list[1].err, ErrClosed) || !errors.Is(list[1].err, ErrNotWritten) {
			t.Fatalf("%+v", list)
		}
		cl.stop()
	})
}

func TestFlushReportsFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.OnCall(failOnce(anyBatch, fakebroker.Action{Error: &fakebroker.Error{Code: codes.InvalidArgument, Reason: "INVALID_BATCH"}}))
		p := cl.producer(t)
		p.Produce(t.Context(), rec("t", "a"), nil)
		p.Produce(t.Context(), rec("t", "b"), nil)
		if err := p.Flush(t.Context()); !errors.Is(err, ErrNotWritten) || !strings.Contains(err.Error(), "2 of 2") {
			t.Fatal(err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestThrottleIsObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.OnCall(failOnce(anyBatch, fakebroker.Action{Throttle: 3 * time.Second}))
		p := cl.producer(t, Linger(0))
		if err := p.ProduceSync(t.Context(), rec("t", "a")); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := p.ProduceSync(t.Context(), rec("t", "b")); err != nil || time.Since(began) != 3*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		cl.stop()
	})
}

func TestLogAppendTimeIsHandedBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.Configure("t", func(c *runnelv1.TopicConfig) {
			c.TimestampType = runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME.Enum()
		})
		p := cl.producer(t)
		r := rec("t", "a")
		r.Timestamp = time.UnixMilli(1000)
		if err := p.ProduceSync(t.Context(), r); err != nil || time.Since(r.Timestamp) > time.Second {
			t.Fatalf("%v, timestamp %v", err, r.Timestamp)
		}
		cl.stop()
	})
}

func TestCompressionFromTopicAndOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.Configure("t", func(c *runnelv1.TopicConfig) { c.Compression = runnelv1.Compression_COMPRESSION_ZSTD.Enum() })
		var want []string
		for _, codec := range []Compression{CompressionTopic, CompressionNone, CompressionGzip, CompressionSnappy, CompressionLZ4, CompressionZstd} {
			p := cl.producer(t, Compress(codec))
			v := strings.Repeat(codec.String(), 1000)
			if err := p.ProduceSync(t.Context(), rec("t", v)); err != nil {
				t.Fatal(err)
			}
			want = append(want, v)
		}
		if d := cmp.Diff(want, cl.values("t", 0)); d != "" {
			t.Fatal(d)
		}
		info, err := cl.c.Admin().DescribePartitions(t.Context(), "t")
		if err != nil || info[0].SizeBytes > 8000 {
			t.Fatalf("%v, %+v", err, info)
		}
		cl.stop()
	})
}

func TestUnkeyedRecordsStickToOnePartitionPerBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 8)
		p := cl.producer(t)
		used := map[int32]bool{}
		for range 40 {
			rs := []*Record{rec("t", "a"), rec("t", "b"), rec("t", "c")}
			if err := p.ProduceSync(t.Context(), rs...); err != nil {
				t.Fatal(err)
			}
			if rs[0].Partition != rs[1].Partition || rs[1].Partition != rs[2].Partition {
				t.Fatal("one batch went to several partitions")
			}
			used[rs[0].Partition] = true
		}
		if len(used) < 5 {
			t.Fatalf("40 batches went to %d of 8 partitions", len(used))
		}
		cl.stop()
	})
}

func TestAcksLeaderIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		p := cl.producer(t, AcksLeader())
		if p.acks() != runnelv1.Acks_ACKS_LEADER || cl.producer(t).acks() != runnelv1.Acks_ACKS_ALL {
			t.Fatal("acks")
		}
		cl.stop()
	})
}

func TestSequenceWraps(t *testing.T) {
	for _, c := range [][3]int32{{0, 5, 5}, {1<<31 - 1, 1, 0}, {1<<31 - 3, 10, 7}} {
		if got := addSequence(c[0], c[1]); got != c[2] {
			t.Errorf("%d + %d = %d, want %d", c[0], c[1], got, c[2])
		}
	}
}

func TestOptionsReportAllFaults(t *testing.T) {
	_, err := newProducerConfig([]ProducerOption{Linger(-1), BatchBytes(1), BufferBytes(1), DeliveryTimeout(0), MaxInFlight(6), Compress(9)})
	if n := len(strings.Split(err.Error(), "\n")); n != 6 {
		t.Errorf("%d faults: %v", n, err)
	}
	_, err = newConsumerConfig([]ConsumerOption{From(At(-1)), OutOfRange(9), PartitionCredit(0), StreamCredit(-1)})
	if n := len(strings.Split(err.Error(), "\n")); n != 5 {
		t.Errorf("%d faults: %v", n, err)
	}
}

func TestURL(t *testing.T) {
	for in, want := range map[string][]string{
		"runnel://h1:7650,h2:1": {"h1:7650", "h2:1"}, "localhost": {"localhost:7650"}, "runnel://[::1]:5/": {"[::1]:5"}, "[::1]": {"[::1]:7650"},
	} {
		if got, err := parseURL(in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "http://x", "runnel://", "a:1,,b:2", "::1", "a b", "runnel://h/x"} {
		if got, err := parseURL(in); err == nil {
			t.Errorf("%q was taken as %v", in, got)
		}
	}
}
