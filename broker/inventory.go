package broker

import (
	"context"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/peer"
	"runnel.dev/runnel/broker/replication"
)

// leaderStates implements startStates over the connections to other brokers.
type leaderStates struct{ conns *peer.Conns }

// StartState implements startStates.
func (l leaderStates) StartState(ctx context.Context, leader int32, ref metadata.PartitionRef, epoch int32, offset int64) (log.StartState, error) {
	conn, err := l.conns.Conn(leader, peer.ClassCatchup)
	if err != nil {
		return log.StartState{}, err
	}
	return replication.ReadStartState(ctx, conn, ref, epoch, offset)
}
