package etcdserver

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// TLS names the files that secure one kind of URL. They are read at every handshake, so renewed certificates need no restart.
type TLS struct {
	// CertFile and KeyFile are the server's identity, PEM; both or neither.
	CertFile, KeyFile string
	// CAFile holds the roots that certificates of clients (or peers) have to lead to, PEM. When it is set, they have to show one.
	CAFile string
}

// Config describes one etcd member.
type Config struct {
	// Name tells members apart. Default "default".
	Name string
	// DataDir is created when absent.
	DataDir string
	// ClientURLs and PeerURLs are listened on: http:// or https://. Port 0 takes a free one, which suits a single member in a test.
	ClientURLs, PeerURLs []string
	// AdvertiseClientURLs and AdvertisePeerURLs are how others reach this member. Default: what it listens on.
	AdvertiseClientURLs, AdvertisePeerURLs []string
	// InitialCluster lists all members as name=peerURL,…, for the first start. Default: this member alone.
	InitialCluster string
	// InitialClusterToken keeps clusters with the same URLs apart. Default "runnel".
	InitialClusterToken string
	// JoinExisting: the member was added to a running cluster.
	JoinExisting bool
	// ClientTLS and PeerTLS go with https URLs.
	ClientTLS, PeerTLS TLS
	// QuotaBytes is the size of the database above which etcd refuses writes, 16 MiB to 16 GiB. Default 2 GiB.
	QuotaBytes int64
	// CompactionRetention is how much history etcd keeps; it compacts once per retention, at most hourly. 1s to 24h. Default 1m.
	CompactionRetention time.Duration
	// HeartbeatInterval, 10ms to 1s, default 100ms, and ElectionTimeout, at least five times that and at most 50s, default 1s: raft's.
	HeartbeatInterval, ElectionTimeout time.Duration
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "default"
	}
	if len(c.AdvertiseClientURLs) == 0 {
		c.AdvertiseClientURLs = c.ClientURLs
	}
	if len(c.AdvertisePeerURLs) == 0 {
		c.AdvertisePeerURLs = c.PeerURLs
	}
	if c.InitialCluster == "" {
		members := make([]string, len(c.AdvertisePeerURLs))
		for i, u := range c.AdvertisePeerURLs {
			members[i] = c.Name + "=" + u
		}
		c.InitialCluster = strings.Join(members, ",")
	}
	if c.InitialClusterToken == "" {
		c.InitialClusterToken = "runnel"
	}
	if c.QuotaBytes == 0 {
		c.QuotaBytes = 2 << 30
	}
	if c.CompactionRetention == 0 {
		c.CompactionRetention = time.Minute
	}
	if c.HeartbeatInterval == 0 {
		c.HeartbeatInterval = 100 * time.Millisecond
	}
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = time.Second
	}
	return c
}

// Validate returns all faults, after defaults are applied.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, field string, value any, limit string) {
		if !ok {
			errs = append(errs, fmt.Errorf("etcd.%s is %v, want %s", field, value, limit))
		}
	}
	check(c.DataDir != "", "DataDir", `""`, "a directory")
	for _, list := range []struct {
		field string
		urls  []string
	}{
		{"ClientURLs", c.ClientURLs},
		{"PeerURLs", c.PeerURLs},
		{"AdvertiseClientURLs", c.AdvertiseClientURLs},
		{"AdvertisePeerURLs", c.AdvertisePeerURLs},
	} {
		_, err := parseURLs(list.urls)
		check(err == nil, list.field, fmt.Sprintf("%q", list.urls), "one or more of http://host:port, https://host:port")
	}
	for _, t := range []struct {
		field string
		tls   TLS
		urls  []string
	}{{"ClientTLS", c.ClientTLS, c.ClientURLs}, {"PeerTLS", c.PeerTLS, c.PeerURLs}} {
		check((t.tls.CertFile == "") == (t.tls.KeyFile == ""), t.field, "half set", "CertFile and KeyFile, or neither")
		check(t.tls.CertFile != "" || !secure(t.urls), t.field, "empty", "CertFile and KeyFile with https URLs")
	}
	check(c.QuotaBytes >= 16<<20 && c.QuotaBytes <= 16<<30, "QuotaBytes", c.QuotaBytes, "16 MiB to 16 GiB")
	check(c.CompactionRetention >= time.Second && c.CompactionRetention <= 24*time.Hour, "CompactionRetention", c.CompactionRetention, "1s to 24h")
	check(c.HeartbeatInterval >= 10*time.Millisecond && c.HeartbeatInterval <= time.Second, "HeartbeatInterval", c.HeartbeatInterval, "10ms to 1s")
	check(c.ElectionTimeout >= 5*c.HeartbeatInterval && c.ElectionTimeout <= 50*time.Second,
		"ElectionTimeout", c.ElectionTimeout, "5 heartbeat intervals to 50s")
	return errors.Join(errs...)
}

func secure(urls []string) bool {
	for _, u := range urls {
		if strings.HasPrefix(u, "https://") {
			return true
		}
	}
	return false
}

func parseURLs(list []string) ([]url.URL, error) {
	out := make([]url.URL, 0, len(list))
	for _, s := range list {
		u, err := url.Parse(s)
		if err != nil {
			return nil, err
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Path != "" {
			return nil, fmt.Errorf("%q is not http://host:port or https://host:port", s)
		}
		out = append(out, *u)
	}
	if len(out) == 0 {
		return nil, errors.New("no URL")
	}
	return out, nil
}
