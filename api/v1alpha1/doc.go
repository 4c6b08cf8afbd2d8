// Package v1alpha1 holds the Kubernetes resources of Runnel, group runnel.dev: Cluster, Topic and ConsumerGroup.
//
// The types are the source of the CRDs under config/crd/bases (`make manifests`): fields, defaults, limits, CEL rules and printer
// columns are the markers here. Defaults are filled in by the API server; a field that is absent in an object that has not been there
// means its default. Values are plain data, safe to share as long as nobody changes them; copy with DeepCopy before a change.
//
// Three habits keep one bad object from harming others. Everything an expression can refuse is refused at apply time. Durations,
// sizes and points in time are strings here, and pieces of a Pod are raw, all parsed where they are used, so that decoding a list of
// objects never fails, or takes for ever, because of one value. And what a schema cannot check becomes the condition Stalled of that one object.
//
// +kubebuilder:object:generate=true
// +groupName=runnel.dev
package v1alpha1
