package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
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
		sleep(time.Hour)
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
		for r, err := range b.Records() {
			if err != nil || string(r.Value) != "v10" {
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
