package v1alpha1

// Condition types, the same for all kinds.
const (
	// ConditionReady: Cluster: metadata is reachable and every partition meets its minimum of in-sync replicas, so it stays True
	// through a roll. Topic, ConsumerGroup: what the spec declares is in effect in the cluster.
	ConditionReady = "Ready"
	// ConditionProgressing: an operation runs; status.operation says which.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: redundancy is lost, nothing else.
	ConditionDegraded = "Degraded"
	// ConditionStalled: nothing goes on until a human acts; the message ends with the exact command.
	ConditionStalled = "Stalled"
)

// Reasons of conditions. A condition's message holds the details.
const (
	// ReasonReconciled: the cluster is as the spec says.
	ReasonReconciled = "Reconciled"
	// ReasonReconciling: the cluster is on its way to what the spec says.
	ReasonReconciling = "Reconciling"
	// ReasonPaused: spec.paused is true.
	ReasonPaused = "Paused"
	// ReasonInvalid: the spec asks for something that the schema admits and the cluster does not.
	ReasonInvalid = "Invalid"
	// ReasonNotImplemented: the spec asks for something that this version does not have yet.
	ReasonNotImplemented = "NotImplemented"
	// ReasonConflict: another resource owns the topic or group.
	ReasonConflict = "Conflict"
	// ReasonClusterNotFound: there is no Cluster of the name in clusterRef, or it is being deleted.
	ReasonClusterNotFound = "ClusterNotFound"
	// ReasonClusterUnreachable: no broker of the Cluster answers; nothing is known about the object.
	ReasonClusterUnreachable = "ClusterUnreachable"
	// ReasonNamespaceNotAllowed: the Cluster's topicNamespaces keep the object's namespace out.
	ReasonNamespaceNotAllowed = "NamespaceNotAllowed"
	// ReasonBrokerDown: a broker is lost, its partitions are led elsewhere.
	ReasonBrokerDown = "BrokerDown"
	// ReasonUnderReplicated: partitions have fewer in-sync replicas than replicas.
	ReasonUnderReplicated = "UnderReplicated"
	// ReasonScaleDownBlocked: the remaining brokers cannot hold what is there.
	ReasonScaleDownBlocked = "ScaleDownBlocked"
	// ReasonDrainStalled: a broker that is to go still holds partitions; the message names them.
	ReasonDrainStalled = "DrainStalled"
	// ReasonRolloutHalted: a pod of the new revision fails.
	ReasonRolloutHalted = "RolloutHalted"
	// ReasonNodeUnreachable: a node has been away for 5 minutes, and Kubernetes cannot know whether its pod still runs.
	ReasonNodeUnreachable = "NodeUnreachable"
	// ReasonDataAtRisk: a disk is lost and a partition has too few members elsewhere.
	ReasonDataAtRisk = "DataAtRisk"
	// ReasonMetadataUnavailable: etcd has no quorum; data flows, changes wait.
	ReasonMetadataUnavailable = "MetadataUnavailable"
	// ReasonMetadataLost: etcd's data is gone and has to be recovered.
	ReasonMetadataLost = "MetadataLost"
	// ReasonDiskFillingUp: status.tiering.diskFullIn is short.
	ReasonDiskFillingUp = "DiskFillingUp"
	// ReasonRetentionRisk: a group's next unread record expires within riskThreshold.
	ReasonRetentionRisk = "RetentionRisk"
)

// AnnotationReplaceBroker on a Cluster allows the claim of the broker with the id in its value to be deleted and rebuilt.
const AnnotationReplaceBroker = "runnel.dev/replace-broker"
