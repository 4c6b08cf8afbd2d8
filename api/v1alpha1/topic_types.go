package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// What the API server fills in where a Topic leaves a field open.
const (
	DefaultTopicPartitions   int32             = 3
	DefaultTopicRetention    DurationOrForever = "7d"
	DefaultTopicSegmentBytes Bytes             = "512Mi"
	DefaultTopicSegmentTime  Duration          = "24h"
)

// Topic is a topic of a Runnel cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=topics,singular=topic,scope=Namespaced,shortName=rtopic,categories=runnel
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Cluster,type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name=Partitions,type=integer,JSONPath=`.status.partitions`
// +kubebuilder:printcolumn:name=UnderRepl,type=integer,JSONPath=`.status.underReplicated`
// +kubebuilder:printcolumn:name=Local,type=string,JSONPath=`.status.size.local`
// +kubebuilder:printcolumn:name=Tiered,type=string,JSONPath=`.status.size.tiered`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="has(self.spec.topicName) || self.metadata.name.size() <= 249",message="set topicName"
// +kubebuilder:validation:XValidation:rule="(has(self.spec.topicName) ? self.spec.topicName : self.metadata.name) == (has(oldSelf.spec.topicName) ? oldSelf.spec.topicName : oldSelf.metadata.name)",message="the topic name is immutable"
type Topic struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata. The name is the topic's name unless spec.topicName says another.
	//
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the topic to have.
	//
	// +required
	Spec TopicSpec `json:"spec"`

	// status is the topic as it was last seen.
	//
	// +optional
	Status TopicStatus `json:"status,omitzero"`
}

// TopicName returns the topic's name in the cluster: spec.topicName, or the name of the resource.
func (t *Topic) TopicName() string {
	if t.Spec.TopicName != nil {
		return *t.Spec.TopicName
	}
	return t.Name
}

// TopicList is a list of Topics.
//
// +kubebuilder:object:root=true
type TopicList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	// items are the Topics.
	Items []Topic `json:"items"`
}

// TopicSpec is the topic to have.
//
// +kubebuilder:validation:XValidation:rule="self.clusterRef == oldSelf.clusterRef",message="clusterRef is immutable"
// +kubebuilder:validation:XValidation:rule="self.partitions >= oldSelf.partitions",message="partitions cannot decrease"
// +kubebuilder:validation:XValidation:rule="oldSelf.cleanupPolicy == 'Delete' || self.partitions == oldSelf.partitions",message="a compacted topic cannot be repartitioned"
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.minInSyncReplicas) || self.minInSyncReplicas <= self.replicas",message="minInSyncReplicas exceeds replicas"
type TopicSpec struct {
	// clusterRef is the Cluster that the topic is in. Immutable.
	//
	// +required
	ClusterRef ClusterReference `json:"clusterRef"`

	// topicName is the topic's name in the cluster where a resource cannot have that name: letters, digits, '.', '_' and '-', at most
	// 249 characters, not "." or "..", not beginning with "__". Immutable. Default: the name of the resource.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=249
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9._-]+$`
	// +kubebuilder:validation:XValidation:rule="self != '.' && self != '..' && !self.startsWith('__')",message="reserved topic name"
	TopicName *string `json:"topicName,omitempty"`

	// partitions is the number of partitions, 1 to 10,000. It cannot decrease, and not change at all once the topic is compacted: keys
	// would move to other partitions. Default: 3.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default:=3
	Partitions int32 `json:"partitions,omitempty"`

	// replicas of each partition, 1 to 7. Default: the Cluster's topicDefaults, else min(3, brokers).
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7
	Replicas *int32 `json:"replicas,omitempty"`

	// minInSyncReplicas must hold a record on disk before it is acknowledged, 1 to 7, at most replicas. Default: the Cluster's
	// topicDefaults, else a majority of replicas.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7
	MinInSyncReplicas *int32 `json:"minInSyncReplicas,omitempty"`

	// cleanupPolicy is Delete (records go when retention ends), Compact (the last record of each key stays), or CompactDelete (both).
	// Default: Delete.
	//
	// +optional
	// +kubebuilder:default:=Delete
	CleanupPolicy CleanupPolicy `json:"cleanupPolicy,omitempty"`

	// retention says how long records are kept, wherever they are.
	//
	// +optional
	// +kubebuilder:default:={time: "7d"}
	Retention Retention `json:"retention,omitzero"`

	// localRetention says how long records that are in object storage stay on the brokers' disks as well. Default: as long as there is
	// room.
	//
	// +optional
	LocalRetention *LocalRetention `json:"localRetention,omitempty"`

	// segment says when a segment file is closed and the next one begun.
	//
	// +optional
	// +kubebuilder:default:={}
	Segment Segment `json:"segment,omitzero"`

	// compression that producers use unless told otherwise: Producer (they choose), None, Gzip, Snappy, LZ4 or Zstd. Default: Producer.
	//
	// +optional
	// +kubebuilder:default:=Producer
	Compression Compression `json:"compression,omitempty"`

	// tiering is Enabled, Disabled, or Inherit (the Cluster's topicDefaults). Default: Inherit.
	//
	// +optional
	// +kubebuilder:validation:Enum=Inherit;Enabled;Disabled
	// +kubebuilder:default:=Inherit
	Tiering TopicTiering `json:"tiering,omitempty"`

	// deletionPolicy says what becomes of the topic when this resource is deleted: Retain or Delete. Default: Retain.
	//
	// +optional
	// +kubebuilder:default:=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// access says who may do what with the topic, at most 64 entries, once the Cluster's auth is enabled.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Access []TopicAccess `json:"access,omitempty"`
}

// CleanupPolicy says how old records go.
//
// +kubebuilder:validation:Enum=Delete;Compact;CompactDelete
type CleanupPolicy string

// The cleanup policies.
const (
	CleanupDelete        CleanupPolicy = "Delete"
	CleanupCompact       CleanupPolicy = "Compact"
	CleanupCompactDelete CleanupPolicy = "CompactDelete"
)

// Compression is a codec of record batches, or Producer.
//
// +kubebuilder:validation:Enum=Producer;None;Gzip;Snappy;LZ4;Zstd
type Compression string

// The compressions.
const (
	CompressionProducer Compression = "Producer"
	CompressionNone     Compression = "None"
	CompressionGzip     Compression = "Gzip"
	CompressionSnappy   Compression = "Snappy"
	CompressionLZ4      Compression = "LZ4"
	CompressionZstd     Compression = "Zstd"
)

// TopicTiering says whether a topic's segments go to object storage.
type TopicTiering string

// The tiering choices of a topic. A Cluster's topicDefaults have no Inherit.
const (
	TopicTieringInherit  TopicTiering = "Inherit"
	TopicTieringEnabled  TopicTiering = "Enabled"
	TopicTieringDisabled TopicTiering = "Disabled"
)

// Retention says how long records are kept. Whichever limit is reached first ends it.
type Retention struct {
	// time that records are kept, e.g. 7d, or forever. Default: 7d.
	//
	// +optional
	// +kubebuilder:default:="7d"
	Time DurationOrForever `json:"time,omitempty"`

	// bytes that each partition keeps, e.g. 100Gi, or unlimited. Default: the cluster's, which is unlimited unless changed.
	//
	// +optional
	Bytes *BytesOrUnlimited `json:"bytes,omitempty"`
}

// LocalRetention says how long records stay on the brokers' disks. Whichever limit is reached first ends it.
type LocalRetention struct {
	// time that records stay, e.g. 6h, or forever. Default: no limit by time.
	//
	// +optional
	Time *DurationOrForever `json:"time,omitempty"`

	// bytes of each partition that stay, e.g. 10Gi, or unlimited. Default: no limit by size.
	//
	// +optional
	Bytes *BytesOrUnlimited `json:"bytes,omitempty"`
}

// Segment says when a segment file is closed and the next one begun.
type Segment struct {
	// bytes at which a segment is closed, 1Mi to 2Gi - 1. Default: 512Mi.
	//
	// +optional
	// +kubebuilder:default:="512Mi"
	Bytes Bytes `json:"bytes,omitempty"`

	// time after which a segment is closed, 1s to 3650d. Default: 24h.
	//
	// +optional
	// +kubebuilder:default:="24h"
	Time Duration `json:"time,omitempty"`
}

// TopicAccess lets a principal do something with a topic.
type TopicAccess struct {
	// principal that is let, 1 to 256 characters.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Principal string `json:"principal"`

	// operations that it may do, 1 to 4: Read, Write, Describe, Alter.
	//
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=4
	// +listType=set
	Operations []TopicOperation `json:"operations"`
}

// TopicOperation is something to do with a topic.
//
// +kubebuilder:validation:Enum=Read;Write;Describe;Alter
type TopicOperation string

// The operations on topics.
const (
	TopicRead     TopicOperation = "Read"
	TopicWrite    TopicOperation = "Write"
	TopicDescribe TopicOperation = "Describe"
	TopicAlter    TopicOperation = "Alter"
)

// TopicStatus is a topic as it was last seen.
type TopicStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready, Progressing, Degraded and Stalled.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// topicID is the id that the cluster gave the topic; another one means that the topic was deleted and created again.
	//
	// +optional
	TopicID string `json:"topicID,omitempty"`

	// partitions that the topic has.
	//
	// +optional
	Partitions int32 `json:"partitions,omitempty"`

	// replicas that each partition has.
	//
	// +optional
	Replicas int32 `json:"replicas,omitempty"`

	// underReplicated is the number of partitions with fewer in-sync replicas than replicas.
	//
	// +optional
	UnderReplicated int32 `json:"underReplicated"`

	// size of all partitions together, each counted once, per tier.
	//
	// +optional
	Size TopicSize `json:"size,omitzero"`

	// config is what is in effect, by the names of the cluster's settings, e.g. retention_ms: "604800000".
	//
	// +optional
	Config map[string]string `json:"config,omitempty"`
}

// TopicSize is how much a topic holds.
type TopicSize struct {
	// local size on the leaders' disks, e.g. 12Gi.
	//
	// +optional
	Local string `json:"local,omitempty"`

	// tiered size in object storage, e.g. 1.5Ti.
	//
	// +optional
	Tiered string `json:"tiered,omitempty"`
}
