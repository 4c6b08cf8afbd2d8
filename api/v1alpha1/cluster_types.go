package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Cluster is a Runnel cluster: brokers, their metadata store, and how they are reached.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=clusters,singular=cluster,scope=Namespaced,shortName=rnl,categories=runnel
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.brokers.replicas,statuspath=.status.brokers.replicas,selectorpath=.status.brokers.selector
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=Brokers,type=string,JSONPath=`.status.brokers.summary`
// +kubebuilder:printcolumn:name=Version,type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name=UnderRepl,type=integer,JSONPath=`.status.partitions.underReplicated`
// +kubebuilder:printcolumn:name=Operation,type=string,JSONPath=`.status.operation.summary`
// +kubebuilder:printcolumn:name=TierLag,type=string,JSONPath=`.status.tiering.oldestUntiered`,priority=1
// +kubebuilder:printcolumn:name=DiskFullIn,type=string,JSONPath=`.status.tiering.diskFullIn`,priority=1
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && self.metadata.name.size() <= 40",message="name must be a DNS-1035 label of at most 40 characters"
type Cluster struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata. The name is a DNS-1035 label of at most 40 characters.
	//
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the cluster to have.
	//
	// +required
	Spec ClusterSpec `json:"spec"`

	// status is the cluster as it was last seen.
	//
	// +optional
	Status ClusterStatus `json:"status,omitzero"`
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	// items are the Clusters.
	Items []Cluster `json:"items"`
}

// ClusterSpec is the cluster to have.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.tiering) || has(self.tiering)",message="tiering cannot be removed; use tiering.paused or the decommission runbook"
// +kubebuilder:validation:XValidation:rule="has(oldSelf.bootstrap) == has(self.bootstrap) && (!has(self.bootstrap) || self.bootstrap == oldSelf.bootstrap)",message="bootstrap is immutable"
// +kubebuilder:validation:XValidation:rule="!has(self.auth) || self.auth.mode == 'None' || self.tls.mode != 'Disabled'",message="auth needs tls"
// +kubebuilder:validation:XValidation:rule="self.tls.mode != 'Disabled' || !has(self.listeners) || self.listeners.all(l, l.type == 'ClusterIP' || (has(l.allowPlaintext) && l.allowPlaintext))",message="plaintext external listener needs allowPlaintext: true"
type ClusterSpec struct {
	// version of Runnel that the brokers run, e.g. 0.4.1; at most 32 characters. Default: the operator's own. A change rolls the
	// brokers, one at a time; neighbouring minor versions work together.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Version string `json:"version,omitempty"`

	// featureLevel allows formats and protocols up to this level, at least 1. Default: the lowest that the version supports. It cannot
	// decrease: what a newer level has written, an older version does not read.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="featureLevel cannot decrease"
	FeatureLevel *int32 `json:"featureLevel,omitempty"`

	// paused stops the operator from changing anything that belongs to this cluster; status is still kept. Default: false.
	//
	// +optional
	// +kubebuilder:default:=false
	Paused bool `json:"paused,omitempty"`

	// deletionPolicy says what becomes of the brokers' volumes when the Cluster is deleted. Default: Retain.
	//
	// +optional
	// +kubebuilder:default:=Retain
	DeletionPolicy ClusterDeletionPolicy `json:"deletionPolicy,omitempty"`

	// topicNamespaces says which namespaces' Topics and ConsumerGroups may attach. Default: the Cluster's own.
	//
	// +optional
	// +kubebuilder:default:={from: "Same"}
	TopicNamespaces TopicNamespaces `json:"topicNamespaces,omitzero"`

	// topicDefaults apply to Topics that leave the setting open. Default: replicas min(3, brokers), minInSyncReplicas a majority.
	//
	// +optional
	TopicDefaults *TopicDefaults `json:"topicDefaults,omitempty"`

	// rollout says how brokers are restarted.
	//
	// +optional
	// +kubebuilder:default:={}
	Rollout Rollout `json:"rollout,omitzero"`

	// rebalance says how partitions move between brokers.
	//
	// +optional
	// +kubebuilder:default:={}
	Rebalance Rebalance `json:"rebalance,omitzero"`

	// brokers are the cluster's brokers.
	//
	// +required
	Brokers Brokers `json:"brokers"`

	// etcd holds the cluster's metadata. Default: managed by the operator.
	//
	// +optional
	// +kubebuilder:default:={mode: "Managed"}
	Etcd Etcd `json:"etcd,omitzero"`

	// tiering moves sealed segments to object storage. Default: none, and then retention is bounded by the brokers' disks. Once set it
	// cannot be removed: the bucket holds records that are nowhere else.
	//
	// +optional
	Tiering *Tiering `json:"tiering,omitempty"`

	// bootstrap fills a new cluster from a bucket. Immutable. Default: the cluster starts empty.
	//
	// +optional
	Bootstrap *Bootstrap `json:"bootstrap,omitempty"`

	// tls encrypts all connections: clients, brokers, etcd. Default: a CA of the operator's own.
	//
	// +optional
	// +kubebuilder:default:={mode: "OperatorCA"}
	TLS TLS `json:"tls,omitzero"`

	// auth says who clients are and refuses those who may not. Default: nobody is asked. It needs tls.
	//
	// +optional
	Auth *Auth `json:"auth,omitempty"`

	// listeners are further ways in, at most 8, besides the one inside the Kubernetes cluster. Ports are unique.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.exists_one(b, a.port == b.port))",message="listener ports must be unique"
	Listeners []Listener `json:"listeners,omitempty"`
}

// ClusterDeletionPolicy says what becomes of the brokers' volumes when the Cluster is deleted.
//
// +kubebuilder:validation:Enum=Retain;DeleteClaims
type ClusterDeletionPolicy string

// The deletion policies of clusters.
const (
	// ClusterDeletionRetain keeps the claims; a Cluster of the same name adopts them.
	ClusterDeletionRetain ClusterDeletionPolicy = "Retain"
	// ClusterDeletionDeleteClaims deletes the claims, and with them what is not in the bucket.
	ClusterDeletionDeleteClaims ClusterDeletionPolicy = "DeleteClaims"
)

// TopicNamespaces says which namespaces may attach objects to a cluster.
//
// +kubebuilder:validation:XValidation:rule="(self.from == 'Selector') == has(self.selector)",message="selector is set exactly when from is Selector"
type TopicNamespaces struct {
	// from is Same (the Cluster's namespace), Selector (namespaces with the labels of selector) or All. Default: Same.
	//
	// +optional
	// +kubebuilder:default:=Same
	From TopicNamespacesFrom `json:"from,omitempty"`

	// selector matches the labels of namespaces; an empty one matches all. Set exactly when from is Selector.
	//
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// TopicNamespacesFrom is a way to choose namespaces.
//
// +kubebuilder:validation:Enum=Same;Selector;All
type TopicNamespacesFrom string

// The ways to choose namespaces.
const (
	NamespacesSame     TopicNamespacesFrom = "Same"
	NamespacesSelector TopicNamespacesFrom = "Selector"
	NamespacesAll      TopicNamespacesFrom = "All"
)

// TopicDefaults apply to topics that leave a setting open.
//
// +kubebuilder:validation:XValidation:rule="!has(self.replicas) || !has(self.minInSyncReplicas) || self.minInSyncReplicas <= self.replicas",message="minInSyncReplicas exceeds replicas"
type TopicDefaults struct {
	// replicas of each partition, 1 to 7. Default: min(3, brokers).
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7
	Replicas *int32 `json:"replicas,omitempty"`

	// minInSyncReplicas must hold a record on disk before it is acknowledged, 1 to 7, at most replicas. Default: a majority of
	// replicas. It is capped at the replicas of a topic that has fewer.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7
	MinInSyncReplicas *int32 `json:"minInSyncReplicas,omitempty"`

	// tiering of topics that say Inherit: Enabled or Disabled. Default: Enabled where the Cluster has tiering.
	//
	// +optional
	// +kubebuilder:validation:Enum=Enabled;Disabled
	Tiering TopicTiering `json:"tiering,omitempty"`
}

// Rollout says how brokers are restarted.
type Rollout struct {
	// handoffTimeout is how long a broker may take to hand its leaderships over before it is restarted, e.g. 30s; at most 16
	// characters. Default: 30s.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default:="30s"
	HandoffTimeout string `json:"handoffTimeout,omitempty"`

	// maxUnavailable brokers are restarted at the same time; only 1 is safe, and nothing else is admitted. Default: 1.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1
	// +kubebuilder:default:=1
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`
}

// Rebalance says how partitions move between brokers.
type Rebalance struct {
	// mode is Auto (partitions move to new brokers by themselves) or Manual. Default: Auto.
	//
	// +optional
	// +kubebuilder:default:=Auto
	Mode RebalanceMode `json:"mode,omitempty"`

	// maxBytesPerSecond that moving partitions may take of each broker, a quantity of at most 32 characters. Default: 100Mi.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:default:="100Mi"
	MaxBytesPerSecond string `json:"maxBytesPerSecond,omitempty"`
}

// RebalanceMode says who moves partitions.
//
// +kubebuilder:validation:Enum=Auto;Manual
type RebalanceMode string

// The rebalance modes.
const (
	RebalanceAuto   RebalanceMode = "Auto"
	RebalanceManual RebalanceMode = "Manual"
)
