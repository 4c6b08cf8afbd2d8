// Command cmd runs the simulated cluster over many seeds: make sim.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"runnel.dev/runnel/test/sim"
)

func main() {
	seeds := flag.Int("seeds", 200, "how many seeds to run")
	first := flag.Uint64("first", 1, "the first seed")
	one := flag.Uint64("seed", 0, "run this seed only")
	traced := flag.Bool("trace", false, "with -seed: print the whole trace")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "how many seeds run at a time")
	all := flag.Bool("all", false, "go on after a failure, and print a line per failed seed")
	covered := flag.Bool("coverage", true, "fail when a counter stays zero over at least 150 seeds")
	flag.Parse()
	if *one != 0 {
		os.Exit(replay(*one, *traced))
	}
	os.Exit(run(*first, *seeds, *workers, *covered, *all))
}

func replay(seed uint64, traced bool) int {
	o := sim.Options{Seed: seed}
	if traced {
		o.Trace = os.Stdout
	}
	res := sim.Run(o)
	fmt.Printf("seed=%d time=%s steps=%d leader-changes=%d trace=%016x\n", res.Seed, res.Time, res.Steps, res.LeaderChanges, res.Hash)
	fmt.Println(res.Coverage.String())
	if res.Failed() {
		fmt.Print(res.Report())
		return 1
	}
	return 0
}

// enoughSeeds is from how many seeds on a counter at zero is a fault.
const enoughSeeds = 150

func run(first uint64, seeds, workers int, covered, all bool) int {
	began := time.Now()
	work := make(chan uint64)
	results := make(chan sim.Result)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for seed := range work {
				results <- sim.Run(sim.Options{Seed: seed})
			}
		})
	}
	stop := make(chan struct{})
	go func() {
		defer close(work)
		for i := range seeds {
			select {
			case work <- first + uint64(i): // #nosec G115 -- not negative
			case <-stop:
				return
			}
		}
	}()
	go func() {
		group.Wait()
		close(results)
	}()
	var total sim.Coverage
	var virtual time.Duration
	var hash uint64
	ran, changes, failed := 0, 0, false
	for res := range results {
		ran++
		total.Add(&res.Coverage)
		virtual += res.Time
		changes += res.LeaderChanges
		hash ^= res.Hash // of all seeds, in whatever order they end
		switch {
		case !res.Failed():
		case all:
			failed = true
			fmt.Printf("failed seed=%d time=%s invariant=%q %s\n", res.Seed, res.Time, res.Invariant, res.Detail)
		case !failed:
			failed = true
			close(stop)
			fmt.Print(res.Report())
		}
	}
	fmt.Println(total.String())
	fmt.Printf("seeds=%d virtual=%s leader-changes=%d trace=%016x took=%s\n", ran, virtual, changes, hash, time.Since(began).Round(time.Millisecond))
	if missing := total.Missing(); covered && !failed && ran >= enoughSeeds && len(missing) > 0 {
		fmt.Printf("never met: %s\n", strings.Join(missing, " "))
		failed = true
	}
	if failed {
		return 1
	}
	fmt.Println("sim: ok")
	return 0
}
