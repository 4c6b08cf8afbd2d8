package metadata

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
)

// Config says how to reach etcd. Zero durations take their defaults.
type Config struct {
	// Endpoints are URLs (http:// or https://), or host:port; at least one.
	Endpoints []string
	// TLS secures https endpoints; nil with http.
	TLS *tls.Config
	// Cluster names the cluster in etcd: keys live under /runnel/<cluster>/. [a-zA-Z0-9._-], 1 to 63 bytes, not "." or "..".
	Cluster string
	// DialTimeout bounds the set-up of one connection. Default 10s, 100ms to 5m.
	DialTimeout time.Duration
	// RequestTimeout bounds one operation with all its repetitions. Default 5s, 100ms to 5m. A caller's earlier deadline wins.
	RequestTimeout time.Duration
	// AttemptTimeout bounds one attempt. Default a quarter of RequestTimeout; at most RequestTimeout.
	AttemptTimeout time.Duration
	// LeaseTTL is how long the registration outlives its last sign of life: whole seconds, 2s to 5m. Default 5s. (etcd enforces a
	// minimum of its own, one and a half election time-outs.)
	LeaseTTL time.Duration
	// ProgressInterval is how often an idle watch has to prove that it is alive; after three misses it is started again. Default 1s,
	// 100ms to 1m.
	ProgressInterval time.Duration
	// Known is what an earlier process of this broker had seen, from Client.Position. An etcd behind it is refused.
	Known Position
	// DialOptions are added to the connections, e.g. interceptors for traces.
	DialOptions []grpc.DialOption
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	set(&c.DialTimeout, 10*time.Second)
	set(&c.RequestTimeout, 5*time.Second)
	set(&c.AttemptTimeout, c.RequestTimeout/4)
	set(&c.LeaseTTL, 5*time.Second)
	set(&c.ProgressInterval, time.Second)
	return c
}

// Validate returns all faults, after defaults are applied.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, field string, value any, limit string) {
		if !ok {
			errs = append(errs, invalid("metadata."+field, value, limit))
		}
	}
	between := func(field string, d, low, high time.Duration) {
		check(d >= low && d <= high, field, d, fmt.Sprintf("%v to %v", low, high))
	}
	check(len(c.Endpoints) > 0, "Endpoints", "empty", "at least one")
	check(validClusterName(c.Cluster), "Cluster", fmt.Sprintf("%q", c.Cluster), "[a-zA-Z0-9._-], 1 to 63 bytes, not \".\" or \"..\"")
	between("DialTimeout", c.DialTimeout, 100*time.Millisecond, 5*time.Minute)
	between("RequestTimeout", c.RequestTimeout, 100*time.Millisecond, 5*time.Minute)
	between("AttemptTimeout", c.AttemptTimeout, 10*time.Millisecond, c.RequestTimeout)
	between("LeaseTTL", c.LeaseTTL, 2*time.Second, 5*time.Minute)
	check(c.LeaseTTL%time.Second == 0, "LeaseTTL", c.LeaseTTL, "whole seconds")
	between("ProgressInterval", c.ProgressInterval, 100*time.Millisecond, time.Minute)
	return errors.Join(errs...)
}

func validClusterName(name string) bool {
	if name == "" || len(name) > 63 || name == "." || name == ".." {
		return false
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return false
		}
	}
	return true
}
