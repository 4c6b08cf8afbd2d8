// Command quickstart runs Runnel's main job on real input and checks every byte of it: each line of the Go standard library's
// source goes through the client into a topic of six partitions on three brokers, of which one is killed in the middle; two independent
// readers of different speeds rebuild all files; one replay begins at an offset and one at a point in time. It starts a cluster of its
// own and leaves nothing running.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/devcluster"
)

const (
	topic      = "go-source"
	partitions = 6
	brokers    = 3
	limit      = 8 * time.Minute
)

func main() {
	runnel := flag.String("runnel", "bin/runnel", "the runnel binary")
	source := flag.String("source", filepath.Join(build.Default.GOROOT, "src"), "directory whose files are written and read back")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx, *runnel, *source)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run starts a cluster in a temporary directory, tells the story, and ends the cluster whatever happened.
func run(ctx context.Context, runnel, source string) (err error) {
	exe, err := filepath.Abs(runnel)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "runnel-quickstart-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	step("starting etcd and %d brokers as child processes in %s", brokers, dir)
	cluster, err := devcluster.Start(ctx, devcluster.Options{Dir: dir, Executable: exe, Brokers: brokers, Tied: true})
	if err != nil {
		return err
	}
	summary, err := tell(ctx, cluster, source)
	step("stopping the cluster")
	if err := errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	fmt.Println("quickstart: ok " + summary)
	return nil
}

// tell is the story itself.
func tell(ctx context.Context, cluster *devcluster.Cluster, source string) (summary string, err error) {
	c, err := client.Open(ctx, "runnel://"+strings.Join(cluster.Addresses(), ","))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()

	files, err := load(source)
	if err != nil {
		return "", err
	}
	if _, err := c.Admin().CreateTopic(ctx, client.TopicSpec{Name: topic, Partitions: partitions, Replicas: brokers}); err != nil {
		return "", err
	}
	step("topic %s with %d partitions, each on %d brokers; writing %d files, %d MB, a record per line, keyed by path", topic, partitions, brokers, len(files.names), files.bytes/1e6)

	// Both readers follow the writer.
	counted := make(chan int, 2)
	fast := startReader(ctx, c, files, "fast reader", 0, counted)
	slow := startReader(ctx, c, files, "slow reader", slowPause, counted)
	k := &killer{cluster: cluster, client: c}
	w, err := produceAll(ctx, c, files, k.strike)
	if err != nil {
		return "", errors.Join(err, fast.abort(), slow.abort())
	}
	step("wrote %d records in %v, acknowledged after fsync on two brokers or more: %.0f MB/s, %.2f M records/s", w.records, w.took.Round(time.Millisecond),
		float64(files.bytes)/1e6/w.took.Seconds(), float64(w.records)/1e6/w.took.Seconds())
	k.report(w)
	if err := k.heal(ctx); err != nil {
		return "", errors.Join(err, fast.abort(), slow.abort())
	}
	counted <- w.records
	counted <- w.records
	if err := errors.Join(fast.wait(), slow.wait()); err != nil {
		return "", err
	}
	if err := replayFromOffset(ctx, c, w); err != nil {
		return "", fmt.Errorf("replay from an offset: %w", err)
	}
	if err := replayFromTime(ctx, c, w); err != nil {
		return "", fmt.Errorf("replay from a time: %w", err)
	}
	return fmt.Sprintf("records=%d files=%d bytes=%d partitions=%d brokers=%d killed=%d unavailable=%v readers=2 replays=2", w.records, len(files.names),
		files.bytes, partitions, brokers, k.victim, w.longestGap(k.led).Round(time.Millisecond)), nil
}

func step(format string, args ...any) { fmt.Printf("quickstart: "+format+"\n", args...) }
