package controller

import "runnel.dev/runnel/broker/metadata"

// count notes in the metrics what an update that was applied did to a partition, and which living brokers it took out of the ISR.
func (c *Controller) count(s *metadata.State, in *Input, next *metadata.Partition, removed map[int32]bool) {
	p, ok := s.Partition(next.TopicID, next.Partition)
	if !ok {
		return
	}
	if next.Leader != metadata.NoLeader && next.LeaderEpoch != p.LeaderEpoch {
		c.metrics.elections.WithLabelValues(before(s, in, p)).Inc()
	}
	if Moving(p) && !Moving(next) {
		c.metrics.reassigned.WithLabelValues("finished").Inc()
		return
	}
	for _, m := range p.ISR {
		if _, stays := next.Member(m.BrokerID); stays {
			continue
		}
		reason := "storage"
		switch {
		case lost(s, m):
		case in.gone(s, m.BrokerID):
			reason = "gone"
		case in.Health.Suspects[m.BrokerID]:
			reason, removed[m.BrokerID] = "suspect", true
		default:
			reason, removed[m.BrokerID] = "stopping", true
		}
		c.metrics.removals.WithLabelValues(reason).Inc()
	}
}

// before says what was wrong with a partition's leader.
func before(s *metadata.State, in *Input, p *metadata.Partition) string {
	_, alive := s.Broker(p.Leader)
	switch {
	case p.Leader == metadata.NoLeader:
		return "none"
	case !alive:
		return "gone"
	case !registered(s, p):
		return "restarted"
	case in.Health.Suspects[p.Leader]:
		return "suspect"
	case in.Health.Stopping[p.Leader]:
		return "stopping"
	case in.rankFor(s, p.PartitionRef, p.Leader) == rankUnwritable:
		return "unwritable"
	}
	return "draining"
}
