// Command bench measures Runnel against its targets and prints one table: what, target, measured, their ratio, and pass (the target is
// met), short (70 % or more of it), or FAIL.
//
// Every figure comes from one run on one machine: a cluster of one broker, or of three, and etcd as child processes, loaded by the public
// client in this process, all on the same cores and the same directory. That directory's own write speed is measured first, and what records
// are written at is judged against it. The cluster is stopped and its data removed, whatever happened.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const limit = 30 * time.Minute

type options struct {
	runnel, dir string
	only        []string
	// shrink divides the amounts of data.
	shrink int64
	busy   time.Duration
}

// sections are what -only selects from, in the order in which they run. Later ones use what earlier ones have left.
var sections = []struct {
	name string
	run  func(*run, context.Context) error
}{
	{"disk", (*run).diskOnly},
	{"produce", (*run).produceSection},
	{"consume", (*run).consumeSection},
	{"small", (*run).smallSection},
	{"latency", (*run).latencySection},
	{"partitions", (*run).partitionsSection},
	{"replicated", (*run).replicatedSection},
	{"failover", (*run).failoverSection},
	{"replicas", (*run).replicasSection},
	{"busy", (*run).busySection},
}

// onRequest are the sections that only run when -only names them.
var onRequest = []string{"busy"}

func main() {
	var o options
	var only string
	var quick bool
	flag.StringVar(&o.runnel, "runnel", "bin/runnel", "the runnel binary")
	flag.StringVar(&o.dir, "dir", os.TempDir(), "directory to measure in; about 10 GB are written, and removed again")
	flag.StringVar(&only, "only", "", "sections to run, separated by commas: "+strings.Join(sectionNames(), ", "))
	flag.BoolVar(&quick, "quick", false, "a sixteenth of the data: says whether it works, not how fast it is")
	flag.DurationVar(&o.busy, "busy", time.Minute, "how long the section busy keeps all cores busy")
	flag.Parse()
	o.shrink = 1
	if quick {
		o.shrink = 16
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	failed, err := measure(ctx, o)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
	if err != nil || failed {
		os.Exit(1)
	}
}

func sectionNames() []string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return names
}

// measure runs the sections and prints what they have come to, even when one fails.
func measure(ctx context.Context, o options) (failed bool, err error) {
	for _, name := range o.only {
		if !slices.Contains(sectionNames(), name) {
			return false, fmt.Errorf("-only %q: want some of %s", name, strings.Join(sectionNames(), ", "))
		}
	}
	exe, err := filepath.Abs(o.runnel)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp(o.dir, "runnel-bench-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &run{dir: dir, runnel: exe, shrink: o.shrink, busy: o.busy}
	fmt.Println(describeMachine(dir))
	for _, s := range sections {
		if asked := slices.Contains(o.only, s.name); !asked && (len(o.only) > 0 || slices.Contains(onRequest, s.name)) {
			continue
		}
		step("%s …", s.name)
		if err = s.run(r, ctx); err != nil {
			err = fmt.Errorf("%s: %w", s.name, err)
			break
		}
	}
	err = errors.Join(err, r.stopLoad(context.WithoutCancel(ctx)))
	printTable(os.Stdout, r.rows)
	if o.shrink > 1 {
		fmt.Println("quick run: the amounts are a sixteenth of what the targets are about")
	}
	fmt.Println("allocations per record and batch are checked by `make test`: the tests with Alloc in their names")
	return slices.ContainsFunc(r.rows, func(w row) bool { return w.verdict() == verdictFail }), err
}

func step(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }
