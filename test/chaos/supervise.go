package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"runnel.dev/runnel/internal/devcluster"
)

const (
	supervision = 500 * time.Millisecond
	tailBytes   = 4 << 10
)

// held are the processes that a fault keeps down.
type held struct {
	mu    sync.Mutex
	names map[string]bool
}

func (h *held) hold(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.names == nil {
		h.names = map[string]bool{}
	}
	h.names[name] = true
}

func (h *held) release(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.names, name)
}

func (h *held) has(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.names[name]
}

// excuses are the last words of brokers that are right to end: the registration of the disk that one had before it was emptied outlives
// it for as long as etcd cannot expire it.
var excuses = []string{"broker id is taken"}

// supervise starts processes that end by themselves, as whatever runs brokers in earnest does, until ctx ends. Those that had no reason
// fail the run.
func (t *trial) supervise(ctx context.Context, c *devcluster.Cluster) error {
	names := slices.Concat(c.Etcd(), c.Brokers())
	for sleep(ctx, supervision) == nil {
		for _, name := range names {
			if t.down.has(name) || c.Alive(name) || t.down.has(name) { // taken down between the first two looks
				continue
			}
			last := tail(c.LogFile(name), tailBytes)
			switch err := c.SpawnProcess(name); {
			case errors.Is(err, devcluster.ErrRunning): // a fault has started it
				continue
			case err != nil:
				return err
			}
			say("%s had ended by itself, and was started", name)
			if !slices.ContainsFunc(excuses, func(s string) bool { return strings.Contains(lastLine(last), s) }) {
				t.ended = append(t.ended, fmt.Errorf("process %s has ended by itself; its output ended:\n%s", name, last))
			}
		}
	}
	return nil
}

func lastLine(s string) string {
	s = strings.TrimRight(s, "\n")
	return s[strings.LastIndexByte(s, '\n')+1:]
}

func tail(name string, n int) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-n):])
}

// investigate leaves what is needed to find out why a run failed: what every process was doing, the end of what it said, and the data.
func (t *trial) investigate(ctx context.Context) {
	for _, name := range slices.Concat(t.cluster.Etcd(), t.cluster.Brokers()) {
		fmt.Fprintf(os.Stderr, "---- the output of %s ends:\n%s\n", name, tail(t.cluster.LogFile(name), tailBytes))
	}
	for _, name := range t.cluster.Brokers() {
		_ = t.cluster.Resume(name)
		ending, cancel := context.WithTimeout(ctx, 5*time.Second)
		_ = t.cluster.Abort(ending, name) // its log then holds its stacks
		cancel()
	}
}
