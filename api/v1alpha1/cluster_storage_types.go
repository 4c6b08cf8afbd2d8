package v1alpha1

import "k8s.io/apimachinery/pkg/runtime"

// Brokers are the brokers of a cluster.
type Brokers struct {
	// replicas is the number of brokers, 1 to 99. Default: 3. More of them rebalance, fewer of them drain first.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	// +kubebuilder:default:=3
	Replicas int32 `json:"replicas,omitempty"`

	// storage is the volume of each broker.
	//
	// +required
	Storage BrokerStorage `json:"storage"`

	// claims says what becomes of volume claims.
	//
	// +optional
	// +kubebuilder:default:={}
	Claims Claims `json:"claims,omitzero"`

	// resources of the broker's container, as in a Pod: requests and limits. Default: none asked for, none enforced. A mistake in it
	// makes this Cluster Stalled.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Resources *runtime.RawExtension `json:"resources,omitempty"`

	// rack spreads brokers, and the replicas of each partition, over failure domains.
	//
	// +optional
	// +kubebuilder:default:={}
	Rack Rack `json:"rack,omitzero"`

	// podTemplate is a PodTemplateSpec that is laid over the one that the operator builds: labels, annotations, tolerations,
	// affinity, sidecars. A mistake in it makes this Cluster Stalled.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	PodTemplate *runtime.RawExtension `json:"podTemplate,omitempty"`

	// config holds broker settings by their names in the broker's configuration file, at most 64, each value at most 256 characters.
	// What the operator decides itself (addresses, paths, identities) cannot be set.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Config map[string]ConfigValue `json:"config,omitempty"`
}

// ConfigValue is the value of a broker setting, as the configuration file would spell it.
//
// +kubebuilder:validation:MaxLength=256
type ConfigValue string

// BrokerStorage is the volume of a broker.
//
// +kubebuilder:validation:XValidation:rule="quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",message="size cannot shrink"
// +kubebuilder:validation:XValidation:rule="has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",message="storageClassName is immutable"
type BrokerStorage struct {
	// size of the volume, a quantity above 1Gi, e.g. 100Gi. It can grow where the storage class allows it, and never shrink.
	//
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isGreaterThan(quantity('1Gi'))",message="size must exceed 1Gi"
	Size string `json:"size"`

	// storageClassName of the claims, at most 253 characters. Immutable. Default: the Kubernetes cluster's default class.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// Claims says what becomes of brokers' volume claims.
type Claims struct {
	// onScaleDown is Retain or Delete, for the claim of a broker that was drained and removed. Default: Retain.
	//
	// +optional
	// +kubebuilder:default:=Retain
	OnScaleDown DeletionPolicy `json:"onScaleDown,omitempty"`

	// onLoss says when a lost volume is replaced, given that every partition has enough members elsewhere: Manual (on the annotation
	// runnel.dev/replace-broker) or NodeGone (also when the Node object has been gone for 10 minutes). Default: Manual.
	//
	// +optional
	// +kubebuilder:default:=Manual
	OnLoss ClaimLossPolicy `json:"onLoss,omitempty"`
}

// ClaimLossPolicy says when a lost volume is replaced.
//
// +kubebuilder:validation:Enum=Manual;NodeGone
type ClaimLossPolicy string

// The claim loss policies.
const (
	ClaimLossManual   ClaimLossPolicy = "Manual"
	ClaimLossNodeGone ClaimLossPolicy = "NodeGone"
)

// Rack spreads brokers over failure domains.
type Rack struct {
	// topologyKey is the node label whose value is a broker's rack, at most 317 characters. Default: topology.kubernetes.io/zone.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:default:="topology.kubernetes.io/zone"
	TopologyKey string `json:"topologyKey,omitempty"`

	// whenUnsatisfiable is DoNotSchedule (a broker that cannot be spread waits) or ScheduleAnyway. Default: ScheduleAnyway.
	//
	// +optional
	// +kubebuilder:default:=ScheduleAnyway
	WhenUnsatisfiable RackPolicy `json:"whenUnsatisfiable,omitempty"`
}

// RackPolicy says what happens to a broker that cannot be spread.
//
// +kubebuilder:validation:Enum=DoNotSchedule;ScheduleAnyway
type RackPolicy string

// The rack policies.
const (
	RackDoNotSchedule  RackPolicy = "DoNotSchedule"
	RackScheduleAnyway RackPolicy = "ScheduleAnyway"
)

// Etcd is the store of a cluster's metadata.
//
// +kubebuilder:validation:XValidation:rule="self.mode == oldSelf.mode",message="mode is immutable"
// +kubebuilder:validation:XValidation:rule="self.mode == 'External' ? has(self.external) : !has(self.external)",message="external is set exactly when mode is External"
type Etcd struct {
	// mode is Managed (the operator runs it) or External. Immutable. Default: Managed.
	//
	// +optional
	// +kubebuilder:default:=Managed
	Mode EtcdMode `json:"mode,omitempty"`

	// replicas is the number of managed members: 1, 3 or 5. It cannot shrink. Default: 3.
	//
	// +optional
	// +kubebuilder:validation:Enum=1;3;5
	// +kubebuilder:validation:XValidation:rule="self >= oldSelf",message="etcd cannot shrink"
	// +kubebuilder:default:=3
	Replicas int32 `json:"replicas,omitempty"`

	// storage is the volume of each managed member.
	//
	// +optional
	// +kubebuilder:default:={}
	Storage EtcdStorage `json:"storage,omitzero"`

	// external is the etcd to use, set exactly when mode is External.
	//
	// +optional
	External *ExternalEtcd `json:"external,omitempty"`
}

// EtcdMode says who runs etcd.
//
// +kubebuilder:validation:Enum=Managed;External
type EtcdMode string

// The etcd modes.
const (
	EtcdManaged  EtcdMode = "Managed"
	EtcdExternal EtcdMode = "External"
)

// EtcdStorage is the volume of an etcd member.
type EtcdStorage struct {
	// size of the volume, a quantity of at most 32 characters. Default: 10Gi.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:default:="10Gi"
	Size string `json:"size,omitempty"`

	// storageClassName of the claims, at most 253 characters. Default: the Kubernetes cluster's default class.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// ExternalEtcd is an etcd that somebody else runs.
type ExternalEtcd struct {
	// endpoints are the members' client URLs, at most 9, each at most 253 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=9
	// +kubebuilder:validation:items:MaxLength=253
	Endpoints []string `json:"endpoints,omitempty"`

	// tlsSecretRef names a Secret with ca.crt, tls.crt and tls.key for the connection. Default: no TLS.
	//
	// +optional
	TLSSecretRef *SecretReference `json:"tlsSecretRef,omitempty"`
}
