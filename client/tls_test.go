package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"runnel.dev/runnel/client/fakebroker"
)

// selfSigned makes a certificate for names that is its own root, and returns it with its PEM form.
func selfSigned(t *testing.T, names ...string) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// terminate puts TLS in front of a fake cluster: a dialer whose connections expect it.
func terminate(fake *fakebroker.Cluster, cert tls.Certificate) func(context.Context, string) (net.Conn, error) {
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12}
	return func(ctx context.Context, address string) (net.Conn, error) {
		l := bufconn.Listen(64 << 10) // unlike net.Pipe's, its ends may both write at once, as a refused handshake does
		accepted := make(chan net.Conn, 1)
		go func() {
			defer close(accepted)
			if conn, err := l.Accept(); err == nil {
				accepted <- conn
			}
		}()
		near, err := l.DialContext(ctx)
		if err != nil {
			_ = l.Close()
			return nil, err
		}
		far := <-accepted
		_ = l.Close()
		plain, err := fake.Dial(ctx, address)
		if err != nil {
			_ = near.Close()
			return nil, err
		}
		secure := tls.Server(far, cfg)
		pump := func(to io.Writer, from io.Reader) {
			_, _ = io.Copy(to, from) // ends when either side closes
			_ = plain.Close()
			_ = far.Close()
		}
		go pump(plain, secure)
		go pump(secure, plain)
		return near, nil
	}
}

func TestTLSFiles(t *testing.T) {
	fake := fakebroker.Start()
	defer fake.Close()
	fake.CreateTopic("t", 1)
	cert, root := selfSigned(t, "broker-1")
	_, foreign := selfSigned(t, "broker-1")
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, bad := write("ca.pem", root), write("foreign.pem", foreign)
	open := func(opts ...Option) (*Client, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return Open(ctx, fake.URL(), append(opts, Dialer(terminate(fake, cert)))...)
	}

	c, err := open(TLSFiles(good, "", "", ""))
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.NewProducer()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.ProduceSync(t.Context(), rec("t", "a")); err != nil {
		t.Error(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}

	refused := func(why, want string, opts ...Option) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := Open(ctx, fake.URL(), append(opts, Dialer(terminate(fake, cert)))...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", why, err, want)
		}
	}
	refused("a foreign root", "certificate", TLSFiles(bad, "", "", ""))
	refused("another name", "other", TLSFiles(good, "", "", "other"))
	refused("a missing file", "nowhere.pem", TLSFiles(filepath.Join(dir, "nowhere.pem"), "", "", ""))
	refused("a certificate without its key", "", TLSFiles(good, good, "", ""))
	if _, err := open(TLS(&tls.Config{MinVersion: tls.VersionTLS12}), TLSFiles(good, "", "", "")); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("both kinds of settings: %v", err)
	}
}
