package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"runnel.dev/runnel/client/fakebroker"
)

// faults draws what happens to calls, from a source that the broker's goroutines share.
type faults struct {
	mu   sync.Mutex
	plan []int
	next int
	off  bool
}

func (f *faults) onCall(c fakebroker.Call) fakebroker.Action {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off || f.next >= len(f.plan) || (c.Method != "Produce" && c.Method != "FetchFrame" && c.Method != "InitProducer") {
		return fakebroker.Action{}
	}
	p := f.plan[f.next]
	f.next++
	retriable := func(reason string) *fakebroker.Error {
		return &fakebroker.Error{Code: codes.Unavailable, Reason: reason, Retriable: true}
	}
	switch p {
	case 1:
		return fakebroker.Action{Disconnect: true}
	case 2:
		return fakebroker.Action{DisconnectAfter: true}
	case 3:
		return fakebroker.Action{Lose: c.Method == "Produce", DisconnectAfter: c.Method != "Produce"}
	case 4:
		return fakebroker.Action{Delay: 700 * time.Millisecond}
	case 5:
		return fakebroker.Action{Error: retriable("NOT_ENOUGH_REPLICAS")}
	case 6:
		return fakebroker.Action{Error: retriable("STORAGE_FAILED")}
	case 7:
		return fakebroker.Action{Throttle: 300 * time.Millisecond}
	case 8:
		if c.Method == "Produce" {
			return fakebroker.Action{Error: &fakebroker.Error{Code: codes.InvalidArgument, Reason: "INVALID_BATCH"}}
		}
	}
	return fakebroker.Action{}
}

// Whatever happens: every acknowledged record is in the log exactly once, at the offset that its callback was told, in the order
// of Produce; no record is there twice; what was reported as not written is not there; callbacks run once, in order; after a
// failure, everything that was queued behind it fails; and a consumer that suffers as well reads exactly the log.
func TestEveryAckedRecordExactlyOnceInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		plan := rapid.SliceOfN(rapid.IntRange(0, 12), 0, 60).Draw(rt, "faults")
		steps := rapid.SliceOfN(rapid.IntRange(0, 30), 10, 120).Draw(rt, "steps")
		timeout := time.Duration(rapid.SampledFrom([]int{2, 5, 60}).Draw(rt, "delivery timeout, s")) * time.Second
		linger := time.Duration(rapid.IntRange(0, 1).Draw(rt, "linger, ms")) * time.Millisecond
		inFlight := rapid.IntRange(1, 5).Draw(rt, "in flight")
		synctest.Test(t, func(t *testing.T) {
			if msg := runFaulty(t, plan, steps, DeliveryTimeout(timeout), Linger(linger), MaxInFlight(inFlight), BatchBytes(1<<10)); msg != "" {
				rt.Log(msg)
				t.Error(msg)
			}
		})
		if t.Failed() {
			rt.FailNow()
		}
	})
}

func runFaulty(t *testing.T, plan, steps []int, opts ...ProducerOption) string {
	cl := start(t, 2, RequestTimeout(1500*time.Millisecond))
	defer cl.stop()
	cl.CreateTopic("t", 1)
	f := &faults{plan: plan}
	cl.OnCall(f.onCall)
	p := cl.producer(t, opts...)
	cs := cl.consumer(t, Topics("t"), PartitionCredit(500), StreamCredit(500))
	var o outcomes
	queued := 0
	produce := func(ctx context.Context) {
		r := rec("t", strconv.Itoa(queued))
		queued++
		o.wg.Add(1)
		p.Produce(ctx, r, func(r *Record, err error) {
			o.mu.Lock()
			o.mu.list = append(o.mu.list, outcome{string(r.Value), r.Offset, err})
			o.mu.Unlock()
			o.wg.Done()
		})
	}
	for _, s := range steps {
		switch s {
		case 0:
			cl.MoveLeader("t", 0, 3-max(1, cl.Leader("t", 0)))
		case 1:
			cl.MoveLeader("t", 0, -1)
		case 2:
			id := max(1, cl.Leader("t", 0))
			cl.StopBroker(id)
			sleep(300 * time.Millisecond)
			cl.StartBroker(id)
		case 3:
			// Only while nothing is unresolved: else the broker has lost what it needs to recognise a duplicate.
			if !unresolved(o.now(), queued) {
				cl.ForgetProducers("t", 0)
			}
		case 4:
			ctx, cancel := context.WithCancel(t.Context())
			produce(ctx)
			cancel()
		case 5:
			sleep(3 * time.Second)
		case 6, 7:
			sleep(100 * time.Millisecond)
		case 8, 9, 10:
			synctest.Wait()
		default:
			produce(t.Context())
		}
	}
	f.mu.Lock()
	f.off = true
	f.mu.Unlock()
	if cl.Leader("t", 0) < 0 {
		cl.MoveLeader("t", 0, 1)
	}
	_ = p.Flush(t.Context())
	if err := p.Close(t.Context()); err != nil {
		return fmt.Sprintf("close: %v", err)
	}
	list := o.all()
	log := cl.Records("t", 0)
	if msg := check(list, log, queued); msg != "" {
		return msg
	}
	var got []string
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if len(log) > 0 {
		for r, err := range cs.Records(ctx) {
			if errors.Is(err, ErrStalled) {
				continue // reported, and read on
			}
			if err != nil {
				return fmt.Sprintf("consume: %v", err)
			}
			if got = append(got, string(r.Value)); len(got) == len(log) {
				break
			}
		}
	}
	for i, r := range log {
		if i >= len(got) || got[i] != string(r.Value) {
			return fmt.Sprintf("consumed %v, the log has %d records", got, len(log))
		}
	}
	return ""
}

func unresolved(list []outcome, queued int) bool {
	return len(list) < queued || slices.ContainsFunc(list, func(o outcome) bool { return errors.Is(o.err, ErrOutcomeUnknown) })
}

// check compares callbacks and log.
func check(list []outcome, log []fakebroker.Record, queued int) string {
	if len(list) != queued {
		return fmt.Sprintf("%d callbacks for %d records", len(list), queued)
	}
	at := make(map[string]int64)
	last := -1
	for _, r := range log {
		v := string(r.Value)
		if _, twice := at[v]; twice {
			return fmt.Sprintf("record %s is in the log twice", v)
		}
		at[v] = r.Offset
		n, err := strconv.Atoi(v)
		if err != nil || n <= last {
			return fmt.Sprintf("record %s follows %d in the log", v, last)
		}
		last = n
	}
	for i, out := range list {
		offset, written := at[out.value]
		notWritten, unknown := errors.Is(out.err, ErrNotWritten), errors.Is(out.err, ErrOutcomeUnknown)
		switch {
		case out.value != strconv.Itoa(i) && !errors.Is(out.err, context.Canceled):
			return fmt.Sprintf("callback %d is about record %s", i, out.value)
		case out.err == nil && (!written || (out.offset != offset && out.offset != -1)):
			return fmt.Sprintf("record %s was acknowledged at %d; written %v at %d", out.value, out.offset, written, offset)
		case out.err != nil && notWritten == unknown:
			return fmt.Sprintf("record %s: %v is not exactly one of the outcomes", out.value, out.err)
		case notWritten && written:
			return fmt.Sprintf("record %s is in the log at %d, and was reported as not written: %v", out.value, offset, out.err)
		}
	}
	return ""
}
