package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"runnel.dev/runnel/client/fakebroker"
	"runnel.dev/runnel/internal/devcluster"
)

var forms = []string{"table", "json", "yaml", "name"}

func TestReplicatedOutputs(t *testing.T) {
	s := newShellOf(t, 4)
	golden(t, "replicated-create", s.must("topic", "create", "orders", "-p", "2", "--replicas", "3", "--min-in-sync-replicas", "2"))
	s.cluster.Append("orders", 0, "a", "b", "c", "d")
	s.cluster.SetISR("orders", 0, 1, 3)
	for _, form := range forms {
		golden(t, "replicated-topic-"+form, s.must("topic", "describe", "orders", "-o", form))
		golden(t, "replicated-partition-"+form, s.must("partition", "describe", "orders", "0", "-o", form))
		golden(t, "replicated-cluster-"+form, s.must("cluster", "describe", "-o", form))
		golden(t, "reassign-plan-"+form, s.must("partition", "reassign", "orders", "0", "--to", "4,1,2", "-o", form))
		golden(t, "replicated-update-"+form, s.must("topic", "update", "orders", "--replicas", "2", "--dry-run", "-o", form))
	}
	s.cluster.HoldReassignments(true)
	s.must("partition", "reassign", "orders", "0", "--to", "4,1,2", "--apply", "--throttle", "10MiB")
	for _, form := range forms {
		golden(t, "reassign-list-"+form, s.must("partition", "reassign", "--list", "-o", form))
		golden(t, "reassign-partition-"+form, s.must("partition", "describe", "orders", "0", "-o", form))
		golden(t, "drain-plan-"+form, s.must("cluster", "drain", "3", "--dry-run", "-o", form))
		golden(t, "elect-"+form, s.must("partition", "elect", "orders", "1", "--unclean", "--broker", "3", "-o", form))
		golden(t, "config-"+form, s.must("cluster", "config", "3", "-o", form))
	}
	s.cluster.SetISR("orders", 1, 2)
	for _, form := range forms {
		r := s.run("cluster", "safe-to-stop", "2", "-o", form)
		r.want(t, exitFailed, "below the minimum", "Try: wait until")
		golden(t, "safe-"+form, r.out)
		golden(t, "fence-"+form, s.must("cluster", "fence", "4", "-o", form))
	}
}

func TestReassignGoesAheadOnlyWhenItIsTold(t *testing.T) {
	s := newShellOf(t, 4)
	s.cluster.CreateReplicated("orders", 2, 2)
	replicas := func() string {
		return strings.Join(strings.Fields(s.must("partition", "reassign", "--list", "-o", "name")), " ")
	}
	s.run("partition", "reassign", "orders", "0", "1", "--to", "4,3").want(t, exitOK, "nothing was changed", "--apply")
	if got := replicas(); got != "" {
		t.Fatalf("a plan moves %s", got)
	}
	s.cluster.HoldReassignments(true)
	s.run("partition", "reassign", "orders", "0", "1", "--to", "4,3", "--apply").want(t, exitOK, "recorded", "reassign --list")
	if got := replicas(); got != "orders/0 orders/1" {
		t.Fatalf("%s is under way", got)
	}
	s.run("partition", "reassign", "--cancel", "orders", "0").want(t, exitOK)
	if got := replicas(); got != "orders/1" {
		t.Fatalf("%s is under way", got)
	}
	s.run("partition", "reassign", "--cancel", "orders").want(t, exitOK)
	s.run("partition", "reassign", "--cancel", "orders").want(t, exitOK, "nothing of orders is under way")
	s.run("partition", "reassign", "--cancel").want(t, exitOK, "nothing is under way")
	s.run("partition", "reassign", "--throttle", "off").want(t, exitOK, "the limit is set")
	// A broker that does not exist spoils its partition alone.
	plan := filepath.Join(t.TempDir(), "plan.yaml")
	text := "- {topic: orders, partition: 0, replicas: [9, 1]}\n- topic: orders\n  partition: 1\n  replicas: [1, 2]\n"
	if err := os.WriteFile(plan, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := s.run("partition", "reassign", "--plan", plan, "--apply", "-o", "json")
	r.want(t, exitPartial, "1 of 2 partitions were refused", "BROKER_UNKNOWN", "runnel cluster brokers")
	var v []reassignView
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || v[0].Error == "" || v[1].Error != "" || v[1].Target[1] != 2 {
		t.Fatalf("%v %+v", err, v)
	}
	s.pipe(`[{"topic":"orders","partition":0,"replicas":[9]}]`, "partition", "reassign", "--plan", "-").want(t, exitFailed, "unknown broker")
}

func TestPlansThatSayNothingUseful(t *testing.T) {
	s := newShellOf(t, 2)
	for name, text := range map[string]string{
		"empty": "", "no list": "topic: x", "an unknown field": "- {topic: a, partition: 0, replicas: [1], leader: 2}", "no replicas": "- {topic: a, partition: 0}",
		"no partition": "- {topic: a, replicas: [1]}", "a broken file": "- {", "a huge number": "- {topic: a, partition: 99999999999, replicas: [1]}",
	} {
		t.Run(name, func(t *testing.T) { s.pipe(text, "partition", "reassign", "--plan", "-").want(t, exitFailed, "plan -") })
	}
	s.run("partition", "reassign", "--plan", "/nonexistent/plan").want(t, exitFailed, "no such file")
}

func TestClusterUsage(t *testing.T) {
	s := newShellOf(t, 2)
	for _, tc := range []struct {
		args, part string
	}{
		{"cluster drain", "cluster drain BROKER"},
		{"cluster drain x", `broker "x"`},
		{"cluster undrain -- -1", `broker "-1"`},
		{"cluster decommission 99999999999", "broker"},
		{"partition reassign", "nothing to do"},
		{"partition reassign orders", "nothing to do"},
		{"partition reassign --to 1", "--to needs a topic"},
		{"partition reassign orders --to 1", "--to needs a topic"},
		{"partition reassign orders 0 --to 1,x", `broker "x"`},
		{"partition reassign orders 0 --to 1 --list", "exclude each other"},
		{"partition reassign --list --apply", "--apply does not go with --list"},
		{"partition reassign --list --throttle 1MiB", "--throttle does not go"},
		{"partition reassign --throttle many", "--throttle"},
		{"partition reassign --throttle 0", "or off"},
		{"partition reassign orders --plan x", "want no arguments"},
		{"partition elect orders", "which partitions"},
		{"partition elect orders x", `partition "x"`},
		{"partition elect orders 0 --unclean", "--unclean needs"},
		{"partition elect orders 0 1 --unclean --broker 1", "--unclean needs"},
		{"partition elect --accept-data-loss", "--unclean only"},
		{"topic create t --replicas 2 --min-in-sync-replicas 3", "at most the 2"},
		{"topic create t --min-in-sync-replicas -1", "want 1 or more"},
		{"topic update t --replicas -1", "want 1 or more"},
	} {
		t.Run(tc.args, func(t *testing.T) { s.run(strings.Fields(tc.args)...).want(t, exitUsage, tc.part) })
	}
}

func TestDrainWaitsUntilTheBrokerIsEmpty(t *testing.T) {
	s := newShellOf(t, 4)
	s.cluster.CreateReplicated("orders", 4, 3)
	s.run("cluster", "decommission", "2").want(t, exitFailed, "NOT_EMPTY", "Try: runnel cluster drain 2 --wait")
	s.cluster.HoldReassignments(true)
	s.run("cluster", "drain", "2").want(t, exitOK, "is being drained", "runnel cluster describe")
	if out := s.must("cluster", "describe"); !strings.Contains(out, "draining") || !strings.Contains(out, "drain") {
		t.Errorf("the drain is not to be seen:\n%s", out)
	}
	go func() {
		time.AfterFunc(700*time.Millisecond, func() { s.cluster.HoldReassignments(false) })
	}()
	s.run("cluster", "drain", "2", "--wait").want(t, exitOK, "drained and empty", "runnel cluster decommission 2")
	s.run("cluster", "decommission", "2", "--dry-run").want(t, exitOK, "can be decommissioned")
	s.run("cluster", "decommission", "2").want(t, exitOK, "is decommissioned")
	s.run("cluster", "undrain", "9").want(t, exitFailed, "BROKER_UNKNOWN", "Try: runnel cluster brokers")
	// Three replicas, and two brokers left besides: nothing more can move.
	r := s.run("cluster", "drain", "3", "--wait")
	r.want(t, exitPartial, "is being drained until: runnel cluster undrain 3", "cannot move", "add one", "topic update")
	if !strings.Contains(r.out, "no other broker") {
		t.Errorf("output %q, want what is in the way", r.out)
	}
	s.run("cluster", "undrain", "3").want(t, exitOK, "active again")
	s.run("cluster", "undrain", "3").want(t, exitOK, "was not being drained")
}

func TestFenceSaysFirstWhatItMeans(t *testing.T) {
	s := newShellOf(t, 3)
	s.cluster.CreateReplicated("orders", 1, 2)
	s.cluster.CreateTopic("single", 1)
	s.run("cluster", "fence", "2").want(t, exitOK, "nothing was changed", "--storage-id storage-2 --yes")
	s.run("cluster", "fence", "2", "--storage-id", "other", "--yes").want(t, exitFailed, "STORAGE_MISMATCH")
	s.run("cluster", "fence", "2", "--yes").want(t, exitOK, "broker 2 is fenced", "runnel cluster decommission 2")
	s.run("cluster", "unfence", "2").want(t, exitOK, "catch up")
	s.run("cluster", "unfence", "2").want(t, exitOK, "was not fenced")
	s.run("cluster", "fence", "1", "--yes").want(t, exitFailed, "UNSAFE", "--accept-data-loss")
	s.run("cluster", "fence", "1", "--yes", "--accept-data-loss").want(t, exitOK)
}

func TestElect(t *testing.T) {
	s := newShellOf(t, 3)
	s.cluster.CreateReplicated("orders", 2, 3)
	s.run("partition", "elect").want(t, exitOK, "every leader is where it should be")
	s.cluster.MoveLeader("orders", 0, 3)
	s.run("partition", "elect", "--dry-run").want(t, exitOK, "dry run")
	if s.cluster.Leader("orders", 0) != 3 {
		t.Fatal("a dry run elected")
	}
	s.run("partition", "elect", "orders", "0").want(t, exitOK)
	if s.cluster.Leader("orders", 0) != 1 {
		t.Fatal("nobody was elected")
	}
	s.cluster.MoveLeader("orders", 1, 3)
	s.cluster.SetISR("orders", 1, 3)
	s.run("partition", "elect", "orders", "0", "1").want(t, exitPartial, "NOT_IN_SYNC")
	s.run("partition", "elect", "orders", "1", "--unclean", "--broker", "2").want(t, exitOK, "would be lost", "--accept-data-loss")
	s.run("partition", "elect", "orders", "1", "--unclean", "--broker", "2", "--accept-data-loss").want(t, exitOK)
	if s.cluster.Leader("orders", 1) != 2 {
		t.Fatal("nobody was elected")
	}
}

func TestABrokerThatIsDownIsNotCalledActive(t *testing.T) {
	for want, b := range map[string]brokerView{
		"down":                   {State: "active"},
		"draining,down":          {State: "draining"},
		"active":                 {State: "active", Live: true, Eligible: true},
		"active,suspect":         {State: "active", Live: true, Eligible: true, Suspect: true},
		"fenced,controller":      {State: "fenced", Live: true, Eligible: true, Controller: true},
		"active,not eligible":    {State: "active", Live: true},
		"down,2 damaged logs":    {State: "active", Damaged: 2},
		"active,stopping":        {State: "active", Live: true, Eligible: true, Stopping: true},
		"draining,1 damaged log": {State: "draining", Live: true, Eligible: true, Damaged: 1},
	} {
		if got := brokerMarks(b); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestCompletionOfBrokersAndProcesses(t *testing.T) {
	s := newShellOf(t, 3)
	for _, command := range []string{"drain", "undrain", "decommission", "config", "safe-to-stop", "fence", "unfence"} {
		if out := s.must("__complete", "cluster", command, ""); !strings.HasPrefix(out, "1\n2\n3\n") {
			t.Errorf("%s: %q", command, out)
		}
	}
	dir := devDirectory(t, devcluster.Cluster{Processes: []devcluster.Process{{Name: "etcd"}, {Name: "1", Address: "127.0.0.1:1"}}})
	for in, want := range map[string]string{dir: "etcd\n1\n:4", t.TempDir(): ":4"} {
		if out := s.must("__complete", "dev", "stop", "--data", in, ""); !strings.HasPrefix(out, want) {
			t.Errorf("%q, want %q", out, want)
		}
	}
}

func TestSafeToStop(t *testing.T) {
	s := newShellOf(t, 3)
	s.cluster.CreateReplicated("orders", 2, 3)
	s.cluster.CreateTopic("single", 1)
	s.run("cluster", "safe-to-stop", "1").want(t, exitOK, "note: 1 partition is away")
	s.run("cluster", "safe-to-stop", "8").want(t, exitFailed, "BROKER_UNKNOWN")
}

func TestDescribeWithoutAController(t *testing.T) {
	s := newShellOf(t, 3)
	s.cluster.OnCall(func(c fakebroker.Call) fakebroker.Action {
		if c.Method == "ListOperations" {
			return fakebroker.Action{Error: &fakebroker.Error{Code: codes.FailedPrecondition, Reason: "NOT_CONTROLLER"}}
		}
		return fakebroker.Action{}
	})
	r := s.run("cluster", "describe")
	r.want(t, exitPartial, "NOT_CONTROLLER")
	if !strings.Contains(r.out, "broker-3:7650") {
		t.Errorf("output %q, want the brokers", r.out)
	}
}

func TestAnyBrokerGoesThroughTheServerAlone(t *testing.T) {
	s := newShellOf(t, 3)
	s.cluster.CreateTopic("t", 3)
	s.pipe("a\nb\nc\n", "produce", "t", "--any-broker", "--server", "broker-2:7650").want(t, exitOK)
	if out := s.must("consume", "t", "--until-end", "--any-broker", "--server", "broker-2:7650"); len(strings.Fields(out)) != 3 {
		t.Errorf("read %q", out)
	}
}
