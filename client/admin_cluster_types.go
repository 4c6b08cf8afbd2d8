package client

import (
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
)

// BrokerState is what the cluster wants of a broker and its storage.
type BrokerState string

// The broker states.
const (
	BrokerUnknown        BrokerState = "unknown"
	BrokerActive         BrokerState = "active"
	BrokerDraining       BrokerState = "draining"
	BrokerDecommissioned BrokerState = "decommissioned"
	BrokerFenced         BrokerState = "fenced"
)

// BrokerInfo describes a broker. Sizes and rates are as last reported, -1 while unknown.
type BrokerInfo struct {
	ID                       int32
	Epoch                    int64
	Rack, Version, StorageID string
	// Listeners maps names to advertised addresses.
	Listeners         map[string]string
	Leaders, Replicas int
	// UnderReplicated are the replicas that it holds and that are not in sync; Damaged are logs that are marked as damaged.
	UnderReplicated, Damaged int
	State                    BrokerState
	// Live: it is registered. Eligible: it may lead and be in sync. Suspect: others agree that it does not answer. Stopping: it is shutting down.
	Live, Eligible, Suspect, Stopping, Controller bool
	SizeBytes, FreeBytes, TotalBytes              int64
	// FullIn is when its volume is full at the present rate; -1: it is not filling up, or unknown.
	FullIn            time.Duration
	BytesIn, BytesOut float64
}

// ReplicaState says how far a replica is on its way to being in sync.
type ReplicaState string

// The replica states, in the order of the way.
const (
	ReplicaUnknown    ReplicaState = "unknown"
	ReplicaBrokerDown ReplicaState = "broker down"
	ReplicaDamaged    ReplicaState = "damaged"
	ReplicaStarting   ReplicaState = "starting"
	ReplicaSubscribed ReplicaState = "subscribed"
	ReplicaCatchingUp ReplicaState = "catching up"
	ReplicaCaughtUp   ReplicaState = "caught up"
	ReplicaInSync     ReplicaState = "in sync"
	ReplicaLeader     ReplicaState = "leader"
)

// ReplicaInfo describes one replica as its leader sees it.
type ReplicaInfo struct {
	Broker                   int32
	State                    ReplicaState
	InSync, Adding, Removing bool
	// Acked is where its durable log ended when it was last heard of, Lag how many records it is behind; -1: unknown.
	Acked, Lag int64
	// CaughtUpAgo is when it had all that the leader had; -1: not in this leader epoch.
	CaughtUpAgo time.Duration
	BrokerState BrokerState
	BrokerLive  bool
	Detail      string
	// Rate is how fast Acked moves, records per second; -1: unknown.
	Rate float64
}

// Reassignment is one partition on its way to other brokers, or a plan for it.
type Reassignment struct {
	TopicPartition
	// Replicas are all of them for the time being, before a plan is carried out: the present ones. Target is what they will be.
	Replicas, Target, Adding, Removing, ISR []int32
	// Bytes have to be copied; -1: unknown. Only of plans.
	Bytes int64
	// Blocked says what it waits for, when it does not get on.
	Blocked string
	// Err says why it was refused.
	Err error
}

// Reassignments are those under way.
type Reassignments struct {
	List []Reassignment
	// Total is how many there are, listed or not.
	Total int
	// Throttle is what each broker may copy, bytes per second; 0: unlimited.
	Throttle int64
}

// ReassignOptions changes what Reassign does.
type ReassignOptions struct {
	// DryRun only plans.
	DryRun bool
	// Throttle, unless nil, is what each broker may copy for new replicas, bytes per second, until it starts again with its own setting; 0: unlimited.
	Throttle *int64
}

// Blocking is a partition that stands in the way, and why.
type Blocking struct {
	TopicPartition
	Reason                    string
	InSync, MinInSyncReplicas int
}

// DrainInfo says what draining a broker means.
type DrainInfo struct {
	// Replicas have to move; 0: the broker is empty. Bytes is -1 while unknown.
	Replicas int
	Bytes    int64
	// Blocked are partitions that cannot move, capped; TotalBlocked is how many there are.
	Blocked      []Blocking
	TotalBlocked int
}

// FenceInfo says what fencing a broker's storage means.
type FenceInfo struct {
	// Affected are left with fewer in-sync replicas than they need, capped; TotalAffected is how many there are.
	Affected      []Blocking
	TotalAffected int
}

// StopInfo says whether a broker can be stopped.
type StopInfo struct {
	Safe          bool
	Blocking      []Blocking // capped
	TotalBlocking int
	// SingleReplica counts partitions whose only replica is there.
	SingleReplica int
	Controller    bool
	Leaders       int
}

// Election is the outcome of ElectLeaders for one partition.
type Election struct {
	TopicPartition
	OldLeader, Leader, LeaderEpoch int32
	Err                            error
}

// OperationKind says what is going on.
type OperationKind string

// The kinds.
const (
	OperationUnknown      OperationKind = "unknown"
	OperationReassignment OperationKind = "reassignment"
	OperationDrain        OperationKind = "drain"
	OperationBalance      OperationKind = "balance"
	OperationRepair       OperationKind = "repair"
)

// Operation is something that takes time, and how far it is.
type Operation struct {
	Kind   OperationKind
	Broker int32 // -1: the cluster
	// Bytes are -1 while unknown.
	Partitions, PartitionsDone int
	Bytes, BytesDone           int64
	Since                      time.Time
	Blocked                    string
	Blocking                   []Blocking // capped
}

// Setting is one of a broker's settings in force.
type Setting struct {
	Name, Value string
	// Changed: it is not the built-in default.
	Changed bool
}

func brokerOf(b *runnelv1.BrokerStatus) BrokerInfo {
	return BrokerInfo{
		ID: b.GetId(), Epoch: b.GetBrokerEpoch(), Rack: b.GetRack(), Version: b.GetVersion(), StorageID: b.GetStorageId(),
		Listeners: b.GetListeners(), Leaders: int(b.GetLeaders()), Replicas: int(b.GetReplicas()),
		UnderReplicated: int(b.GetUnderReplicated()), Damaged: int(b.GetDamaged()), State: brokerStateOf(b.GetState()),
		Live: b.GetLive(), Eligible: b.GetEligible(), Suspect: b.GetSuspect(), Stopping: b.GetStopping(), Controller: b.GetController(),
		SizeBytes: b.GetSizeBytes(), FreeBytes: b.GetFreeBytes(), TotalBytes: b.GetTotalBytes(), FullIn: optional(b.GetFullInMs()),
		BytesIn: b.GetBytesInPerSecond(), BytesOut: b.GetBytesOutPerSecond(),
	}
}

func brokerStateOf(s runnelv1.BrokerState) BrokerState {
	switch s {
	case runnelv1.BrokerState_BROKER_STATE_ACTIVE:
		return BrokerActive
	case runnelv1.BrokerState_BROKER_STATE_DRAINING:
		return BrokerDraining
	case runnelv1.BrokerState_BROKER_STATE_DECOMMISSIONED:
		return BrokerDecommissioned
	case runnelv1.BrokerState_BROKER_STATE_FENCED:
		return BrokerFenced
	case runnelv1.BrokerState_BROKER_STATE_UNSPECIFIED:
	}
	return BrokerUnknown
}

// optional turns milliseconds, of which -1 means none, into a duration, of which -1 means none.
func optional(ms int64) time.Duration {
	if ms < 0 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

func replicaOf(r *runnelv1.ReplicaStatus) ReplicaInfo {
	return ReplicaInfo{
		Broker: r.GetBrokerId(), State: replicaStateOf(r.GetState()), InSync: r.GetInSync(), Adding: r.GetAdding(), Removing: r.GetRemoving(),
		Acked: r.GetAckedOffset(), Lag: r.GetLag(), CaughtUpAgo: optional(r.GetCaughtUpMsAgo()), BrokerState: brokerStateOf(r.GetBrokerState()),
		BrokerLive: r.GetBrokerLive(), Detail: r.GetDetail(), Rate: r.GetRecordsPerSecond(),
	}
}

func replicaStateOf(s runnelv1.ReplicaState) ReplicaState {
	switch s {
	case runnelv1.ReplicaState_REPLICA_STATE_BROKER_DOWN:
		return ReplicaBrokerDown
	case runnelv1.ReplicaState_REPLICA_STATE_DAMAGED:
		return ReplicaDamaged
	case runnelv1.ReplicaState_REPLICA_STATE_STARTING:
		return ReplicaStarting
	case runnelv1.ReplicaState_REPLICA_STATE_SUBSCRIBED:
		return ReplicaSubscribed
	case runnelv1.ReplicaState_REPLICA_STATE_CATCHING_UP:
		return ReplicaCatchingUp
	case runnelv1.ReplicaState_REPLICA_STATE_CAUGHT_UP:
		return ReplicaCaughtUp
	case runnelv1.ReplicaState_REPLICA_STATE_IN_SYNC:
		return ReplicaInSync
	case runnelv1.ReplicaState_REPLICA_STATE_LEADER:
		return ReplicaLeader
	case runnelv1.ReplicaState_REPLICA_STATE_UNSPECIFIED:
	}
	return ReplicaUnknown
}

func blockingOf(ps []*runnelv1.BlockingPartition) []Blocking {
	out := make([]Blocking, 0, len(ps))
	for _, p := range ps {
		out = append(out, Blocking{
			TopicPartition: TopicPartition{p.GetTopic(), p.GetPartition()}, Reason: p.GetReason(), InSync: int(p.GetInSync()),
			MinInSyncReplicas: int(p.GetMinInSync()),
		})
	}
	return out
}

func operationKindOf(k runnelv1.OperationType) OperationKind {
	switch k {
	case runnelv1.OperationType_OPERATION_TYPE_REASSIGNMENT:
		return OperationReassignment
	case runnelv1.OperationType_OPERATION_TYPE_DRAIN:
		return OperationDrain
	case runnelv1.OperationType_OPERATION_TYPE_BALANCE:
		return OperationBalance
	case runnelv1.OperationType_OPERATION_TYPE_REPAIR:
		return OperationRepair
	case runnelv1.OperationType_OPERATION_TYPE_UNSPECIFIED:
	}
	return OperationUnknown
}
