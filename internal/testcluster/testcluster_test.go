package testcluster_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
)

var shared *testcluster.Etcd

func TestMain(m *testing.M) { os.Exit(testcluster.Main(m, &shared)) }

func TestEveryPartStopsAndStartsAgain(t *testing.T) {
	c := testcluster.New(t, testcluster.Options{})
	cl := c.Client()
	topic, err := cl.Admin().CreateTopic(t.Context(), client.TopicSpec{Name: "t", Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	addresses := []string{c.Broker(1).Address(), c.Etcd().Endpoints()[0]}
	c.Broker(1).Restart()
	c.Etcd().Stop(t)
	c.Etcd().Start(t)
	c.Broker(1).Restart()
	if now := c.Broker(1).Address(); now != addresses[0] {
		t.Errorf("the broker moved from %s to %s", addresses[0], now)
	}
	if now := c.Etcd().Endpoints()[0]; now != addresses[1] {
		t.Errorf("etcd moved from %s to %s", addresses[1], now)
	}
	// The old client finds what was there.
	found, err := cl.Admin().Topics(t.Context())
	if err != nil || len(found) != 1 || found[0].ID != topic.ID {
		t.Errorf("Topics() = %+v, %v, want %+v", found, err, topic)
	}
}

func TestTwoBrokers(t *testing.T) {
	c := testcluster.New(t, testcluster.Options{Etcd: shared, Brokers: 2})
	info, err := c.Client().Admin().DescribeCluster(t.Context())
	if err != nil || len(info.Brokers) != 2 || info.Brokers[0].ID != 1 || info.Brokers[1].ID != 2 {
		t.Errorf("DescribeCluster() = %+v, %v", info, err)
	}
	if c.Broker(1).DataDir() == c.Broker(2).DataDir() {
		t.Error("the brokers share a directory")
	}
}

// Clusters in one etcd do not see each other.
func TestClustersAreApart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	one, other := testcluster.New(t, testcluster.Options{Etcd: shared}), testcluster.New(t, testcluster.Options{Etcd: shared})
	if _, err := one.Client().Admin().CreateTopic(ctx, client.TopicSpec{Name: "t", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	if topics, err := other.Client().Admin().Topics(ctx); err != nil || len(topics) != 0 {
		t.Errorf("the other cluster has %+v, %v", topics, err)
	}
}

func TestBrokerThatCannotStart(t *testing.T) {
	c := testcluster.New(t, testcluster.Options{Etcd: shared})
	b := c.AddBroker(2)
	b.Config.Storage.DataDir = c.Broker(1).DataDir()
	b.Launch()
	if err := b.Wait(); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("Run on a directory in use returned %v", err)
	}
	if b.Running() || !c.Broker(1).Running() {
		t.Error("the wrong broker runs")
	}
}
