package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/broker/server"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/tlsreload"
)

// pki writes a CA and certificates into a folder.
type pki struct {
	t    *testing.T
	dir  string
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	path string
	n    int64
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{t: t, dir: t.TempDir()}
	p.path = filepath.Join(p.dir, "ca.pem")
	p.key = p.newKey()
	der := p.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, p.key)
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	p.ca = ca
	p.write(p.path, "CERTIFICATE", der)
	return p
}

func (p *pki) newKey() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	return k
}

func (p *pki) sign(c, parent *x509.Certificate, key *ecdsa.PrivateKey) []byte {
	p.n++
	c.SerialNumber, c.Subject = big.NewInt(p.n), pkix.Name{CommonName: "test"}
	c.NotBefore, c.NotAfter = clock.System().Now().Add(-time.Hour), clock.System().Now().Add(time.Hour)
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	return der
}

func (p *pki) write(path, kind string, der []byte) {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pki) source(cfg tlsreload.Config, host string) *tlsreload.Source {
	p.t.Helper()
	if host != "" {
		key := p.newKey()
		der := p.sign(&x509.Certificate{
			DNSNames: []string{host}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, p.ca, key)
		keyDER, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			p.t.Fatal(err)
		}
		cfg.CertFile, cfg.KeyFile = filepath.Join(p.dir, host+".crt"), filepath.Join(p.dir, host+".key")
		p.write(cfg.CertFile, "CERTIFICATE", der)
		p.write(cfg.KeyFile, "EC PRIVATE KEY", keyDER)
	}
	s, err := tlsreload.New(cfg, clock.System(), discard())
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

func TestNamedListenersWithMutualTLS(t *testing.T) {
	p := newPKI(t)
	inner := bufconn.Listen(1 << 20)
	f := setup(t, func(c *server.Config) {
		c.Listeners = append(c.Listeners, server.Listener{
			Name: "internal", Listener: inner,
			TLS: p.source(tlsreload.Config{CAFile: p.path, RequireClientCert: true}, "broker.test"),
		})
	})
	describe := func(creds grpc.DialOption) (*runnelv1.WatchResponse, error) {
		conn, err := grpc.NewClient("passthrough:///broker.test", creds, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return inner.DialContext(ctx)
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		st, err := runnelv1.NewMetadataClient(conn).Watch(f.ctx(), &runnelv1.WatchRequest{AllTopics: true})
		if err != nil {
			return nil, err
		}
		return st.Recv()
	}
	r, err := describe(grpc.WithTransportCredentials(p.source(tlsreload.Config{CAFile: p.path}, "client.test").Credentials()))
	if err != nil || r.GetBrokers()[0].GetAddress() != "one.local:1" {
		t.Fatalf("addresses of another listener: %v %v", r, err)
	}
	for name, creds := range map[string]grpc.DialOption{
		"no client certificate": grpc.WithTransportCredentials(p.source(tlsreload.Config{CAFile: p.path}, "").Credentials()),
		"plain text":            grpc.WithTransportCredentials(insecure.NewCredentials()),
		"another CA":            grpc.WithTransportCredentials(newPKI(t).source(tlsreload.Config{CAFile: p.path}, "client.test").Credentials()),
	} {
		if _, err := describe(creds); err == nil {
			t.Errorf("%s: admitted", name)
		}
	}
}

type blockingTopics struct{ server.TopicAdmin }

func (blockingTopics) CreateTopic(ctx context.Context, _ *runnelv1.CreateTopicRequest) (*runnelv1.Topic, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestUnaryCallsWithoutADeadlineGetOne(t *testing.T) {
	f := setup(t, func(c *server.Config) {
		c.Topics = blockingTopics{c.Topics}
		c.Limits.UnaryTimeout = time.Millisecond
	})
	_, err := f.admin.CreateTopic(context.WithoutCancel(t.Context()), &runnelv1.CreateTopicRequest{Name: "x"})
	wantReason(t, err, codes.DeadlineExceeded, "DEADLINE_EXCEEDED")
}

func TestHeaderFloodIsRefused(t *testing.T) {
	f := setup(t)
	ctx := grpcmetadata.AppendToOutgoingContext(f.ctx(), "x-flood", strings.Repeat("a", 20<<10))
	if _, err := f.admin.DescribeCluster(ctx, &runnelv1.DescribeClusterRequest{}); err == nil {
		t.Fatal("20 KiB of headers were accepted, the limit is 16 KiB")
	}
	if _, err := f.admin.DescribeCluster(f.ctx(), &runnelv1.DescribeClusterRequest{}); err != nil {
		t.Fatalf("the connection did not survive: %v", err)
	}
}

func TestGarbageOnTheSocketHarmsNobody(t *testing.T) {
	l := bufconn.Listen(1 << 16)
	f := setup(t, func(c *server.Config) { c.Listeners = append(c.Listeners, server.Listener{Name: "raw", Listener: l}) })
	for _, junk := range []string{"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x00", strings.Repeat("\x00", 4096)} {
		conn, err := l.DialContext(f.ctx())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(junk))
		_ = conn.Close()
	}
	if _, err := f.admin.DescribeCluster(f.ctx(), &runnelv1.DescribeClusterRequest{}); err != nil {
		t.Fatal(err)
	}
}

// Opening and cancelling streams as fast as possible leaves nothing behind; TestMain looks for goroutines.
func TestRapidResets(t *testing.T) {
	f := setup(t)
	topic := f.topic("t", 1)
	for range 300 {
		ctx, cancel := context.WithCancel(f.ctx())
		st, err := f.consumer.Fetch(ctx)
		if err == nil {
			err = st.Send(&runnelv1.FetchRequest{StreamCreditBytes: 1, Add: []*runnelv1.FetchAdd{add(1, topic, 0, 0, 1)}})
		}
		cancel()
		if err != nil {
			t.Fatal(err)
		}
	}
	f.put(topic, 0, "fine")
}
