package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcmetadata "google.golang.org/grpc/metadata"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// startBrokers starts several brokers with short time-outs in the shared etcd.
func startBrokers(t *testing.T, n int) *testcluster.Cluster {
	t.Helper()
	return testcluster.New(t, testcluster.Options{Etcd: shared, Brokers: n, Configure: func(c *config.Config) {
		c.Etcd.LeaseTTL = config.Duration(2_000_000_000)
		c.Replication.LagTimeout = config.Duration(1_000_000_000)
	}})
}

func createReplicated(t *testing.T, cl *client.Client, name string, partitions, replicas int32) client.Topic {
	t.Helper()
	topic, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: name, Partitions: partitions, Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// inSync waits until every partition of a topic has n members in sync, and a leader.
func inSync(t *testing.T, cl *client.Client, topic string, n int) []client.PartitionInfo {
	t.Helper()
	var infos []client.PartitionInfo
	testcluster.Eventually(t, func() error {
		infos = partitions(t, cl, topic)
		for _, p := range infos {
			if len(p.ISR) != n || p.Leader < 0 {
				return fmt.Errorf("partition %d: leader %d, in sync %d, want %d members", p.Partition, p.Leader, p.ISR, n)
			}
		}
		return nil
	})
	return infos
}

func TestThreeReplicas(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 3)
	cl := c.Client()
	createReplicated(t, cl, "t", 3, 3)
	infos := inSync(t, cl, "t", 3)
	leaders := map[int32]bool{}
	for _, p := range infos {
		leaders[p.Leader] = true
	}
	if len(leaders) != 3 {
		t.Errorf("three partitions are led by %d brokers", len(leaders))
	}
	for p := range int32(3) {
		produce(t, cl, "t", p, values(20)...)
	}
	for p := range int32(3) {
		if got := texts(read(t, cl, client.Earliest, tp("t", p))); !slices.Equal(got, values(20)) {
			t.Errorf("partition %d: %q", p, got)
		}
	}
}

// Nothing that was acknowledged is lost, nothing is there twice, and nobody is told of an error, whichever way the leaders go.
func TestLeadersGoUnderLoad(t *testing.T) {
	for name, end := range map[string]func(*testcluster.Broker){
		"stopped": (*testcluster.Broker).Stop,
		"killed":  (*testcluster.Broker).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startBrokers(t, 3)
			cl := c.Client()
			createReplicated(t, cl, "t", 3, 3)
			inSync(t, cl, "t", 3)
			l := startLoad(t, cl, "t", 3)
			l.goesOn(200)
			for id := range int32(3) {
				b := c.Broker(id + 1)
				end(b)
				l.goesOn(200)
				b.Start()
				inSync(t, cl, "t", 3)
				l.goesOn(200)
			}
			l.check()
		})
	}
}

// A broker that lost its disk while it was away copies everything again, and counts only then.
func TestAnEmptiedBrokerReplicatesAgain(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 3)
	cl := c.Client()
	createReplicated(t, cl, "t", 2, 3)
	inSync(t, cl, "t", 3)
	for p := range int32(2) {
		produce(t, cl, "t", p, values(50)...)
	}
	lost := c.Broker(2)
	lost.Kill()
	// While the dead broker's registration lives, another disk under its id is refused.
	testcluster.Eventually(t, func() error {
		info, err := admin(t, c.Broker(1)).DescribeCluster(bounded(t), &runnelv1.DescribeClusterRequest{})
		for _, b := range info.GetBrokers() {
			if b.GetId() == 2 && b.GetLive() {
				err = errors.New("broker 2 is still registered")
			}
		}
		return err
	})
	if err := os.RemoveAll(lost.DataDir()); err != nil {
		t.Fatal(err)
	}
	lost.Start()
	inSync(t, cl, "t", 3)
	// The others go, and what the new disk has is all that there is.
	c.Broker(1).Stop()
	inSync(t, cl, "t", 2)
	for p := range int32(2) {
		if got := texts(read(t, cl, client.Earliest, tp("t", p))); !slices.Equal(got, values(50)) {
			t.Errorf("partition %d: %d records", p, len(got))
		}
	}
}

func TestDeleteRecordsReachesAllReplicas(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 3)
	cl := c.Client()
	createReplicated(t, cl, "t", 1, 3)
	led := inSync(t, cl, "t", 3)[0].Leader
	produce(t, cl, "t", 0, values(10)...)
	if _, err := cl.Admin().DeleteRecords(bounded(t), "t", map[int32]int64{0: 6}); err != nil {
		t.Fatal(err)
	}
	c.Broker(led).Stop()
	inSync(t, cl, "t", 2)
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); !slices.Equal(got, values(10)[6:]) {
		t.Errorf("the next leader has %q", got)
	}
	// A replica that was away while its place was deleted begins anew.
	c.Broker(led).Start()
	inSync(t, cl, "t", 3)
	away := c.Broker(led)
	away.Stop()
	inSync(t, cl, "t", 2)
	produce(t, cl, "t", 0, values(5)...)
	if _, err := cl.Admin().DeleteRecords(bounded(t), "t", map[int32]int64{0: 13}); err != nil {
		t.Fatal(err)
	}
	away.Start()
	inSync(t, cl, "t", 3)
}

// Two of three replicas are away: produce is refused, and comes back by itself with one of them.
func TestProduceBelowTheMinimum(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 3)
	cl := c.Client()
	createReplicated(t, cl, "t", 1, 3)
	led := inSync(t, cl, "t", 3)[0].Leader
	produce(t, cl, "t", 0, "before")
	var gone []*testcluster.Broker
	for id := range int32(3) {
		if id+1 != led {
			gone = append(gone, c.Broker(id+1))
		}
	}
	gone[0].Kill()
	gone[1].Kill()
	topic, _, err := cl.Admin().DescribeTopic(bounded(t), "t")
	if err != nil {
		t.Fatal(err)
	}
	// What was appended before the leader noticed waits: each attempt gets a stream of its own, and little time.
	conn := dial(t, c.Broker(led).Address())
	testcluster.Eventually(t, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s, err := runnelv1.NewProducerClient(conn).Produce(grpcmetadata.AppendToOutgoingContext(ctx, "runnel-route", "direct"))
		if err != nil {
			return err
		}
		r := &raw{t, s}
		r.send(1, topic.ID, 0, batch(t, "refused"))
		resp, err := s.Recv()
		if err != nil {
			return err
		}
		e := resp.GetError()
		if e.GetReason() != "NOT_ENOUGH_REPLICAS" || !e.GetRetriable() || codes.Code(e.GetCode()) != codes.Unavailable {
			return fmt.Errorf("answer %v", e)
		}
		return nil
	})
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); len(got) == 0 || got[0] != "before" {
		t.Errorf("reads below the minimum: %q", got)
	}
	gone[0].Start()
	produce(t, cl, "t", 0, "after")
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); got[len(got)-1] != "after" {
		t.Errorf("read %q", got)
	}
}

func TestMoreReplicasThanBrokersAreRefused(t *testing.T) {
	t.Parallel()
	cl := startBrokers(t, 2).Client()
	_, err := cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "t", Partitions: 1, Replicas: 3})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	three := int32(3)
	_, err = cl.Admin().CreateTopic(bounded(t), client.TopicSpec{Name: "t", Partitions: 1, Replicas: 2, Config: client.TopicConfig{MinInSyncReplicas: &three}})
	wantReason(t, err, codes.InvalidArgument, "INVALID_ARGUMENT")
	if errors.Is(err, client.ErrNotWritten) {
		t.Error("a produce error")
	}
}

func admin(t *testing.T, b *testcluster.Broker) runnelv1.AdminClient {
	t.Helper()
	return runnelv1.NewAdminClient(dial(t, b.Address()))
}

// held waits until every partition of a topic has its replicas exactly on these brokers, all in sync, and nothing moves.
func held(t *testing.T, cl *client.Client, topic string, brokers ...int32) {
	t.Helper()
	testcluster.Eventually(t, func() error {
		for _, p := range partitions(t, cl, topic) {
			replicas, isr := slices.Sorted(slices.Values(p.Replicas)), slices.Sorted(slices.Values(p.ISR))
			if !slices.Equal(replicas, brokers) || !slices.Equal(isr, brokers) || p.Leader < 0 {
				return fmt.Errorf("partition %d: replicas %d, in sync %d, leader %d; want %d", p.Partition, p.Replicas, p.ISR, p.Leader, brokers)
			}
		}
		return nil
	})
}

// A broker is added, partitions move to it under load, and what they leave behind is removed.
func TestReassignToAnAddedBroker(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 3)
	cl := c.Client()
	topic := createReplicated(t, cl, "t", 2, 3)
	inSync(t, cl, "t", 3)
	l := startLoad(t, cl, "t", 2)
	l.goesOn(200)
	c.AddBroker(4).Start()
	api := admin(t, c.Broker(4)) // whoever is asked
	targets := []*runnelv1.PartitionTarget{
		{Topic: "t", Partition: 0, Replicas: []int32{4, 2, 3}}, {Topic: "t", Partition: 1, Replicas: []int32{2, 4, 3}},
	}
	testcluster.Eventually(t, func() error {
		resp, err := api.ReassignPartitions(bounded(t), &runnelv1.ReassignPartitionsRequest{Targets: targets})
		if err != nil {
			return err
		}
		for _, r := range resp.GetResults() {
			if r.GetError() != nil {
				return fmt.Errorf("%s/%d: %v", r.GetTopic(), r.GetPartition(), r.GetError())
			}
		}
		return nil
	})
	held(t, cl, "t", 2, 3, 4)
	l.goesOn(200)
	l.check()
	testcluster.Eventually(t, func() error {
		if _, err := os.Stat(filepath.Join(c.Broker(1).DataDir(), topic.ID.String())); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("what moved away is still there: %w", err)
		}
		return nil
	})
	resp, err := api.ReassignPartitions(bounded(t), &runnelv1.ReassignPartitionsRequest{Targets: []*runnelv1.PartitionTarget{
		{Topic: "t", Partition: 0, Replicas: []int32{4, 2, 9}},
		{Topic: "t", Partition: 7, Replicas: []int32{4, 2, 3}},
		{Topic: "none", Partition: 0, Replicas: []int32{4, 2, 3}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"BROKER_UNKNOWN", "UNKNOWN_PARTITION", "TOPIC_NOT_FOUND"} {
		if got := resp.GetResults()[i].GetError().GetReason(); got != want {
			t.Errorf("target %d: reason %q, want %q", i, got, want)
		}
	}
}

// A drained broker holds nothing in the end, may be stopped, and gets nothing new.
func TestDrain(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 4)
	cl := c.Client()
	createReplicated(t, cl, "t", 4, 3)
	inSync(t, cl, "t", 3)
	l := startLoad(t, cl, "t", 4)
	l.goesOn(200)
	api := admin(t, c.Broker(2))
	if _, err := api.DrainBroker(bounded(t), &runnelv1.DrainBrokerRequest{BrokerId: 1}); err != nil {
		t.Fatal(err)
	}
	held(t, cl, "t", 2, 3, 4)
	safe, err := api.SafeToStop(bounded(t), &runnelv1.SafeToStopRequest{BrokerId: 1})
	if err != nil || !safe.GetSafe() {
		t.Errorf("%v, %v", safe, err)
	}
	createReplicated(t, cl, "later", 2, 3)
	held(t, cl, "later", 2, 3, 4)
	l.goesOn(200)
	l.check()
	if _, err := api.DrainBroker(bounded(t), &runnelv1.DrainBrokerRequest{BrokerId: 9}); err == nil {
		t.Error("a broker that does not exist is drained")
	}
}

// The replicas of a topic are changed, up and down.
func TestChangeReplicas(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 3)
	cl := c.Client()
	createReplicated(t, cl, "t", 1, 1)
	produce(t, cl, "t", 0, values(5)...)
	api := admin(t, c.Broker(1))
	for _, n := range []int32{3, 2} {
		if _, err := api.UpdateTopic(bounded(t), &runnelv1.UpdateTopicRequest{Name: "t", Replicas: n}); err != nil {
			t.Fatal(err)
		}
		testcluster.Eventually(t, func() error {
			p := partitions(t, cl, "t")[0]
			if len(p.Replicas) != int(n) || len(p.ISR) != int(n) {
				return fmt.Errorf("replicas %d, in sync %d, want %d", p.Replicas, p.ISR, n)
			}
			return nil
		})
	}
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); !slices.Equal(got, values(5)) {
		t.Errorf("read %q", got)
	}
	if _, err := api.UpdateTopic(bounded(t), &runnelv1.UpdateTopicRequest{Name: "t", Replicas: 4}); err == nil {
		t.Error("more replicas than brokers")
	}
}

// A leader that is cut off, from etcd too, acknowledges nothing that the others do not know of; back on the network it follows.
func TestACutOffLeaderIsReplacedAndFollows(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 3)
	cl := c.Client()
	createReplicated(t, cl, "t", 3, 3)
	inSync(t, cl, "t", 3)
	l := startLoad(t, cl, "t", 3)
	l.goesOn(200)
	for id := range int32(3) {
		b := c.Broker(id + 1)
		b.Cut()
		testcluster.Eventually(t, func() error {
			for _, p := range partitions(t, cl, "t") {
				if p.Leader == id+1 || p.Leader < 0 {
					return fmt.Errorf("partition %d is led by %d", p.Partition, p.Leader)
				}
			}
			return nil
		})
		l.goesOn(200)
		b.Heal()
		inSync(t, cl, "t", 3)
		l.goesOn(200)
	}
	l.check()
}

// A disk whose sync fails ends its broker. The others lead on, and what was acknowledged is there.
func TestAFailedSyncHandsOver(t *testing.T) {
	t.Parallel()
	disks := map[int32]*errorfs.FS{}
	c := testcluster.New(t, testcluster.Options{Etcd: shared, Brokers: -1, Configure: func(c *config.Config) {
		c.Replication.LagTimeout = config.Duration(time.Second)
	}})
	for id := range int32(3) {
		b := c.AddBroker(id + 1)
		disks[id+1] = errorfs.Wrap(memfs.New(), nil)
		b.FS, b.Config.Storage.DataDir = disks[id+1], "/data"
		b.Start()
	}
	cl := c.Client()
	createReplicated(t, cl, "t", 1, 3)
	led := inSync(t, cl, "t", 3)[0].Leader
	l := startLoad(t, cl, "t", 1)
	l.goesOn(200)
	disks[led].SetInjector(failSyncs)
	var failed *storage.SyncFailedError
	if err := c.Broker(led).Wait(); !errors.As(err, &failed) {
		t.Fatalf("the broker ended with %v", err)
	}
	l.goesOn(200)
	if now := inSync(t, cl, "t", 2)[0].Leader; now == led {
		t.Errorf("broker %d still leads", led)
	}
	l.check()
}
