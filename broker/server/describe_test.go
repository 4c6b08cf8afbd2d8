package server

import (
	"testing"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/broker/replica"
)

// TestTheWayOfAReplica: what a leader knows of a follower says how far that is on its way to being in sync.
func TestTheWayOfAReplica(t *testing.T) {
	s := partition.Status{
		Offsets: log.Offsets{HighWatermark: 80, End: 100}, Now: 10 * time.Second, Replication: replica.Status{Leading: true, EpochStart: 60},
	}
	for name, tc := range map[string]struct {
		f    replica.FollowerStatus
		down bool
		want runnelv1.ReplicaState
		lag  int64
	}{
		"subscribed":                      {replica.FollowerStatus{Acked: -1}, false, runnelv1.ReplicaState_REPLICA_STATE_SUBSCRIBED, -1},
		"below the high watermark":        {replica.FollowerStatus{Acked: 70}, false, runnelv1.ReplicaState_REPLICA_STATE_CATCHING_UP, 30},
		"below the start of the epoch":    {replica.FollowerStatus{Acked: 50}, false, runnelv1.ReplicaState_REPLICA_STATE_CATCHING_UP, 50},
		"caught up":                       {replica.FollowerStatus{Acked: 90, CaughtUp: 9 * time.Second}, false, runnelv1.ReplicaState_REPLICA_STATE_CAUGHT_UP, 10},
		"in sync":                         {replica.FollowerStatus{Acked: 100, InSync: true}, false, runnelv1.ReplicaState_REPLICA_STATE_IN_SYNC, 0},
		"its broker is gone":              {replica.FollowerStatus{Acked: 70}, true, runnelv1.ReplicaState_REPLICA_STATE_BROKER_DOWN, 30},
		"its broker is gone, not yet out": {replica.FollowerStatus{Acked: 70, InSync: true}, true, runnelv1.ReplicaState_REPLICA_STATE_IN_SYNC, 30},
	} {
		r := &runnelv1.ReplicaStatus{BrokerLive: !tc.down, AckedOffset: -1, Lag: -1, CaughtUpMsAgo: -1}
		if tc.down {
			r.State = runnelv1.ReplicaState_REPLICA_STATE_BROKER_DOWN
		}
		follower(r, &tc.f, s)
		if r.GetState() != tc.want || r.GetLag() != tc.lag {
			t.Errorf("%s: %v", name, r)
		}
	}
}
