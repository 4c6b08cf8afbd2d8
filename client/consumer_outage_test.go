package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
)

// A partition without a leader is reported once, after a RequestTimeout, and read on when it has one again.
func TestAPartitionWithoutALeaderIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1, RequestTimeout(8*time.Second))
		cl.CreateTopic("t", 2)
		fill(cl, "t", 1, 0, 1)
		cl.MoveLeader("t", 0, -1)
		begin := time.Now()
		cs := cl.consumer(t, Topics("t"))
		if got := read(t, cs, 1)[0]; got != "v0" {
			t.Fatal(got)
		}
		err := failure(t, cs)
		var pe *PartitionError
		if !errors.As(err, &pe) || pe.TopicPartition != tp0 || !errors.Is(err, ErrStalled) || !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited < 8*time.Second || waited > 11*time.Second {
			t.Fatalf("reported after %v", waited)
		}
		nothing(t, cs)
		sleep(time.Minute)
		nothing(t, cs)
		cl.MoveLeader("t", 0, 1)
		fill(cl, "t", 0, 5, 6)
		if got := read(t, cs, 1)[0]; got != "v5" {
			t.Fatal(got)
		}
		cl.MoveLeader("t", 0, -1)
		sleep(20 * time.Second)
		if err := failure(t, cs); !errors.Is(err, ErrStalled) {
			t.Fatalf("the second outage: %v", err)
		}
		cl.stop()
	})
}

// With UntilEnd the end comes although a partition cannot be read.
func TestUntilEndGivesUpWhatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 2)
		fill(cl, "t", 1, 0, 3)
		cl.MoveLeader("t", 0, -1)
		cs := cl.consumer(t, Topics("t"), UntilEnd())
		var values, faults int
		for _, err := range cs.Records(t.Context()) {
			if err == nil {
				values++
				continue
			}
			if faults++; !errors.Is(err, ErrStalled) {
				t.Fatal(err)
			}
		}
		if values != 3 || faults != 1 {
			t.Fatalf("%d records, %d errors", values, faults)
		}
		cl.stop()
	})
}

// What a replica calls hopeless is not waited for, and the reason is passed on.
func TestAQuarantinedPartitionIsReportedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method != "ListOffsets" {
				return fakebroker.Action{}
			}
			return fakebroker.Action{Error: &fakebroker.Error{Code: codes.DataLoss, Reason: "PARTITION_QUARANTINED", Message: "damaged"}}
		})
		// It has a replica, and no leader that anybody can reach.
		cs := cl.consumer(t, Topics("t"), From(At(0)))
		synctest.Wait()
		cl.c.meta.mu.Lock()
		next := *cl.c.meta.cur.Load()
		next.topics = map[string]*topicMeta{"t": {name: "t", id: next.topics["t"].id, partitions: []partitionMeta{{leader: -1, leaderEpoch: 9, replicas: []int32{1}}}}}
		cl.c.meta.publishLocked(&next)
		cl.c.meta.mu.Unlock()
		begin := time.Now()
		err := failure(t, cs)
		var e *Error
		if !errors.Is(err, ErrStalled) || !errors.As(err, &e) || e.Reason != "PARTITION_QUARANTINED" || Retriable(err) {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited > 10*time.Second {
			t.Fatalf("reported after %v", waited)
		}
		cl.stop()
	})
}

// Records that expire while they are to be read move the position past the end; that is the end, too.
func TestUntilEndWhenThePositionJumpsPastTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 10)
		hold := true
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "Fetch" && hold {
				hold = false
				return fakebroker.Action{Delay: time.Second}
			}
			return fakebroker.Action{}
		})
		cs := cl.consumer(t, Topics("t"), UntilEnd(), OutOfRange(ResetToEarliest))
		sleep(500 * time.Millisecond) // the end is known, and fetching begins soon
		if err := cl.DeleteRecords("t", 0, 10); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for r, err := range cs.Records(t.Context()) {
				t.Errorf("%v %v", r, err)
			}
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Minute):
			t.Error("the end never came")
		}
		cl.stop()
	})
}

// Streams that break while nobody reads do not make the queue grow: every new one is granted what is left.
func TestReconnectingQueuesNoMoreThanTheCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			return fakebroker.Action{DisconnectAfter: c.Method == "FetchFrame"}
		})
		const credit = 2000
		cs := cl.consumer(t, Topics("t"), PartitionCredit(100), StreamCredit(credit))
		for i := range 1000 {
			fill(cl, "t", 0, i, i+1)
			sleep(2 * time.Second)
		}
		held := 0
		cs.mu.Lock()
		for i := range cs.mu.queue {
			if b := cs.mu.queue[i].batch; b != nil {
				held += b.Len()
			}
		}
		cs.mu.Unlock()
		if held == 0 || held > credit+200 {
			t.Fatalf("%d bytes are queued, the credit is %d", held, credit)
		}
		cl.OnCall(nil)
		for i, v := range read(t, cs, 1000) {
			if v != numbers("v", i, i+1)[0] {
				t.Fatalf("record %d is %s", i, v)
			}
		}
		cl.stop()
	})
}
