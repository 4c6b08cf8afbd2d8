package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestBench(t *testing.T) {
	s := newShell(t)
	for _, name := range []string{"produce", "consume", "e2e"} {
		var v benchView
		out := s.must("bench", name, "--count", "200", "--size", "100B", "--linger", "0s", "--rate", "1MB", "-o", "json")
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if v.Bench != name || v.Records != 200 || v.Bytes != 20_000 || v.Seconds <= 0 || (v.LatencyMs == nil) != (name == "consume") {
			t.Errorf("%s: %s", name, out)
		}
	}
	if list := s.must("topic", "list", "-o", "name"); list != "" {
		t.Errorf("topics %q are left, want none", list)
	}
	s.must("topic", "create", "mine")
	if out := s.must("bench", "produce", "--topic", "mine", "--count", "10"); !strings.HasPrefix(out, "BENCH") || strings.Count(out, "\n") != 2 {
		t.Errorf("output %q, want a table of one row", out)
	}
	if list := s.must("topic", "list", "-o", "name"); list != "mine\n" {
		t.Errorf("topics %q, want the topic that was named to stay", list)
	}
	s.run("bench", "produce", "--topic", "nope").want(t, exitFailed, "unknown topic")
}
