package integration

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/replication"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/testcluster"
)

// refuses waits until a broker refuses its etcd, and says so.
func refuses(t *testing.T, b *testcluster.Broker) {
	t.Helper()
	testcluster.Eventually(t, func() error {
		state, err := b.Readiness()
		if err != nil {
			return err
		}
		if state.Ready || len(state.Conditions) == 0 || !strings.Contains(state.Conditions[0].Reason, "runnel etcd recover") {
			return fmt.Errorf("readiness %+v", state)
		}
		return nil
	})
}

// inventory asks a broker that refuses its etcd what its data directory holds.
func inventory(t *testing.T, b *testcluster.Broker) (metadata.BrokerInventory, []byte) {
	t.Helper()
	var inv replication.Inventory
	testcluster.Eventually(t, func() (err error) {
		inv, err = replication.ReadInventory(bounded(t), dial(t, b.Address()))
		return err
	})
	out := metadata.BrokerInventory{
		BrokerID: inv.Header.GetBrokerId(), StorageID: ids.StorageID(inv.Header.GetStorageId()),
		Position: metadata.Position{ClusterID: inv.Header.GetClusterId(), Era: inv.Header.GetEra(), Revision: inv.Header.GetRevision()},
	}
	for _, l := range inv.Logs {
		out.Logs = append(out.Logs, metadata.LogInventory{
			TopicID: ids.TopicID(l.GetTopicId()), Partition: l.GetPartition(), TopicName: l.GetTopicName(), TopicConfig: l.GetTopicConfig(),
			LogID: ids.LogID(l.GetLogId()), AdoptedEpoch: l.GetAdoptedEpoch(), LatestEpoch: l.GetLatestEpoch(), LogStart: l.GetLogStart(), End: l.GetLogEnd(),
			MaxProducerID: l.GetMaxProducerId(), Damaged: l.GetHealth() != "online",
		})
	}
	return out, inv.Snapshot
}

// An etcd that lost everything is refused, and nothing is served, until it was recovered from what the brokers have: then nothing that
// was acknowledged is missing.
func TestEmptiedEtcdIsRefusedAndRecovered(t *testing.T) {
	t.Parallel()
	c := startBrokers(t, 3)
	cl := c.Client()
	topic := createReplicated(t, cl, "t", 2, 3)
	inSync(t, cl, "t", 3)
	for p := range int32(2) {
		produce(t, cl, "t", p, values(30)...)
	}
	lost := c.Name() + "-lost"
	var in metadata.RecoveryInput
	for id := range int32(3) {
		b := c.Broker(id + 1)
		b.Stop()
		b.Config.Cluster = lost
	}
	for id := range int32(3) {
		b := c.Broker(id + 1)
		b.Launch()
		refuses(t, b)
		s := rawProduce(t, b.Address())
		s.send(1, topic.ID, 0, batch(t, "refused"))
		if resp, err := s.stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("a broker that refuses its etcd answers %v, %v", resp, err)
		}
		inv, snapshot := inventory(t, b)
		in.Inventories = append(in.Inventories, inv)
		if len(snapshot) > 0 {
			in.Snapshots = append(in.Snapshots, snapshot)
		}
	}
	store, err := metadata.New(metadata.Config{Endpoints: shared.Endpoints(), Cluster: lost}, clock.System(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { err = errors.Join(err, store.Close()) })
	in.Now = time.Now()
	plan, err := metadata.PlanRecovery(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Restore(bounded(t), plan); err != nil {
		t.Fatal(err)
	}
	for id := range int32(3) {
		c.Broker(id + 1).AwaitReady()
	}
	again := c.Client()
	inSync(t, again, "t", 3)
	for p := range int32(2) {
		if got := texts(read(t, again, client.Earliest, tp("t", p))); !slices.Equal(got, values(30)) {
			t.Errorf("partition %d: %d records", p, len(got))
		}
		produce(t, again, "t", p, "more")
	}
	// Who is in the cluster shows its inventory to brokers only.
	if _, err := replication.ReadInventory(bounded(t), dial(t, c.Broker(1).Address())); err == nil {
		t.Error("a stranger reads the inventory")
	}
}
