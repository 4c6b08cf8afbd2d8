package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/bench"
	"runnel.dev/runnel/internal/devcluster"
)

type failoverFlags struct {
	dir, fault             string
	partitions             int32
	rounds, rate, onTarget int
}

func (a *app) benchFailoverCommand() *cobra.Command {
	var f failoverFlags
	cmd := &cobra.Command{
		Use: "failover", Short: "Strike brokers of the local cluster under load, and measure how long partitions are unavailable",
		Long: "failover produces to every partition of a temporary topic, strikes a leader per round, and measures the longest time without an\n" +
			"acknowledgement of each partition that it led. Then it reads everything: nothing acknowledged may be missing, nothing be doubled.\n" +
			"It needs a cluster that `runnel dev` has started with three brokers or more; --fault cut needs one that was made with --isolate.",
		Example: "  runnel dev --detach --brokers 3 && runnel bench failover --rounds 20",
		Args:    noArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return a.benchFailover(c, f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.dir, "data", "", "directory of the local cluster; default as of runnel dev")
	fs.StringVar(&f.fault, "fault", "kill", "kill (SIGKILL), pause (SIGSTOP) or cut (from the network)")
	fs.IntVar(&f.rounds, "rounds", 20, "how many brokers to strike, one after the other")
	fs.Int32VarP(&f.partitions, "partitions", "p", 6, "partitions of the temporary topic, 1 to 100")
	fs.IntVar(&f.rate, "rate", 200, "records per second and partition")
	fs.IntVar(&f.onTarget, "controller-every", 4, "strike the controller's broker every so many rounds; 0: only by chance")
	return cmd
}

func (a *app) benchFailover(c *cobra.Command, f failoverFlags) error {
	o := bench.FailoverOptions{Topic: "temporary", Rounds: f.rounds, Rate: f.rate, ControllerEvery: f.onTarget}
	errs := []error{o.Validate()}
	if f.partitions < 1 || f.partitions > 100 {
		errs = append(errs, fmt.Errorf("--partitions %d: want 1 to 100", f.partitions))
	}
	if f.onTarget < 0 {
		errs = append(errs, fmt.Errorf("--controller-every %d: want 0 or more", f.onTarget))
	}
	cluster, err := a.openDev(devFlags{dir: f.dir})
	if err != nil {
		return err
	}
	faults, err := newFaults(cluster, f.fault)
	if err := errors.Join(append(errs, err)...); err != nil {
		return usageError{err: err, command: c.CommandPath()}
	}
	if n := len(cluster.Brokers()); n < 3 {
		return adviceError{err: fmt.Errorf("the local cluster has %d brokers, and a failover needs 3", n), advice: "runnel dev --detach --brokers 3 --data DIR"}
	}
	for _, p := range cluster.Processes {
		if !p.Alive() {
			return adviceError{
				err:    fmt.Errorf("%s of the local cluster in %s is stopped", processName(p.Name), cluster.Dir()),
				advice: "runnel dev start --data " + cluster.Dir() + ", or another cluster with --data",
			}
		}
	}
	return a.failover(c.Context(), cluster, faults, f, o)
}

func (a *app) failover(ctx context.Context, cluster *devcluster.Cluster, faults bench.Faults, f failoverFlags, o bench.FailoverOptions) (err error) {
	cl, err := client.Open(ctx, "runnel://"+strings.Join(cluster.Addresses(), ","))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		err = errors.Join(err, cl.Close(closing))
	}()
	t, err := a.replicatedTopic(ctx, cl, f.partitions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.dropTopic(ctx, cl, t)) }()
	o.Topic = t.Name
	o.Progress = func(r bench.Round) {
		fmt.Fprintf(a.Err, "round %d: broker %d%s: %v\n", r.Number, r.Broker, controllerMark(r.Controller), roundDurations(r.Gaps))
	}
	result, err := bench.Failover(ctx, cl, faults, o)
	if result.History.Sent > 0 {
		err = errors.Join(err, a.printFailover(f.fault, result))
	}
	if err != nil {
		return err
	}
	if !result.History.OK() {
		return fmt.Errorf("the log is not what was acknowledged: %s", result.History.First)
	}
	return nil
}

func (a *app) replicatedTopic(ctx context.Context, cl *client.Client, partitions int32) (client.Topic, error) {
	ctx, cancel := a.request(ctx)
	defer cancel()
	minimum := int32(2)
	return cl.Admin().CreateTopic(ctx, client.TopicSpec{
		Name: temporaryName(), Partitions: partitions, Replicas: 3, Config: client.TopicConfig{MinInSyncReplicas: &minimum},
	})
}

func controllerMark(controller bool) string {
	if controller {
		return " (controller)"
	}
	return ""
}

func roundDurations(all []time.Duration) []time.Duration {
	out := make([]time.Duration, len(all))
	for i, d := range all {
		out[i] = d.Round(time.Millisecond)
	}
	return out
}

type failoverView struct {
	Fault            string      `json:"fault"`
	Rounds           int         `json:"rounds"`
	ControllerRounds int         `json:"controllerRounds"`
	UnavailabilityMs latencyView `json:"unavailabilityMs"`
	Sent             int         `json:"sent"`
	Acked            int         `json:"acked"`
	Lost             int         `json:"lost"`
	Duplicated       int         `json:"duplicated"`
	Reordered        int         `json:"reordered"`
	Phantom          int         `json:"phantom"`
}

func (a *app) printFailover(fault string, r bench.FailoverResult) error {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	u, h := r.Unavailability, r.History
	v := failoverView{
		Fault: fault, Rounds: len(r.Rounds), Sent: h.Sent, Acked: h.Acked, Lost: h.Lost, Duplicated: h.Duplicated,
		Reordered: h.Reordered, Phantom: h.Phantom,
		UnavailabilityMs: latencyView{Samples: u.Samples, P50: ms(u.P50), P99: ms(u.P99), Max: ms(u.Max)},
	}
	for _, round := range r.Rounds {
		if round.Controller {
			v.ControllerRounds++
		}
	}
	return a.print(v, func(t *table) {
		t.header("FAULT", "ROUNDS", "CONTROLLER", "OUTAGES", "P50", "P99", "MAX", "ACKED", "LOST", "DUPLICATED", "REORDERED")
		t.row(fault, strconv.Itoa(v.Rounds), strconv.Itoa(v.ControllerRounds), groupDigits(u.Samples), u.P50.String(), u.P99.String(), u.Max.String(),
			groupDigits(int64(h.Acked)), strconv.Itoa(h.Lost), strconv.Itoa(h.Duplicated), strconv.Itoa(h.Reordered))
	})
}

// clusterFaults strikes brokers of a local cluster.
type clusterFaults struct {
	cluster *devcluster.Cluster
	fault   string
}

func newFaults(cluster *devcluster.Cluster, fault string) (bench.Faults, error) {
	switch fault {
	case "kill", "pause":
	case "cut":
		if cluster.Network == nil {
			return nil, errors.New("--fault cut: the local cluster shares this machine's network; make one with: runnel dev --isolate --brokers 3 --data DIR")
		}
	default:
		return nil, fmt.Errorf("--fault %q: want kill, pause or cut", fault)
	}
	return clusterFaults{cluster, fault}, nil
}

func (f clusterFaults) Inflict(ctx context.Context, broker int32) error {
	name := strconv.Itoa(int(broker))
	switch f.fault {
	case "pause":
		return f.cluster.Pause(name) //nolint:contextcheck // a signal is sent at once
	case "cut":
		return f.each(name, f.cluster.Cut)
	default:
		return f.cluster.Kill(ctx, name)
	}
}

func (f clusterFaults) Heal(ctx context.Context, broker int32) error {
	name := strconv.Itoa(int(broker))
	switch f.fault {
	case "pause":
		return f.cluster.Resume(name)
	case "cut":
		return f.each(name, f.cluster.Heal)
	default:
		return f.cluster.StartProcess(ctx, name)
	}
}

// each applies do between a broker and everything else.
func (f clusterFaults) each(name string, do func(a, b string) error) error {
	others := f.cluster.Others(name)
	errs := make([]error, 0, len(others))
	for _, other := range others {
		errs = append(errs, do(name, other))
	}
	return errors.Join(errs...)
}
