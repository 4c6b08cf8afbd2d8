package controller

import (
	"testing"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// marked is a cluster of three in which broker 2's log of a partition is marked under a log ID.
func marked(p *metadata.Partition, log ids.LogID) *metadata.State {
	c := cluster(3)
	c.Storages[1].Marks = []metadata.Mark{{Partition: p.PartitionRef, Kind: metadata.MarkFailed, LogID: log}}
	c.Topics, c.Partitions = []*metadata.Topic{topic(metadata.TopicActive, 1, 1)}, []*metadata.Partition{p}
	return metadata.NewState(c)
}

// TestMarkOfAnEarlierLogTakesNobodyOut: another log of the same broker has caught up before the mark was dealt with.
func TestMarkOfAnEarlierLogTakesNobodyOut(t *testing.T) {
	p := part(0, 1, 2, 3)
	if d := damage(marked(p, ids.LogID{9}), marked(p, ids.LogID{9}).Storages()[1]); len(d.Partitions) != 0 || len(d.Stale) != 1 {
		t.Errorf("mark of another log: %+v", d)
	}
	for _, log := range []ids.LogID{log1, {}} {
		s := marked(p, log)
		if d := damage(s, s.Storages()[1]); len(d.Partitions) != 1 || len(d.Partitions[0].ISR) != 2 || len(d.Stale) != 0 {
			t.Errorf("mark of log %s: %+v", log, d)
		}
	}
}

// TestDamageBeforeTheFirstElectionSpendsNoEpoch: nothing was ever written, and replicas confirm new directories only while no epoch was led.
func TestDamageBeforeTheFirstElectionSpendsNoEpoch(t *testing.T) {
	p := inSync(part(0, 1, 2, 3), 2)
	p.Leader, p.LeaderEpoch, p.LeaderBrokerEpoch = metadata.NoLeader, 0, 0
	s := marked(p, log1)
	d := damage(s, s.Storages()[1])
	if len(d.Partitions) != 1 || len(d.Partitions[0].ISR) != 0 || d.Partitions[0].LeaderEpoch != 0 {
		t.Errorf("%+v", d)
	}
}
