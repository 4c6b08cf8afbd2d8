package integration

import (
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
	"runnel.dev/runnel/internal/vfs/errorfs"
	"runnel.dev/runnel/internal/vfs/memfs"
)

// refusing is three brokers, of which broker 1's disk refuses what refuse says while on is set.
func refusing(t *testing.T, refuse func(errorfs.Op) error) (c *testcluster.Cluster, on *atomic.Bool) {
	t.Helper()
	on = &atomic.Bool{}
	disk := errorfs.Wrap(memfs.New(), func(op errorfs.Op) error {
		if on.Load() && strings.HasPrefix(op.Name, "/broker-1/") {
			return refuse(op)
		}
		return nil
	})
	return testcluster.New(t, testcluster.Options{Etcd: shared, Brokers: 3, FS: disk, Configure: func(c *config.Config) {
		c.Etcd.LeaseTTL = config.Duration(2_000_000_000)
		c.Replication.LagTimeout = config.Duration(1_000_000_000)
		c.Replication.BalanceInterval = config.Duration(1_000_000_000)
	}}), on
}

// ledBy waits until a broker leads so many partitions of a topic.
func ledBy(t *testing.T, cl *client.Client, topic string, id int32, want func(n int) bool) {
	t.Helper()
	testcluster.Eventually(t, func() error {
		n := 0
		infos := partitions(t, cl, topic)
		for _, p := range infos {
			if p.Leader == id {
				n++
			}
		}
		if !want(n) {
			return fmt.Errorf("broker %d leads %d partitions: %+v", id, n, infos)
		}
		return nil
	})
}

// A broker whose disk is full leads nothing that others can, is no burden, and comes back by itself. No record is lost, and nobody is told
// of an error.
func TestABrokerWithAFullDiskGivesUpLeadership(t *testing.T) {
	t.Parallel()
	c, full := refusing(t, func(op errorfs.Op) error {
		if op.Kind == errorfs.Write || op.Kind == errorfs.Create {
			return syscall.ENOSPC
		}
		return nil
	})
	cl := c.Client()
	createReplicated(t, cl, "t", 3, 3)
	inSync(t, cl, "t", 3)
	ledBy(t, cl, "t", 1, func(n int) bool { return n == 1 })
	l := startLoad(t, cl, "t", 3)
	l.goesOn(200)
	full.Store(true)
	ledBy(t, cl, "t", 1, func(n int) bool { return n == 0 })
	l.goesOn(500)
	for _, p := range inSync(t, cl, "t", 2) {
		for _, id := range p.ISR {
			if id == 1 {
				t.Errorf("the full broker is in sync: %+v", p)
			}
		}
	}
	full.Store(false)
	inSync(t, cl, "t", 3)
	ledBy(t, cl, "t", 1, func(n int) bool { return n == 1 })
	l.goesOn(200)
	l.check()
}

// One bad file moves one leadership.
func TestALogThatTakesNoWritesGivesUpLeadership(t *testing.T) {
	t.Parallel()
	var bad atomic.Pointer[string]
	c, on := refusing(t, func(op errorfs.Op) error {
		if op.Kind == errorfs.Write && strings.HasPrefix(op.Name, *bad.Load()) && strings.HasSuffix(op.Name, ".log") {
			return syscall.EIO
		}
		return nil
	})
	cl := c.Client()
	topic := createReplicated(t, cl, "t", 6, 3)
	var led []int32
	for _, p := range inSync(t, cl, "t", 3) {
		if p.Leader == 1 {
			led = append(led, p.Partition)
		}
	}
	if len(led) != 2 {
		t.Fatalf("broker 1 leads %d", led)
	}
	l := startLoad(t, cl, "t", 6)
	l.goesOn(200)
	dir := fmt.Sprintf("%s/%d/", topicDir(c.Broker(1), topic.ID), led[0])
	bad.Store(&dir)
	on.Store(true)
	testcluster.Eventually(t, func() error {
		infos := partitions(t, cl, "t")
		if infos[led[0]].Leader == 1 || infos[led[1]].Leader != 1 {
			return fmt.Errorf("broker 1 led %d: %+v", led, infos)
		}
		return nil
	})
	l.goesOn(200)
	on.Store(false)
	inSync(t, cl, "t", 3)
	ledBy(t, cl, "t", 1, func(n int) bool { return n == 2 })
	l.goesOn(200)
	l.check()
}
