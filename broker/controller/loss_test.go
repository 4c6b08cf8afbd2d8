package controller

import (
	"errors"
	"testing"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/internal/ids"
)

// TestLostDisk: the partition goes offline, and comes back under a higher epoch once somebody accepts the loss.
func TestLostDisk(t *testing.T) {
	n := startNode(t, 1, ids.NewStorageID())
	topic := n.create("orders", 1, 1)
	n.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	n.stop()
	n = startNode(t, 1, ids.NewStorageID())
	s := n.wait("eligible, and the partition offline", func(s *metadata.State) bool {
		p, ok := s.Partition(topic.ID, 0)
		return ok && s.Eligible(1) && p.Leader == metadata.NoLeader && len(p.ISR) == 0
	})
	p, _ := s.Partition(topic.ID, 0)
	if metadata.NeedsConfirmation(p, n.reg) {
		t.Error("an emptied replica would have come back unnoticed")
	}
	if _, err := n.client.ConfirmReplicas(t.Context(), n.reg, []metadata.Confirmation{{Partition: p, LogID: ids.NewLogID()}}); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Errorf("confirming a partition that was led: %v", err)
	}
	if r, err := n.client.AcceptReplica(t.Context(), n.reg, p, ids.NewLogID()); err != nil || r.Count() != 1 {
		t.Fatalf("AcceptReplica = %+v, %v", r, err)
	}
	s = n.wait("led again", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	if now, _ := s.Partition(topic.ID, 0); now.LeaderEpoch <= p.LeaderEpoch || now.LeaderBrokerEpoch != n.reg.Epoch() {
		t.Errorf("partition %+v after %+v", now, p)
	}
}

// TestDamagedLog: a mark takes the log out of the ISR, in the transaction that clears it.
func TestDamagedLog(t *testing.T) {
	n := startNode(t, 1, ids.NewStorageID())
	topic := n.create("orders", 2, 1)
	n.wait("usable", func(s *metadata.State) bool { return s.Usable(topic.ID) })
	ref := metadata.PartitionRef{TopicID: topic.ID, Partition: 1}
	if err := n.client.MarkLogs(t.Context(), n.reg, []metadata.Mark{{Partition: ref, Kind: metadata.MarkQuarantined}}); err != nil {
		t.Fatal(err)
	}
	s := n.wait("out of the ISR and cleared", func(s *metadata.State) bool {
		p, _ := s.Partition(topic.ID, 1)
		st, _ := s.Storage(1)
		return len(p.ISR) == 0 && len(st.Marks) == 0
	})
	if p, _ := s.Partition(topic.ID, 1); p.Leader != metadata.NoLeader || p.LeaderEpoch != 2 {
		t.Errorf("partition %+v", p)
	}
	if p, _ := s.Partition(topic.ID, 0); p.Leader != 1 || p.LeaderEpoch != 1 {
		t.Errorf("the neighbour was touched: %+v", p)
	}
	if !s.Eligible(1) {
		t.Error("the broker is not eligible any more")
	}
}
