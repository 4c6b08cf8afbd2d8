package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"runnel.dev/runnel/api/runnel/codec"
	runnelv1 "runnel.dev/runnel/api/runnel/v1"
	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/tlsreload"
)

// certificate writes a self-signed one for 127.0.0.1, which is its own authority, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	kb, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: kb}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func source(t *testing.T, cfg tlsreload.Config) *tlsreload.Source {
	t.Helper()
	s, err := tlsreload.New(cfg, clock.System(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTLSBetweenBrokers(t *testing.T) {
	cert, key := certificate(t)
	otherCert, otherKey := certificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{dir: newDirectory()}
	g := grpc.NewServer(grpc.ForceServerCodecV2(codec.New()), grpc.Creds(source(t, tlsreload.Config{
		CertFile: cert, KeyFile: key, CAFile: cert, RequireClientCert: true,
	}).Credentials()))
	runnelv1.RegisterReplicationServer(g, b)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := g.Serve(l); err != nil {
			t.Error(err)
		}
	})
	defer wg.Wait()
	defer g.Stop()

	for name, tt := range map[string]struct {
		tls     *tlsreload.Source
		refused bool
	}{
		"mutual":                {source(t, tlsreload.Config{CertFile: cert, KeyFile: key, CAFile: cert}), false},
		"plain text":            {nil, true},
		"unknown authority":     {source(t, tlsreload.Config{CertFile: cert, KeyFile: key, CAFile: otherCert}), true},
		"foreign certificate":   {source(t, tlsreload.Config{CertFile: otherCert, KeyFile: otherKey, CAFile: cert}), true},
		"another server's name": {source(t, tlsreload.Config{CertFile: cert, KeyFile: key, CAFile: cert, ServerName: "elsewhere"}), true},
		"no certificate at all": {source(t, tlsreload.Config{CAFile: cert}), true},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(Config{Directory: caller(l.Addr().String()), Codec: codec.New(), TLS: tt.tls, Logger: slog.New(slog.DiscardHandler)})
			defer c.Close()
			b.mu.Lock()
			before := len(b.callers)
			b.mu.Unlock()
			err := call(t, c)
			b.mu.Lock()
			reached := len(b.callers) > before
			b.mu.Unlock()
			if reached == tt.refused || tt.refused && status.Code(err) != codes.Unavailable {
				t.Fatalf("reached %v: %v", reached, err)
			}
		})
	}
}
