package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

func load(t *testing.T, file string, env map[string]string, args ...string) (Config, error) {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	l := NewLoader(fs)
	if err := fs.Parse(args); err != nil {
		return Config{}, err
	}
	return l.Load(file, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestDefaultIsValid(t *testing.T) {
	c, err := load(t, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), c); diff != "" {
		t.Fatal(diff)
	}
}

func TestFlagsOverrideEnvironmentOverridesFile(t *testing.T) {
	file := write(t, "brokerID: 3\ncluster: from-file\nrack: from-file\nstorage: {reserve: 1MiB}\nlisteners: [{name: client, address: ':1', tls: {certFile: c, keyFile: k}}]\n")
	env := map[string]string{"RUNNEL_CLUSTER": "from-env", "RUNNEL_RACK": "from-env", "RUNNEL_ETCD_ENDPOINTS": "http://a:1,http://b:2"}
	c, err := load(t, file, env, "--rack=from-flag", "--listen=client=:9@h:9,inner=:0")
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.BrokerID, want.Cluster, want.Rack, want.Storage.Reserve = 3, "from-env", "from-flag", 1<<20
	want.Etcd.Endpoints = []string{"http://a:1", "http://b:2"}
	want.Listeners = []Listener{
		{Name: "client", Address: ":9", Advertised: "h:9", TLS: ServerTLS{CertFile: "c", KeyFile: "k"}},
		{Name: "inner", Address: ":0"},
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Fatal(diff)
	}
}

func TestEveryFaultIsReportedAtOnce(t *testing.T) {
	file := write(t, `
brokerID: -1
cluster: ../up
etcd: {endpoints: ["ftp://x"], leaseTTL: 1500ms}
listeners: [{name: A, address: nope}, {name: A, address: ":70000", advertised: ":1", tls: {certFile: c}}]
interBrokerListener: B
peer: {tls: {keyFile: k}}
replication: {lagTimeout: 1ms, heartbeatInterval: 1s, suspectAfter: 1s, tailStreams: 9, catchUpBytesPerSecond: 1, window: 1, balanceInterval: 1ms}
limits: {maxInFlightBytes: 1, maxConnections: 0}
topics: {segmentBytes: 3GiB, retentionTime: -2s}
log: {level: loud}
`)
	_, err := load(t, file, nil)
	for _, field := range []string{
		"brokerID", "cluster", "etcd.endpoints[0]", "etcd.leaseTTL", "listeners[0].name", "listeners[0].address", "listeners[1].name",
		"listeners[1].address", "listeners[1].advertised", "listeners[1].tls", "limits.maxConnections", "limits.maxInFlightBytes", "topics.segmentBytes",
		"topics.retentionTime", "log.level", "interBrokerListener", "peer.tls", "replication.lagTimeout", "replication.suspectAfter",
		"replication.tailStreams", "replication.catchUpBytesPerSecond", "replication.window", "replication.balanceInterval",
	} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("no fault for %s in: %v", field, err)
		}
	}
	if _, ok := errors.AsType[*FieldError](err); !ok {
		t.Errorf("faults are not typed: %v", err)
	}
}

func TestPeerListener(t *testing.T) {
	c := Default()
	c.Listeners = append(c.Listeners, Listener{Name: "inner", Address: ":1"})
	if l := c.PeerListener(); l.Name != "client" {
		t.Errorf("without a name: %q", l.Name)
	}
	c.InterBrokerListener = "inner"
	if l := c.PeerListener(); l.Name != "inner" {
		t.Errorf("by name: %q", l.Name)
	}
}

func TestUnknownKeysAndUnreadableFiles(t *testing.T) {
	if _, err := load(t, write(t, "brokerId: 3\n"), nil); err == nil || !strings.Contains(err.Error(), "brokerId") {
		t.Errorf("unknown key: %v", err)
	}
	if _, err := load(t, filepath.Join(t.TempDir(), "absent"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	if _, err := load(t, "", map[string]string{"RUNNEL_BROKER_ID": "x"}); err == nil || !strings.Contains(err.Error(), "RUNNEL_BROKER_ID") {
		t.Errorf("bad environment: %v", err)
	}
	if c, err := load(t, write(t, ""), nil); err != nil || c.BrokerID != 1 {
		t.Errorf("empty file: %v", err)
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{"0": 0, "17": 17, "1KiB": 1024, "2 MiB": 2 << 20, "3GB": 3e9, "1TiB": 1 << 40, "5B": 5} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q = %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1.5MiB", "MiB", "9223372036854775807KiB", "1QiB"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q = %d, want an error", text, got)
		}
	}
}

func TestYAMLRoundTrip(t *testing.T) {
	text, err := yaml.Marshal(Default())
	if err != nil {
		t.Fatal(err)
	}
	c, err := load(t, write(t, string(text)), nil)
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if diff := cmp.Diff(Default(), c); diff != "" {
		t.Fatal(diff)
	}
	if c.ShutdownTimeout.Std() != 20*time.Second {
		t.Error(c.ShutdownTimeout)
	}
}

func TestSampleShowsTheDefaults(t *testing.T) {
	c, err := load(t, filepath.Join("..", "..", "config", "samples", "broker.yaml"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), c); diff != "" {
		t.Fatal(diff)
	}
}
