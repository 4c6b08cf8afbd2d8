package v1alpha1

// ClusterReference names the Cluster that an object belongs to.
type ClusterReference struct {
	// name of the Cluster, 1 to 40 characters.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=40
	Name string `json:"name"`

	// namespace of the Cluster, at most 63 characters. Default: the object's own namespace. Another one works only where the
	// Cluster's topicNamespaces let the object's namespace in.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
}

// SecretReference names a Secret in the namespace of the object that refers to it.
type SecretReference struct {
	// name of the Secret, at most 253 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// Timestamp is a point in time as RFC 3339 writes it, e.g. 2026-11-29T16:00:00Z.
//
// It is a string because the schema's date-time admits spellings (a lower-case t or z) that metav1.Time refuses to decode, and then a
// single object would make every list that holds it unreadable.
//
// +kubebuilder:validation:Format=date-time
type Timestamp string

// DeletionPolicy says what becomes of the data when its resource is deleted.
//
// +kubebuilder:validation:Enum=Retain;Delete
type DeletionPolicy string

// The deletion policies of topics and consumer groups.
const (
	// DeletionRetain leaves topic or group in the cluster; a new resource of the same name adopts it.
	DeletionRetain DeletionPolicy = "Retain"
	// DeletionDelete deletes topic or group, with all records or offsets, before the resource goes.
	DeletionDelete DeletionPolicy = "Delete"
)
