package client

import (
	"context"
	"errors"
	"fmt"
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
		sleep(999 * time.Millisecond)
		o.produce(t.Context(), p, rec("t", "b"))
		synctest.Wait()
		if n := batches.Load(); n != 0 {
			t.Fatalf("%d batches before the linger time has passed", n)
		}
		sleep(time.Millisecond)
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
		sleep(time.Second)
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
		sleep(time.Second)
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

// A record whose outcome was reported as unknown is still settled before anything newer is sent, under the same producer id.
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

// The broker forgets the producer between an append and its retry: whether the batch is in the log cannot be told any more.
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

// Outside of a bubble: coders are pooled over all tests, and what a zstd coder made inside of one could not be used outside.
func TestCompressionFromTopicAndOption(t *testing.T) {
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
