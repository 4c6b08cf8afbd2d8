package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/cli"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/testcluster"
)

// recoverable is a cluster of three with an etcd of its own, whose data can be put back.
func recoverable(t *testing.T) *testcluster.Cluster {
	t.Helper()
	return testcluster.New(t, testcluster.Options{Brokers: 3, Configure: func(c *config.Config) {
		c.Etcd.LeaseTTL = config.Duration(2_000_000_000)
		c.Replication.LagTimeout = config.Duration(1_000_000_000)
	}})
}

// etcdRecover runs the command against all brokers, and returns its exit code and what it printed.
func etcdRecover(t *testing.T, c *testcluster.Cluster, flags ...string) (code int, out, errs string) {
	t.Helper()
	return etcdRecoverFrom(t, c, strings.TrimPrefix(c.URL(), "runnel://"), flags...)
}

func etcdRecoverFrom(t *testing.T, c *testcluster.Cluster, brokers string, flags ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	line := []string{
		"etcd", "recover", "--endpoints", strings.Join(c.Etcd().Endpoints(), ","), "--cluster", c.Name(), "--brokers", brokers,
		"--wait", "40s", "--timeout", "5s",
	}
	code = cli.Run(t.Context(), cli.Env{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Clock: clock.System(), Getenv: func(string) (string, bool) { return "", false },
	}, append(line, flags...))
	t.Logf("etcd recover %s: exit code %d\n%s%s", strings.Join(flags, " "), code, stdout.String(), stderr.String())
	return code, stdout.String(), stderr.String()
}

// newProducerID asks a broker for a producer id.
func newProducerID(t *testing.T, c *testcluster.Cluster) int64 {
	t.Helper()
	var id int64
	testcluster.Eventually(t, func() error {
		resp, err := runnelv1.NewProducerClient(dial(t, c.Broker(1).Address())).InitProducer(bounded(t), &runnelv1.InitProducerRequest{})
		id = resp.GetProducerId()
		return err
	})
	return id
}

// wantAll checks that partitions hold exactly what was acknowledged, in order.
func wantAll(t *testing.T, cl *client.Client, acked map[client.TopicPartition][]string) {
	t.Helper()
	for p, want := range acked {
		if got := texts(read(t, cl, client.Earliest, p)); !slices.Equal(got, want) {
			t.Errorf("%v: %d records, %d were acknowledged", p, len(got), len(want))
		}
	}
}

// TestEtcdOfAnHourAgo: the data that etcd had before leaders moved and a topic was made is put back. Nobody serves then; after etcd
// recover all that was acknowledged is there, producers go on, and no id is given out twice.
func TestEtcdOfAnHourAgo(t *testing.T) {
	t.Parallel()
	c := recoverable(t)
	cl := c.Client()
	acked := map[client.TopicPartition][]string{}
	p := producer(t, cl)
	write := func(topic string, n int) {
		t.Helper()
		for partition := range int32(2) {
			at := tp(topic, partition)
			for range n {
				v := fmt.Sprintf("%v-%d", at, len(acked[at]))
				if err := p.ProduceSync(bounded(t), &client.Record{Topic: topic, Partition: partition, Value: []byte(v)}); err != nil {
					t.Fatal(err)
				}
				acked[at] = append(acked[at], v)
			}
		}
	}
	createReplicated(t, cl, "old", 2, 3)
	inSync(t, cl, "old", 3)
	write("old", 10)
	backup := c.Etcd().Backup(t)
	createReplicated(t, cl, "new", 2, 3)
	inSync(t, cl, "new", 3)
	highest := newProducerID(t, c)
	write("new", 10)
	for id := range int32(2) { // every leadership moves
		c.Broker(id + 1).Restart()
		inSync(t, cl, "old", 3)
		write("old", 5)
	}
	inSync(t, cl, "new", 3)

	c.Etcd().Restore(t, backup)
	for id := range int32(3) {
		refuses(t, c.Broker(id+1))
	}
	code, out, _ := etcdRecover(t, c)
	if code != 0 || !strings.Contains(out, "kept") || !strings.Contains(out, "old/1") || !strings.Contains(out, "new/1") {
		t.Fatal("the plan")
	}
	for id := range int32(3) {
		refuses(t, c.Broker(id+1)) // a plan has changed nothing
	}
	saved := filepath.Join(t.TempDir(), "saved")
	if code, _, _ := etcdRecover(t, c, "--apply", "--backup", saved); code != 0 {
		t.Fatal("the recovery")
	}
	if info, err := os.Stat(saved); err != nil || info.Size() == 0 {
		t.Errorf("the backup: %v", err)
	}
	for id := range int32(3) {
		c.Broker(id + 1).AwaitReady()
	}
	if id := newProducerID(t, c); id <= highest {
		t.Errorf("producer id %d, %d was given out before", id, highest)
	}
	again := c.Client()
	inSync(t, again, "new", 3)
	inSync(t, again, "old", 3)
	wantAll(t, again, acked)
	write("new", 3) // the producer that was there before
	write("old", 3)
	createReplicated(t, again, "newest", 2, 3)
	inSync(t, again, "newest", 3)
	write("newest", 3)
	wantAll(t, again, acked)
	if code, _, errs := etcdRecover(t, c, "--apply"); code != 0 || !strings.Contains(errs, "nothing to recover") {
		t.Error("a second time")
	}
	if err := p.Close(bounded(t)); err != nil {
		t.Error(err)
	}
}

// TestEtcdAndADiskAreGone: with all of etcd, and one broker's data. The command names the broker, and goes ahead when it is told to.
func TestEtcdAndADiskAreGone(t *testing.T) {
	t.Parallel()
	c := recoverable(t)
	cl := c.Client()
	createReplicated(t, cl, "t", 2, 3)
	inSync(t, cl, "t", 3)
	acked := map[client.TopicPartition][]string{}
	for p := range int32(2) {
		produce(t, cl, "t", p, values(30)...)
		acked[tp("t", p)] = values(30)
	}
	for id := range int32(3) {
		c.Broker(id + 1).Stop()
	}
	if err := os.RemoveAll(c.Broker(3).DataDir()); err != nil {
		t.Fatal(err)
	}
	c.Etcd().Restore(t, "")
	for id := range int32(2) {
		c.Broker(id + 1).Launch()
		refuses(t, c.Broker(id+1))
	}
	code, _, errs := etcdRecover(t, c, "--apply")
	if code != 1 || !strings.Contains(errs, "--accept-missing ") {
		t.Fatal("a broker is missing, and nobody has accepted that")
	}
	if code, _, _ := etcdRecover(t, c, "--apply", "--accept-missing", "3"); code != 0 {
		t.Fatal("the recovery")
	}
	c.Broker(3).Start()
	again := c.Client()
	testcluster.Eventually(t, func() error { // whether broker 3 is a replica depends on how new the newest snapshot was
		for _, p := range partitions(t, again, "t") {
			if p.Leader < 0 || len(p.ISR) < 2 || len(p.ISR) < len(p.Replicas) {
				return fmt.Errorf("partition %d: leader %d, in sync %d", p.Partition, p.Leader, p.ISR)
			}
		}
		return nil
	})
	wantAll(t, again, acked)
}

// TestBrokersThatUseAnOldEtcd: one that had been down since before the backup knows no better, and one with a new disk. They stop when
// the recovery begins, and say what they have.
func TestBrokersThatUseAnOldEtcd(t *testing.T) {
	t.Parallel()
	c := recoverable(t)
	cl := c.Client()
	createReplicated(t, cl, "t", 1, 3)
	createReplicated(t, cl, "single", 3, 1)
	inSync(t, cl, "t", 3)
	inSync(t, cl, "single", 1)
	acked := map[client.TopicPartition][]string{}
	for p := range int32(3) {
		produce(t, cl, "single", p, values(5)...)
		acked[tp("single", p)] = values(5)
	}
	c.Broker(3).Stop()
	produce(t, cl, "t", 0, values(10)...)
	backup := c.Etcd().Backup(t)
	testcluster.Eventually(t, func() error {
		_, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "later", Partitions: 1, Replicas: 2})
		return err
	})
	inSync(t, cl, "later", 2)
	for id := range int32(2) {
		c.Broker(id + 1).Restart()
	}
	again := c.Client()
	produce(t, again, "t", 0, values(10)...)
	produce(t, again, "later", 0, values(10)...)
	acked[tp("t", 0)], acked[tp("later", 0)] = append(values(10), values(10)...), values(10)

	c.Etcd().Restore(t, backup)
	refuses(t, c.Broker(1))
	refuses(t, c.Broker(2))
	c.Broker(3).Start()
	code, out, _ := etcdRecover(t, c)
	if code != 0 || !strings.Contains(out, "uses") {
		t.Fatal("the plan")
	}
	if code, _, _ := etcdRecover(t, c, "--apply", "--backup", filepath.Join(t.TempDir(), "saved")); code != 0 {
		t.Fatal("the recovery")
	}
	last := c.Client()
	inSync(t, last, "t", 3)
	inSync(t, last, "later", 2)
	inSync(t, last, "single", 1)
	wantAll(t, last, acked)
}

// TestClusterFoundedByMistake: a broker with an empty disk has met the empty etcd first. The others belong to another cluster and end; they
// come back once the recovery has begun.
func TestClusterFoundedByMistake(t *testing.T) {
	t.Parallel()
	c := recoverable(t)
	cl := c.Client()
	createReplicated(t, cl, "t", 1, 3)
	inSync(t, cl, "t", 3)
	produce(t, cl, "t", 0, values(10)...)
	for id := range int32(3) {
		c.Broker(id + 1).Stop()
	}
	c.Etcd().Restore(t, "")
	founder := c.AddBroker(3)
	founder.Start()
	c.Broker(1).Launch()
	var foreign *metadata.ForeignEtcdError
	if err := c.Broker(1).Wait(); !errors.As(err, &foreign) {
		t.Fatalf("a broker of another cluster: %v", err)
	}
	founder.Stop()
	brokers := c.Broker(1).Address() + "," + c.Broker(2).Address()
	code, _, errs := etcdRecoverFrom(t, c, brokers, "--apply", "--wait", "1s", "--backup", filepath.Join(t.TempDir(), "saved"),
		"--discard-cluster", foreign.Got, "--cluster-id", foreign.Want)
	if code != 1 || !strings.Contains(errs, "start the brokers") {
		t.Fatal("the mark, without brokers")
	}
	for id := range int32(2) {
		c.Broker(id + 1).Launch()
		refuses(t, c.Broker(id+1))
	}
	if code, _, _ := etcdRecoverFrom(t, c, brokers, "--apply", "--no-backup", "--accept-missing", "3"); code != 0 {
		t.Fatal("the recovery")
	}
	for id := range int32(2) {
		c.Broker(id + 1).AwaitReady()
	}
	if got := texts(read(t, c.Client(), client.Earliest, tp("t", 0))); !slices.Equal(got, values(10)) {
		t.Errorf("read %q", got)
	}
}
