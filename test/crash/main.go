// Command crash kills a real broker again and again while records are written to it, and judges what is left.
//
// It runs three loops. The first kills with SIGKILL, which leaves the page cache and so proves recovery but not durability. The second
// does the same on a file system that holds unsynced writes back in the broker's memory (internal/vfs/dropfs, built in with the tag
// crashtest), so that a kill takes from the disk all that a power cut would. The third repeats the second with a broker that
// acknowledges before it syncs (tag mutant_ack_before_sync): the loop has to catch it, or it would prove nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

const limit = 9 * time.Minute

type options struct {
	runnel string
	rounds int
	seed   uint64
}

func main() {
	var o options
	flag.StringVar(&o.runnel, "runnel", "bin/runnel", "the runnel binary")
	flag.IntVar(&o.rounds, "rounds", 20, "kills per loop")
	flag.Uint64Var(&o.seed, "seed", 1, "chooses the moments of the kills")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx, o)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "runnel-crash-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.runnel, err = filepath.Abs(o.runnel); err != nil {
		return err
	}
	dropping, err := build(ctx, dir, "crashtest")
	if err != nil {
		return err
	}
	mutant, err := build(ctx, dir, "crashtest,mutant_ack_before_sync")
	if err != nil {
		return err
	}

	dropEnv := []string{"RUNNEL_CRASHTEST_FS=drop"}
	for _, l := range []loop{
		{name: "kill", dir: filepath.Join(dir, "kill"), runnel: o.runnel, rounds: o.rounds, seed: o.seed},
		{name: "kill-and-drop-unsynced", dir: filepath.Join(dir, "drop"), runnel: dropping, env: dropEnv, rounds: o.rounds, seed: o.seed},
	} {
		report, err := l.run(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		fmt.Printf("crash: loop=%s rounds=%d %v\n", l.name, l.rounds, report)
		if !report.OK() || report.Acked == 0 {
			return fmt.Errorf("%s: %s", l.name, report.First)
		}
	}
	return catchMutant(ctx, loop{name: "mutant", dir: filepath.Join(dir, "mutant"), runnel: mutant, env: dropEnv, rounds: o.rounds, seed: o.seed, untilLost: true})
}

// catchMutant wants the loop to find lost records.
func catchMutant(ctx context.Context, l loop) error {
	report, err := l.run(ctx)
	if err != nil {
		return fmt.Errorf("mutant: %w", err)
	}
	verdict := "caught"
	if report.Lost == 0 {
		verdict = "MISSED"
	}
	fmt.Printf("crash: mutant=ack_before_sync %s %v\n", verdict, report)
	if report.Lost == 0 {
		return errors.New("a broker that acknowledges before it syncs was not caught")
	}
	return nil
}

// build makes a runnel binary with build tags that no release has.
func build(ctx context.Context, dir, tags string) (string, error) {
	out := filepath.Join(dir, "runnel-"+tags)
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-tags", tags, "-o", out, "./cmd/runnel")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build with tags %s: %w", tags, err)
	}
	return out, nil
}
