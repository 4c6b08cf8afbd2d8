package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"runnel.dev/runnel/client"
)

// maxPlan bounds a plan file, bytes.
const maxPlan = 16 << 20

type reassignFlags struct {
	to, plan, throttle  string
	apply, cancel, list bool
}

func (a *app) partitionReassign() *cobra.Command {
	var f reassignFlags
	cmd := &cobra.Command{
		Use: "reassign [TOPIC [PARTITION…]]", Short: "Move replicas to other brokers", Args: args(cobra.ArbitraryArgs), ValidArgsFunction: a.completeTopics,
		Long: "Move replicas to other brokers: print the plan, and with --apply carry it out. The command returns when the plan is recorded; --list shows how far\n" +
			"it is. A plan file is YAML or JSON, a list of {topic, partition, replicas}, the preferred leader first; - reads standard input.",
		Example: "  runnel partition reassign orders 0 3 --to 1,2,4\n  runnel partition reassign --plan moves.yaml --apply --throttle 50MiB\n" +
			"  runnel partition reassign --list\n  runnel partition reassign --cancel orders 3",
		RunE: func(c *cobra.Command, v []string) error { return a.reassign(c, v, f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.to, "to", "", "broker ids for the partitions that are named, the preferred leader first, such as 1,2,3")
	fs.StringVar(&f.plan, "plan", "", "file with the plan")
	fs.StringVar(&f.throttle, "throttle", "", "what each broker may copy per second, such as 50MiB, until it starts again with its replication.catchUpBytesPerSecond; off: no limit")
	fs.BoolVar(&f.apply, "apply", false, "carry it out")
	fs.BoolVar(&f.cancel, "cancel", false, "go back to the replicas of before: of the partitions that are named, or everywhere")
	fs.BoolVar(&f.list, "list", false, "list what is under way")
	return cmd
}

func (a *app) reassign(c *cobra.Command, v []string, f reassignFlags) error {
	modes := 0
	for _, on := range []bool{f.to != "", f.plan != "", f.cancel, f.list} {
		if on {
			modes++
		}
	}
	throttle, err := parseThrottle(f.throttle)
	if err != nil {
		return usageError{err: err, command: c.CommandPath()}
	}
	switch {
	case modes > 1:
		return usagef(c, "--to, --plan, --cancel and --list exclude each other")
	case modes == 0 && throttle == nil:
		return usagef(c, "nothing to do: give --to, --plan, --cancel, --list or --throttle")
	case f.apply && f.list:
		return usagef(c, "--apply does not go with --list")
	case throttle != nil && (f.list || f.cancel):
		return usagef(c, "--throttle does not go with --list or --cancel")
	case f.plan != "" && len(v) > 0:
		return usagef(c, "--plan names the partitions: want no arguments")
	}
	if f.list {
		return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error { return a.listReassignments(ctx, cl, v) })
	}
	targets, err := a.targets(c, v, f)
	if err != nil {
		return err
	}
	return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
		ctx, cancel := a.request(ctx)
		defer cancel()
		if f.cancel {
			return a.cancelReassign(ctx, cl, v, targets)
		}
		return a.applyReassign(ctx, cl, targets, throttle, f.apply || len(targets) == 0)
	}, client.TopicWait(0))
}

// parseThrottle returns nil for nothing, 0 for no limit.
func parseThrottle(s string) (*int64, error) {
	var n int64
	switch s {
	case "":
		return nil, nil
	case "off":
		return &n, nil
	}
	n, err := parseBytes(s)
	if err != nil {
		return nil, fmt.Errorf("--throttle: %w", err)
	}
	if n == 0 {
		return nil, errors.New("--throttle 0: want a size such as 50MiB, or off")
	}
	return &n, nil
}

// targets reads what is named: on the command line, or in the plan.
func (a *app) targets(c *cobra.Command, v []string, f reassignFlags) ([]client.Reassignment, error) {
	if f.plan != "" {
		targets, err := a.readPlan(f.plan)
		if err != nil {
			return nil, fmt.Errorf("plan %s: %w", f.plan, err)
		}
		return targets, nil
	}
	var to []int32
	if f.to != "" {
		var err error
		if to, err = parseBrokers(f.to); err != nil {
			return nil, usageError{err: fmt.Errorf("--to: %w", err), command: c.CommandPath()}
		}
		if len(v) < 2 {
			return nil, usagef(c, "--to needs a topic and its partitions")
		}
	}
	if len(v) == 0 {
		return nil, nil
	}
	numbers, err := parsePartitions(v[1:])
	if err != nil {
		return nil, usageError{err: err, command: c.CommandPath()}
	}
	targets := make([]client.Reassignment, 0, len(numbers))
	for _, n := range numbers {
		targets = append(targets, client.Reassignment{TopicPartition: client.TopicPartition{Topic: v[0], Partition: n}, Target: to})
	}
	return targets, nil
}

func parseBrokers(s string) ([]int32, error) {
	var ids []int32
	for part := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseInt(strings.TrimSpace(part), 10, 32)
		if err != nil || id < 0 {
			return nil, fmt.Errorf("broker %q: want ids, 0 or more, such as 1,2,3", part)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// planned is one entry of a plan file.
type planned struct {
	Topic     string  `yaml:"topic"`
	Partition *int32  `yaml:"partition"`
	Replicas  []int32 `yaml:"replicas"`
}

func (a *app) readPlan(name string) ([]client.Reassignment, error) {
	in := a.In
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPlan+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxPlan {
		return nil, fmt.Errorf("it is larger than %s", formatBytes(maxPlan))
	}
	var plan []planned
	dec := yaml.NewDecoder(bytes.NewReader(text)) // of which JSON is a part
	dec.KnownFields(true)
	if err := dec.Decode(&plan); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("want a list of {topic, partition, replicas}: %w", err)
	}
	targets := make([]client.Reassignment, 0, len(plan))
	for i, p := range plan {
		if p.Topic == "" || p.Partition == nil || len(p.Replicas) == 0 {
			return nil, fmt.Errorf("entry %d: want topic, partition and replicas", i+1)
		}
		targets = append(targets, client.Reassignment{TopicPartition: client.TopicPartition{Topic: p.Topic, Partition: *p.Partition}, Target: p.Replicas})
	}
	if len(targets) == 0 {
		return nil, errors.New("it is empty: want a list of {topic, partition, replicas}")
	}
	return targets, nil
}

type reassignView struct {
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Replicas  []int32 `json:"replicas"`
	Target    []int32 `json:"target"`
	Adding    []int32 `json:"adding,omitempty"`
	Removing  []int32 `json:"removing,omitempty"`
	ISR       []int32 `json:"isr,omitempty"`
	Bytes     *int64  `json:"bytes,omitempty"`
	Blocked   string  `json:"blocked,omitempty"`
	Error     string  `json:"error,omitempty"`
}

func viewReassign(ms []client.Reassignment) []reassignView {
	out := make([]reassignView, 0, len(ms))
	for _, m := range ms {
		v := reassignView{
			Topic: m.Topic, Partition: m.Partition, Replicas: m.Replicas, Target: m.Target, Adding: m.Adding, Removing: m.Removing, ISR: m.ISR,
			Blocked: m.Blocked,
		}
		if m.Bytes >= 0 {
			v.Bytes = &m.Bytes
		}
		if m.Err != nil {
			v.Error = m.Err.Error()
		}
		out = append(out, v)
	}
	return out
}

// applyReassign plans, and with apply carries the plan out.
func (a *app) applyReassign(ctx context.Context, cl *client.Client, targets []client.Reassignment, throttle *int64, apply bool) error {
	results, err := cl.Admin().Reassign(ctx, targets, client.ReassignOptions{DryRun: !apply, Throttle: throttle})
	if len(results) == 0 && err != nil {
		return adviseBroker(err)
	}
	if len(targets) == 0 {
		fmt.Fprintln(a.Err, "the limit is set on every broker")
		return nil
	}
	err = a.reassigned(results, err)
	if err == nil && !apply {
		fmt.Fprintln(a.Err, "nothing was changed; to carry the plan out: the same command with --apply")
	}
	if err == nil && apply {
		fmt.Fprintln(a.Err, "the plan is recorded; to see how far it is: runnel partition reassign --list")
	}
	return err
}

// reassigned prints outcomes; failures of some make the command partly done.
func (a *app) reassigned(results []client.Reassignment, err error) error {
	failed := 0
	for _, r := range results {
		if r.Err != nil {
			failed++
		}
	}
	views := viewReassign(results)
	printErr := a.print(views, func(t *table) {
		t.header("PARTITION", "REPLICAS", "TARGET", "MOVES", "BYTES", "ERROR")
		for i, v := range views {
			size := "-"
			if v.Bytes != nil {
				size = roundBytes(*v.Bytes)
			}
			t.row(results[i].TopicPartition, brokerList(v.Replicas), brokerList(v.Target), moves(v.Adding, v.Removing), size, v.Error)
		}
	})
	if printErr != nil {
		return errors.Join(err, printErr)
	}
	if failed > 0 && failed < len(results) {
		return partialError{fmt.Errorf("%d of %d partitions were refused: %w", failed, len(results), adviseBroker(err))}
	}
	return adviseBroker(err)
}

func (a *app) cancelReassign(ctx context.Context, cl *client.Client, v []string, targets []client.Reassignment) error {
	tps := make([]client.TopicPartition, 0, len(targets))
	for _, t := range targets {
		tps = append(tps, t.TopicPartition)
	}
	if len(v) == 1 { // a whole topic
		under, err := cl.Admin().Reassignments(ctx, 0, v[0])
		if err != nil {
			return err
		}
		for _, m := range under.List {
			tps = append(tps, m.TopicPartition)
		}
		if len(tps) == 0 {
			fmt.Fprintf(a.Err, "nothing of %s is under way\n", cell(v[0]))
			return nil
		}
	}
	results, err := cl.Admin().CancelReassign(ctx, tps...)
	if len(results) == 0 {
		if err == nil {
			fmt.Fprintln(a.Err, "nothing is under way")
		}
		return err
	}
	return a.reassigned(results, err)
}

func (a *app) listReassignments(ctx context.Context, cl *client.Client, topics []string) error {
	ctx, cancel := a.request(ctx)
	defer cancel()
	under, err := cl.Admin().Reassignments(ctx, 0, topics...)
	if err != nil {
		return err
	}
	views := viewReassign(under.List)
	err = a.print(views, func(t *table) {
		t.header("PARTITION", "REPLICAS", "TARGET", "MOVES", "ISR", "BLOCKED")
		for i, v := range views {
			t.row(under.List[i].TopicPartition, brokerList(v.Replicas), brokerList(v.Target), moves(v.Adding, v.Removing), brokerList(v.ISR), v.Blocked)
		}
	})
	if err == nil && under.Total > len(views) {
		fmt.Fprintf(a.Err, "%s of %s are shown\n", groupDigits(int64(len(views))), groupDigits(int64(under.Total)))
	}
	if err == nil && under.Throttle > 0 {
		fmt.Fprintf(a.Err, "each broker may copy %s/s\n", roundBytes(under.Throttle))
	}
	return err
}

func (a *app) partitionElect() *cobra.Command {
	var unclean, accept, dryRun bool
	broker := int32(-1)
	cmd := &cobra.Command{
		Use: "elect [TOPIC PARTITION…]", Short: "Bring leaders back to their preferred brokers", ValidArgsFunction: a.completeTopics,
		Long: "Make the first replica of partitions their leader again where it is in sync; without arguments, everywhere.\n\n" +
			"With --unclean, make --broker lead one partition although it is not in sync. What it lacks of the acknowledged records is lost: the command only says\n" +
			"so until --accept-data-loss is given.",
		Example: "  runnel partition elect\n  runnel partition elect orders 3 --unclean --broker 2 --accept-data-loss",
		Args:    args(cobra.ArbitraryArgs),
		RunE: func(c *cobra.Command, v []string) error {
			var tps []client.TopicPartition
			switch {
			case len(v) == 1:
				return usagef(c, "which partitions of %q? Want: %s", v[0], c.Use)
			case len(v) > 1:
				numbers, err := parsePartitions(v[1:])
				if err != nil {
					return usageError{err: err, command: c.CommandPath()}
				}
				for _, n := range numbers {
					tps = append(tps, client.TopicPartition{Topic: v[0], Partition: n})
				}
			}
			switch {
			case unclean && (len(tps) != 1 || broker < 0):
				return usagef(c, "--unclean needs one partition, and --broker, the one to elect")
			case !unclean && (accept || broker >= 0):
				return usagef(c, "--broker and --accept-data-loss go with --unclean only")
			}
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
				if unclean {
					return a.electUnclean(ctx, cl, tps[0], broker, accept && !dryRun)
				}
				return a.electPreferred(ctx, cl, dryRun, tps)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&dryRun, "dry-run", false, "say who would lead, and change nothing")
	f.BoolVar(&unclean, "unclean", false, "elect a replica that is not in sync")
	f.Int32Var(&broker, "broker", -1, "whom to elect, with --unclean")
	f.BoolVar(&accept, "accept-data-loss", false, "do it, with --unclean")
	return cmd
}

type electionView struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	OldLeader   int32  `json:"oldLeader"`
	Leader      int32  `json:"leader"`
	LeaderEpoch int32  `json:"leaderEpoch"`
	Error       string `json:"error,omitempty"`
}

func (a *app) printElections(es []client.Election) error {
	views := make([]electionView, 0, len(es))
	for _, e := range es {
		v := electionView{Topic: e.Topic, Partition: e.Partition, OldLeader: e.OldLeader, Leader: e.Leader, LeaderEpoch: e.LeaderEpoch}
		if e.Err != nil {
			v.Error = e.Err.Error()
		}
		views = append(views, v)
	}
	return a.print(views, func(t *table) {
		if len(views) == 0 {
			return
		}
		t.header("PARTITION", "OLD-LEADER", "LEADER", "EPOCH", "ERROR")
		for i, v := range views {
			t.row(es[i].TopicPartition, leaderName(v.OldLeader), leaderName(v.Leader), v.LeaderEpoch, v.Error)
		}
	})
}

func leaderName(id int32) string {
	if id < 0 {
		return "none"
	}
	return strconv.Itoa(int(id))
}

func (a *app) electPreferred(ctx context.Context, cl *client.Client, dryRun bool, tps []client.TopicPartition) error {
	ctx, cancel := a.request(ctx)
	defer cancel()
	results, err := cl.Admin().ElectPreferred(ctx, dryRun, tps...)
	if len(results) == 0 && err != nil {
		return err
	}
	if printErr := a.printElections(results); printErr != nil {
		return errors.Join(err, printErr)
	}
	switch {
	case err == nil && len(results) == 0:
		fmt.Fprintln(a.Err, a.nobodyElected(ctx, cl))
	case err == nil && dryRun:
		fmt.Fprintln(a.Err, "dry run: nothing was changed")
	}
	failed := 0
	for _, r := range results {
		if r.Err != nil {
			failed++
		}
	}
	if failed > 0 && failed < len(results) {
		return partialError{err}
	}
	return err
}

// nobodyElected says why there was nothing to do: leaders whose preferred brokers are away or behind stay where they are.
func (a *app) nobodyElected(ctx context.Context, cl *client.Client) string {
	operations, _ := cl.Admin().Operations(ctx) // it only explains
	for _, o := range operations {
		if left := o.Partitions - o.PartitionsDone; o.Kind == client.OperationBalance && left > 0 {
			return "no leader can be moved now; preferred brokers that are down or not in sync: of " + counted(int64(left), "partition")
		}
	}
	return "every leader is where it should be"
}

func (a *app) electUnclean(ctx context.Context, cl *client.Client, tp client.TopicPartition, broker int32, accept bool) error {
	ctx, cancel := a.request(ctx)
	defer cancel()
	e, err := cl.Admin().ElectUnclean(ctx, tp, broker, accept)
	if err != nil {
		return adviseTopic(err, tp.Topic)
	}
	if err := a.printElections([]client.Election{e}); err != nil {
		return err
	}
	if !accept {
		fmt.Fprintf(a.Err, "nothing was changed; acknowledged records that broker %d lacks would be lost. To accept that: "+
			"runnel partition elect %s %d --unclean --broker %d --accept-data-loss\n", broker, cell(tp.Topic), tp.Partition, broker)
	}
	return nil
}
