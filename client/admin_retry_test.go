package client

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
)

// refuseFirst answers the first n calls of a method with a and counts all of them.
func refuseFirst(method string, n int32, a fakebroker.Action) (onCall func(fakebroker.Call) fakebroker.Action, calls *atomic.Int32) {
	calls = new(atomic.Int32)
	return func(c fakebroker.Call) fakebroker.Action {
		if c.Method == method && calls.Add(1) <= n {
			return a
		}
		return fakebroker.Action{}
	}, calls
}

// What was certainly not executed is asked for again, what may have been is not.
func TestChangesAreSentAgainOnlyWhenTheyWereNotExecuted(t *testing.T) {
	refusal := func(code codes.Code, reason string) fakebroker.Action {
		return fakebroker.Action{Error: &fakebroker.Error{Code: code, Reason: reason, Retriable: true}}
	}
	for name, c := range map[string]struct {
		fault fakebroker.Action
		again bool
	}{
		"starting":         {refusal(codes.Unavailable, "STARTING"), true},
		"not leader":       {refusal(codes.FailedPrecondition, "NOT_LEADER"), true},
		"leader not ready": {refusal(codes.Unavailable, "LEADER_NOT_READY"), true},
		"unavailable":      {refusal(codes.Unavailable, "METADATA_UNAVAILABLE"), false},
		"outcome unknown":  {refusal(codes.Unavailable, "OUTCOME_UNKNOWN"), false},
		"conflict":         {refusal(codes.Aborted, "CONFLICT"), false},
		"no reason":        {refusal(codes.Unavailable, ""), false},
		"executed":         {fakebroker.Action{DisconnectAfter: true}, false},
		"disconnected":     {fakebroker.Action{Disconnect: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl := start(t, 1, RequestTimeout(5*time.Second))
				cl.CreateTopic("t", 1)
				fill(cl, "t", 0, 0, 10)
				for method, do := range map[string]func() error{
					"CreateTopic": func() error {
						_, err := cl.c.Admin().CreateTopic(t.Context(), TopicSpec{Name: "new", Partitions: 1})
						return err
					},
					"DeleteRecords": func() error {
						_, err := cl.c.Admin().DeleteRecords(t.Context(), "t", map[int32]int64{0: 5})
						return err
					},
				} {
					onCall, calls := refuseFirst(method, 3, c.fault)
					cl.OnCall(onCall)
					err := do()
					if c.again && (err != nil || calls.Load() != 4) || !c.again && (err == nil || calls.Load() != 1) {
						t.Errorf("%s: %v after %d calls", method, err, calls.Load())
					}
				}
				cl.stop()
			})
		})
	}
}

// A broker that cannot be reached has executed nothing: it is tried until the request's deadline.
func TestChangesWaitForABrokerThatRefusesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 1, RequestTimeout(5*time.Second))
		cl.CreateTopic("t", 1)
		fill(cl, "t", 0, 0, 10)
		admin := cl.c.Admin()
		cl.StopBroker(1)
		synctest.Wait() // the connection is seen to be broken: a call on it would be of unknown outcome
		began := time.Now()
		_, err := admin.CreateTopic(t.Context(), TopicSpec{Name: "new", Partitions: 1})
		if took := time.Since(began); !errors.Is(err, ErrUnavailable) || took < 4*time.Second || took > 6*time.Second {
			t.Fatalf("%v after %v", err, took)
		}
		began = time.Now()
		_, err = admin.DeleteRecords(t.Context(), "t", map[int32]int64{0: 5})
		if took := time.Since(began); !errors.Is(err, ErrUnavailable) || took < 4*time.Second || took > 6*time.Second {
			t.Fatalf("%v after %v", err, took)
		}
		for name, do := range map[string]func() error{
			"create": func() error {
				_, err := admin.CreateTopic(t.Context(), TopicSpec{Name: "new", Partitions: 1})
				return err
			},
			"delete records": func() error {
				_, err := admin.DeleteRecords(t.Context(), "t", map[int32]int64{0: 5})
				return err
			},
		} {
			cl.StopBroker(1)
			synctest.Wait()
			go func() { sleep(2 * time.Second); cl.StartBroker(1) }()
			began = time.Now()
			if err := do(); err != nil || time.Since(began) > 4*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
		}
		cl.stop()
	})
}

// Deleting records follows a leader that moves, and asks no partition that has answered again.
func TestDeleteRecordsFollowsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2, RequestTimeout(5*time.Second))
		cl.CreateTopic("t", 3) // led by 1, 2, 1
		for n := range 3 {
			fill(cl, "t", int32(n), 0, 10)
		}
		var calls atomic.Int32
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "DeleteRecords" {
				calls.Add(1)
				if c.Broker == 1 {
					return fakebroker.Action{Delay: time.Second}
				}
			}
			return fakebroker.Action{}
		})
		go func() { sleep(500 * time.Millisecond); cl.MoveLeader("t", 0, 2) }()
		out, err := cl.c.Admin().DeleteRecords(t.Context(), "t", map[int32]int64{0: 3, 1: 4, 2: 5})
		if err != nil || len(out) != 3 || calls.Load() != 3 {
			t.Fatalf("%v %v after %d calls", out, err, calls.Load())
		}
		for n := range out {
			if out[n].Partition != int32(n) || out[n].LogStart != int64(n+3) {
				t.Errorf("%+v", out[n])
			}
		}
		cl.MoveLeader("t", 1, -1)
		synctest.Wait()
		go func() { sleep(time.Second); cl.MoveLeader("t", 1, 2) }()
		if out, err = cl.c.Admin().DeleteRecords(t.Context(), "t", map[int32]int64{1: 6, 7: 1}); len(out) != 2 || out[0].LogStart != 6 || !errors.Is(err, ErrUnknownPartition) {
			t.Fatalf("%v %v", out, err)
		}
		cl.MoveLeader("t", 1, -1)
		synctest.Wait()
		cl.CreateTopic("t", 3) // a namesake is nobody's
		go func() { sleep(time.Second); cl.DeleteTopic("t") }()
		synctest.Wait()
		cl.MoveLeader("t", 1, -1)
		synctest.Wait()
		began := time.Now()
		if _, err = cl.c.Admin().DeleteRecords(t.Context(), "t", map[int32]int64{1: 6}); !errors.Is(err, ErrUnknownTopic) || time.Since(began) > 2*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		cl.stop()
	})
}
