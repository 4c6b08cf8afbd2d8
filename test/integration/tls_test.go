package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/broker/config"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/testcluster"
)

func roots(t *testing.T, ca *testcluster.CA) *x509.CertPool {
	t.Helper()
	pem, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate in", ca.File)
	}
	return pool
}

// check asks the health service once.
func check(t *testing.T, address string, cfg *tls.Config) error {
	t.Helper()
	conn := dial(t, address, grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	_, err := healthv1.NewHealthClient(conn).Check(bounded(t), &healthv1.HealthCheckRequest{})
	return err
}

func wantRefusal(t *testing.T, err error, part string) {
	t.Helper()
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v, want UNAVAILABLE that says %q", err, part)
	}
}

func TestTLSListener(t *testing.T) {
	t.Parallel()
	ca, other := testcluster.NewCA(t, "ours"), testcluster.NewCA(t, "other")
	id := ca.Issue(t, "broker")
	c := testcluster.New(t, testcluster.Options{
		Etcd: shared,
		Configure: func(c *config.Config) {
			c.Listeners[0].TLS = config.ServerTLS{CertFile: id.Cert, KeyFile: id.Key}
		},
		ClientOptions: []client.Option{client.TLSFiles(ca.File, "", "", "")},
	})
	cl := c.Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, "secret")
	if got := texts(read(t, cl, client.Earliest, tp("t", 0))); len(got) != 1 || got[0] != "secret" {
		t.Errorf("read %q", got)
	}
	address := c.Broker(1).Address()
	wantRefusal(t, check(t, address, &tls.Config{RootCAs: roots(t, other)}), "certificate signed by unknown authority")
	wantRefusal(t, check(t, address, &tls.Config{RootCAs: roots(t, ca), ServerName: "elsewhere"}), "not elsewhere")
	plain := dial(t, address)
	if _, err := healthv1.NewHealthClient(plain).Check(bounded(t), &healthv1.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("plain text on a TLS listener: %v", err)
	}
	if err := check(t, address, &tls.Config{RootCAs: roots(t, ca)}); err != nil {
		t.Error(err)
	}
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ca, clients, other := testcluster.NewCA(t, "ours"), testcluster.NewCA(t, "clients"), testcluster.NewCA(t, "other")
	server, alice := ca.Issue(t, "broker"), clients.Issue(t, "alice")
	c := testcluster.New(t, testcluster.Options{
		Etcd: shared,
		Configure: func(c *config.Config) {
			c.Listeners[0].TLS = config.ServerTLS{CertFile: server.Cert, KeyFile: server.Key, ClientCAFile: clients.File}
		},
		ClientOptions: []client.Option{client.TLSFiles(ca.File, alice.Cert, alice.Key, "")},
	})
	cl := c.Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, "v")
	address := c.Broker(1).Address()
	// The client's side ends its handshake before the broker has judged it, and may meet a closed connection then.
	for name, certs := range map[string][]tls.Certificate{"none": nil, "another authority's": {keyPair(t, other.Issue(t, "mallory"))}, "the server's authority's": {keyPair(t, ca.Issue(t, "eve"))}} {
		if err := check(t, address, &tls.Config{RootCAs: roots(t, ca), Certificates: certs}); status.Code(err) != codes.Unavailable {
			t.Errorf("client certificate: %s: %v", name, err)
		}
	}
	if err := check(t, address, &tls.Config{RootCAs: roots(t, ca), Certificates: []tls.Certificate{keyPair(t, alice)}}); err != nil {
		t.Error(err)
	}
}

func keyPair(t *testing.T, id testcluster.Identity) tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(id.Cert, id.Key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// subject is the name in the certificate that a listener shows.
func subject(address string, pool *x509.CertPool) (name string, err error) {
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

func TestCertificatesRotateWithoutRestart(t *testing.T) {
	t.Parallel()
	ca := testcluster.NewCA(t, "ours")
	server, user := ca.Issue(t, "before"), ca.Issue(t, "user")
	c := testcluster.New(t, testcluster.Options{
		Etcd: shared,
		Configure: func(c *config.Config) {
			c.Listeners[0].TLS = config.ServerTLS{CertFile: server.Cert, KeyFile: server.Key, ClientCAFile: ca.File}
		},
		ClientOptions: []client.Option{client.TLSFiles(ca.File, user.Cert, user.Key, "")},
	})
	cl := c.Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	l := startLoad(t, cl, "t", 1)
	l.goesOn(50)
	address := c.Broker(1).Address()
	pool := roots(t, ca)
	if name, err := subject(address, pool); err != nil || name != "before" {
		t.Fatalf("certificate of %q, %v", name, err)
	}
	ca.Renew(t, server, "after")
	ca.Renew(t, user, "user again")
	testcluster.Eventually(t, func() error {
		name, err := subject(address, pool)
		if err == nil && name != "after" {
			err = fmt.Errorf("still the certificate of %q", name)
		}
		return err
	})
	l.goesOn(50) // connections that are open stay
	l.check()
	produce(t, c.Client(), "t", 0, "over a new connection")
}

func TestEtcdOverTLS(t *testing.T) {
	t.Parallel()
	ca, other := testcluster.NewCA(t, "ours"), testcluster.NewCA(t, "other")
	etcd := testcluster.StartEtcd(t, testcluster.EtcdOptions{TLS: ca.Issue(t, "etcd"), ClientCA: ca.File})
	broker := ca.Issue(t, "broker")
	c := testcluster.New(t, testcluster.Options{Etcd: etcd, Configure: func(c *config.Config) {
		c.Etcd.TLS = config.ClientTLS{CAFile: ca.File, CertFile: broker.Cert, KeyFile: broker.Key}
	}})
	cl := c.Client()
	create(t, cl, "t", 1, client.TopicConfig{})
	produce(t, cl, "t", 0, "v")
	// A broker that does not trust etcd, or that etcd does not trust, waits and says so.
	for name, secure := range map[string]config.ClientTLS{
		"the wrong authority": {CAFile: other.File, CertFile: broker.Cert, KeyFile: broker.Key},
		"no certificate":      {CAFile: ca.File},
	} {
		stranger := c.AddBroker(2)
		stranger.Config.Etcd.TLS = secure
		stranger.Config.Etcd.RequestTimeout = config.Duration(200 * 1e6)
		stranger.Launch()
		testcluster.Eventually(t, func() error {
			state, err := stranger.Readiness()
			if err != nil {
				return err
			}
			if state.Ready || state.Conditions[0].Reason != "waiting for etcd" {
				t.Errorf("%s: %+v", name, state)
			}
			return nil
		})
		stranger.Stop()
	}
	if info, err := cl.Admin().DescribeCluster(context.WithoutCancel(bounded(t))); err != nil || len(info.Brokers) != 1 {
		t.Errorf("DescribeCluster: %+v, %v", info, err)
	}
}

// Files that cannot be used are refused at the start, never replaced by less security.
func TestUnusableTLSFiles(t *testing.T) {
	t.Parallel()
	c := start(t)
	ca := testcluster.NewCA(t, "ours")
	id := ca.Issue(t, "broker")
	for name, edit := range map[string]func(*config.Config){
		"no such certificate": func(c *config.Config) {
			c.Listeners[0].TLS = config.ServerTLS{CertFile: id.Cert + ".none", KeyFile: id.Key}
		},
		"no such client authorities": func(c *config.Config) {
			c.Listeners[0].TLS = config.ServerTLS{CertFile: id.Cert, KeyFile: id.Key, ClientCAFile: ca.File + ".none"}
		},
		"a key as authorities": func(c *config.Config) {
			c.Listeners[0].TLS = config.ServerTLS{CertFile: id.Cert, KeyFile: id.Key, ClientCAFile: id.Key}
		},
	} {
		b := c.AddBroker(2)
		edit(&b.Config)
		b.Launch()
		if err := b.Wait(); err == nil || !strings.Contains(err.Error(), "listener client: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
