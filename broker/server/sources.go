package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/ids"
)

// Partitions finds the partitions that this broker hosts. Safe for concurrent use; Lookup does not block.
type Partitions interface {
	// Lookup returns a hosted partition. *partition.UnknownError when the cluster has no such partition, *partition.NotLeaderError
	// when it has, elsewhere.
	Lookup(id ids.TopicID, number int32) (*partition.Partition, error)
	// Recover says what accepting the loss of this broker's damaged data of a partition would keep, and does it when accept is set.
	Recover(ctx context.Context, id ids.TopicID, number int32, accept bool) (RecoverPlan, error)
}

// RecoverPlan says what a recovery keeps and loses.
type RecoverPlan struct {
	// KeptEnd: records below it are kept. LostEnd: the end of what was acknowledged for certain.
	KeptEnd, LostEnd int64
	Detail           string
	Applied          bool
}

// TopicAdmin changes topics. Its methods validate, block until the change is visible in this broker's metadata, or until ctx ends,
// and return errors of broker/metadata and broker/topicconfig. Names and ids have been checked for form before.
type TopicAdmin interface {
	CreateTopic(ctx context.Context, r *runnelv1.CreateTopicRequest) (*runnelv1.Topic, error)
	UpdateTopic(ctx context.Context, r *runnelv1.UpdateTopicRequest) (*runnelv1.Topic, []*runnelv1.ConfigChange, error)
	DeleteTopic(ctx context.Context, r *runnelv1.DeleteTopicRequest) error
}

// ProducerIDs hands out producer ids. It may block for the metadata store.
type ProducerIDs interface {
	NextProducerID(ctx context.Context) (id int64, epoch int16, err error)
}

// Metadata is what this broker knows of the cluster. Snapshot does not block and takes no lock.
type Metadata interface {
	Snapshot() *Snapshot
}

// ClusterAdmin is what people and tools do to brokers and to the placement of replicas. Safe for concurrent use. Requests have been checked for
// form: names, lengths, what is required. Methods block until the change is recorded in the metadata, or until ctx ends, never for the work that
// follows from it.
//
// Calls for the controller are made on the broker that is it by Snapshot.ControllerID; an implementation that finds itself not to be the
// controller (any more) returns an error that is metadata.ErrNotController. Beside that and what package metadata returns (ErrUnavailable, ErrConflict,
// ErrTopicNotFound, *ArgumentError), errors are the Err… values of this package, wrapped.
type ClusterAdmin interface {
	// ReassignPartitions returns one result per target, in order; Err instead of Message.Error says that one failed, while others may
	// have succeeded. ErrUnknownBroker, ErrUnknownPartition, ErrNoReassignment (to cancel), ErrTooFewBrokers.
	ReassignPartitions(ctx context.Context, r *runnelv1.ReassignPartitionsRequest) ([]ReassignResult, error)
	ListReassignments(ctx context.Context, r *runnelv1.ListReassignmentsRequest) (*runnelv1.ListReassignmentsResponse, error)
	// ElectLeaders returns one result per target, or without targets one per partition that changed.
	ElectLeaders(ctx context.Context, r *runnelv1.ElectLeadersRequest) ([]ElectResult, error)
	DrainBroker(ctx context.Context, r *runnelv1.DrainBrokerRequest) (*runnelv1.DrainBrokerResponse, error)
	UndrainBroker(ctx context.Context, r *runnelv1.UndrainBrokerRequest) (*runnelv1.UndrainBrokerResponse, error)
	// DecommissionBroker: ErrNotEmpty while partitions name the broker, ErrBrokerLive while it is registered, ErrOtherStorage.
	DecommissionBroker(ctx context.Context, r *runnelv1.DecommissionBrokerRequest) (*runnelv1.DecommissionBrokerResponse, error)
	// FenceBroker: ErrUnsafe when a partition would be left without an in-sync replica, ErrOtherStorage.
	FenceBroker(ctx context.Context, r *runnelv1.FenceBrokerRequest) (*runnelv1.FenceBrokerResponse, error)
	UnfenceBroker(ctx context.Context, r *runnelv1.UnfenceBrokerRequest) (*runnelv1.UnfenceBrokerResponse, error)
	SafeToStop(ctx context.Context, r *runnelv1.SafeToStopRequest) (*runnelv1.SafeToStopResponse, error)
	ListOperations(ctx context.Context, r *runnelv1.ListOperationsRequest) (*runnelv1.ListOperationsResponse, error)

	// Throttle sets what this broker sends to replicas that are far behind, bytes per second; 0: no limit. A restart forgets it. Does not block.
	Throttle(bytesPerSecond int64)
	// BrokerStatus fills in what this broker knows of another beside its registration: state, eligible, suspect, stopping, damaged, sizes and
	// rates. Answers of the controller know most. Does not block.
	BrokerStatus(st *runnelv1.BrokerStatus)
	// Rates returns the recent load of a partition that this broker leads, false when it is not known yet. Does not block.
	Rates(ref PartitionRef) (Rates, bool)
	// DescribeConfig lists this broker's own settings in force, by name, without secrets. Does not block.
	DescribeConfig() []*runnelv1.ConfigEntry
}

// Rates are averages of the recent past, per second.
type Rates struct{ RecordsIn, BytesIn, BytesOut float64 }

// ReassignResult is the outcome of one target of ReassignPartitions.
type ReassignResult struct {
	Message *runnelv1.ReassignmentResult
	Err     error
}

// ElectResult is the outcome for one partition of ElectLeaders.
type ElectResult struct {
	Message *runnelv1.ElectionResult
	Err     error
}

// Forwarder reaches other brokers on behalf of this one's clients, and knows brokers that call. Safe for concurrent use.
type Forwarder interface {
	// Conn returns the connection to a broker for forwarded calls, dialled when it is used. It does not block. Any error is answered as
	// unavailable.
	Conn(brokerID int32) (grpc.ClientConnInterface, error)
	// Outgoing adds this broker's credentials to the metadata of a call.
	Outgoing(ctx context.Context) context.Context
	// VerifyPeer returns the broker that makes the call of ctx, or an error of package peer.
	VerifyPeer(ctx context.Context) (brokerID int32, err error)
}

// Snapshot is the cluster at one moment. It is immutable; a topic or broker that did not change keeps its pointer from one
// snapshot to the next, which is how watchers find changes.
type Snapshot struct {
	Revision int64
	// ClusterID is empty until the metadata was read. What a snapshot of before does not have, the cluster may have.
	ClusterID    string
	ControllerID int32     // -1: none
	Brokers      []*Broker // live ones, by id
	Topics       map[string]*Topic
	TopicsByID   map[ids.TopicID]*Topic
	// Storages is the durable registry, by broker id: brokers that are away are there too.
	Storages map[int32]*Storage
	// Changed is closed once there is a newer snapshot.
	Changed <-chan struct{}
}

// Broker is a live broker.
type Broker struct {
	ID        int32
	Epoch     int64
	Rack      string
	Version   string
	StorageID string
	Listeners map[string]string // listener name to advertised host:port
}

// Storage is a broker's entry in the durable registry. It is immutable.
type Storage struct {
	BrokerID  int32
	StorageID string
	State     runnelv1.BrokerState
	// EligibleEpoch is the broker epoch that may lead and be in sync; 0: none.
	EligibleEpoch int64
	// Damaged are the partitions whose log on it is marked as quarantined or failed, nil when there are none.
	Damaged map[PartitionRef]bool
}

// PartitionRef names a partition.
type PartitionRef struct {
	TopicID   ids.TopicID
	Partition int32
}

// Topic is a topic. Topics that are being deleted are part of a snapshot only by State.
type Topic struct {
	Name       string
	ID         ids.TopicID
	Partitions []Partition // by number
	Replicas   int32
	// Config has every field set.
	Config     *runnelv1.TopicConfig
	Generation int64
	State      runnelv1.TopicState
	Owner      string
	Created    time.Time
}

// Partition is where a partition is.
type Partition struct {
	LeaderID      int32 // -1: none
	LeaderEpoch   int32
	Replicas, ISR []int32
	// Adding and Removing are part of Replicas while a reassignment runs.
	Adding, Removing []int32
	// Revision is that of the record. Where it is above the snapshot's, the snapshot may lack brokers that the record names.
	Revision int64
}

// broker returns a live broker, nil when there is none with that id.
func (s *Snapshot) broker(id int32) *Broker {
	for _, b := range s.Brokers {
		if b.ID == id {
			return b
		}
	}
	return nil
}

// active returns a topic that is not being deleted.
func (s *Snapshot) active(name string) (*Topic, bool) {
	t, ok := s.Topics[name]
	if !ok || t.State == runnelv1.TopicState_TOPIC_STATE_DELETING {
		return nil, false
	}
	return t, true
}
