package cli

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"runnel.dev/runnel/client/fakebroker"
	"runnel.dev/runnel/internal/clock"
)

var update = flag.Bool("update", false, "write the golden files anew")

// buffer is what a command writes to; some commands write from a timer.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// shell runs command lines in this process, against a cluster in memory.
type shell struct {
	t       *testing.T
	cluster *fakebroker.Cluster
	// What the next commands see.
	stdin    io.Reader
	out      io.Writer // nil: gathered in the result
	terminal bool
}

func newShell(t *testing.T) *shell {
	t.Helper()
	return newShellOf(t, 1)
}

// newShellOf has so many brokers.
func newShellOf(t *testing.T, brokers int) *shell {
	t.Helper()
	cluster := fakebroker.Start(fakebroker.Brokers(brokers))
	t.Cleanup(cluster.Close)
	return &shell{t: t, cluster: cluster}
}

// result is what a command left.
type result struct {
	code     int
	out, err string
}

func (s *shell) run(args ...string) result {
	s.t.Helper()
	return s.runContext(s.t.Context(), args...)
}

func (s *shell) runContext(ctx context.Context, args ...string) result {
	s.t.Helper()
	var out, err buffer
	env := Env{
		In: strings.NewReader(""), Out: &out, Err: &err, Clock: clock.System(), Terminal: s.terminal,
		Getenv: func(name string) (string, bool) {
			if name == "RUNNEL_SERVER" && s.cluster != nil {
				return s.cluster.URL(), true
			}
			return "", false
		},
		Executable: func() (string, error) { return "/nonexistent/runnel", nil },
	}
	if s.cluster != nil {
		env.Dial = s.cluster.Dial
	}
	if s.stdin != nil {
		env.In = s.stdin
	}
	if s.out != nil {
		env.Out = s.out
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	code := Run(ctx, env, args)
	return result{code: code, out: out.String(), err: err.String()}
}

// pipe runs a command with text as its standard input.
func (s *shell) pipe(text string, args ...string) result {
	s.t.Helper()
	s.stdin = strings.NewReader(text)
	defer func() { s.stdin = nil }()
	return s.run(args...)
}

// must runs a command that has to succeed, and returns its output.
func (s *shell) must(args ...string) string {
	s.t.Helper()
	r := s.run(args...)
	r.want(s.t, exitOK)
	return r.out
}

func (r result) want(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.out, r.err)
	}
	for _, part := range parts {
		if !strings.Contains(r.err, part) {
			t.Errorf("standard error %q, want it to hold %q", r.err, part)
		}
	}
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// golden compares with a file in testdata; ids differ from run to run.
func golden(t *testing.T, name, got string) {
	t.Helper()
	got = uuids.ReplaceAllString(got, "01234567-89ab-cdef-0123-456789abcdef")
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); go test -update writes it anew:\n%s", path, diff)
	}
}
