package replication

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"

	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
)

func TestSentQueueGivesBackWhatWasTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q sentQueue
		var end, acked, inFlight int64
		sent := map[int64]int64{} // end → bytes
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "send") {
				n := rapid.SampledFrom([]int64{1, 100, 5000, 70_000, 1 << 20}).Draw(t, "bytes")
				end += rapid.Int64Range(1, 50).Draw(t, "offsets")
				q.push(end, n)
				sent[end] = n
				inFlight += n
				continue
			}
			acked = rapid.Int64Range(acked, end).Draw(t, "flushed")
			inFlight -= q.acked(acked)
			var most int64
			for e, n := range sent {
				if e > acked {
					most += n
				}
			}
			// Merged entries are given back together, so up to a grain may still count although it was acknowledged.
			if inFlight < most || inFlight > most+grain {
				t.Fatalf("%d bytes in flight, want %d and at most %d more", inFlight, most, grain)
			}
		}
		if inFlight -= q.acked(end); inFlight != 0 {
			t.Fatalf("%d bytes are never given back", inFlight)
		}
	})
}

func TestSentQueueStaysShort(t *testing.T) {
	var q sentQueue
	for i := range int64(100_000) {
		q.push(i, 100)
	}
	if n := len(q.entries); n > 100_000*100/grain*2+1 {
		t.Fatalf("%d entries", n)
	}
}

func TestBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(clock.System(), 1000)
		begin := time.Now()
		for range 10 { // the first is free
			if err := b.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.take(500)
		}
		if took := time.Since(begin); took < 4400*time.Millisecond || took > 4600*time.Millisecond {
			t.Fatalf("5,000 bytes at 1,000 bytes/s took %v, want the 4.5 s of all but the last", took)
		}
		b.take(1 << 30)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the end of the context", err)
		}
		done := make(chan error)
		go func() { done <- b.wait(t.Context()) }()
		synctest.Wait()
		b.setRate(0)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		b.take(1 << 40) // unlimited: nothing is owed
		b.setRate(1000)
	})
}

func TestBucketDoesNotSaveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(clock.System(), 1000)
		<-time.After(time.Hour)
		begin := time.Now()
		for range 3 {
			if err := b.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.take(1000)
		}
		if took := time.Since(begin); took < 1800*time.Millisecond {
			t.Fatalf("3,000 bytes took %v after an idle hour", took)
		}
	})
}

func TestSettings(t *testing.T) {
	if err := (Settings{}).Validate(); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]Settings{
		"streams": {TailStreams: 5}, "window": {Window: 1}, "stream window": {StreamWindow: 1}, "quantum": {Quantum: 1 << 20}, "rate": {CatchUpRate: -1},
		"delay": {OffsetsDelay: -1}, "negative streams": {TailStreams: -1},
	} {
		if s.Validate() == nil {
			t.Errorf("%s: %+v is accepted", name, s)
		}
	}
	if _, err := NewLeaders(LeadersConfig{Settings: Settings{Window: 1}}); err == nil {
		t.Error("leaders take bad settings")
	}
	if _, err := NewFollowers(FollowersConfig{Settings: Settings{Window: 1}}); err == nil {
		t.Error("followers take bad settings")
	}
}

// recorder is a partition that writes down what it is told.
type recorder struct {
	FollowerPartition
	hold chan struct{}
	said chan string
}

func (r *recorder) TopicID() ids.TopicID { return topic }
func (r *recorder) Number() int32        { return 0 }

func (r *recorder) Deliver(_ replica.Session, _ int32, hw, _, _, _ int64, batches []byte) error {
	<-r.hold
	r.said <- string(batches) + "@" + string(rune('0'+hw))
	return nil
}

// lent is a buffer that counts its references.
type lent struct {
	mem.SliceBuffer
	refs *int
}

func (l lent) Free() { *l.refs-- }

func executorOf(t *testing.T) (*executor, *recorder) {
	f, err := NewFollowers(FollowersConfig{Clock: clock.System(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{hold: make(chan struct{}), said: make(chan string, 100)}
	e := &executor{f: f, p: r}
	f.mu.executors[r] = e
	e.mu.sub = &followerSub{e: e, want: partition.Subscription{Session: 1}}
	return e, r
}

func TestExecutorDropsWhatIsOverAndFreesEverything(t *testing.T) {
	e, r := executorOf(t)
	refs := 0
	batch := func(s string) mem.Buffer { refs++; return lent{mem.SliceBuffer(s), &refs} }
	old := e.mu.sub
	e.push(task{kind: taskDeliver, sub: old, batches: batch("a"), hw: 1})
	e.push(task{kind: taskDeliver, sub: old, batches: batch("b"), hw: 2})
	e.mu.Lock()
	e.mu.sub = &followerSub{e: e, want: partition.Subscription{Session: 2}}
	e.mu.Unlock()
	e.push(task{kind: taskDeliver, sub: old, batches: batch("c"), hw: 3})
	e.push(task{kind: taskDeliver, sub: e.mu.sub, batches: batch("d"), hw: 4})
	close(r.hold)
	e.f.work.Wait()
	close(r.said)
	var said []string
	for s := range r.said {
		said = append(said, s)
	}
	// "a" may have begun before the session was over.
	if n := len(said); n == 0 || said[n-1] != "d@4" || n > 2 || n == 2 && said[0] != "a@1" {
		t.Fatalf("said %q", said)
	}
	if refs != 0 {
		t.Fatalf("%d buffers were not freed", refs)
	}
}

func TestExecutorMergesOffsets(t *testing.T) {
	e, r := executorOf(t)
	for hw := range int64(8) {
		e.push(task{kind: taskDeliver, sub: e.mu.sub, hw: hw, offsetsUpdate: true})
	}
	e.mu.Lock()
	queued := len(e.mu.queue) - e.mu.head
	e.mu.Unlock()
	if queued > 2 {
		t.Fatalf("%d updates of offsets wait", queued)
	}
	close(r.hold)
	e.f.work.Wait()
	close(r.said)
	last := ""
	for s := range r.said {
		last = s
	}
	if last != "@7" {
		t.Fatalf("the last said is %q, want the newest", last)
	}
}

func TestExecutorIsBounded(t *testing.T) {
	e, r := executorOf(t)
	big := make([]byte, maxQueued/2+1)
	var refused bool
	for range 4 {
		refused = !e.push(task{kind: taskDeliver, sub: e.mu.sub, batches: mem.SliceBuffer(big)}) || refused
	}
	if !refused {
		t.Fatal("the queue takes more than its bound")
	}
	close(r.hold)
	e.f.work.Wait()
}

func TestExecutorIsForgotten(t *testing.T) {
	e, r := executorOf(t)
	st := newFollowerStream(e.f, 1, false)
	e.mu.sub.st = st
	close(r.hold)
	e.push(task{kind: taskDeliver, sub: e.mu.sub, hw: 1})
	e.f.unsubscribe(r, 1)
	e.f.work.Wait()
	e.f.mu.Lock()
	defer e.f.mu.Unlock()
	if len(e.f.mu.executors) != 0 {
		t.Fatal("a partition that follows nobody is kept")
	}
}
