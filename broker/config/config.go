// Package config holds a broker's settings: one Config struct that says meaning, unit, default and range of each, read from a
// YAML file, overridden by RUNNEL_… environment variables, overridden by flags (see Load). Validate reports every fault at once.
//
// Nothing in it is a secret: keys and certificates are named by path and read where they are used.
package config

import (
	"time"
)

// Config is everything a broker has to be told. The zero value is not usable: begin with Default.
type Config struct {
	// BrokerID is the broker's number, unique in the cluster, 0 to 2147483647. Default 1.
	BrokerID int32 `yaml:"brokerID"`
	// Cluster names the cluster in etcd (keys live under /runnel/<cluster>/). [a-zA-Z0-9._-], 1 to 63 characters. Default "runnel".
	Cluster string `yaml:"cluster"`
	// Rack says where the broker is, for replica placement; any string up to 249 bytes. Default: none.
	Rack string `yaml:"rack"`
	// Etcd says how metadata is reached.
	Etcd Etcd `yaml:"etcd"`
	// Storage says where and how data is kept.
	Storage Storage `yaml:"storage"`
	// Listeners are the gRPC endpoints, at least one. Default: "client" on port 7650 of every interface.
	Listeners []Listener `yaml:"listeners"`
	// InterBrokerListener names the listener whose advertised address brokers use among themselves. Empty: the first.
	InterBrokerListener string `yaml:"interBrokerListener"`
	// Peer says how this broker shows itself to other brokers.
	Peer Peer `yaml:"peer"`
	// Replication says how replicas are kept in step, and when a broker is taken for dead.
	Replication Replication `yaml:"replication"`
	// HTTP is the endpoint of /metrics, /healthz and /readyz.
	HTTP HTTP `yaml:"http"`
	// Limits bound what clients may make the broker hold.
	Limits Limits `yaml:"limits"`
	// Topics are the cluster-wide defaults of topics.
	Topics Topics `yaml:"topics"`
	// Log is how the broker talks about itself, on standard error.
	Log Log `yaml:"log"`
	// ShutdownTimeout bounds a graceful stop: handing leaderships over takes up to three quarters of it, and finishing calls in flight
	// what is left, a quarter or more. A process of which parts have not ended 10 s later ends all the same. 0s to 10m. Default 20s.
	ShutdownTimeout Duration `yaml:"shutdownTimeout"`
}

// Etcd says how the metadata store is reached.
type Etcd struct {
	// Endpoints are URLs, at least one. Default http://127.0.0.1:2379.
	Endpoints []string `yaml:"endpoints"`
	// TLS secures https endpoints.
	TLS ClientTLS `yaml:"tls"`
	// DialTimeout bounds the first connection, 100ms to 5m. Default 10s.
	DialTimeout Duration `yaml:"dialTimeout"`
	// RequestTimeout bounds each request, 100ms to 5m. Default 5s.
	RequestTimeout Duration `yaml:"requestTimeout"`
	// LeaseTTL is how long the broker's registration outlives its last sign of life, 2s to 5m in whole seconds. Default 5s.
	LeaseTTL Duration `yaml:"leaseTTL"`
}

// ClientTLS is what a dialler needs. All files are read again when they change.
type ClientTLS struct {
	// CAFile holds the roots that the server's certificate has to lead to; PEM. Empty: the system's.
	CAFile string `yaml:"caFile"`
	// CertFile and KeyFile are the identity shown to the server; PEM, both or neither.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// ServerName is checked against the server's certificate. Empty: the host of the address.
	ServerName string `yaml:"serverName"`
}

// Storage says where data is kept.
type Storage struct {
	// DataDir is the data directory; created when absent, and bound to this cluster for ever. Default ./data.
	DataDir string `yaml:"dataDir"`
	// AllowNetworkStorage accepts a network file system, whose fsync promises are often worth less. Default false.
	AllowNetworkStorage bool `yaml:"allowNetworkStorage"`
	// Reserve is the free space below which produce is refused, so that metadata and recovery stay writable.
	// 0: the smaller of 1 GiB and 2 % of the volume. Up to 1 TiB. Default 0.
	Reserve Bytes `yaml:"reserve"`
	// SyncfsThreshold is the number of logs with unsynced data above which one syncfs replaces single fdatasyncs, 1 to 100000. Default 32.
	SyncfsThreshold int `yaml:"syncfsThreshold"`
	// RetentionInterval is how often old segments are looked for, 100ms to 1h. Default 30s.
	RetentionInterval Duration `yaml:"retentionInterval"`
}

// Listener is one gRPC endpoint.
type Listener struct {
	// Name is what Metadata answers refer to, [a-z0-9-]{1,32}, unique. Default "client".
	Name string `yaml:"name"`
	// Address is host:port to listen on; an empty host is every interface, port 0 any free port.
	Address string `yaml:"address"`
	// Advertised is host:port that clients are told. Empty: the address listened on, with the host name for an unspecified host.
	Advertised string `yaml:"advertised"`
	// TLS secures the listener; without files it is plain text.
	TLS ServerTLS `yaml:"tls"`
}

// Peer is how this broker connects to other brokers.
type Peer struct {
	// TLS secures the connections. It is used when it is set, or when the inter-broker listener has TLS.
	TLS ClientTLS `yaml:"tls"`
}

// Replication keeps replicas in step.
type Replication struct {
	// LagTimeout is how long an in-sync replica may stay behind before it leaves the in-sync set, 200ms to 5m. Default 3s.
	LagTimeout Duration `yaml:"lagTimeout"`
	// HeartbeatInterval is the time between two signs of life among brokers, 20ms to 10s. Default 200ms.
	HeartbeatInterval Duration `yaml:"heartbeatInterval"`
	// SuspectAfter is the silence after which a broker is suspected to be dead, from twice HeartbeatInterval to 5m. Default 600ms.
	SuspectAfter Duration `yaml:"suspectAfter"`
	// TailStreams is how many streams carry new records from each leader broker, 1 to 4. Default 2.
	TailStreams int `yaml:"tailStreams"`
	// CatchUpBytesPerSecond bounds what this broker sends to all replicas elsewhere that are far behind, 1 MiB to 64 GiB;
	// 0: no bound. Default 64 MiB.
	CatchUpBytesPerSecond Bytes `yaml:"catchUpBytesPerSecond"`
	// Window is how much a leader sends of one partition before the follower has taken it in, 256 KiB to 256 MiB. Default 8 MiB.
	Window Bytes `yaml:"window"`
	// BalanceInterval is the time between two looks at whether leaders are spread evenly, 1s to 24h; 0: leaders are never moved for
	// that. Default 5m.
	BalanceInterval Duration `yaml:"balanceInterval"`
}

// ServerTLS is what a listener needs. All files are read again when they change.
type ServerTLS struct {
	// CertFile and KeyFile are the server's identity; PEM, both or neither.
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	// ClientCAFile, when set, demands a client certificate that leads to one of its roots (mTLS); PEM.
	ClientCAFile string `yaml:"clientCAFile"`
}

// Enabled says whether the listener uses TLS.
func (t ServerTLS) Enabled() bool { return t.CertFile != "" || t.KeyFile != "" || t.ClientCAFile != "" }

// Enabled says whether anything is set.
func (t ClientTLS) Enabled() bool {
	return t.CAFile != "" || t.CertFile != "" || t.KeyFile != "" || t.ServerName != ""
}

// PeerListener is the listener that brokers use among themselves.
func (c Config) PeerListener() Listener {
	for _, l := range c.Listeners {
		if l.Name == c.InterBrokerListener {
			return l
		}
	}
	return c.Listeners[0]
}

// HTTP is the operational endpoint.
type HTTP struct {
	// Address is host:port; "off" disables it. Default :7651.
	Address string `yaml:"address"`
}

// HTTPOff as an HTTP address disables the endpoint.
const HTTPOff = "off"

// Limits bound the memory that clients can claim.
type Limits struct {
	// MaxInFlightBytes bounds produced batches that are not acknowledged yet, over all streams, 16 MiB to 64 GiB. Default 256 MiB.
	MaxInFlightBytes Bytes `yaml:"maxInFlightBytes"`
	// MaxStreamInFlightBytes bounds them per stream, 16 MiB to MaxInFlightBytes. Default 64 MiB.
	MaxStreamInFlightBytes Bytes `yaml:"maxStreamInFlightBytes"`
	// MaxConnections bounds the connections of each listener, 1 to 1000000; more wait to be accepted. Default 10000.
	MaxConnections int `yaml:"maxConnections"`
	// MaxConcurrentStreams bounds calls and streams per connection, 1 to 100000. Default 250.
	MaxConcurrentStreams uint32 `yaml:"maxConcurrentStreams"`
	// MaxPartitions bounds the partitions of one topic, 1 to 100000. Default 10000.
	MaxPartitions int32 `yaml:"maxPartitions"`
}

// Topics are defaults for topics that do not say otherwise.
type Topics struct {
	// AutoCreate lets clients create topics by naming them. Default false.
	AutoCreate bool `yaml:"autoCreate"`
	// Partitions of a topic that does not say, 1 to Limits.MaxPartitions. Default 1.
	Partitions int32 `yaml:"partitions"`
	// MaxBatchBytes is the largest batch accepted, 1 KiB to 16 MiB. Default 1 MiB.
	MaxBatchBytes Bytes `yaml:"maxBatchBytes"`
	// SegmentBytes is the size at which a segment is rolled, 1 MiB to 2 GiB - 1. Default 512 MiB.
	SegmentBytes Bytes `yaml:"segmentBytes"`
	// SegmentAge is the age at which a segment is rolled, 1s to 10 years. Default 24h.
	SegmentAge Duration `yaml:"segmentAge"`
	// RetentionTime is how long records are kept, 1s or more; -1ms: for ever. Default 168h.
	RetentionTime Duration `yaml:"retentionTime"`
}

// Log is how the broker reports.
type Log struct {
	// Level is debug, info, warn or error. Default info.
	Level string `yaml:"level"`
	// Format is text or json. Default json.
	Format string `yaml:"format"`
}

// Forever as a retention time keeps records for ever.
const Forever = Duration(-time.Millisecond)

// Default returns the documented defaults.
func Default() Config {
	return Config{
		BrokerID: 1,
		Cluster:  "runnel",
		Etcd: Etcd{
			Endpoints:      []string{"http://127.0.0.1:2379"},
			DialTimeout:    Duration(10 * time.Second),
			RequestTimeout: Duration(5 * time.Second),
			LeaseTTL:       Duration(5 * time.Second),
		},
		Storage: Storage{
			DataDir:           "data",
			SyncfsThreshold:   32,
			RetentionInterval: Duration(30 * time.Second),
		},
		Listeners: []Listener{{Name: "client", Address: ":7650"}},
		Replication: Replication{
			LagTimeout:            Duration(3 * time.Second),
			HeartbeatInterval:     Duration(200 * time.Millisecond),
			SuspectAfter:          Duration(600 * time.Millisecond),
			TailStreams:           2,
			CatchUpBytesPerSecond: 64 << 20,
			Window:                8 << 20,
			BalanceInterval:       Duration(5 * time.Minute),
		},
		HTTP: HTTP{Address: ":7651"},
		Limits: Limits{
			MaxInFlightBytes:       256 << 20,
			MaxStreamInFlightBytes: 64 << 20,
			MaxConnections:         10_000,
			MaxConcurrentStreams:   250,
			MaxPartitions:          10_000,
		},
		Topics: Topics{
			Partitions:    1,
			MaxBatchBytes: 1 << 20,
			SegmentBytes:  512 << 20,
			SegmentAge:    Duration(24 * time.Hour),
			RetentionTime: Duration(7 * 24 * time.Hour),
		},
		Log:             Log{Level: "info", Format: "json"},
		ShutdownTimeout: Duration(20 * time.Second),
	}
}
