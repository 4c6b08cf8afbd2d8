package v1alpha1

// TLS encrypts all connections of a cluster.
type TLS struct {
	// mode is OperatorCA (the operator keeps a CA and rotates certificates), CertManager, or Disabled. Default: OperatorCA.
	//
	// +optional
	// +kubebuilder:default:=OperatorCA
	Mode TLSMode `json:"mode,omitempty"`

	// issuerRef names cert-manager's issuer where mode is CertManager.
	//
	// +optional
	IssuerRef *IssuerReference `json:"issuerRef,omitempty"`
}

// TLSMode says where certificates come from.
//
// +kubebuilder:validation:Enum=OperatorCA;CertManager;Disabled
type TLSMode string

// The TLS modes.
const (
	TLSOperatorCA  TLSMode = "OperatorCA"
	TLSCertManager TLSMode = "CertManager"
	TLSDisabled    TLSMode = "Disabled"
)

// IssuerReference names an issuer of cert-manager.
type IssuerReference struct {
	// name of the issuer, at most 253 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// kind of the issuer, Issuer or ClusterIssuer; at most 63 characters. Default: Issuer.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`
}

// Auth says who clients are and what becomes of those who may not.
type Auth struct {
	// mode is None or Enabled. Once enabled, what no access rule allows is refused. Default: None.
	//
	// +optional
	// +kubebuilder:default:=None
	Mode AuthMode `json:"mode,omitempty"`

	// methods by which clients prove who they are, at most 3: MTLS, OIDC, ServiceAccount.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	Methods []AuthMethod `json:"methods,omitempty"`

	// oidc is the issuer of tokens where methods has OIDC.
	//
	// +optional
	OIDC *OIDC `json:"oidc,omitempty"`

	// superusers are principals that may do everything, at most 32, each at most 256 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Superusers []string `json:"superusers,omitempty"`
}

// AuthMode says whether clients are asked who they are.
//
// +kubebuilder:validation:Enum=None;Enabled
type AuthMode string

// The auth modes.
const (
	AuthNone    AuthMode = "None"
	AuthEnabled AuthMode = "Enabled"
)

// AuthMethod is a way to prove who one is.
//
// +kubebuilder:validation:Enum=MTLS;OIDC;ServiceAccount
type AuthMethod string

// The auth methods.
const (
	// AuthMTLS takes the client certificate's SAN or subject.
	AuthMTLS AuthMethod = "MTLS"
	// AuthOIDC takes a JWT of the issuer in oidc.
	AuthOIDC AuthMethod = "OIDC"
	// AuthServiceAccount takes a token of a Kubernetes service account.
	AuthServiceAccount AuthMethod = "ServiceAccount"
)

// OIDC is an issuer of tokens.
type OIDC struct {
	// issuer is the URL that tokens name as theirs, at most 512 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Issuer string `json:"issuer,omitempty"`

	// audience that tokens must be meant for, at most 256 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Audience string `json:"audience,omitempty"`
}

// Listener is a further way into the cluster.
//
// +kubebuilder:validation:XValidation:rule="self.routing != 'Direct' || self.type == 'ClusterIP' || has(self.brokerHost)",message="Direct external routing needs brokerHost"
// +kubebuilder:validation:XValidation:rule="!has(self.brokerHost) || self.brokerHost.contains('{id}')",message="brokerHost needs {id}"
type Listener struct {
	// name of the listener, a lower-case label of at most 15 characters.
	//
	// +required
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// port that brokers listen on, 1024 to 65535, unique among the listeners.
	//
	// +required
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// type of the Service: ClusterIP, LoadBalancer or NodePort.
	//
	// +required
	Type ListenerType `json:"type"`

	// routing is Direct (clients go to each broker at brokerHost), Forward (clients go to any broker, which forwards), or Auto (Direct
	// where brokers can be reached by name, else Forward). Default: Auto.
	//
	// +optional
	// +kubebuilder:default:=Auto
	Routing ListenerRouting `json:"routing,omitempty"`

	// brokerHost is the host name of each broker, with {id} in the place of its id, e.g. broker-{id}.example.com; at most 253
	// characters.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	BrokerHost *string `json:"brokerHost,omitempty"`

	// allowPlaintext has to be true for an external listener without TLS. Default: false.
	//
	// +optional
	AllowPlaintext bool `json:"allowPlaintext,omitempty"`

	// host under which the Service is reached, at most 253 characters. Default: the load balancer's or node's address.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host,omitempty"`

	// annotations of the Service, at most 32, each value at most 1,024 characters.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Annotations map[string]AnnotationValue `json:"annotations,omitempty"`
}

// AnnotationValue is the value of a Service's annotation.
//
// +kubebuilder:validation:MaxLength=1024
type AnnotationValue string

// ListenerType is the type of a listener's Service.
//
// +kubebuilder:validation:Enum=ClusterIP;LoadBalancer;NodePort
type ListenerType string

// The listener types.
const (
	ListenerClusterIP    ListenerType = "ClusterIP"
	ListenerLoadBalancer ListenerType = "LoadBalancer"
	ListenerNodePort     ListenerType = "NodePort"
)

// ListenerRouting says how clients find the leader of a partition.
//
// +kubebuilder:validation:Enum=Auto;Direct;Forward
type ListenerRouting string

// The listener routings.
const (
	RoutingAuto    ListenerRouting = "Auto"
	RoutingDirect  ListenerRouting = "Direct"
	RoutingForward ListenerRouting = "Forward"
)
