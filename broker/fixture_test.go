package broker

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/ids"
	"runnel.dev/runnel/internal/vfs/memfs"
)

func testConfig(t *testing.T) config.Config {
	t.Helper()
	c := config.Default()
	c.Storage.DataDir = t.TempDir()
	return c
}

func testDeps() Deps {
	return Deps{FS: memfs.New(), Clock: clock.System(), Logger: quiet, Registry: prometheus.NewRegistry()}
}

// me is the broker that the tests are about.
const me = 1

var clusters atomic.Int64

// fixture is a host over a real registration and a store in memory. Nothing of it runs but the store; states come from the test.
type fixture struct {
	*host
	t    *testing.T
	disk *memfs.Mem
	dir  string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	client, err := metadata.New(metadata.Config{Endpoints: etcdURLs, Cluster: fmt.Sprint("test-", clusters.Add(1))}, clock.System(), quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	cluster, err := client.Bootstrap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	disk := memfs.New()
	const dir = "/data"
	cfg := storage.DefaultConfig(dir, cluster.ID)
	cfg.LogConfig = decodeLogConfig(nil)
	store, err := storage.Open(t.Context(), cfg, disk, clock.System(), quiet, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- store.Run(ctx) }()
	reg, err := client.Register(t.Context(), metadata.BrokerInfo{ID: me, StorageID: store.StorageID(), Listeners: map[string]string{"client": "host:7650"}})
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(hostConfig{
		client: client, cache: metadata.NewCache(client), reg: reg, store: store, view: newView(&runnelv1.TopicConfig{}), clk: clock.System(), lg: quiet,
		lagTimeout: time.Second,
	})
	t.Cleanup(func() {
		h.closeAll()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{host: h, t: t, disk: disk, dir: dir}
}

// topic is an active topic with one partition.
func topic(name string) *metadata.Topic {
	return &metadata.Topic{
		Name: name, ID: ids.NewTopicID(), State: metadata.TopicActive, Partitions: 1, ReadyPartitions: 1, Replicas: 1, Generation: 1,
		Config: &runnelv1.TopicConfig{},
	}
}

// part is partition 0 of a topic: a replica here, nobody in sync, no leader yet.
func part(tp *metadata.Topic) *metadata.Partition {
	return &metadata.Partition{PartitionRef: metadata.PartitionRef{TopicID: tp.ID}, Leader: metadata.NoLeader, Replicas: []int32{me}}
}

// log makes the partition's directory.
func (f *fixture) log(p *metadata.Partition) ids.LogID {
	f.t.Helper()
	info, err := topicInfo("t", &runnelv1.TopicConfig{})
	if err != nil {
		f.t.Fatal(err)
	}
	l, err := f.store.CreateLog(f.t.Context(), p.TopicID, p.Partition, info, startOfLog)
	if err != nil {
		f.t.Fatal(err)
	}
	return l.LogID()
}

// led makes p led by this registration, with the given log in sync.
func (f *fixture) led(p *metadata.Partition, id ids.LogID) *metadata.Partition {
	p = p.Clone()
	p.Leader, p.LeaderEpoch, p.LeaderBrokerEpoch = me, 1, f.reg.Epoch()
	p.ISR = []metadata.Member{{BrokerID: me, StorageID: f.store.StorageID(), LogID: id}}
	return p
}

// elsewhere makes p led by another broker, which alone is in sync.
func elsewhere(p *metadata.Partition) *metadata.Partition {
	p = p.Clone()
	p.Leader, p.LeaderEpoch, p.LeaderBrokerEpoch = me+1, 1, 1
	p.Replicas = []int32{me, me + 1}
	p.ISR = []metadata.Member{{BrokerID: me + 1, StorageID: ids.NewStorageID(), LogID: ids.NewLogID()}}
	return p
}

func state(revision int64, topics []*metadata.Topic, parts ...*metadata.Partition) *metadata.State {
	return metadata.NewState(metadata.Contents{
		Position: metadata.Position{ClusterID: "c", EtcdClusterID: 1, Era: 1, Revision: revision},
		Cluster:  &metadata.Cluster{ID: "c"}, Topics: topics, Partitions: parts,
	})
}
