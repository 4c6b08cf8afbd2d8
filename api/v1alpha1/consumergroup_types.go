package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ConsumerGroup is a consumer group of a Runnel cluster: its policies, who may join, and a safe reset of its offsets.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=consumergroups,singular=consumergroup,scope=Namespaced,shortName=rgroup,categories=runnel
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name=Ready,type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name=State,type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name=Members,type=integer,JSONPath=`.status.members`
// +kubebuilder:printcolumn:name=Lag,type=integer,JSONPath=`.status.lag.records`
// +kubebuilder:printcolumn:name=ExpiresIn,type=string,JSONPath=`.status.retentionRisk.expiresIn`
// +kubebuilder:printcolumn:name=Reset,type=string,JSONPath=`.status.reset.phase`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type ConsumerGroup struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata. The name is the group's name unless spec.groupName says another.
	//
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`

	// spec is the group to have.
	//
	// +required
	Spec ConsumerGroupSpec `json:"spec"`

	// status is the group as it was last seen.
	//
	// +optional
	Status ConsumerGroupStatus `json:"status,omitzero"`
}

// GroupName returns the group's name in the cluster: spec.groupName, or the name of the resource.
func (g *ConsumerGroup) GroupName() string {
	if g.Spec.GroupName != nil {
		return *g.Spec.GroupName
	}
	return g.Name
}

// ConsumerGroupList is a list of ConsumerGroups.
//
// +kubebuilder:object:root=true
type ConsumerGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitzero"`

	// items are the ConsumerGroups.
	Items []ConsumerGroup `json:"items"`
}

// ConsumerGroupSpec is the group to have.
//
// +kubebuilder:validation:XValidation:rule="self.clusterRef == oldSelf.clusterRef",message="clusterRef is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.groupName) == has(oldSelf.groupName) && (!has(self.groupName) || self.groupName == oldSelf.groupName)",message="groupName is immutable"
// +kubebuilder:validation:XValidation:rule="!has(self.reset) || !has(oldSelf.reset) || self.reset == oldSelf.reset || self.reset.id != oldSelf.reset.id",message="a changed reset needs a new id"
// +kubebuilder:validation:XValidation:rule="!has(self.reset) || !has(self.reset.topics) || self.reset.topics.all(t, t in self.topics)",message="reset.topics must be among topics"
type ConsumerGroupSpec struct {
	// clusterRef is the Cluster that the group is in. Immutable.
	//
	// +required
	ClusterRef ClusterReference `json:"clusterRef"`

	// groupName is the group's name in the cluster where a resource cannot have that name: letters, digits, '.', '_' and '-', at most
	// 249 characters. Immutable. Default: the name of the resource.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=249
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9._-]+$`
	GroupName *string `json:"groupName,omitempty"`

	// topics that the group reads, by their names in the cluster, 1 to 64, each at most 249 characters.
	//
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=249
	// +listType=set
	Topics []string `json:"topics"`

	// offsetReset says where members start that have no valid offset.
	//
	// +optional
	// +kubebuilder:default:={}
	OffsetReset OffsetReset `json:"offsetReset,omitzero"`

	// offsetsRetention is how long the offsets of a group without members are kept, e.g. 30d, or forever. Default: forever.
	//
	// +optional
	// +kubebuilder:default:=forever
	OffsetsRetention DurationOrForever `json:"offsetsRetention,omitempty"`

	// riskThreshold: when the next unread record expires within this time, the group is Degraded (RetentionRisk). Default: 6h.
	//
	// +optional
	// +kubebuilder:default:="6h"
	RiskThreshold Duration `json:"riskThreshold,omitempty"`

	// deletionPolicy says what becomes of the group's offsets when this resource is deleted: Retain or Delete. Default: Retain.
	//
	// +optional
	// +kubebuilder:default:=Retain
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// access says who may do what with the group, at most 64 entries, once the Cluster's auth is enabled.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Access []GroupAccess `json:"access,omitempty"`

	// deliveryMode is AtLeastOnce (offsets are committed after processing) or AtMostOnce (before delivery). Default: AtLeastOnce.
	//
	// +optional
	// +kubebuilder:default:=AtLeastOnce
	DeliveryMode DeliveryMode `json:"deliveryMode,omitempty"`

	// reset moves the group's offsets, once per id. Default: none.
	//
	// +optional
	Reset *Reset `json:"reset,omitempty"`
}

// OffsetReset says where members start that have no valid offset. The two cases are not the same: in the second, records were missed.
type OffsetReset struct {
	// noOffset applies where the group has never committed: Earliest, Latest or Error. Default: Earliest.
	//
	// +optional
	// +kubebuilder:default:=Earliest
	NoOffset OffsetResetPolicy `json:"noOffset,omitempty"`

	// outOfRange applies where the committed offset is no longer in the log: Earliest, Latest or Error. Default: Error.
	//
	// +optional
	// +kubebuilder:default:=Error
	OutOfRange OffsetResetPolicy `json:"outOfRange,omitempty"`
}

// OffsetResetPolicy says where to start.
//
// +kubebuilder:validation:Enum=Earliest;Latest;Error
type OffsetResetPolicy string

// The offset reset policies.
const (
	OffsetEarliest OffsetResetPolicy = "Earliest"
	OffsetLatest   OffsetResetPolicy = "Latest"
	OffsetError    OffsetResetPolicy = "Error"
)

// DeliveryMode says when offsets are committed.
//
// +kubebuilder:validation:Enum=AtLeastOnce;AtMostOnce
type DeliveryMode string

// The delivery modes.
const (
	AtLeastOnce DeliveryMode = "AtLeastOnce"
	AtMostOnce  DeliveryMode = "AtMostOnce"
)

// GroupAccess lets a principal do something with a group.
type GroupAccess struct {
	// principal that is let, 1 to 256 characters.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Principal string `json:"principal"`

	// operations that it may do, 1 to 3: Join, Describe, Alter.
	//
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	Operations []GroupOperation `json:"operations"`
}

// GroupOperation is something to do with a group.
//
// +kubebuilder:validation:Enum=Join;Describe;Alter
type GroupOperation string

// The operations on groups.
const (
	GroupJoin     GroupOperation = "Join"
	GroupDescribe GroupOperation = "Describe"
	GroupAlter    GroupOperation = "Alter"
)

// Reset moves a group's offsets. The cluster stores the ids it has applied with the group, so applying the resource again, restoring it
// from a backup, or losing its status never repeats one.
type Reset struct {
	// id of this reset, 1 to 64 characters. A changed reset needs a new one.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// notAfter is when the reset expires if it has not been applied, so that an old manifest does nothing.
	//
	// +required
	NotAfter Timestamp `json:"notAfter"`

	// topics whose offsets move, at most 64, each among the group's topics. Default: all of them.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=249
	// +listType=set
	Topics []string `json:"topics,omitempty"`

	// whenActive says what to do while the group has members: Wait (until it has none) or Fence (them off). Default: Wait.
	//
	// +optional
	// +kubebuilder:default:=Wait
	WhenActive ResetWhenActive `json:"whenActive,omitempty"`

	// dryRun plans, writes the plan to the status, and moves nothing. Default: false.
	//
	// +optional
	// +kubebuilder:default:=false
	DryRun bool `json:"dryRun,omitempty"`

	// to is where the offsets move; exactly one of its fields. A relative target is resolved once, to a stored plan.
	//
	// +required
	To ResetTarget `json:"to"`
}

// ResetWhenActive says what to do while the group has members.
//
// +kubebuilder:validation:Enum=Wait;Fence
type ResetWhenActive string

// What a reset does while the group has members.
const (
	ResetWait  ResetWhenActive = "Wait"
	ResetFence ResetWhenActive = "Fence"
)

// ResetTarget is where offsets move: exactly one of the fields.
//
// +kubebuilder:validation:XValidation:rule="[has(self.position), has(self.time), has(self.ago), has(self.shift)].exists_one(x, x)",message="exactly one of position, time, ago, shift"
type ResetTarget struct {
	// position is Earliest or Latest.
	//
	// +optional
	Position *ResetPosition `json:"position,omitempty"`

	// time: the first record at or after it.
	//
	// +optional
	Time *Timestamp `json:"time,omitempty"`

	// ago: the first record at or after so long ago, e.g. 2h.
	//
	// +optional
	Ago *Duration `json:"ago,omitempty"`

	// shift by so many records, forward or, when negative, back; it stops at the ends of the log.
	//
	// +optional
	Shift *int64 `json:"shift,omitempty"`
}

// ResetPosition is an end of the log.
//
// +kubebuilder:validation:Enum=Earliest;Latest
type ResetPosition string

// The positions to reset to.
const (
	ResetEarliest ResetPosition = "Earliest"
	ResetLatest   ResetPosition = "Latest"
)
