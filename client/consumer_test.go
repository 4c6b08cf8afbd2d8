package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
)

// read takes n records' values.
func read(t *testing.T, cs *Consumer, n int) []string {
	t.Helper()
	var out []string
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for r, err := range cs.Records(ctx) {
		if err != nil {
			t.Fatalf("after %d records: %v", len(out), err)
		}
		if out = append(out, string(r.Value)); len(out) == n {
			return out
		}
	}
	t.Fatalf("%d of %d records: %v", len(out), n, out)
	return nil
}

// nothing makes sure that no record comes.
func nothing(t *testing.T, cs *Consumer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for r, err := range cs.Records(ctx) {
		t.Fatalf("got %v, %v", r, err)
	}
}

// failure takes the next error.
func failure(t *testing.T, cs *Consumer) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for r, err := range cs.Records(ctx) {
		if err == nil {
			t.Fatalf("got record %d, want an error", r.Offset)
		}
		return err
	}
	t.Fatal("no error came")
	return nil
}

func fill(cl *cluster, topic string, partition int32, from, to int) {
	for i := from; i < to; i++ {
		cl.Append(topic, partition, fmt.Sprintf("v%d", i))
	}
}

var tp0 = TopicPartition{"t", 0}

func TestPositions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 5)
		time.Sleep(time.Hour)
		middle := time.Now()
		fill(cl, "t", 0, 5, 10)
		if err := cl.DeleteRecords("t", 0, 2); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			from Position
			want string
		}{{Earliest, "v2"}, {At(7), "v7"}, {Since(middle), "v5"}, {Since(middle.Add(-2 * time.Hour)), "v2"}, {Latest, "v10"}, {Since(middle.Add(time.Hour)), "v10"}} {
			cs := cl.consumer(t, Topics("t"), From(c.from))
			if c.want == "v10" {
				synctest.Wait()
				fill(cl, "t", 0, 10, 11)
			}
			if got := read(t, cs, 1)[0]; got != c.want {
				t.Errorf("from %v: %s, want %s", c.from, got, c.want)
			}
			_ = cs.Close(t.Context())
			if c.want == "v10" {
				return
			}
		}
		cl.stop()
	})
}

func TestLatestReadsOnlyWhatArrivesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 5)
		for _, from := range []Position{Latest, Since(time.Now().Add(time.Hour))} {
			cs := cl.consumer(t, Topics("t"), From(from))
			synctest.Wait()
			end := len(cl.values("t", 0))
			fill(cl, "t", 0, end, end+1)
			if got := read(t, cs, 1)[0]; got != fmt.Sprintf("v%d", end) {
				t.Errorf("from %v: %s", from, got)
			}
		}
		cl.stop()
	})
}

func TestBatchesBeginBelowThePosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.Append("t", 0, numbers("v", 0, 10)...)
		cs := cl.consumer(t, Partitions(tp0), From(At(4)))
		if d := cmp.Diff(numbers("v", 4, 10), read(t, cs, 6)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestBreakingOffContinuesBehindTheLastRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.Append("t", 0, numbers("v", 0, 10)...)
		cs := cl.consumer(t, Topics("t"))
		var got []string
		for len(got) < 10 {
			got = append(got, read(t, cs, 1)...)
		}
		if d := cmp.Diff(numbers("v", 0, 10), got); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestSeekDropsStaleFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.Append("t", 0, numbers("v", 0, 10)...)
		fill(cl, "t", 0, 10, 20)
		cs := cl.consumer(t, Topics("t"))
		read(t, cs, 3)
		synctest.Wait() // everything has been fetched
		if err := cs.Seek(At(7), tp0); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(numbers("v", 7, 20), read(t, cs, 13)); d != "" {
			t.Fatal(d)
		}
		if err := cs.Seek(Earliest); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(numbers("v", 0, 20), read(t, cs, 20)); d != "" {
			t.Fatal(d)
		}
		if err := cs.Seek(Earliest, TopicPartition{"other", 0}); err == nil {
			t.Fatal("seek in a partition that is not read")
		}
		if err := cs.Seek(At(-1)); !errors.Is(err, ErrInvalidArgument) {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestSeekBeforeTheTopicIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 5)
		cs := cl.consumer(t, Topics("t"))
		if err := cs.Seek(At(3), tp0); err != nil {
			t.Fatal(err)
		}
		if got := read(t, cs, 1)[0]; got != "v3" {
			t.Fatal(got)
		}
		cl.stop()
	})
}

func TestPauseIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 2)
		cl.Append("t", 0, numbers("v", 0, 10)...)
		cs := cl.consumer(t, Topics("t"))
		read(t, cs, 4)
		cs.Pause(tp0)
		nothing(t, cs)
		cl.Append("t", 1, "other")
		if got := read(t, cs, 1)[0]; got != "other" {
			t.Fatal(got)
		}
		if pos := cs.Positions()[tp0]; pos != 4 {
			t.Fatalf("position %d", pos)
		}
		cs.Resume(tp0)
		if d := cmp.Diff(numbers("v", 4, 10), read(t, cs, 6)); d != "" {
			t.Fatal(d)
		}
		cs.Pause()
		fill(cl, "t", 0, 10, 11)
		nothing(t, cs)
		cs.Resume()
		read(t, cs, 1)
		cl.stop()
	})
}

func TestOutOfRangePolicy(t *testing.T) {
	for _, c := range []struct {
		policy OutOfRangePolicy
		at     int64
		want   string
	}{{FailOutOfRange, 1, ""}, {ResetToEarliest, 1, "v4"}, {ResetToLatest, 1, "v10"}, {FailOutOfRange, 99, ""}, {ResetToEarliest, 99, "v4"}, {ResetToLatest, 99, "v10"}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &resetHook{}
				cl := start(t, 1, Observe(h))
				cl.CreateTopic("t", 1)
				fill(cl, "t", 0, 0, 10)
				if err := cl.DeleteRecords("t", 0, 4); err != nil {
					t.Fatal(err)
				}
				cs := cl.consumer(t, Topics("t"), From(At(c.at)), OutOfRange(c.policy))
				if c.policy == FailOutOfRange {
					err := failure(t, cs)
					var pe *PartitionError
					var oor *OffsetOutOfRangeError
					if !errors.As(err, &pe) || pe.TopicPartition != tp0 || !errors.As(err, &oor) || *oor != (OffsetOutOfRangeError{tp0, c.at, 4, 10}) {
						t.Fatal(err)
					}
					nothing(t, cs)
					if err := cs.Seek(Earliest, tp0); err != nil {
						t.Fatal(err)
					}
					if got := read(t, cs, 1)[0]; got != "v4" {
						t.Fatal(got)
					}
				} else {
					synctest.Wait()
					fill(cl, "t", 0, 10, 11)
					if got := read(t, cs, 1)[0]; got != c.want {
						t.Fatalf("%s, want %s", got, c.want)
					}
					if h.n.Load() != 1 {
						t.Fatal("the hook was not told")
					}
				}
				cl.stop()
			})
		})
	}
}

type resetHook struct {
	NoHooks
	n atomic.Int32
}

func (h *resetHook) Reset(*OffsetOutOfRangeError, int64) { h.n.Add(1) }

func TestReconnectWithoutSkipOrDuplicate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2)
		cl.CreateTopic("t", 1)
		frames := 0
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method != "FetchFrame" {
				return fakebroker.Action{}
			}
			frames++
			return fakebroker.Action{Disconnect: frames%7 == 3, DisconnectAfter: frames%7 == 5}
		})
		cs := cl.consumer(t, Topics("t"), PartitionCredit(300), StreamCredit(1000))
		var got []string
		for i := range 50 {
			fill(cl, "t", 0, i*4, i*4+4)
			switch i % 10 {
			case 3:
				cl.MoveLeader("t", 0, 3-cl.Leader("t", 0))
			case 6:
				id := cl.Leader("t", 0)
				cl.StopBroker(id)
				cl.StartBroker(id)
			}
			got = append(got, read(t, cs, 4)...)
		}
		if d := cmp.Diff(numbers("v", 0, 200), got); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestErrorWhileListingAnOffsetIsNeverNoOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 5)
		tries := 0
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method != "ListOffset" {
				return fakebroker.Action{}
			}
			switch tries++; tries {
			case 1:
				return fakebroker.Action{Disconnect: true}
			case 2:
				return fakebroker.Action{Error: &fakebroker.Error{Code: codes.Unavailable, Reason: "LEADER_NOT_READY", Retriable: true}}
			case 3:
				return fakebroker.Action{Delay: time.Hour}
			}
			return fakebroker.Action{}
		})
		cs := cl.consumer(t, Topics("t"), OutOfRange(ResetToLatest))
		if got := read(t, cs, 1)[0]; got != "v0" || tries != 4 {
			t.Fatalf("%s after %d tries", got, tries)
		}
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "ListOffset" {
				return fakebroker.Action{Error: &fakebroker.Error{Code: codes.DataLoss, Reason: "PARTITION_QUARANTINED"}}
			}
			return fakebroker.Action{}
		})
		if err := cs.Seek(Earliest); err != nil {
			t.Fatal(err)
		}
		if err := failure(t, cs); !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		nothing(t, cs)
		cl.stop()
	})
}

func TestNewPartitionsAreReadFromTheirFirstRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 3)
		cs := cl.consumer(t, Topics("t"), From(Latest))
		synctest.Wait()
		cl.AddPartitions("t", 3)
		cl.Append("t", 2, "a")
		if got := read(t, cs, 1)[0]; got != "a" {
			t.Fatal(got)
		}
		cl.stop()
	})
}

func TestNeverGoesOnInANamesake(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"recreated": func(cl *cluster) { cl.CreateTopic("t", 1) }, "deleted": func(cl *cluster) { cl.DeleteTopic("t") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := start(t, 1)
				cl.CreateTopic("t", 1)
				fill(cl, "t", 0, 0, 3)
				cs := cl.consumer(t, Topics("t"))
				read(t, cs, 3)
				change(cl)
				err := failure(t, cs)
				var pe *PartitionError
				if !errors.As(err, &pe) || pe.TopicPartition != tp0 || !(errors.Is(err, ErrTopicRecreated) || errors.Is(err, ErrUnknownTopic)) {
					t.Fatal(err)
				}
				if name == "deleted" {
					cl.CreateTopic("t", 1)
				}
				fill(cl, "t", 0, 0, 9)
				nothing(t, cs)
				cl.stop()
			})
		})
	}
}

func TestMissingTopicIsReportedInTimeAndReadWhenItAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1, TopicWait(3*time.Second))
		cs := cl.consumer(t, Topics("t"))
		began := time.Now()
		err := failure(t, cs)
		var pe *PartitionError
		if !errors.As(err, &pe) || pe.Partition != -1 || !errors.Is(err, ErrUnknownTopic) || time.Since(began) != 3*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 1)
		read(t, cs, 1)
		cl.stop()
	})
}

func TestUntilEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2)
		cl.CreateTopic("t", 4)
		cl.Append("t", 0, numbers("a", 0, 5)...)
		cl.Append("t", 2, numbers("b", 0, 5)...)
		for _, from := range []Position{Earliest, At(2), Latest} {
			cs := cl.consumer(t, Topics("t"), UntilEnd(), From(from))
			var got []string
			first := true
			for r, err := range cs.Records(t.Context()) {
				if err != nil {
					var oor *OffsetOutOfRangeError
					if from == At(2) && errors.As(err, &oor) {
						continue // the empty partitions
					}
					t.Fatal(err)
				}
				if first {
					cl.Append("t", 0, "later")
					first = false
				}
				got = append(got, string(r.Value))
			}
			slices.Sort(got)
			if from == Earliest && !slices.Equal(got, append(numbers("a", 0, 5), numbers("b", 0, 5)...)) {
				t.Errorf("from %v: %v", from, got)
			}
			if from == Latest && len(got) != 0 {
				t.Errorf("from %v: %v", from, got)
			}
			if _, err := cs.Poll(t.Context()); !errors.Is(err, io.EOF) {
				t.Errorf("poll: %v", err)
			}
		}
		cl.stop()
	})
}

func TestPollBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.Append("t", 0, numbers("v", 0, 10)...)
		cs := cl.consumer(t, Topics("t"))
		b, err := cs.Poll(t.Context())
		if err != nil || b.NextOffset != 10 || b.HighWatermark != 10 || b.TopicPartition != tp0 || len(b.Raw()) == 0 {
			t.Fatalf("%v, %+v", err, b)
		}
		for r, err := range b.Records() {
			if err != nil || r.Offset == 3 {
				break
			}
		}
		cl.Append("t", 0, "v10")
		if b, err = cs.Poll(t.Context()); err != nil || b.NextOffset != 11 {
			t.Fatalf("%v, %+v", err, b)
		}
		for r := range b.Records() {
			if string(r.Value) != "v10" {
				t.Fatal(string(r.Value))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err = cs.Poll(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		_ = cs.Close(t.Context())
		if _, err = cs.Poll(t.Context()); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
		cl.stop()
	})
}

func TestPrefetchIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 1000)
		cs := cl.consumer(t, Topics("t"), PartitionCredit(1000), StreamCredit(1000))
		synctest.Wait()
		cs.mu.Lock()
		var held int
		for _, it := range cs.mu.queue {
			held += it.batch.Len()
		}
		cs.mu.Unlock()
		if held == 0 || held > 1<<20 {
			t.Fatalf("%d bytes are held", held)
		}
		if d := cmp.Diff(numbers("v", 0, 1000), read(t, cs, 1000)); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestDamagedBatchIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 3)
		cl.Damage("t", 0, 1, func(b []byte) { b[len(b)-1] ^= 1 })
		cs := cl.consumer(t, Topics("t"))
		read(t, cs, 1)
		err := failure(t, cs)
		var pe *PartitionError
		if !errors.As(err, &pe) || !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		nothing(t, cs)
		if err := cs.Seek(At(2), tp0); err != nil {
			t.Fatal(err)
		}
		if got := read(t, cs, 1)[0]; got != "v2" {
			t.Fatal(got)
		}
		cl.stop()
	})
}

func TestUnknownPartitionIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 1)
		cs := cl.consumer(t, Partitions(tp0, TopicPartition{"t", 7}))
		if err := failure(t, cs); !errors.Is(err, ErrUnknownPartition) {
			t.Fatal(err)
		}
		read(t, cs, 1)
		cl.stop()
	})
}

func TestCloneKeepsARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		p := cl.producer(t)
		want := &Record{Topic: "t", Key: []byte("k"), Value: []byte{}, Headers: []Header{{"a", []byte("1")}, {"b", nil}}, Timestamp: time.UnixMilli(5000)}
		if err := p.ProduceSync(t.Context(), want, rec("t", "next")); err != nil {
			t.Fatal(err)
		}
		cs := cl.consumer(t, Topics("t"))
		var got *Record
		for r, err := range cs.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if got != nil {
				break
			}
			got = r.Clone()
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}
