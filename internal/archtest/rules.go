package archtest

// kubernetes are the packages that only the operator may know.
var kubernetes = []string{"k8s.io/...", "sigs.k8s.io/controller-runtime/...", "operator/...", "api/v1alpha1/..."}

// Rules are the import directions of Runnel: imports point down only.
//
//	cmd → broker | operator | client
//	broker → server → partition → {replica, log, tiering, metadata}
//	storage → log → segment → record
//	client → {api, record}        tiering → record        operator → {api, client}
var Rules = []Rule{
	{
		Packages: []string{"record/..."},
		Only:     []string{"record/..."},
		Why:      "record is pure bytes, used by broker, client and tiering alike; it knows nothing of ours",
	},
	{
		Packages: []string{"api/..."},
		Only:     []string{"api/..."},
		Tests:    true,
		Why:      "the API is what everybody else depends on",
	},
	{
		Packages: []string{"broker/segment/..."},
		Only:     []string{"broker/segment/...", "record/...", "internal/..."},
		Never:    []string{"internal/testcluster/..."},
		Why:      "a segment is files and recovery; it knows record below it and nothing above",
	},
	{
		Packages: []string{"broker/log/..."},
		Only:     []string{"broker/log/...", "broker/segment/...", "record/...", "internal/..."},
		Never:    []string{"internal/testcluster/...", "google.golang.org/grpc/...", "go.etcd.io/..."},
		Why:      "the log is one partition's storage; it knows no server, no metadata store and no replication protocol",
	},
	{
		Packages: []string{"broker/storage/..."},
		Only:     []string{"broker/storage/...", "broker/log/...", "broker/segment/...", "record/...", "internal/..."},
		Never:    []string{"internal/testcluster/...", "google.golang.org/grpc/...", "go.etcd.io/..."},
		Why:      "storage is one broker's disk: storage → log → segment; it knows no server and no metadata store",
	},
	{
		Packages: []string{"broker/replica/..."},
		Only:     []string{"broker/replica/...", "record/...", "internal/ids/...", "internal/invariant/..."},
		Never:    []string{"net/...", "os/...", "google.golang.org/grpc/...", "go.etcd.io/..."},
		Why:      "the replication protocol is a deterministic state machine: no I/O, no clock; it declares the log interface it needs",
	},
	{
		Packages: []string{"broker/metadata/..."},
		Never:    []string{"broker", "broker/server/...", "broker/partition/...", "broker/storage/...", "broker/log/...", "broker/segment/..."},
		Why:      "metadata is etcd keys, codecs and watches; it knows neither storage nor servers",
	},
	{
		Packages: []string{"broker/partition/..."},
		Never:    []string{"broker", "broker/server/..."},
		Why:      "imports point down: broker → server → partition",
	},
	{
		Packages: []string{"broker/config/..."},
		Never:    []string{"broker", "broker/server/...", "broker/partition/...", "broker/metadata/..."},
		Why:      "configuration is read by the composition root and handed down; it knows no component that runs",
	},
	{
		Packages: []string{"broker/..."},
		Never:    []string{"cmd/...", "client/..."},
		Why:      "brokers speak to each other through the API; only commands and tests join broker and client",
	},
	{
		Packages: []string{"client/..."},
		Only:     []string{"client/...", "api/...", "record/...", "internal/..."},
		Never:    []string{"broker/...", "go.etcd.io/..."},
		Why:      "users link the client: it knows the broker by its API only and never talks to etcd",
	},
	{
		Packages: []string{"tiering/..."},
		Only:     []string{"tiering/...", "record/...", "internal/..."},
		Never:    []string{"broker/...", "client/..."},
		Why:      "tiering sees a segment as offsets and an io.ReaderAt, so that restore works without a broker",
	},
	{
		Packages: []string{"operator/..."},
		Only:     []string{"operator/...", "api/...", "client/...", "record/...", "internal/..."},
		Never:    []string{"broker/...", "go.etcd.io/..."},
		Why:      "the operator talks to brokers through the admin API only",
	},
	{
		Packages: []string{"record/...", "broker/...", "client/...", "tiering/..."},
		Never:    kubernetes,
		Tests:    true,
		Why:      "brokers and clients run the same outside Kubernetes",
	},
	{
		Packages: []string{"internal/vfs/...", "internal/clock/...", "internal/invariant/...", "internal/ids/...", "internal/version/..."},
		Only:     []string{"internal/..."},
		Never:    []string{"internal/testcluster/..."},
		Why:      "these are below every component",
	},
	{
		Packages: []string{".", "api/...", "broker/...", "client/...", "internal/...", "operator/...", "record/...", "tiering/..."},
		Never:    []string{"cmd/...", "hack/...", "test/..."},
		Tests:    true,
		Why:      "commands, scripts and whole-system tests are on top: flags and wiring only",
	},
}
