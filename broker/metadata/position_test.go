package metadata

import (
	"context"
	"errors"
	"strings"
	"testing"

	"runnel.dev/runnel/internal/ids"
)

func TestBootstrapCreatesTheClusterOnce(t *testing.T) {
	found := make(chan *Cluster, 8)
	for range cap(found) {
		c := open(t, testConfig(t, nil))
		go func() {
			cluster, err := c.Bootstrap(t.Context())
			if err != nil {
				t.Error(err)
			}
			found <- cluster
		}()
	}
	first := <-found
	for range cap(found) - 1 {
		if other := <-found; other.ID != first.ID || other.Era != 1 || other.FormatVersion != FormatVersion {
			t.Errorf("%+v and %+v", first, other)
		}
	}
}

func TestBootstrapRefusesAnotherOrOlderEtcd(t *testing.T) {
	c := client(t, nil)
	register(t, c, 1, ids.NewStorageID())
	now := c.Position()
	if now.ClusterID == "" || now.EtcdClusterID == 0 || now.Era != 1 || now.Revision == 0 {
		t.Fatalf("position %+v", now)
	}
	change := func(f func(*Position)) Position {
		p := now
		f(&p)
		return p
	}
	for name, tc := range map[string]struct {
		known Position
		want  error
	}{
		"as it was":              {now, nil},
		"only the cluster id":    {Position{ClusterID: now.ClusterID}, nil},
		"etcd recovered":         {change(func(p *Position) { p.Era, p.Revision, p.EtcdClusterID = 0, 1<<40, 7 }), nil},
		"another Runnel cluster": {change(func(p *Position) { p.ClusterID = "other" }), ErrForeignEtcd},
		"another etcd":           {change(func(p *Position) { p.EtcdClusterID++ }), ErrForeignEtcd},
		"an older revision":      {change(func(p *Position) { p.Revision += 1_000_000 }), ErrOlderEtcd},
		"an older era":           {change(func(p *Position) { p.Era++; p.Revision = 1 }), ErrOlderEtcd},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, nil)
			cfg.Cluster, cfg.Known = c.cfg.Cluster, tc.known
			_, err := open(t, cfg).Bootstrap(t.Context())
			if !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("err = %v, want %v", err, tc.want)
			}
		})
	}
}

// TestBootstrapRefusesAnEmptiedEtcd: a broker that belongs to a cluster never founds another one.
func TestBootstrapRefusesAnEmptiedEtcd(t *testing.T) {
	cfg := testConfig(t, nil)
	cfg.Known = Position{ClusterID: "was here"}
	c := open(t, cfg)
	_, err := c.Bootstrap(t.Context())
	if !errors.Is(err, ErrOlderEtcd) || !strings.Contains(err.Error(), "etcd recover") {
		t.Errorf("err = %v", err)
	}
	resp, err := c.getRaw(t.Context(), "test", c.keys.cluster())
	if err != nil || len(resp.Kvs) != 0 {
		t.Errorf("a cluster was founded: %v, %v", resp, err)
	}
}

// TestEtcdReplacedWhileRunning: every answer is checked, not only the first.
func TestEtcdReplacedWhileRunning(t *testing.T) {
	cfg := serverConfig(t.TempDir())
	urls, stop := ownEtcd(t, cfg)
	conf := testConfig(t, nil)
	conf.Endpoints = urls
	c := open(t, conf)
	if _, err := c.Bootstrap(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, err := c.Register(t.Context(), BrokerInfo{ID: 1, StorageID: ids.NewStorageID()})
	if err != nil {
		t.Fatal(err)
	}
	cache := NewCache(c)
	done := make(chan error, 2)
	start(t, func(ctx context.Context) error { err := cache.Run(ctx); done <- err; return err })
	start(t, func(ctx context.Context) error { err := r.Run(ctx); done <- err; return err })
	wait(t, cache, func(*State) bool { return true })
	stop()
	other := serverConfig(t.TempDir())
	other.ClientURLs, other.Name, other.InitialClusterToken = urls, "other", "other"
	ownEtcd(t, other)
	for range 2 {
		if err := <-done; !errors.Is(err, ErrForeignEtcd) {
			t.Errorf("Run = %v, want a foreign etcd", err)
		}
	}
	if _, err := c.NextProducerBlock(t.Context(), 1); !errors.Is(err, ErrForeignEtcd) {
		t.Errorf("NextProducerBlock = %v", err)
	}
}

// TestAnswerFromThePast: an etcd that was restored from a snapshot has the right id and too low a revision.
func TestAnswerFromThePast(t *testing.T) {
	c := client(t, nil)
	pos := c.Position()
	c.advance(pos.Era, pos.Revision+1000)
	_, err := c.get(t.Context(), "test", "x")
	var older *OlderEtcdError
	if !errors.As(err, &older) || older.Want.Revision != pos.Revision+1000 || older.Got.Revision >= older.Want.Revision {
		t.Errorf("err = %v", err)
	}
}

func TestFutureFormatIsRefused(t *testing.T) {
	c := client(t, nil)
	cluster, revision := value(t, c, c.keys.cluster())
	if cluster == "" {
		t.Fatal("no cluster")
	}
	future, err := encodeCluster(&Cluster{ID: "x", Era: 1, FormatVersion: FormatVersion + 1})
	if err != nil {
		t.Fatal(err)
	}
	if out, err := c.put(t.Context(), c.keys.cluster(), future, revision); err != nil || !out.Applied {
		t.Fatal(out, err)
	}
	cfg := testConfig(t, nil)
	if _, err := open(t, cfg).Bootstrap(t.Context()); !errors.Is(err, ErrFormatVersion) || !errors.Is(err, ErrCorruptValue) {
		t.Errorf("err = %v", err)
	}
}

func TestConfigReportsAllFaults(t *testing.T) {
	_, err := New(Config{Cluster: "a/b", LeaseTTL: 2500e6, DialTimeout: 1, RequestTimeout: 1, ProgressInterval: 1}, nil, quiet, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"Endpoints", "Cluster", "DialTimeout", "RequestTimeout", "AttemptTimeout", "LeaseTTL", "ProgressInterval"} {
		if !strings.Contains(err.Error(), "metadata."+field+" is ") {
			t.Errorf("%s is not reported in:\n%v", field, err)
		}
	}
}
