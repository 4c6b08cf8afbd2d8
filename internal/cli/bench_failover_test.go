package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"runnel.dev/runnel/internal/bench"
	"runnel.dev/runnel/internal/devcluster"
	"runnel.dev/runnel/internal/history"
)

// devDirectory is one of a cluster that does not run.
func devDirectory(t *testing.T, c devcluster.Cluster) string {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dev.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestBenchFailoverRefuses(t *testing.T) {
	s := newShell(t)
	one := devDirectory(t, devcluster.Cluster{Processes: []devcluster.Process{{Name: "etcd"}, {Name: "1", Address: "127.0.0.1:1"}}})
	three := devDirectory(t, devcluster.Cluster{Processes: []devcluster.Process{
		{Name: "1", Address: "127.0.0.1:1"}, {Name: "2", Address: "127.0.0.1:2"}, {Name: "3", Address: "127.0.0.1:3"},
	}})
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--data", t.TempDir()}, exitFailed, "no dev cluster here"},
		{[]string{"--data", one}, exitFailed, "has 1 brokers, and a failover needs 3"},
		{[]string{"--data", three}, exitFailed, "broker 1 of the local cluster in " + three + " is stopped\nTry: runnel dev start --data " + three},
		{[]string{"--data", one, "--fault", "flood"}, exitUsage, "want kill, pause or cut"},
		{[]string{"--data", one, "--fault", "cut"}, exitUsage, "--isolate"},
		{[]string{"--data", one, "--rounds", "0", "--rate", "1", "--partitions", "101", "--controller-every", "-1"}, exitUsage, "rounds 0"},
	} {
		s.run(append([]string{"bench", "failover"}, c.args...)...).want(t, c.code, c.says)
	}
	r := s.run("bench", "failover", "--data", one, "--rounds", "0", "--rate", "1", "--partitions", "101", "--controller-every", "-1")
	for _, want := range []string{"rounds 0", "rate 1", "--partitions 101", "--controller-every -1"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("%q does not name %q", r.err, want)
		}
	}
}

func TestFailoverIsPrinted(t *testing.T) {
	r := bench.FailoverResult{
		Rounds:         []bench.Round{{Number: 1, Broker: 2}, {Number: 2, Broker: 1, Controller: true}},
		Unavailability: bench.Latency{Samples: 4, P50: 80 * time.Millisecond, P99: 250 * time.Millisecond, Max: 260 * time.Millisecond},
		History:        history.Report{Sent: 1_000, Acked: 999, Lost: 1},
	}
	for form, want := range map[format][]string{
		"table": {"CONTROLLER", "kill", "80ms", "250ms", "260ms", "999"},
		"json":  {`"controllerRounds": 1`, `"rounds": 2`, `"p99": 250`, `"lost": 1`},
	} {
		var out buffer
		a := &app{Env: Env{Out: &out}, output: form}
		if err := a.printFailover("kill", r); err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s output lacks %s:\n%s", form, w, out.String())
			}
		}
	}
}
