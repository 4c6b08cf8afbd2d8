package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
)

func replicasOf(t *testing.T, a *Admin, topic string) [][]int32 {
	t.Helper()
	_, parts, err := a.DescribeTopic(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]int32
	for _, p := range parts {
		out = append(out, p.Replicas)
	}
	return out
}

func TestReassignPlansMovesListsAndCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 4)
		cl.CreateReplicated("t", 2, 2) // 1,2 and 2,3
		cl.Append("t", 0, "a", "b")
		a := cl.c.Admin()
		move := []Reassignment{{TopicPartition: TopicPartition{"t", 0}, Target: []int32{3, 1}}}
		plan, err := a.Reassign(t.Context(), move, ReassignOptions{DryRun: true})
		if err != nil || len(plan) != 1 || plan[0].Bytes == 0 || !cmp.Equal(plan[0].Adding, []int32{3}) || !cmp.Equal(plan[0].Removing, []int32{2}) {
			t.Fatalf("%+v %v", plan, err)
		}
		if d := cmp.Diff([][]int32{{1, 2}, {2, 3}}, replicasOf(t, a, "t")); d != "" {
			t.Fatalf("a plan moved something: %s", d)
		}
		cl.HoldReassignments(true)
		throttle := int64(10 << 20)
		if _, err := a.Reassign(t.Context(), move, ReassignOptions{Throttle: &throttle}); err != nil {
			t.Fatal(err)
		}
		under, err := a.Reassignments(t.Context(), 0)
		if err != nil || under.Total != 1 || under.Throttle != throttle || !cmp.Equal(under.List[0].Target, []int32{3, 1}) {
			t.Fatalf("%+v %v", under, err)
		}
		ops, err := a.Operations(t.Context())
		if err != nil || len(ops) != 1 || ops[0].Kind != OperationReassignment || ops[0].Broker != -1 || ops[0].Bytes != -1 {
			t.Fatalf("%+v %v", ops, err)
		}
		if _, err := a.CancelReassign(t.Context(), TopicPartition{"t", 1}); err == nil {
			t.Fatal("what is not under way was cancelled")
		}
		if _, err := a.CancelReassign(t.Context()); err != nil {
			t.Fatal(err)
		}
		cl.HoldReassignments(false)
		if d := cmp.Diff([][]int32{{1, 2}, {2, 3}}, replicasOf(t, a, "t")); d != "" {
			t.Fatal(d)
		}
		// One that is refused leaves the others alone.
		res, err := a.Reassign(t.Context(), append([]Reassignment{{TopicPartition: TopicPartition{"t", 1}, Target: []int32{9}}}, move...), ReassignOptions{})
		var pe *PartitionError
		if !errors.As(err, &pe) || pe.Partition != 1 || !errors.Is(err, ErrUnknownBroker) || res[1].Err != nil {
			t.Fatalf("%+v %v", res, err)
		}
		if d := cmp.Diff([][]int32{{3, 1}, {2, 3}}, replicasOf(t, a, "t")); d != "" {
			t.Fatal(d)
		}
		cl.stop()
	})
}

func TestElectPreferredAndUnclean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 3)
		cl.CreateReplicated("t", 2, 3)
		a := cl.c.Admin()
		cl.MoveLeader("t", 0, 2)
		plan, err := a.ElectPreferred(t.Context(), true)
		if err != nil || len(plan) != 1 || plan[0].OldLeader != 2 || plan[0].Leader != 1 || cl.Leader("t", 0) != 2 {
			t.Fatalf("%+v %v", plan, err)
		}
		if _, err := a.ElectPreferred(t.Context(), false, TopicPartition{"t", 0}); err != nil || cl.Leader("t", 0) != 1 {
			t.Fatal(err)
		}
		cl.SetISR("t", 1, 3)
		cl.MoveLeader("t", 1, 3)
		if _, err := a.ElectPreferred(t.Context(), false, TopicPartition{"t", 1}); err == nil {
			t.Fatal("a replica that is not in sync was elected")
		}
		if e, err := a.ElectUnclean(t.Context(), TopicPartition{"t", 1}, 2, false); err != nil || e.Leader != 2 || cl.Leader("t", 1) != 3 {
			t.Fatalf("%+v %v", e, err)
		}
		if e, err := a.ElectUnclean(t.Context(), TopicPartition{"t", 1}, 2, true); err != nil || e.Leader != 2 || cl.Leader("t", 1) != 2 {
			t.Fatalf("%+v %v", e, err)
		}
		cl.stop()
	})
}

func TestDrainThenDecommission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 3)
		cl.CreateReplicated("t", 3, 2)
		a := cl.c.Admin()
		plan, err := a.DrainBroker(t.Context(), 2, true)
		if err != nil || plan.Replicas != 2 || plan.TotalBlocked != 0 {
			t.Fatalf("%+v %v", plan, err)
		}
		if err := a.DecommissionBroker(t.Context(), 2, "storage-2", false); !errors.Is(err, ErrBrokerNotEmpty) {
			t.Fatalf("%v", err)
		}
		if _, err := a.DrainBroker(t.Context(), 2, false); err != nil {
			t.Fatal(err)
		}
		info, err := a.DescribeCluster(t.Context())
		if err != nil || info.Brokers[1].State != BrokerDraining || info.Brokers[1].Replicas != 0 || info.Brokers[1].FullIn != -1 {
			t.Fatalf("%+v %v", info, err)
		}
		if err := a.DecommissionBroker(t.Context(), 2, "another", false); err == nil {
			t.Fatal("another storage was decommissioned")
		}
		if err := a.DecommissionBroker(t.Context(), 2, "storage-2", false); err != nil {
			t.Fatal(err)
		}
		if err := a.UndrainBroker(t.Context(), 17); !errors.Is(err, ErrUnknownBroker) {
			t.Fatalf("%v", err)
		}
		cl.stop()
	})
}

func TestFenceAndSafeToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 3)
		cl.CreateReplicated("t", 1, 3)
		cl.CreateTopic("single", 1)
		a := cl.c.Admin()
		stop, err := a.SafeToStop(t.Context(), 1, 0)
		if err != nil || !stop.Safe || stop.SingleReplica != 1 || !stop.Controller || stop.Leaders != 2 {
			t.Fatalf("%+v %v", stop, err)
		}
		cl.SetISR("t", 0, 1)
		if stop, err = a.SafeToStop(t.Context(), 1, 0); err != nil || stop.Safe || stop.TotalBlocking != 1 || stop.Blocking[0].Topic != "t" {
			t.Fatalf("%+v %v", stop, err)
		}
		if _, err := a.FenceBroker(t.Context(), 1, "storage-1", false, false); !errors.Is(err, ErrUnsafe) {
			t.Fatalf("%v", err)
		}
		if f, err := a.FenceBroker(t.Context(), 2, "storage-2", false, false); err != nil || f.TotalAffected != 0 {
			t.Fatalf("%+v %v", f, err)
		}
		if err := a.UnfenceBroker(t.Context(), 2, "storage-2"); err != nil {
			t.Fatal(err)
		}
		settings, err := a.BrokerConfig(t.Context(), 2)
		if err != nil || settings[0].Value != "2" || !settings[0].Changed {
			t.Fatalf("%+v %v", settings, err)
		}
		cl.stop()
	})
}

// A change that found no controller was certainly not executed, and is made again until there is one.
func TestChangesWaitForAController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 2, RequestTimeout(5*time.Second))
		cl.CreateReplicated("t", 1, 1)
		began := time.Now()
		cl.OnCall(func(c fakebroker.Call) fakebroker.Action {
			if c.Method == "DrainBroker" && time.Since(began) < time.Second {
				return fakebroker.Action{Error: &fakebroker.Error{Code: codes.Unavailable, Reason: "NOT_CONTROLLER", Retriable: true}}
			}
			return fakebroker.Action{}
		})
		if _, err := cl.c.Admin().DrainBroker(t.Context(), 1, false); err != nil || time.Since(began) > 3*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		cl.stop()
	})
}

// TestReadsGoOnBesideABrokerThatHangs: a question that every broker can answer does not wait for one that does not.
func TestReadsGoOnBesideABrokerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := start(t, 3)
		cl.CreateTopic("t", 1)
		cl.HangBroker(1)
		began := time.Now()
		if _, err := cl.c.Admin().Topics(t.Context()); err != nil || time.Since(began) > 5*time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		cl.WakeBroker(1)
		cl.stop()
	})
}
