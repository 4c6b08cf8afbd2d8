package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/internal/devcluster"
)

// devFlags are shared by dev and its subcommands.
type devFlags struct {
	dir     string
	detach  bool
	brokers int
	etcd    int
	isolate bool
	port    int
}

func (a *app) devCommand() *cobra.Command {
	var f devFlags
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a cluster on this machine: etcd and brokers as child processes",
		Long: "dev starts etcd and brokers as ordinary processes, which you may kill and start again to see what happens.\n" +
			"It stays in the foreground and stops them on Ctrl-C, unless --detach is given. Data is kept between runs.",
		Example: "  runnel dev --detach --brokers 3\n  runnel dev status\n  runnel dev stop 1 && runnel dev start 1\n  runnel dev stop",
		Args:    args(cobra.ExactArgs(0)),
		RunE:    func(c *cobra.Command, _ []string) error { return a.devRun(c, f) },
	}
	cmd.PersistentFlags().StringVar(&f.dir, "data", "", "directory of the cluster; default $XDG_DATA_HOME/runnel/dev or ~/.local/share/runnel/dev")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "return once the cluster is ready, and leave it running")
	cmd.Flags().IntVar(&f.brokers, "brokers", 1, "number of brokers of a new cluster, 1 to 16")
	cmd.Flags().IntVar(&f.etcd, "etcd-members", 1, "number of members of etcd in a new cluster: 1, 3 or 5")
	cmd.Flags().BoolVar(&f.isolate, "isolate", false, "give each process of a new cluster a network namespace, so that its network can be cut (Linux, root)")
	cmd.Flags().IntVar(&f.port, "port", 7650, "gRPC port of broker 1 in a new cluster; 0 picks free ports")
	cmd.AddCommand(
		&cobra.Command{
			Use: "status", Short: "Show the processes of the local cluster", Args: noArgs,
			RunE: func(*cobra.Command, []string) error { return a.devStatus(f) },
		},
		&cobra.Command{
			Use: "stop [etcd|N]", Short: "Stop the local cluster, or one process of it", Args: args(cobra.MaximumNArgs(1)), ValidArgsFunction: a.completeProcesses(&f),
			RunE: func(c *cobra.Command, v []string) error {
				return a.devOne(c.Context(), f, v, "stopped", stopAll, stopOne)
			},
		},
		&cobra.Command{
			Use: "start [etcd|N]", Short: "Start the stopped processes of the local cluster, or one", Args: args(cobra.MaximumNArgs(1)), ValidArgsFunction: a.completeProcesses(&f),
			RunE: func(c *cobra.Command, v []string) error {
				return a.devOne(c.Context(), f, v, "running", a.startAll, a.startOne)
			},
		},
	)
	return cmd
}

func (a *app) devRun(c *cobra.Command, f devFlags) error {
	if f.brokers < 1 || f.brokers > 16 {
		return usagef(c, "--brokers %d: want 1 to 16", f.brokers)
	}
	if f.etcd != 1 && f.etcd != 3 && f.etcd != 5 {
		return usagef(c, "--etcd-members %d: want 1, 3 or 5", f.etcd)
	}
	if f.port != 0 && (f.port < 1024 || f.port > 65000) {
		return usagef(c, "--port %d: want 1024 to 65000, or 0 for any free port", f.port)
	}
	opts, err := a.devOptions(f)
	if err != nil {
		return err
	}
	opts.Brokers, opts.EtcdMembers, opts.Isolated, opts.BasePort, opts.Tied = f.brokers, f.etcd, f.isolate, f.port, !f.detach
	cluster, err := devcluster.Start(c.Context(), opts)
	if err != nil {
		return devAdvice(err)
	}
	if c.Flags().Changed("brokers") && len(cluster.Brokers()) != f.brokers {
		fmt.Fprintf(a.Err, "the cluster was made with %d brokers, and keeps them; for another number: runnel dev --data OTHER-DIRECTORY\n", len(cluster.Brokers()))
	}
	fmt.Fprintf(a.Err, "cluster ready: %s\ndata and logs: %s\n", strings.Join(cluster.Addresses(), ","), cluster.Dir())
	if f.detach {
		if first := cluster.Addresses()[0]; first != defaultDevAddress {
			fmt.Fprintf(a.Err, "to use it: export RUNNEL_SERVER=%s\n", strings.Join(cluster.Addresses(), ","))
		}
		fmt.Fprintln(a.Err, "stop it with: runnel dev stop"+a.dataFlag(cluster.Dir()))
		return nil
	}
	fmt.Fprintln(a.Err, "Ctrl-C stops it")
	<-c.Context().Done()
	fmt.Fprintln(a.Err, "stopping")
	return cluster.Stop(context.WithoutCancel(c.Context()))
}

// defaultDevAddress is where the first broker of a cluster listens unless --port says otherwise: where commands look by default.
const defaultDevAddress = "127.0.0.1:7650"

// dataFlag is what has to follow a command that is to find the cluster in dir.
func (a *app) dataFlag(dir string) string {
	if usual, err := a.devDir(devFlags{}); err == nil && usual == dir {
		return ""
	}
	return " --data " + dir
}

// processName calls brokers so; etcd's members have a name.
func processName(name string) string {
	if strings.HasPrefix(name, devcluster.EtcdName) {
		return name
	}
	return "broker " + name
}

func (a *app) devOptions(f devFlags) (devcluster.Options, error) {
	exe, err := a.Executable()
	if err != nil {
		return devcluster.Options{}, err
	}
	dir, err := a.devDir(f)
	return devcluster.Options{Dir: dir, Executable: exe}, err
}

func (a *app) devDir(f devFlags) (string, error) {
	if f.dir != "" {
		return filepath.Abs(f.dir)
	}
	if v, ok := a.Getenv("XDG_DATA_HOME"); ok && filepath.IsAbs(v) {
		return filepath.Join(v, "runnel", "dev"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%w: name a directory with --data", err)
	}
	return filepath.Join(home, ".local", "share", "runnel", "dev"), nil
}

func (a *app) devStatus(f devFlags) error {
	c, err := a.openDev(f)
	if err != nil {
		return err
	}
	type process struct {
		Name    string `json:"name"`
		State   string `json:"state"`
		PID     int    `json:"pid,omitempty"`
		Address string `json:"address"`
		Log     string `json:"log"`
	}
	out := make([]process, 0, len(c.Processes))
	for _, p := range c.Processes {
		v := process{Name: p.Name, State: "stopped", Address: p.Address, Log: c.LogFile(p.Name)}
		if p.Alive() {
			v.State, v.PID = "running", p.PID
		}
		out = append(out, v)
	}
	return a.print(out, func(t *table) {
		t.header("PROCESS", "STATE", "PID", "ADDRESS", "LOG")
		for _, p := range out {
			pid := "-"
			if p.PID > 0 {
				pid = strconv.Itoa(p.PID)
			}
			t.row(p.Name, p.State, pid, p.Address, p.Log)
		}
	})
}

// devOne applies all to the cluster, or one to the process that the argument names. done says what it is then.
func (a *app) devOne(
	ctx context.Context, f devFlags, names []string, done string,
	all func(context.Context, *devcluster.Cluster) error, one func(context.Context, *devcluster.Cluster, string) error,
) error {
	c, err := a.openDev(f)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		if err := all(ctx, c); err != nil {
			return devAdvice(err)
		}
		fmt.Fprintln(a.Err, "the local cluster in "+c.Dir()+" is "+done)
		return nil
	}
	if err := one(ctx, c, names[0]); err != nil {
		return devAdvice(err)
	}
	fmt.Fprintln(a.Err, processName(names[0])+" is "+done)
	return nil
}

// completeProcesses offers what can be started and stopped.
func (a *app) completeProcesses(f *devFlags) cobra.CompletionFunc {
	return func(_ *cobra.Command, v []string, prefix string) ([]string, cobra.ShellCompDirective) {
		var names []string
		if c, err := a.openDev(*f); err == nil && len(v) == 0 {
			for _, p := range c.Processes {
				if strings.HasPrefix(p.Name, prefix) {
					names = append(names, p.Name)
				}
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) startAll(ctx context.Context, c *devcluster.Cluster) error {
	exe, err := a.Executable()
	if err != nil {
		return err
	}
	_, err = devcluster.Start(ctx, devcluster.Options{Dir: c.Dir(), Executable: exe})
	return err
}

// startOne says what a broker waits for when etcd is stopped.
func (a *app) startOne(ctx context.Context, c *devcluster.Cluster, name string) error {
	for _, p := range c.Processes {
		if p.IsEtcd() && !strings.HasPrefix(name, devcluster.EtcdName) && !p.Alive() {
			fmt.Fprintf(a.Err, "%[1]s is stopped, and a broker that starts waits for etcd: runnel dev start %[1]s%[2]s\n", p.Name, a.dataFlag(c.Dir()))
		}
	}
	return c.StartProcess(ctx, name)
}

func stopAll(ctx context.Context, c *devcluster.Cluster) error { return c.Stop(ctx) }

func stopOne(ctx context.Context, c *devcluster.Cluster, name string) error {
	return c.StopProcess(ctx, name)
}

func (a *app) openDev(f devFlags) (*devcluster.Cluster, error) {
	opts, err := a.devOptions(f)
	if err != nil {
		return nil, err
	}
	c, err := devcluster.Open(opts.Dir, opts.Executable)
	return c, devAdvice(err)
}

func devAdvice(err error) error {
	switch {
	case errors.Is(err, devcluster.ErrNoCluster):
		return adviceError{err: err, advice: "runnel dev --detach"}
	case errors.Is(err, devcluster.ErrRunning):
		return adviceError{err: err, advice: "runnel dev status"}
	default:
		return err
	}
}
