// Command failures does to a local cluster of three brokers what a newcomer would try, with the command line, and checks what becomes of
// it: one broker dies, etcd stops, two brokers of three die, a disk is lost, etcd comes back from a backup. It starts a cluster of its own and leaves nothing running.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
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
	brokers = 3
	limit   = 5 * time.Minute
	// patience is how long anything may take that the cluster does by itself.
	patience = 30 * time.Second
	poll     = 50 * time.Millisecond
)

func main() {
	runnel := flag.String("runnel", "bin/runnel", "the runnel binary")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, limit)
	err := run(ctx, *runnel)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "failures:", err)
		os.Exit(1)
	}
	fmt.Println("failures: ok")
}

// story is a cluster and the hands on it.
type story struct {
	shell
	cluster *devcluster.Cluster
	client  *client.Client
}

func run(ctx context.Context, runnel string) (err error) {
	exe, err := filepath.Abs(runnel)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "runnel-failures-")
	if err != nil {
		return err
	}
	s := &story{shell: shell{exe: exe, data: dir}}
	if _, err := s.ok(ctx, "", "dev", "--detach", "--brokers", "3", "--port", "0"); err != nil {
		return err
	}
	if s.cluster, err = devcluster.Open(dir, exe); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, s.cluster.Stop(context.WithoutCancel(ctx)))
		if err != nil {
			fmt.Fprintln(os.Stderr, "failures: data and logs are in", dir)
			return
		}
		err = os.RemoveAll(dir)
	}()
	s.server = strings.Join(s.cluster.Addresses(), ",")
	if s.client, err = client.Open(ctx, "runnel://"+s.server); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.client.Close(context.WithoutCancel(ctx))) }()
	for _, chapter := range []struct {
		title string
		tell  func(*story, context.Context) error
	}{
		{"one broker of three dies", (*story).oneBrokerDies},
		{"etcd stops", (*story).etcdStops},
		{"two brokers of three die", (*story).twoBrokersDie},
		{"a disk is lost", (*story).diskIsLost},
		{"etcd comes back from a backup", (*story).etcdIsRestored},
	} {
		say("%s", chapter.title)
		began := time.Now()
		if err := chapter.tell(s, ctx); err != nil {
			return fmt.Errorf("%s: %w", chapter.title, err)
		}
		say("%s: as it should be, after %v", chapter.title, time.Since(began).Round(time.Millisecond))
	}
	return nil
}

func say(format string, args ...any) { fmt.Printf("failures: "+format+"\n", args...) }

// await asks until the answer is nil.
func await(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v: %w", what, patience, err)
		}
	}
}

// inSync waits until every partition of a topic has a leader and so many replicas in sync.
func (s *story) inSync(ctx context.Context, topic string, n int) error {
	return await(ctx, "replicas in sync", func(ctx context.Context) error {
		_, parts, err := s.client.Admin().DescribeTopic(ctx, topic)
		if err != nil {
			return err
		}
		for _, p := range parts {
			if p.Leader < 0 || len(p.ISR) < n {
				return fmt.Errorf("partition %d of %s: leader %d, in sync %v of %v", p.Partition, topic, p.Leader, p.ISR, p.Replicas)
			}
		}
		return nil
	})
}

// leader is who leads a partition.
func (s *story) leader(ctx context.Context, topic string, partition int32) (string, error) {
	parts, err := s.client.Admin().DescribePartitions(ctx, topic, partition)
	if err != nil {
		return "", err
	}
	return fmt.Sprint(parts[0].Leader), nil
}
