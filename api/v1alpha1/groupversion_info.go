package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is runnel.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "runnel.dev", Version: "v1alpha1"}

// schemeBuilder collects what AddToScheme registers.
var schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme registers the kinds of this package, and the options that every group has, with a scheme.
var AddToScheme = schemeBuilder.AddToScheme

// Resource qualifies a plural name of this group, e.g. "topics" to topics.runnel.dev.
func Resource(plural string) schema.GroupResource {
	return GroupVersion.WithResource(plural).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&Cluster{}, &ClusterList{},
		&Topic{}, &TopicList{},
		&ConsumerGroup{}, &ConsumerGroupList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
