package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins the environment variable of each flag: --data-dir is RUNNEL_DATA_DIR.
const EnvPrefix = "RUNNEL_"

// Loader joins the three sources of settings. Bind it to a flag set, let that be parsed, then call Load.
type Loader struct {
	cfg   Config
	flags *pflag.FlagSet
}

// NewLoader registers a flag for each single-valued setting on flags. Flags show the defaults of Default.
func NewLoader(flags *pflag.FlagSet) *Loader {
	l := &Loader{cfg: Default(), flags: pflag.NewFlagSet("settings", pflag.ContinueOnError)}
	l.bind()
	flags.AddFlagSet(l.flags)
	return l
}

func (l *Loader) bind() {
	c, f := &l.cfg, l.flags
	f.Int32Var(&c.BrokerID, "broker-id", c.BrokerID, "number of this broker, unique in the cluster")
	f.StringVar(&c.Cluster, "cluster", c.Cluster, "name of the cluster in etcd")
	f.StringVar(&c.Rack, "rack", c.Rack, "where this broker is, for replica placement")
	f.Var((*stringList)(&c.Etcd.Endpoints), "etcd-endpoints", "etcd URLs, separated by commas")
	f.StringVar(&c.Etcd.TLS.CAFile, "etcd-ca-file", "", "PEM roots for etcd's certificate")
	f.StringVar(&c.Etcd.TLS.CertFile, "etcd-cert-file", "", "PEM certificate shown to etcd")
	f.StringVar(&c.Etcd.TLS.KeyFile, "etcd-key-file", "", "PEM key of the certificate shown to etcd")
	f.StringVar(&c.Storage.DataDir, "data-dir", c.Storage.DataDir, "data directory")
	f.BoolVar(&c.Storage.AllowNetworkStorage, "allow-network-storage", false, "accept a network file system as data directory")
	f.Var(&c.Storage.Reserve, "disk-reserve", "free space below which produce is refused; 0: the smaller of 1GiB and 2 %")
	f.Var((*listenerList)(&c.Listeners), "listen", "gRPC listeners as name=host:port[@advertised-host:port], separated by commas")
	f.StringVar(&c.InterBrokerListener, "inter-broker-listener", "", "name of the listener that brokers use among themselves; default: the first")
	f.StringVar(&c.Peer.TLS.CAFile, "peer-ca-file", "", "PEM roots for other brokers' certificates")
	f.StringVar(&c.Peer.TLS.CertFile, "peer-cert-file", "", "PEM certificate shown to other brokers")
	f.StringVar(&c.Peer.TLS.KeyFile, "peer-key-file", "", "PEM key of the certificate shown to other brokers")
	f.StringVar(&c.HTTP.Address, "http-address", c.HTTP.Address, "address of /metrics, /healthz and /readyz; off disables it")
	f.BoolVar(&c.Topics.AutoCreate, "auto-create-topics", false, "let clients create topics by naming them")
	f.StringVar(&c.Log.Level, "log-level", c.Log.Level, "debug, info, warn or error")
	f.StringVar(&c.Log.Format, "log-format", c.Log.Format, "text or json")
	f.Var(&c.ShutdownTimeout, "shutdown-timeout", "how long a stop may take to hand leaderships over and to finish calls in flight")
}

// Load reads file (empty: none), then the environment through getenv, then the flags that were given, and validates the result.
// The error joins every fault found. A file's unknown keys are faults.
func (l *Loader) Load(file string, getenv func(string) (string, bool)) (Config, error) {
	given := map[string]string{}
	l.flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed { // Visit would miss them: they were parsed as part of another set
			given[f.Name] = f.Value.String()
		}
	})
	l.cfg = Default()

	var faults []error
	if file != "" {
		if err := readFile(file, &l.cfg); err != nil {
			faults = append(faults, err)
		}
	}
	l.flags.VisitAll(func(f *pflag.Flag) {
		source := "--" + f.Name
		value, ok := given[f.Name]
		if !ok {
			source = EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			value, ok = getenv(source)
		}
		if !ok {
			return
		}
		if err := f.Value.Set(value); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", source, err))
		}
	})
	faults = append(faults, l.cfg.Validate())
	if err := errors.Join(faults...); err != nil {
		return Config{}, err
	}
	return l.cfg, nil
}

func readFile(name string, into *Config) error {
	b, err := os.ReadFile(name) // the operator names the file; it is configuration, not data
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(b))
	dec.KnownFields(true)
	if err := dec.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("configuration %s: %w", name, err)
	}
	return nil
}

// stringList is a comma-separated flag whose every Set replaces the whole.
type stringList []string

func (s *stringList) String() string { return strings.Join(*s, ",") }
func (s *stringList) Type() string   { return "list" }
func (s *stringList) Set(v string) error {
	*s = strings.Split(v, ",")
	return nil
}

// listenerList is the flag form of Config.Listeners, without TLS: that takes a file.
type listenerList []Listener

func (l *listenerList) Type() string { return "listeners" }

func (l *listenerList) String() string {
	parts := make([]string, 0, len(*l))
	for _, v := range *l {
		s := v.Name + "=" + v.Address
		if v.Advertised != "" {
			s += "@" + v.Advertised
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ",")
}

// Set replaces addresses; a listener of the same name keeps the TLS settings that the file gave it.
func (l *listenerList) Set(v string) error {
	before := map[string]ServerTLS{}
	for _, x := range *l {
		before[x.Name] = x.TLS
	}
	var out listenerList
	for part := range strings.SplitSeq(v, ",") {
		name, rest, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("listener %q: want name=host:port[@advertised-host:port]", part)
		}
		addr, adv, _ := strings.Cut(rest, "@")
		out = append(out, Listener{Name: name, Address: addr, Advertised: adv, TLS: before[name]})
	}
	*l = out
	return nil
}
