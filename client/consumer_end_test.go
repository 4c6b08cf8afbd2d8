package client

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
)

// readToEnd reads until the end and returns the values and the errors.
func readToEnd(t *testing.T, cs *Consumer) (values []string, errs []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for r, err := range cs.Records(ctx) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		values = append(values, string(r.Value))
	}
	if ctx.Err() != nil {
		t.Fatal("the end never came")
	}
	return values, errs
}

// A position behind the end is out of range with UntilEnd as well, and the policy applies; the end itself is in range.
func TestUntilEndFromBehindTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		from   int64
		policy OutOfRangePolicy
		want   int
		fails  bool
	}{
		"fail":              {7, FailOutOfRange, 0, true},
		"reset to earliest": {7, ResetToEarliest, 5, false},
		"reset to latest":   {7, ResetToLatest, 0, false},
		"the end itself":    {5, FailOutOfRange, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := start(t, 1)
				cl.CreateTopic("t", 1)
				fill(cl, "t", 0, 0, 5)
				cs := cl.consumer(t, Topics("t"), UntilEnd(), From(At(c.from)), OutOfRange(c.policy))
				for range 2 { // from the beginning, and after a seek, when the end is known
					values, errs := readToEnd(t, cs)
					if len(values) != c.want || (len(errs) == 1) != c.fails {
						t.Fatalf("%v %v", values, errs)
					}
					var oor *OffsetOutOfRangeError
					if c.fails && (!errors.As(errs[0], &oor) || oor.Asked != c.from || oor.Earliest != 0 || oor.Latest != 5) {
						t.Fatalf("%v", errs)
					}
					if err := cs.Seek(At(c.from)); err != nil {
						t.Fatal(err)
					}
				}
				cl.stop()
			})
		})
	}
}

// A position in what is not readable yet is not out of range: once it is readable, the end lies behind it.
func TestUntilEndFromWhatIsNotReadableYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1, RequestTimeout(8*time.Second))
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 5)
		asked := make(chan struct{}, 100)
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method != "Fetch" {
				return fakebroker.Action{}
			}
			select {
			case asked <- struct{}{}:
			default:
			}
			// As a leader whose log reaches further than its high watermark: the fetch waits.
			return fakebroker.Action{Delay: time.Hour, Error: &fakebroker.Error{Code: codes.Internal, Reason: "INTERNAL"}}
		})
		cs := cl.consumer(t, Topics("t"), UntilEnd(), From(At(7)))
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatal("the leader was not asked")
		}
		fill(cl, "t", 0, 5, 7) // the high watermark is 7 now, and nothing follows
		began := time.Now()
		if values, errs := readToEnd(t, cs); len(values)+len(errs) != 0 || time.Since(began) > 5*time.Second {
			t.Fatalf("%v %v after %v", values, errs, time.Since(began))
		}
		if _, err := cs.Poll(t.Context()); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		cl.stop()
	})
}

// Right after an election the leader may know a lower high watermark than that up to which records were committed: that is not the end.
func TestUntilEndWaitsForALeaderThatKnowsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1)
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 5)
		tries := 0
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "ListOffset" {
				tries++
			}
			return fakebroker.Action{Unready: tries < 3}
		})
		cs := cl.consumer(t, Topics("t"), UntilEnd())
		if values, errs := readToEnd(t, cs); len(values) != 5 || len(errs) != 0 || tries != 3 {
			t.Fatalf("%v, %v after %d tries", values, errs, tries)
		}
		cl.stop()
	})
}
