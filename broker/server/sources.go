package server

import (
	"context"
	"time"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/partition"
	"runnel.dev/runnel/internal/ids"
)

// Partitions finds the partitions that this broker hosts. Safe for concurrent use; Lookup does not block.
type Partitions interface {
	// Lookup returns a hosted partition. *partition.UnknownError when the cluster has no such partition, *partition.NotLeaderError
	// when it has, elsewhere.
	Lookup(id ids.TopicID, number int32) (*partition.Partition, error)
	// Recover says what accepting the loss of a quarantined partition's damaged data would keep, and does it when accept is set.
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
