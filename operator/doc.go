// Package operator is the map of the Kubernetes operator. The operator itself does not exist yet: there is no command, no reconciler
// and no RBAC. What exists are the types and CRDs in api/v1alpha1 and the first builders.
//
//	operator/resource     exists: pure builders. Values in, requests to the cluster (later: Kubernetes objects too) out
//	operator/policy       to come: pure decisions. What to do next, with reason and message
//	operator/controller   to come: reconcilers, short, that read, ask policy, build with resource, and write
//	cmd/runnel-operator   to come: flags and wiring
//
// It will turn Cluster, Topic and ConsumerGroup resources into brokers, topics and groups, decide every restart of a broker, and report
// what it sees in their status. It owns Kubernetes objects; clusters it reaches as any client does, through the admin API.
//
// Import rule: operator imports api and client, never broker, and nothing of ours but these and internal imports Kubernetes packages
// outside operator and api/v1alpha1. internal/archtest checks it.
package operator
