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
	"runnel.dev/runnel/internal/clock"
)

// waitEvery is how often a command that waits looks how far things are.
const waitEvery = 500 * time.Millisecond

// brokerArg reads the id of a broker.
func brokerArg(c *cobra.Command, s string) (int32, error) {
	id, err := strconv.ParseInt(s, 10, 32)
	if err != nil || id < 0 {
		return 0, usagef(c, "broker %q: want a broker's id, 0 or more, as cluster brokers lists them", s)
	}
	return int32(id), nil
}

// onBroker runs f for the one argument, a broker's id.
func (a *app) onBroker(f func(ctx context.Context, cl *client.Client, id int32) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, v []string) error {
		id, err := brokerArg(c, v[0])
		if err != nil {
			return err
		}
		return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error { return adviseBroker(f(ctx, cl, id)) })
	}
}

// completeBrokers offers the ids of brokers.
func (a *app) completeBrokers(c *cobra.Command, v []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(v) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	var found []string
	_ = a.withClient(ctx, func(ctx context.Context, cl *client.Client) error {
		info, err := cl.Admin().DescribeCluster(ctx)
		for _, b := range info.Brokers {
			if id := strconv.Itoa(int(b.ID)); strings.HasPrefix(id, prefix) {
				found = append(found, id)
			}
		}
		return err
	})
	return found, cobra.ShellCompDirectiveNoFileComp
}

// adviseBroker adds what to try when err is about a broker.
func adviseBroker(err error) error {
	var advised adviceError
	switch {
	case err == nil || errors.As(err, &advised):
		return err
	case errors.Is(err, client.ErrUnknownBroker):
		return adviceError{err: err, advice: "runnel cluster brokers"}
	case errors.Is(err, client.ErrUnsafe):
		return adviceError{err: err, advice: "wait until other replicas are in sync (runnel cluster describe), or accept the loss with --accept-data-loss"}
	}
	return err
}

func (a *app) clusterConfig() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "config BROKER", Short: "Show a broker's settings in force", Args: exactArgs(1), ValidArgsFunction: a.completeBrokers,
		Long: "Show those settings of a broker that are not the built-in defaults; with --all, every one. Secrets are not among them.",
		RunE: a.onBroker(func(ctx context.Context, cl *client.Client, id int32) error {
			ctx, cancel := a.request(ctx)
			defer cancel()
			settings, err := cl.Admin().BrokerConfig(ctx, id)
			if err != nil {
				return err
			}
			type settingView struct {
				Name    string `json:"name"`
				Value   string `json:"value"`
				Changed bool   `json:"changed"`
			}
			views := []settingView{}
			for _, s := range settings {
				if all || s.Changed {
					views = append(views, settingView(s))
				}
			}
			return a.print(views, func(t *table) {
				t.header("SETTING", "VALUE")
				for _, s := range views {
					t.row(s.Name, s.Value)
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "defaults too")
	return cmd
}

func (a *app) clusterDrain() *cobra.Command {
	var dryRun, wait bool
	cmd := &cobra.Command{
		Use: "drain BROKER", Short: "Move every replica away from a broker",
		Long: "Move every replica away from a broker, and keep new ones away from it until undrain. The command returns when that is recorded; the copies\n" +
			"are then on their way. With --wait it returns when the broker is empty.",
		Example: "  runnel cluster drain 3 --dry-run\n  runnel cluster drain 3 --wait && runnel cluster decommission 3",
		Args:    exactArgs(1), ValidArgsFunction: a.completeBrokers,
		RunE: a.onBroker(func(ctx context.Context, cl *client.Client, id int32) error {
			return a.drain(ctx, cl, id, dryRun, wait)
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would move, and change nothing")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the broker is empty")
	return cmd
}

type drainView struct {
	Broker       int32          `json:"broker"`
	Replicas     int            `json:"replicas"`
	Bytes        int64          `json:"bytes"`
	TotalBlocked int            `json:"totalBlocked"`
	Blocked      []blockingView `json:"blocked,omitempty"`
}

func (a *app) drain(ctx context.Context, cl *client.Client, id int32, dryRun, wait bool) error {
	info, err := a.drainOnce(ctx, cl, id, dryRun)
	if err != nil {
		return err
	}
	for p := a.startProgress("replicas left"); wait && !dryRun && info.Replicas > 0; {
		p.update(int64(info.Replicas), max(info.Bytes, 0), 0)
		if info.TotalBlocked == info.Replicas {
			break // nothing moves any more
		}
		if err := clock.Sleep(ctx, a.Clock, waitEvery); err != nil {
			p.done()
			return err
		}
		if info, err = a.drainOnce(ctx, cl, id, true); err != nil {
			p.done()
			return err
		}
		if info.Replicas == 0 || info.TotalBlocked == info.Replicas {
			p.done()
		}
	}
	v := drainView{Broker: id, Replicas: info.Replicas, Bytes: info.Bytes, TotalBlocked: info.TotalBlocked, Blocked: viewBlocking(info.Blocked)}
	err = a.print(v, func(t *table) {
		t.header("BROKER", "REPLICAS-TO-MOVE", "BYTES", "BLOCKED")
		t.row(v.Broker, v.Replicas, knownBytes(v.Bytes), v.TotalBlocked)
		if len(v.Blocked) > 0 && !t.nameOnly {
			t.gap()
			blockingRows(t, v.Blocked)
		}
	})
	switch {
	case err != nil:
		return err
	case info.TotalBlocked > 0:
		if !dryRun {
			fmt.Fprintf(a.Err, "broker %d is being drained until: runnel cluster undrain %d\n", id, id)
		}
		return partialError{adviceError{
			err:    fmt.Errorf("%s of broker %d cannot move", counted(int64(info.TotalBlocked), "replica"), id),
			advice: "start the brokers that are down, add one, or lower the topics' replicas: runnel topic update NAME --replicas N",
		}}
	case dryRun:
		fmt.Fprintln(a.Err, "dry run: nothing was changed")
	case info.Replicas > 0:
		fmt.Fprintf(a.Err, "broker %d is being drained; to see how far it is: runnel cluster describe\n", id)
	default:
		fmt.Fprintf(a.Err, "broker %d is drained and empty; to take it out for good: stop it, then runnel cluster decommission %d\n", id, id)
	}
	return nil
}

func (a *app) drainOnce(ctx context.Context, cl *client.Client, id int32, dryRun bool) (client.DrainInfo, error) {
	ctx, cancel := a.request(ctx)
	defer cancel()
	return cl.Admin().DrainBroker(ctx, id, dryRun)
}

func (a *app) clusterUndrain() *cobra.Command {
	return &cobra.Command{
		Use: "undrain BROKER", Short: "End a drain: the broker gets replicas again", Args: exactArgs(1), ValidArgsFunction: a.completeBrokers,
		RunE: a.onBroker(func(ctx context.Context, cl *client.Client, id int32) error {
			ctx, cancel := a.request(ctx)
			defer cancel()
			was, known, err := brokerByID(ctx, cl, id)
			if err != nil {
				return err
			}
			if err := cl.Admin().UndrainBroker(ctx, id); err != nil {
				return err
			}
			if known && was.State == client.BrokerActive {
				fmt.Fprintf(a.Err, "broker %d was not being drained\n", id)
				return nil
			}
			fmt.Fprintf(a.Err, "broker %d is active again; what has moved stays where it is\n", id)
			return nil
		}),
	}
}

// knownBroker looks a broker up, so that a change is bound to the disk that is there now.
func (a *app) knownBroker(ctx context.Context, cl *client.Client, id int32) (client.BrokerInfo, error) {
	ctx, cancel := a.request(ctx)
	defer cancel()
	b, known, err := brokerByID(ctx, cl, id)
	if err == nil && !known {
		err = fmt.Errorf("%w: %d", client.ErrUnknownBroker, id)
	}
	return b, err
}

// brokerByID looks a broker up; known is false for one that does not exist, or is decommissioned and stopped.
func brokerByID(ctx context.Context, cl *client.Client, id int32) (b client.BrokerInfo, known bool, err error) {
	info, err := cl.Admin().DescribeCluster(ctx)
	if err != nil {
		return b, false, err
	}
	for _, b := range info.Brokers {
		if b.ID == id {
			return b, true, nil
		}
	}
	return b, false, nil
}

func (a *app) clusterDecommission() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "decommission BROKER", Short: "Declare that a drained broker does not come back", Args: exactArgs(1), ValidArgsFunction: a.completeBrokers,
		Long: "Declare that a broker's storage holds nothing and does not come back. The broker has to be drained and stopped. Should it come back with the\n" +
			"same data directory, it stays out until undrain; with an empty one it is a new broker.",
		RunE: a.onBroker(func(ctx context.Context, cl *client.Client, id int32) error {
			b, err := a.knownBroker(ctx, cl, id)
			if err != nil {
				return err
			}
			ctx, cancel := a.request(ctx)
			defer cancel()
			err = cl.Admin().DecommissionBroker(ctx, id, b.StorageID, dryRun)
			switch {
			case errors.Is(err, client.ErrBrokerNotEmpty) && b.State == client.BrokerFenced: // there is nothing to drain
				return adviceError{err: err, advice: "again once other brokers have copied it (runnel cluster describe); if none has room: runnel topic update NAME --replicas N"}
			case errors.Is(err, client.ErrBrokerNotEmpty):
				return adviceError{err: err, advice: fmt.Sprintf("runnel cluster drain %d --wait", id)}
			case err != nil:
				return err
			case dryRun:
				fmt.Fprintf(a.Err, "dry run: broker %d can be decommissioned, nothing was changed\n", id)
			default:
				fmt.Fprintf(a.Err, "broker %d is decommissioned\n", id)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say whether it could, and change nothing")
	return cmd
}

func (a *app) clusterSafeToStop() *cobra.Command {
	return &cobra.Command{
		Use: "safe-to-stop BROKER", Short: "Say whether every partition stays available without a broker", Args: exactArgs(1), ValidArgsFunction: a.completeBrokers,
		Long: "Say whether every partition keeps its minimum of in-sync replicas while a broker is stopped; the exit code is 1 when not. It promises nothing\n" +
			"for later: ask right before stopping.",
		RunE: a.onBroker(func(ctx context.Context, cl *client.Client, id int32) error {
			ctx, cancel := a.request(ctx)
			defer cancel()
			info, err := cl.Admin().SafeToStop(ctx, id, 0)
			if err != nil {
				return err
			}
			v := struct {
				Broker        int32          `json:"broker"`
				Safe          bool           `json:"safe"`
				Controller    bool           `json:"controller"`
				Leaders       int            `json:"leaders"`
				SingleReplica int            `json:"singleReplicaPartitions"`
				TotalBlocking int            `json:"totalBlocking"`
				Blocking      []blockingView `json:"blocking,omitempty"`
			}{id, info.Safe, info.Controller, info.Leaders, info.SingleReplica, info.TotalBlocking, viewBlocking(info.Blocking)}
			err = a.print(v, func(t *table) {
				t.header("BROKER", "SAFE", "CONTROLLER", "LEADERS", "SINGLE-REPLICA", "BLOCKING")
				t.row(v.Broker, v.Safe, v.Controller, v.Leaders, v.SingleReplica, v.TotalBlocking)
				if len(v.Blocking) > 0 && !t.nameOnly {
					t.gap()
					blockingRows(t, v.Blocking)
				}
			})
			if err == nil && v.SingleReplica > 0 {
				fmt.Fprintf(a.Err, "note: %s away while the broker is, having no other replica\n", are(v.SingleReplica))
			}
			if err == nil && !v.Safe {
				return adviceError{
					err:    fmt.Errorf("stopping broker %d would take %s below the minimum of in-sync replicas", id, counted(int64(v.TotalBlocking), "partition")),
					advice: "wait until their replicas are in sync: runnel cluster describe",
				}
			}
			return err
		}),
	}
}

func are(partitions int) string {
	if partitions == 1 {
		return "1 partition is"
	}
	return counted(int64(partitions), "partition") + " are"
}

func (a *app) clusterFence() *cobra.Command {
	var yes, accept bool
	var storage string
	cmd := &cobra.Command{
		Use: "fence BROKER", Short: "Declare that a broker's disk is lost", Args: exactArgs(1), ValidArgsFunction: a.completeBrokers,
		Long: "Declare that a broker's disk is lost: its replicas leave every in-sync set, so that others replace them. Without --yes the command only says what\n" +
			"that means.",
		RunE: a.onBroker(func(ctx context.Context, cl *client.Client, id int32) error {
			return a.fence(ctx, cl, id, storage, yes, accept)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().BoolVar(&accept, "accept-data-loss", false, "also when partitions are left without an in-sync replica")
	cmd.Flags().StringVar(&storage, "storage-id", "", "the storage that is meant; default: the one that the broker is listed with")
	return cmd
}

func (a *app) fence(ctx context.Context, cl *client.Client, id int32, storage string, yes, accept bool) (err error) {
	if storage == "" {
		b, err := a.knownBroker(ctx, cl, id)
		if err != nil {
			return err
		}
		storage = b.StorageID
	}
	ctx, cancel := a.request(ctx)
	defer cancel()
	info, err := cl.Admin().FenceBroker(ctx, id, storage, accept, !yes)
	if err != nil {
		return err
	}
	v := struct {
		Broker        int32          `json:"broker"`
		StorageID     string         `json:"storageID"`
		Applied       bool           `json:"applied"`
		TotalAffected int            `json:"totalAffected"`
		Affected      []blockingView `json:"affected,omitempty"`
	}{id, storage, yes, info.TotalAffected, viewBlocking(info.Affected)}
	err = a.print(v, func(t *table) {
		t.header("BROKER", "STORAGE-ID", "APPLIED", "BELOW-MINIMUM")
		t.row(v.Broker, v.StorageID, v.Applied, v.TotalAffected)
		if len(v.Affected) > 0 && !t.nameOnly {
			t.gap()
			blockingRows(t, v.Affected)
		}
	})
	if err == nil && yes {
		fmt.Fprintf(a.Err, "broker %d is fenced: other replicas count without it, and what it held is copied to brokers that have room; "+
			"after that: runnel cluster decommission %d\n", id, id)
	}
	if err == nil && !yes {
		fmt.Fprintf(a.Err, "nothing was changed; to fence it: runnel cluster fence %d --storage-id %s --yes\n", id, cell(storage))
	}
	return err
}

func (a *app) clusterUnfence() *cobra.Command {
	return &cobra.Command{
		Use: "unfence BROKER", Short: "Take a fencing back: the replicas catch up again", Args: exactArgs(1), ValidArgsFunction: a.completeBrokers,
		RunE: a.onBroker(func(ctx context.Context, cl *client.Client, id int32) error {
			b, err := a.knownBroker(ctx, cl, id)
			if err != nil {
				return err
			}
			ctx, cancel := a.request(ctx)
			defer cancel()
			if err := cl.Admin().UnfenceBroker(ctx, id, b.StorageID); err != nil {
				return err
			}
			if b.State == client.BrokerActive {
				fmt.Fprintf(a.Err, "broker %d was not fenced\n", id)
				return nil
			}
			fmt.Fprintf(a.Err, "broker %d is active again, its replicas catch up\n", id)
			return nil
		}),
	}
}
