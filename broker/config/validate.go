package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// FieldError is one setting out of its range.
type FieldError struct {
	// Field is the YAML path, e.g. "etcd.endpoints[0]".
	Field string
	// Value is what was given, and Want what is accepted.
	Value, Want string
}

// Error names field, value and limit.
func (e *FieldError) Error() string { return fmt.Sprintf("%s: %q: want %s", e.Field, e.Value, e.Want) }

var (
	clusterName  = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,63}$`)
	listenerName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
)

type checker struct{ faults []error }

func (c *checker) check(ok bool, field string, value any, want string) {
	if !ok {
		c.faults = append(c.faults, &FieldError{Field: field, Value: fmt.Sprint(value), Want: want})
	}
}

func (c *checker) duration(field string, v Duration, low, high time.Duration) {
	c.check(v.Std() >= low && v.Std() <= high, field, v, fmt.Sprintf("%v to %v", low, high))
}

func (c *checker) bytes(field string, v, low, high Bytes) {
	c.check(v >= low && v <= high, field, v, fmt.Sprintf("%v to %v", low, high))
}

func (c *checker) number(field string, v, low, high int64) {
	c.check(v >= low && v <= high, field, v, fmt.Sprintf("%d to %d", low, high))
}

func (c *checker) pair(field, cert, key string) {
	c.check((cert == "") == (key == ""), field, cert+" / "+key, "certFile and keyFile together or neither")
}

// hostPort wants host:port with a numeric port; host may be empty unless needHost.
func (c *checker) hostPort(field, v string, needHost bool) {
	host, port, err := net.SplitHostPort(v)
	n, perr := strconv.ParseUint(port, 10, 16)
	ok := err == nil && perr == nil && (!needHost || host != "" && n != 0)
	c.check(ok, field, v, "host:port with a port of 0 to 65535")
}

// Validate returns nil, or every fault at once, joined; each is a *FieldError. It reads no file.
func (c Config) Validate() error {
	var k checker
	k.number("brokerID", int64(c.BrokerID), 0, 1<<31-1)
	k.check(clusterName.MatchString(c.Cluster) && c.Cluster != "." && c.Cluster != "..", "cluster", c.Cluster, "1 to 63 of [a-zA-Z0-9._-], not . or ..")
	k.check(len(c.Rack) <= 249, "rack", c.Rack, "at most 249 bytes")
	c.Etcd.validate(&k)
	c.Storage.validate(&k)
	c.validateListeners(&k)
	k.pair("peer.tls", c.Peer.TLS.CertFile, c.Peer.TLS.KeyFile)
	c.Replication.validate(&k)
	if c.HTTP.Address != HTTPOff {
		k.hostPort("http.address", c.HTTP.Address, false)
	}
	c.Limits.validate(&k)
	c.Topics.validate(&k, c.Limits.MaxPartitions)
	k.check(slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level), "log.level", c.Log.Level, "debug, info, warn or error")
	k.check(c.Log.Format == "text" || c.Log.Format == "json", "log.format", c.Log.Format, "text or json")
	k.duration("shutdownTimeout", c.ShutdownTimeout, 0, 10*time.Minute)
	return errors.Join(k.faults...)
}

func (e Etcd) validate(k *checker) {
	k.check(len(e.Endpoints) > 0, "etcd.endpoints", "", "at least one URL")
	for i, ep := range e.Endpoints {
		u, err := url.Parse(ep)
		ok := err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
		k.check(ok, fmt.Sprintf("etcd.endpoints[%d]", i), ep, "an http or https URL")
	}
	k.pair("etcd.tls", e.TLS.CertFile, e.TLS.KeyFile)
	k.duration("etcd.dialTimeout", e.DialTimeout, 100*time.Millisecond, 5*time.Minute)
	k.duration("etcd.requestTimeout", e.RequestTimeout, 100*time.Millisecond, 5*time.Minute)
	k.duration("etcd.leaseTTL", e.LeaseTTL, 2*time.Second, 5*time.Minute)
	k.check(e.LeaseTTL.Std()%time.Second == 0, "etcd.leaseTTL", e.LeaseTTL, "whole seconds")
}

func (s Storage) validate(k *checker) {
	k.check(s.DataDir != "", "storage.dataDir", s.DataDir, "a directory")
	k.bytes("storage.reserve", s.Reserve, 0, 1<<40)
	k.number("storage.syncfsThreshold", int64(s.SyncfsThreshold), 1, 100_000)
	k.duration("storage.retentionInterval", s.RetentionInterval, 100*time.Millisecond, time.Hour)
}

func (c Config) validateListeners(k *checker) {
	k.check(len(c.Listeners) > 0, "listeners", "", "at least one listener")
	seen := map[string]bool{}
	for i, l := range c.Listeners {
		at := fmt.Sprintf("listeners[%d]", i)
		k.check(listenerName.MatchString(l.Name), at+".name", l.Name, "1 to 32 of [a-z0-9-]")
		k.check(!seen[l.Name], at+".name", l.Name, "a name that no other listener has")
		seen[l.Name] = true
		k.hostPort(at+".address", l.Address, false)
		if l.Advertised != "" {
			k.hostPort(at+".advertised", l.Advertised, true)
		}
		k.pair(at+".tls", l.TLS.CertFile, l.TLS.KeyFile)
		k.check(l.TLS.ClientCAFile == "" || l.TLS.CertFile != "", at+".tls.clientCAFile", l.TLS.ClientCAFile, "certFile and keyFile beside it")
	}
	k.check(c.InterBrokerListener == "" || seen[c.InterBrokerListener], "interBrokerListener", c.InterBrokerListener, "the name of a listener, or nothing")
}

func (r Replication) validate(k *checker) {
	k.duration("replication.lagTimeout", r.LagTimeout, 200*time.Millisecond, 5*time.Minute)
	k.duration("replication.heartbeatInterval", r.HeartbeatInterval, 20*time.Millisecond, 10*time.Second)
	k.duration("replication.suspectAfter", r.SuspectAfter, 2*r.HeartbeatInterval.Std(), 5*time.Minute)
	k.number("replication.tailStreams", int64(r.TailStreams), 1, 4)
	if r.CatchUpBytesPerSecond != 0 {
		k.bytes("replication.catchUpBytesPerSecond", r.CatchUpBytesPerSecond, 1<<20, 64<<30)
	}
	k.bytes("replication.window", r.Window, 256<<10, 256<<20)
	if r.BalanceInterval != 0 {
		k.duration("replication.balanceInterval", r.BalanceInterval, time.Second, 24*time.Hour)
	}
}

func (l Limits) validate(k *checker) {
	k.bytes("limits.maxInFlightBytes", l.MaxInFlightBytes, 16<<20, 64<<30)
	k.bytes("limits.maxStreamInFlightBytes", l.MaxStreamInFlightBytes, 16<<20, l.MaxInFlightBytes)
	k.number("limits.maxConnections", int64(l.MaxConnections), 1, 1_000_000)
	k.number("limits.maxConcurrentStreams", int64(l.MaxConcurrentStreams), 1, 100_000)
	k.number("limits.maxPartitions", int64(l.MaxPartitions), 1, 100_000)
}

func (t Topics) validate(k *checker, maxPartitions int32) {
	k.number("topics.partitions", int64(t.Partitions), 1, int64(maxPartitions))
	k.bytes("topics.maxBatchBytes", t.MaxBatchBytes, 1<<10, 16<<20)
	k.bytes("topics.segmentBytes", t.SegmentBytes, 1<<20, 1<<31-1)
	k.duration("topics.segmentAge", t.SegmentAge, time.Second, 10*365*24*time.Hour)
	if t.RetentionTime != Forever {
		k.check(t.RetentionTime.Std() >= time.Second, "topics.retentionTime", t.RetentionTime, "1s or more, or -1ms for ever")
	}
}
