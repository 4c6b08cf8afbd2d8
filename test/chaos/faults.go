package main

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"runnel.dev/runnel/internal/devcluster"
)

// kind is a kind of fault. strike returns once it was taken back; it always takes it back, also when ctx ends.
type kind struct {
	name   string
	strike func(t *striker, ctx context.Context, random *rand.Rand) error
}

// striker is one lane's hand on the cluster.
type striker struct {
	*trial
	cluster *devcluster.Cluster
}

// The lanes. Faults of one lane follow each other, those of different lanes meet.
var (
	brokerFaults = []kind{
		{"kill", (*striker).killBroker},
		{"kill-controller", (*striker).killController},
		{"kill-two", (*striker).killTwo},
		{"kill-all", (*striker).killAll},
		{"restart", (*striker).restartBroker},
		{"pause", (*striker).pauseBroker},
		{"stutter", (*striker).stutter},
		{"cut-pair", (*striker).cutPair},
		{"isolate", (*striker).isolateBroker},
		{"cut-clients", (*striker).cutClients},
		{"lost-disk", (*striker).loseDisk},
		{"full-disk", (*striker).fillDisk},
	}
	etcdFaults = []kind{
		{"etcd-kill", (*striker).killMember},
		{"etcd-pause", (*striker).pauseMember},
		{"etcd-quorum", (*striker).loseQuorum},
		{"cut-etcd", (*striker).cutEtcd},
	}
)

// lanes are the faults asked for.
func (t *trial) lanes() [][]kind {
	var out [][]kind
	for _, lane := range [][]kind{brokerFaults, etcdFaults} {
		out = append(out, slices.DeleteFunc(slices.Clone(lane), func(k kind) bool {
			return t.options.only != "" && !slices.Contains(strings.Split(t.options.only, ","), k.name)
		}))
	}
	return out
}

func (t *trial) kinds() []kind { return slices.Concat(t.lanes()...) }

// counts is how often each kind of fault has struck.
type counts struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counts) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]int{}
	}
	c.n[name]++
}

func (c *counts) of(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[name]
}

func (c *counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.n)) {
		out = append(out, name+"="+strconv.Itoa(c.n[name]))
	}
	return strings.Join(out, " ")
}

func pick(random *rand.Rand, from []string) string { return from[random.IntN(len(from))] }

// during takes the fault back after a while, or when ctx ends.
func during(ctx context.Context, d time.Duration, back func() error) error {
	_ = sleep(ctx, d) // the end of the run ends the fault, too
	return back()
}

func (t *striker) killBroker(ctx context.Context, random *rand.Rand) error {
	return t.kill(ctx, pick(random, t.cluster.Brokers()), between(random, 0, 2*time.Second))
}

func (t *striker) killController(ctx context.Context, random *rand.Rand) error {
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := t.client.Admin().DescribeCluster(asking)
	name := strconv.Itoa(int(info.Controller))
	if err != nil || !slices.Contains(t.cluster.Brokers(), name) {
		name = pick(random, t.cluster.Brokers()) // nobody says who controls just now
	}
	return t.kill(ctx, name, between(random, 0, 2*time.Second))
}

func (t *striker) kill(ctx context.Context, name string, down time.Duration) error {
	say("kill -9 broker %s for %v", name, down.Round(time.Millisecond))
	if err := t.take(ctx, name); err != nil {
		return err
	}
	return during(ctx, down, func() error { return t.spawn(name) })
}

// killTwo leaves one broker of three, which cannot acknowledge anything.
func (t *striker) killTwo(ctx context.Context, random *rand.Rand) error {
	names := t.cluster.Brokers()
	spared := random.IntN(len(names))
	return t.killAtOnce(ctx, between(random, 0, 3*time.Second), slices.Delete(names, spared, spared+1))
}

func (t *striker) killAll(ctx context.Context, random *rand.Rand) error {
	return t.killAtOnce(ctx, between(random, 0, 3*time.Second), t.cluster.Brokers())
}

func (t *striker) killAtOnce(ctx context.Context, down time.Duration, names []string) error {
	say("kill -9 %v for %v", names, down.Round(time.Millisecond))
	var errs []error
	for _, name := range names {
		errs = append(errs, t.take(ctx, name))
	}
	return errors.Join(errors.Join(errs...), during(ctx, down, func() error {
		var errs []error
		for _, name := range names {
			errs = append(errs, t.spawn(name))
		}
		return errors.Join(errs...)
	}))
}

// stutter pauses a broker again and again, each time for about as long as makes it a suspect.
func (t *striker) stutter(ctx context.Context, random *rand.Rand) error {
	name := pick(random, t.cluster.Brokers())
	for range 4 {
		if err := t.pause(ctx, name, between(random, 200*time.Millisecond, 1200*time.Millisecond)); err != nil {
			return err
		}
		if err := sleep(ctx, between(random, 50*time.Millisecond, 500*time.Millisecond)); err != nil {
			return nil //nolint:nilerr // the time is up
		}
	}
	return nil
}

// take kills a process, which nobody else starts before spawn does.
func (t *striker) take(ctx context.Context, name string) error {
	t.down.hold(name)
	return t.cluster.Kill(context.WithoutCancel(ctx), name)
}

// spawn starts a process that may have to wait for others until it is ready.
func (t *striker) spawn(name string) error {
	defer t.down.release(name)
	return t.cluster.SpawnProcess(name)
}

func (t *striker) restartBroker(ctx context.Context, random *rand.Rand) error {
	name := pick(random, t.cluster.Brokers())
	say("restart broker %s", name)
	t.down.hold(name)
	if err := t.cluster.StopProcess(context.WithoutCancel(ctx), name); err != nil {
		return err
	}
	return t.spawn(name)
}

func (t *striker) pauseBroker(ctx context.Context, random *rand.Rand) error {
	// Sometimes for longer than a lease.
	return t.pause(ctx, pick(random, t.cluster.Brokers()), between(random, 300*time.Millisecond, 7*time.Second))
}

func (t *striker) pause(ctx context.Context, name string, d time.Duration) error {
	say("pause %s for %v", name, d.Round(time.Millisecond))
	if err := t.cluster.Pause(name); err != nil {
		return err
	}
	return during(ctx, d, func() error { return t.cluster.Resume(name) })
}

// cut loses what passes between the pairs for a while.
func (t *striker) cut(ctx context.Context, d time.Duration, pairs [][2]string) error {
	say("cut %v for %v", pairs, d.Round(time.Millisecond))
	var errs []error
	for _, p := range pairs {
		errs = append(errs, t.cluster.Cut(p[0], p[1]))
	}
	return errors.Join(errors.Join(errs...), during(ctx, d, func() error {
		var errs []error
		for _, p := range pairs {
			errs = append(errs, t.cluster.Heal(p[0], p[1]))
		}
		return errors.Join(errs...)
	}))
}

func (t *striker) cutPair(ctx context.Context, random *rand.Rand) error {
	names := t.cluster.Brokers()
	order := random.Perm(len(names))
	return t.cut(ctx, between(random, time.Second, 6*time.Second), [][2]string{{names[order[0]], names[order[1]]}})
}

func (t *striker) isolateBroker(ctx context.Context, random *rand.Rand) error {
	name := pick(random, t.cluster.Brokers())
	var pairs [][2]string
	for _, other := range t.cluster.Others(name) {
		pairs = append(pairs, [2]string{name, other})
	}
	return t.cut(ctx, between(random, time.Second, 8*time.Second), pairs)
}

func (t *striker) cutClients(ctx context.Context, random *rand.Rand) error {
	return t.cut(ctx, between(random, time.Second, 4*time.Second), [][2]string{{pick(random, t.cluster.Brokers()), "host"}})
}

func (t *striker) cutEtcd(ctx context.Context, random *rand.Rand) error {
	name := pick(random, t.cluster.Brokers())
	var pairs [][2]string
	for _, member := range t.cluster.Etcd() {
		pairs = append(pairs, [2]string{name, member})
	}
	return t.cut(ctx, between(random, time.Second, 8*time.Second), pairs)
}

// loseDisk empties a broker's data directory while it is down. Committed records survive that of one broker at a time, once all
// replicas are in sync.
func (t *striker) loseDisk(ctx context.Context, random *rand.Rand) error {
	if err := t.awaitWhole(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	name := pick(random, t.cluster.Brokers())
	say("lose the disk of broker %s", name)
	steady := context.WithoutCancel(ctx)
	if err := t.take(ctx, name); err != nil {
		return err
	}
	if err := empty(t.cluster.DataDir(name)); err != nil {
		return err
	}
	if err := t.spawn(name); err != nil {
		return err
	}
	// Nothing else is done to brokers before it has caught up: another loss meanwhile could be one too many.
	return t.awaitWhole(steady)
}

func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

func (t *striker) fillDisk(ctx context.Context, random *rand.Rand) error {
	name := pick(random, t.cluster.Brokers())
	// Below the reserve produce is refused; at 0 every write fails.
	left := []int64{0, reserveBytes / 2}[random.IntN(2)]
	d := between(random, time.Second, 4*time.Second)
	say("fill the disk of broker %s up to %d bytes for %v", name, left, d.Round(time.Millisecond))
	if err := t.disks.fill(name, left); err != nil {
		return errors.Join(err, t.disks.free(name))
	}
	return during(ctx, d, func() error { return t.disks.free(name) })
}

func (t *striker) killMember(ctx context.Context, random *rand.Rand) error {
	name := pick(random, t.cluster.Etcd())
	down := between(random, 0, 3*time.Second)
	say("kill -9 %s for %v", name, down.Round(time.Millisecond))
	if err := t.take(ctx, name); err != nil {
		return err
	}
	return during(ctx, down, func() error { return t.spawn(name) })
}

func (t *striker) pauseMember(ctx context.Context, random *rand.Rand) error {
	return t.pause(ctx, pick(random, t.cluster.Etcd()), between(random, 500*time.Millisecond, 4*time.Second))
}

// loseQuorum kills two members of three.
func (t *striker) loseQuorum(ctx context.Context, random *rand.Rand) error {
	members := t.cluster.Etcd()
	spared := random.IntN(len(members))
	return t.killAtOnce(ctx, between(random, time.Second, 5*time.Second), slices.Delete(members, spared, spared+1))
}
