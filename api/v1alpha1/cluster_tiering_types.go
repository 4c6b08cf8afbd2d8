package v1alpha1

// Tiering moves sealed segments to object storage.
//
// +kubebuilder:validation:XValidation:rule="self.driver == oldSelf.driver && self.bucket == oldSelf.bucket && self.prefix == oldSelf.prefix",message="driver, bucket and prefix are immutable"
type Tiering struct {
	// driver is the client library: S3 (AWS's, with its ways to find credentials) or MinIO. Both speak to any S3-compatible store.
	// Immutable. Default: S3.
	//
	// +optional
	// +kubebuilder:default:=S3
	Driver TieringDriver `json:"driver,omitempty"`

	// bucket holds the objects, 3 to 63 characters. Immutable.
	//
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=63
	Bucket string `json:"bucket"`

	// prefix of all keys, at most 256 characters. Immutable. Default: none.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:default:=""
	Prefix string `json:"prefix,omitempty"`

	// region of the bucket, at most 64 characters. Default: what the driver finds out.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Region string `json:"region,omitempty"`

	// paused stops uploads and the deletion of local copies; reading goes on. Default: false.
	//
	// +optional
	// +kubebuilder:default:=false
	Paused bool `json:"paused,omitempty"`

	// maxUploadDelay is the age at which a record is uploaded even if its segment is still open, e.g. 1h: what the loss of all brokers
	// can cost. At most 16 characters. Default: 1h.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:default:="1h"
	MaxUploadDelay string `json:"maxUploadDelay,omitempty"`

	// credentials for the bucket. Default: what the driver finds in the broker's surroundings.
	//
	// +optional
	Credentials *TieringCredentials `json:"credentials,omitempty"`

	// endpoint is the http or https URL of an S3-compatible store, at most 253 characters. Default: AWS.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() in ['http','https']",message="endpoint must be an http(s) URL"
	Endpoint *string `json:"endpoint,omitempty"`
}

// TieringDriver is an object storage client.
//
// +kubebuilder:validation:Enum=S3;MinIO
type TieringDriver string

// The tiering drivers.
const (
	TieringS3    TieringDriver = "S3"
	TieringMinIO TieringDriver = "MinIO"
)

// TieringCredentials are how brokers prove to the object store who they are: exactly one of the fields.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) != has(self.serviceAccountName)",message="exactly one of secretRef, serviceAccountName"
type TieringCredentials struct {
	// secretRef names a Secret with accessKey and secretKey.
	//
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`

	// serviceAccountName of the broker pods, bound to a role of the cloud provider; at most 253 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName *string `json:"serviceAccountName,omitempty"`
}

// Bootstrap fills a new cluster.
type Bootstrap struct {
	// fromBucket restores a cluster from the bucket of tiering.
	//
	// +optional
	FromBucket *BootstrapFromBucket `json:"fromBucket,omitempty"`
}

// BootstrapFromBucket says which cluster to restore.
type BootstrapFromBucket struct {
	// clusterID of the cluster that wrote the objects, at most 64 characters. Default: the only one under prefix.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ClusterID string `json:"clusterID,omitempty"`

	// prefix under which that cluster wrote, at most 256 characters. Default: the prefix of tiering.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Prefix string `json:"prefix,omitempty"`

	// copy copies the objects, which is the only way while that cluster lives; otherwise the new cluster adopts them. Default: false.
	//
	// +optional
	// +kubebuilder:default:=false
	Copy bool `json:"copy,omitempty"`
}
