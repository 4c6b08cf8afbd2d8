// Package cli is the runnel command line: commands, their flags, and how results and failures are shown. What the commands do is in
// the packages that they call.
//
// Conventions, the same for every command: data goes to standard output and everything else to standard error; -o chooses table,
// json, yaml or name; exit codes are in exit.go; SIGINT and SIGTERM end a command cleanly through its context.
package cli

import (
	"context"
	"io"
	"net"
	"os"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/version"
)

// Env is what a command may touch of the world.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	// Getenv looks up an environment variable.
	Getenv func(string) (string, bool)
	Clock  clock.Clock
	// Executable is the path of this binary, for commands that start it again.
	Executable func() (string, error)
	// Dial connects to brokers; nil: over TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Terminal says whether Err is one, for progress bars.
	Terminal bool
}

// SystemEnv is the process's own.
func SystemEnv() Env {
	return Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Getenv: os.LookupEnv, Clock: clock.System(), Executable: os.Executable,
		Terminal: isTerminal(os.Stderr),
	}
}

// app is what all commands share.
type app struct {
	Env
	server  string
	any     bool
	tls     tlsFlags
	output  format
	timeout durationFlag
}

// Run executes the command line args and returns the exit code. It prints failures to env.Err.
func Run(ctx context.Context, env Env, args []string) int {
	a := &app{Env: env, output: formatTable, timeout: durationFlag(defaultTimeout)}
	root := a.root() //nolint:contextcheck // commands get their context from cobra
	root.SetArgs(args)
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.Args, completion.RunE = cobra.ArbitraryArgs, group // an unknown shell is a fault
	}
	return a.report(root.ExecuteContext(ctx))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "runnel",
		Short: "A partitioned, replicated log with tiered storage",
		Long: "runnel writes to, reads from, and looks after a Runnel cluster; it is also the broker itself (runnel broker)\n" +
			"and a whole cluster on this machine (runnel dev).\n\n" +
			"Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partly done, 4 the outcome of some records is unknown.",
		Version:       version.Get().Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          group,
	}
	root.SetFlagErrorFunc(flagFault)
	f := root.PersistentFlags()
	f.StringVar(&a.server, "server", "", "brokers to ask first, host:port[,host:port]; default $RUNNEL_SERVER, else localhost:7650")
	f.BoolVar(&a.any, "any-broker", false, "send everything through the brokers of --server, which forward: when others cannot be reached from here")
	f.VarP(&a.output, "output", "o", "table, json, yaml or name")
	f.Var(&a.timeout, "timeout", "deadline for each request to the cluster")
	a.tls.bind(f)
	root.AddCommand(a.serverCommands()...)
	root.AddCommand(a.topicCommand(), a.produceCommand(), a.consumeCommand(), a.partitionCommand(), a.clusterCommand())
	root.AddCommand(a.benchCommand(), a.logCommand(), a.versionCommand())
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml", "name"}, cobra.ShellCompDirectiveNoFileComp))
	return root
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.print(version.Get(), func(t *table) {
				if t.nameOnly {
					t.row(version.Get().Version)
					return
				}
				t.line(version.Get().String())
			})
		},
	}
}
