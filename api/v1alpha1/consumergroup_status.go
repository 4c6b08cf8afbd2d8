package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConsumerGroupStatus is a group as it was last seen. Fast-changing values are written at most every 60 s; metrics have them fresh.
type ConsumerGroupStatus struct {
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

	// state of the group in the cluster, e.g. Empty, Stable, Rebalancing.
	//
	// +optional
	State string `json:"state,omitempty"`

	// members that are in the group.
	//
	// +optional
	Members int32 `json:"members"`

	// lag is how far the group is behind.
	//
	// +optional
	Lag *LagStatus `json:"lag,omitempty"`

	// retentionRisk says when records expire that the group has not read. Absent while none will.
	//
	// +optional
	RetentionRisk *RetentionRiskStatus `json:"retentionRisk,omitempty"`

	// reset is the state of spec.reset, or of the last one.
	//
	// +optional
	Reset *ResetStatus `json:"reset,omitempty"`
}

// LagStatus is how far a group is behind.
type LagStatus struct {
	// records between the committed offsets and the high watermarks, of all partitions together.
	//
	// +optional
	Records int64 `json:"records"`

	// observed is when that was.
	//
	// +optional
	Observed *metav1.Time `json:"observed,omitempty"`
}

// RetentionRiskStatus says when records expire that a group has not read.
type RetentionRiskStatus struct {
	// expiresIn is the time until the next unread record expires, e.g. 5h12m.
	//
	// +optional
	ExpiresIn string `json:"expiresIn,omitempty"`

	// partition that holds it, e.g. orders.v1/7.
	//
	// +optional
	Partition string `json:"partition,omitempty"`
}

// ResetPhase is how far a reset is.
//
// +kubebuilder:validation:Enum=Pending;WaitingForEmpty;Applying;Applied;Expired;Failed
type ResetPhase string

// The reset phases, in their order. The last three are final.
const (
	ResetPending         ResetPhase = "Pending"
	ResetWaitingForEmpty ResetPhase = "WaitingForEmpty"
	ResetApplying        ResetPhase = "Applying"
	ResetApplied         ResetPhase = "Applied"
	ResetExpired         ResetPhase = "Expired"
	ResetFailed          ResetPhase = "Failed"
)

// ResetStatus is the state of a reset.
type ResetStatus struct {
	// id of the reset.
	//
	// +optional
	ID string `json:"id,omitempty"`

	// phase of the reset.
	//
	// +optional
	Phase ResetPhase `json:"phase,omitempty"`

	// message says what it waits for or why it failed.
	//
	// +optional
	Message string `json:"message,omitempty"`

	// completed is when it reached its last phase.
	//
	// +optional
	Completed *metav1.Time `json:"completed,omitempty"`
}
