// Command mutants plants known bugs, one at a time, and runs the simulated cluster until it catches each: make sim-mutants.
//
// The mutated copy of a file lies in a temporary directory; the simulation is built with it by go build -overlay. Nothing in the tree changes.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	seeds := flag.Int("seeds", 400, "how many seeds a mutant may survive")
	only := flag.String("only", "", "plant only the mutants whose name contains this")
	flag.Parse()
	if err := run(context.Background(), *seeds, *only); err != nil {
		fmt.Fprintln(os.Stderr, "sim-mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, seeds int, only string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "runnel-mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var survivors []string
	planted := 0
	for i := range mutants {
		m := &mutants[i]
		if !strings.Contains(m.name, only) {
			continue
		}
		planted++
		seed, invariant, err := m.hunt(ctx, root, dir, seeds)
		switch {
		case err != nil:
			fmt.Printf("mutant %q failed: %v\n", m.name, err)
			survivors = append(survivors, m.name)
		case invariant == "":
			fmt.Printf("mutant %q survived %d seeds\n", m.name, seeds)
			survivors = append(survivors, m.name)
		default:
			fmt.Printf("mutant %q caught seed=%d invariant=%q\n", m.name, seed, invariant)
		}
	}
	if len(survivors) > 0 {
		return fmt.Errorf("%d of %d mutants were not caught: %s", len(survivors), planted, strings.Join(survivors, "; "))
	}
	if planted == 0 {
		return fmt.Errorf("no mutant has %q in its name", only)
	}
	fmt.Printf("sim-mutants: all %d caught\n", planted)
	return nil
}

var failedSeed = regexp.MustCompile(`(?m)^seed (\d+): at [^:]*: violated: (.*)$`)

// hunt builds the simulation with the mutant and runs it until it fails.
func (m *mutant) hunt(ctx context.Context, root, dir string, seeds int) (seed int, invariant string, err error) {
	program, err := m.build(ctx, root, dir)
	if err != nil {
		return 0, "", err
	}
	cmd := exec.CommandContext(ctx, program, "-coverage=false", "-seeds", strconv.Itoa(seeds)) // #nosec G204 -- built just now
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err == nil {
		return 0, "", nil
	}
	found := failedSeed.FindStringSubmatch(out.String())
	if found == nil {
		return 0, "", fmt.Errorf("the simulation failed, but named no seed:\n%s", out.String())
	}
	if found[2] == "sim" {
		return 0, "", fmt.Errorf("the simulation itself is at fault:\n%s", out.String())
	}
	seed, err = strconv.Atoi(found[1])
	return seed, found[2], err
}

// build plants the mutant and builds the simulation.
func (m *mutant) build(ctx context.Context, root, dir string) (program string, err error) {
	original := filepath.Join(root, filepath.FromSlash(m.file))
	text, err := os.ReadFile(original) // #nosec G304 -- of the table
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s has the text to replace %d times, it has to be there once:\n%s", m.file, n, m.old)
	}
	mutated, overlay := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(mutated, []byte(strings.Replace(string(text), m.old, m.text, 1)), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: mutated}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	program = filepath.Join(dir, "sim")
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "invariants", "-overlay", overlay, "-o", program, "./test/sim/cmd") // #nosec G204 -- ours
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return program, nil
}
