package sim_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"runnel.dev/runnel/test/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSeeds runs a few seeds; make sim runs many.
func TestSeeds(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		res := sim.Run(sim.Options{Seed: seed})
		if res.Failed() {
			t.Fatalf("\n%s", res.Report())
		}
		if res.Time < sim.MinTime || res.LeaderChanges < sim.MinLeaderChanges {
			t.Errorf("seed %d lasted %s with %d leader changes", seed, res.Time, res.LeaderChanges)
		}
	}
}

// TestASeedReplaysIdentically: the trace is a function of the seed, whether somebody reads it or not.
func TestASeedReplaysIdentically(t *testing.T) {
	var text strings.Builder
	first, second, other := sim.Run(sim.Options{Seed: 4}), sim.Run(sim.Options{Seed: 4, Trace: &text}), sim.Run(sim.Options{Seed: 5})
	if first.Hash != second.Hash || first.Steps != second.Steps || first.Coverage != second.Coverage {
		t.Errorf("the same seed came to %016x in %d steps, and to %016x in %d", first.Hash, first.Steps, second.Hash, second.Steps)
	}
	if first.Hash == other.Hash {
		t.Error("another seed has the same trace")
	}
	if strings.Count(text.String(), "\n") < 1000 {
		t.Errorf("the trace has %d bytes", text.Len())
	}
}

// TestReportSaysHowToReplay: what a failing run prints.
func TestReportSaysHowToReplay(t *testing.T) {
	res := sim.Result{Seed: 17, Invariant: "an invariant", Detail: "some detail", Tail: []string{"last line"}}
	for _, want := range []string{"seed 17", "an invariant", "some detail", "last line", "make sim SEED=17 TRACE=1"} {
		if !strings.Contains(res.Report(), want) {
			t.Errorf("%q is not in the report:\n%s", want, res.Report())
		}
	}
}

// TestCoverageNamesWhatIsMissing: every counter has a name, and zeros are told.
func TestCoverageNamesWhatIsMissing(t *testing.T) {
	var c sim.Coverage
	all := c.Missing()
	for i, name := range all {
		if name == "" {
			t.Errorf("counter %d has no name", i)
		}
	}
	c[sim.Elections] = 1
	if got := c.Missing(); len(got) != len(all)-1 || got[0] == "elections" {
		t.Errorf("missing: %v", got)
	}
}
