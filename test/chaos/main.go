// Command chaos runs three real brokers and a real etcd of three members, each in a network namespace of its own, does everything bad to
// them that it knows, and judges what producers and consumers have seen meanwhile.
//
// Faults come in two lanes, so that brokers are struck while etcd is: see faults.go. They go on for -time, and until each kind has struck
// three times and -acked records were acknowledged. At the end everything is healed; then all partitions have to make progress, consumers
// have to reach the end, every acknowledged record has to be read, once, in order, and all replicas have to hold the same bytes. A process
// that ends by itself fails the run, too.
//
// It needs Linux, root and iproute2.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/devcluster"
	"runnel.dev/runnel/internal/history"
)

const (
	// fewest is how often each kind of fault has to strike.
	fewest = 3
	// overhead is what a run may take beyond the time of faults: starting, healing, reading everything.
	overhead = 10 * time.Minute
)

type options struct {
	runnel, dir string
	time        time.Duration
	seed        uint64
	acked       int64
	keep        bool
	only        string
}

func main() {
	var o options
	flag.StringVar(&o.runnel, "runnel", "bin/runnel", "the runnel binary")
	flag.StringVar(&o.dir, "dir", os.TempDir(), "directory to work in; a few GB are written, and removed again")
	flag.DurationVar(&o.time, "time", 5*time.Minute, "how long faults go on at least")
	flag.Uint64Var(&o.seed, "seed", 0, "chooses victims and moments; 0: any. Processes have a will of their own: a seed does not replay a run")
	flag.Int64Var(&o.acked, "acked", 1_000_000, "how many records have to be acknowledged")
	flag.BoolVar(&o.keep, "keep", false, "leave data and logs")
	flag.StringVar(&o.only, "only", "", "kinds of faults, separated by commas; all others are left out, and need not strike")
	flag.Parse()
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, o.time+overhead)
	err := run(ctx, o)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos: FAILED:", err)
		os.Exit(1)
	}
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "chaos: %s "+format+"\n", append([]any{time.Now().Format("15:04:05.000")}, args...)...)
}

func run(ctx context.Context, o options) (err error) {
	exe, err := filepath.Abs(o.runnel)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(o.dir, "runnel-chaos-")
	if err != nil {
		return err
	}
	say("seed %d, in %s", o.seed, dir)
	disks, err := mountDisks(dir)
	defer func() {
		if err != nil || o.keep {
			at, keepErr := disks.keep()
			say("logs are in %s, data is in %s", dir, at)
			err = errors.Join(err, keepErr)
		}
		err = errors.Join(err, disks.unmount())
		if err == nil && !o.keep {
			err = os.RemoveAll(dir)
		}
	}()
	if err != nil {
		return err
	}
	cluster, err := devcluster.Start(ctx, devcluster.Options{
		Dir: dir, Executable: exe, Brokers: brokers, EtcdMembers: 3, Isolated: true, Tied: true,
		BrokerEnv: []string{"RUNNEL_STORAGE_RESERVE=" + strconv.Itoa(reserveBytes)},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()
	c, err := client.Open(ctx, "runnel://"+strings.Join(cluster.Addresses(), ","))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	t := &trial{options: o, cluster: cluster, client: c, disks: disks}
	report, err := t.run(ctx)
	if err == nil {
		err = t.verdict(report)
	}
	if err != nil {
		t.investigate(context.WithoutCancel(ctx))
	}
	return err
}

// trial is one run against a cluster.
type trial struct {
	options options
	cluster *devcluster.Cluster
	client  *client.Client
	disks   *disks
	struck  counts
	down    held
	// ended are processes that ended by themselves, without a good reason.
	ended []error
	// nonmonotonic counts what consumers saw out of order while faults went on.
	nonmonotonic int64
	// acks counts acknowledgements, consumed is where the consumer is, per partition.
	acks, consumed [partitions]atomic.Int64
}

func (t *trial) verdict(r history.Report) error {
	fmt.Printf("chaos: acked=%d lost=%d duplicated=%d reordered=%d nonmonotonic=%d phantom=%d moved=%d sent=%d read=%d\n",
		r.Acked, r.Lost, r.Duplicated, r.Reordered, t.nonmonotonic, r.Phantom, r.Moved, r.Sent, r.Read)
	fmt.Printf("chaos: faults: %s\n", t.struck.String())
	errs := t.ended
	if !r.OK() {
		errs = append(errs, errors.New(r.First))
	}
	if t.nonmonotonic > 0 {
		errs = append(errs, fmt.Errorf("consumers saw %d records out of order, or skipped some", t.nonmonotonic))
	}
	if int64(r.Acked) < t.options.acked {
		errs = append(errs, fmt.Errorf("%d records were acknowledged, want %d or more", r.Acked, t.options.acked))
	}
	for _, k := range t.kinds() {
		if n := t.struck.of(k.name); n < fewest {
			errs = append(errs, fmt.Errorf("fault %s struck %d times, want %d or more", k.name, n, fewest))
		}
	}
	return errors.Join(errs...)
}
