package cli

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/iotest"

	"google.golang.org/grpc/codes"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/client/fakebroker"
)

func TestTopicOutputs(t *testing.T) {
	s := newShell(t)
	golden(t, "topic-create", s.must("topic", "create", "orders", "-p", "3", "--config", "retention=7d", "--config", "segment-bytes=64MiB"))
	golden(t, "topic-create-json", s.must("topic", "create", "audit", "--config", "retention=forever", "--config", "compression=zstd", "-o", "json"))
	s.cluster.Append("orders", 1, "a", "b")
	for _, form := range []string{"table", "json", "yaml", "name"} {
		golden(t, "topic-list-"+form, s.must("topic", "list", "-o", form))
		golden(t, "topic-describe-"+form, s.must("topic", "describe", "orders", "-o", form))
		golden(t, "partition-describe-"+form, s.must("partition", "describe", "orders", "0", "1", "-o", form))
		golden(t, "topic-update-"+form, s.must("topic", "update", "orders", "--dry-run", "--config", "retention=1d12h",
			"-p", "4", "--reset", "segment-bytes", "-o", form))
		golden(t, "cluster-describe-"+form, s.must("cluster", "describe", "-o", form))
		golden(t, "cluster-brokers-"+form, s.must("cluster", "brokers", "-o", form))
	}
	for _, form := range []string{"table", "json", "yaml", "name"} {
		golden(t, "topic-trim-"+form, s.must("topic", "trim", "orders", "--before", "1", "-p", "1", "-o", form))
	}
}

func TestCreateRefusesWhatExists(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders")
	s.run("topic", "create", "orders").want(t, exitFailed, "TOPIC_EXISTS", "Try: runnel topic describe orders")
}

func TestCreateDryRunCreatesNothing(t *testing.T) {
	s := newShell(t)
	r := s.run("topic", "create", "orders", "-p", "4", "--dry-run")
	r.want(t, exitOK, "nothing was created")
	if !strings.Contains(r.out, "orders") {
		t.Errorf("output %q, want the topic as it would be", r.out)
	}
	if list := s.must("topic", "list", "-o", "name"); list != "" {
		t.Errorf("topics %q, want none", list)
	}
}

func TestListOfSomeUnknownNamesIsPartial(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders")
	r := s.run("topic", "list", "orders", "nope", "-o", "name")
	r.want(t, exitPartial, `"nope"`, "runnel topic create nope")
	if r.out != "orders\n" {
		t.Errorf("output %q, want the topic that exists", r.out)
	}
	s.run("topic", "list", "nope").want(t, exitFailed, `"nope"`)
}

func TestUpdate(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders", "-p", "2")
	s.must("topic", "update", "orders", "--config", "retention=3h", "-p", "5")
	var v topicView
	if err := json.Unmarshal([]byte(s.must("topic", "describe", "orders", "-o", "json")), &v); err != nil {
		t.Fatal(err)
	}
	if v.Partitions != 5 || v.Config["retentionMs"] != float64(3*3600*1000) {
		t.Errorf("partitions %d, config %v, want 5 and a retention of 3 h", v.Partitions, v.Config)
	}
	s.run("topic", "update", "orders", "--config", "retention=3h").want(t, exitOK, "nothing was changed")
	s.run("topic", "update", "orders", "--config", "retention=4h", "--generation", "77").want(t, exitFailed, "generation 77", "runnel topic describe orders")
	s.run("topic", "update", "orders", "-p", "1").want(t, exitFailed, "can only grow from 5")
	s.run("topic", "update", "nope", "-p", "9").want(t, exitFailed, `"nope"`, "runnel topic create nope")
}

func TestUpdateIsBoundToWhatWasPrinted(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders")
	updates := 0
	s.cluster.OnCall(func(c fakebroker.Call) fakebroker.Action {
		if c.Method == "UpdateTopic" {
			if updates++; updates == 2 {
				return fakebroker.Action{Error: &fakebroker.Error{Code: codes.Aborted, Reason: "CONFLICT", Message: "generation 1, current 2"}}
			}
		}
		return fakebroker.Action{}
	})
	s.run("topic", "update", "orders", "--config", "retention=3h").want(t, exitFailed, "generation 1, current 2", "the change again")
	if updates != 2 {
		t.Errorf("%d calls, want a plan and a change", updates)
	}
}

func TestDeleteWantsConfirmation(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders")
	s.run("topic", "delete", "orders").want(t, exitUsage, "--yes")
	s.terminal = true
	s.pipe("other\n", "topic", "delete", "orders").want(t, exitFailed, `"other" is not "orders"`, "nothing was deleted")
	s.pipe("", "topic", "delete", "orders").want(t, exitFailed, "nothing was deleted")
	s.stdin = iotest.ErrReader(errors.New("input is gone"))
	s.run("topic", "delete", "orders").want(t, exitFailed, "input is gone")
	s.stdin = nil
	if list := s.must("topic", "list", "-o", "name"); list != "orders\n" {
		t.Fatalf("topics %q, want the topic to be still there", list)
	}
	s.pipe("orders\n", "topic", "delete", "orders").want(t, exitOK, "topic orders deleted")
	s.terminal = false
	s.run("topic", "delete", "orders", "--yes").want(t, exitFailed, "unknown topic")
}

func TestDeleteNeverHitsANamesake(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders")
	s.terminal = true
	// While the question is on the screen, somebody replaces the topic.
	s.stdin = readerFunc(func(p []byte) (int, error) {
		s.cluster.CreateTopic("orders", 1)
		return copy(p, "orders\n"), nil
	})
	s.run("topic", "delete", "orders").want(t, exitFailed, "TOPIC_RECREATED")
	s.stdin = nil
	if list := s.must("topic", "list", "-o", "name"); list != "orders\n" {
		t.Errorf("topics %q, want the namesake", list)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestTrim(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders", "-p", "2")
	s.cluster.Append("orders", 0, "a", "b", "c")
	s.cluster.Append("orders", 1, "d")
	s.run("topic", "trim", "orders", "--before", "2").want(t, exitUsage, "of which of the 2 partitions?")
	s.run("topic", "trim", "orders").want(t, exitUsage, "--before")
	s.must("topic", "trim", "orders", "--before", "2", "-p", "0")
	if got := s.must("consume", "orders", "-p", "0", "--until-end"); got != "c\n" {
		t.Errorf("records %q, want what is left", got)
	}
	s.run("topic", "trim", "orders", "--before", "1", "-p", "1,7").want(t, exitPartial, "1 of 2 partitions", "unknown partition")
	s.must("topic", "trim", "orders", "--before", "latest")
	if got := s.must("consume", "orders", "--until-end"); got != "" {
		t.Errorf("records %q, want none", got)
	}
}

func TestPartitionRecover(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders")
	s.run("partition", "recover", "nope", "0").want(t, exitFailed, `"nope"`)
	s.run("partition", "recover", "orders", "x").want(t, exitUsage, `"x"`)
	s.run("partition", "recover", "orders", "3").want(t, exitFailed, "unknown partition")
}

// A server's text must not drive the terminal.
func TestTerminalIsSafeFromServers(t *testing.T) {
	s := newShell(t)
	evil := "evil\x1b]0;owned\a\u009b31m\u202etxt"
	s.cluster.CreateTopic(evil, 1)
	s.cluster.Configure(evil, func(*runnelv1.TopicConfig) {})
	for _, args := range [][]string{
		{"topic", "list"},
		{"topic", "list", "-o", "json"},
		{"topic", "list", "-o", "yaml"},
		{"topic", "list", "-o", "name"},
		{"topic", "describe", evil},
		{"topic", "delete", evil, "--yes"},
		{"topic", "describe", evil},
		{"__complete", "topic", "describe", ""},
		{"produce", evil},
		{"consume", evil},
	} {
		r := s.run(args...)
		for _, text := range []string{r.out, r.err} {
			if i := strings.IndexFunc(text, drivesTerminal); i >= 0 {
				t.Errorf("%q prints %q", args, text[i:])
			}
		}
	}
}

func TestCompletionOffersTopics(t *testing.T) {
	s := newShell(t)
	s.must("topic", "create", "orders")
	s.must("topic", "create", "audit")
	if got := s.must("__complete", "consume", "or"); !strings.HasPrefix(got, "orders\n") || strings.Contains(got, "audit") {
		t.Errorf("completions %q, want orders alone", got)
	}
	if got := s.must("completion", "bash"); !strings.Contains(got, "runnel") {
		t.Errorf("completion script %.40q, want one for runnel", got)
	}
}
