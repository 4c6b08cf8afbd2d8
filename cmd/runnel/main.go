// Command runnel is the command line, the broker and the local cluster in one binary.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"runnel.dev/runnel/internal/cli"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal ends the command in order, a second one ends the process.
	context.AfterFunc(ctx, stop)
	// Being told of SIGPIPE turns it into an error of the write, which commands end quietly with.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return cli.Run(ctx, cli.SystemEnv(), os.Args[1:])
}
