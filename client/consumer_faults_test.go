package client

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
)

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
