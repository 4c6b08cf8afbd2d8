package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ClusterStatus is a cluster as it was last seen.
type ClusterStatus struct {
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

	// clusterID is the id that the cluster gave itself when it was created.
	//
	// +optional
	ClusterID string `json:"clusterID,omitempty"`

	// version that all brokers run; while they differ, the oldest.
	//
	// +optional
	Version string `json:"version,omitempty"`

	// brokers counts the brokers.
	//
	// +optional
	Brokers BrokersStatus `json:"brokers,omitzero"`

	// partitions counts the partitions of all topics.
	//
	// +optional
	Partitions PartitionsStatus `json:"partitions,omitzero"`

	// operation is what runs now, if anything. It is what the operator goes on from after a restart.
	//
	// +optional
	Operation *OperationStatus `json:"operation,omitempty"`

	// tiering says how far object storage is behind. Absent without tiering.
	//
	// +optional
	Tiering *TieringStatus `json:"tiering,omitempty"`
}

// BrokersStatus counts brokers.
type BrokersStatus struct {
	// replicas is the number of broker pods; the scale subresource reads it.
	//
	// +optional
	Replicas int32 `json:"replicas"`

	// ready is the number of brokers that serve.
	//
	// +optional
	Ready int32 `json:"ready"`

	// selector matches the labels of the broker pods; the scale subresource reads it.
	//
	// +optional
	Selector string `json:"selector,omitempty"`

	// summary for the printed column, e.g. 2/3.
	//
	// +optional
	Summary string `json:"summary,omitempty"`
}

// PartitionsStatus counts partitions.
type PartitionsStatus struct {
	// total number of partitions.
	//
	// +optional
	Total int32 `json:"total"`

	// underReplicated have fewer in-sync replicas than replicas.
	//
	// +optional
	UnderReplicated int32 `json:"underReplicated"`

	// underMinimum have fewer in-sync replicas than minInSyncReplicas, and take no writes.
	//
	// +optional
	UnderMinimum int32 `json:"underMinimum"`

	// offline have no leader.
	//
	// +optional
	Offline int32 `json:"offline"`
}

// OperationStatus is an operation on the cluster and how far it is.
type OperationStatus struct {
	// type of the operation, e.g. ScaleUp, ScaleDown, Roll, ReplaceBroker.
	//
	// +optional
	Type string `json:"type,omitempty"`

	// phase within the operation, e.g. Draining.
	//
	// +optional
	Phase string `json:"phase,omitempty"`

	// broker that the phase is about, by its id; absent where it is about all of them.
	//
	// +optional
	Broker *int32 `json:"broker,omitempty"`

	// generation of the spec that the operation is carried out for; a newer one replans.
	//
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// started is when the operation began.
	//
	// +optional
	Started *metav1.Time `json:"started,omitempty"`

	// summary for the printed column, e.g. ScaleDown broker 3: Draining, 12 partitions left.
	//
	// +optional
	Summary string `json:"summary,omitempty"`
}

// TieringStatus says how far object storage is behind.
type TieringStatus struct {
	// oldestUntiered is the age of the oldest record that is in no bucket, e.g. 12m.
	//
	// +optional
	OldestUntiered string `json:"oldestUntiered,omitempty"`

	// diskFullIn is when the fullest disk reaches its reserve at the present rate, e.g. 3d; absent where it never does.
	//
	// +optional
	DiskFullIn string `json:"diskFullIn,omitempty"`
}
