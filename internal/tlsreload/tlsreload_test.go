package tlsreload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"runnel.dev/runnel/internal/clock"
)

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

var serials atomic.Int64

func nextSerial() *big.Int { return big.NewInt(serials.Add(1)) }

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: nextSerial(), Subject: pkix.Name{CommonName: name}, NotBefore: epoch.Add(-time.Hour), NotAfter: epoch.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue writes name.crt and name.key, valid for host until notAfter.
func (a *authority) issue(t *testing.T, dir, name, host string, notAfter time.Time) Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: nextSerial(), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: epoch.Add(-time.Hour), NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
	write(t, cfg.CertFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, cfg.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}))
	return cfg
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, cfg Config, clk clock.Clock) *Source {
	t.Helper()
	s, err := New(cfg, clk, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shake lets both sides handshake through gRPC's credentials, and returns both errors and the serial number of the server's certificate.
func shake(t *testing.T, server, client *Source, host string) (serverSerial string, clientErr, serverErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		tc, _, err := server.Credentials().ServerHandshake(conn)
		if err == nil {
			_, err = tc.Write([]byte("x"))
		}
		done <- err
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tc, info, clientErr := client.Credentials().ClientHandshake(t.Context(), host, conn)
	if clientErr == nil {
		serverSerial = info.(credentials.TLSInfo).State.PeerCertificates[0].SerialNumber.String()
		// In TLS 1.3 a refused client certificate shows with the first read.
		_, clientErr = tc.Read(make([]byte, 1))
	} else {
		conn.Close()
	}
	return serverSerial, clientErr, <-done
}

func TestMutualTLS(t *testing.T) {
	dir := t.TempDir()
	clk := clock.NewFake(epoch)
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	caFile, otherFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "other.pem")
	write(t, caFile, ca.pem)
	write(t, otherFile, other.pem)
	year := epoch.AddDate(1, 0, 0)

	serverCfg := ca.issue(t, dir, "server", "broker.test", year)
	serverCfg.CAFile, serverCfg.RequireClientCert = caFile, true
	server := open(t, serverCfg, clk)

	with := func(cfg Config, ca string) Config { cfg.CAFile = ca; return cfg }
	cases := map[string]struct {
		client Config
		host   string
		ok     bool
	}{
		"certificate of the CA":  {with(ca.issue(t, dir, "good", "client.test", year), caFile), "broker.test", true},
		"no client certificate":  {Config{CAFile: caFile}, "broker.test", false},
		"client of another CA":   {with(other.issue(t, dir, "foreign", "client.test", year), caFile), "broker.test", false},
		"expired client":         {with(ca.issue(t, dir, "expired", "client.test", epoch.Add(-time.Minute)), caFile), "broker.test", false},
		"server of another CA":   {with(ca.issue(t, dir, "good2", "client.test", year), otherFile), "broker.test", false},
		"server of another name": {with(ca.issue(t, dir, "good3", "client.test", year), caFile), "elsewhere.test", false},
		"system's authorities":   {ca.issue(t, dir, "good4", "client.test", year), "broker.test", false},
		"server name is overridden": {func() Config {
			c := with(ca.issue(t, dir, "good5", "c", year), caFile)
			c.ServerName = "broker.test"
			return c
		}(), "10.0.0.1", true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, clientErr, serverErr := shake(t, server, open(t, tc.client, clk), tc.host)
			if tc.ok && (clientErr != nil || serverErr != nil) {
				t.Fatalf("refused: client %v, server %v", clientErr, serverErr)
			}
			if !tc.ok && clientErr == nil {
				t.Fatalf("accepted (server: %v)", serverErr)
			}
		})
	}
}

func TestRotationAppliesToTheNextHandshake(t *testing.T) {
	dir := t.TempDir()
	clk := clock.NewFake(epoch)
	ca := newAuthority(t, "ca")
	caFile := filepath.Join(dir, "ca.pem")
	write(t, caFile, ca.pem)
	serverCfg := ca.issue(t, dir, "server", "broker.test", epoch.AddDate(1, 0, 0))
	server, client := open(t, serverCfg, clk), open(t, Config{CAFile: caFile}, clk)
	first, _, _ := shake(t, server, client, "broker.test")

	ca.issue(t, dir, "server", "broker.test", epoch.AddDate(2, 0, 0))
	if again, _, _ := shake(t, server, client, "broker.test"); again != first {
		t.Fatal("files are read more often than the interval says")
	}
	clk.Advance(DefaultCheckInterval)
	second, clientErr, serverErr := shake(t, server, client, "broker.test")
	if clientErr != nil || serverErr != nil || second == first {
		t.Fatalf("the new certificate is not in use: %v, %v", clientErr, serverErr)
	}
	if got := server.NotAfter(); !got.Equal(epoch.AddDate(2, 0, 0)) {
		t.Fatalf("NotAfter %v", got)
	}

	// The authority changes: the client follows its file, on both paths.
	next := newAuthority(t, "next")
	next.issue(t, dir, "server", "broker.test", epoch.AddDate(2, 0, 0))
	clk.Advance(DefaultCheckInterval)
	if _, clientErr, _ := shake(t, server, client, "broker.test"); clientErr == nil {
		t.Fatal("accepted a server of an authority that is not trusted")
	}
	write(t, caFile, next.pem)
	clk.Advance(DefaultCheckInterval)
	if _, clientErr, serverErr := shake(t, server, client, "broker.test"); clientErr != nil || serverErr != nil {
		t.Fatalf("%v, %v", clientErr, serverErr)
	}
	if taken, failed := client.Reloads(); taken != 1 || failed != 0 {
		t.Fatalf("reloads %d, failures %d", taken, failed)
	}
}

func TestBrokenFilesKeepTheLastGoodOnes(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, cfg Config){
		"CA file missing":     func(t *testing.T, cfg Config) { remove(t, cfg.CAFile) },
		"CA file empty":       func(t *testing.T, cfg Config) { write(t, cfg.CAFile, nil) },
		"key of another cert": func(t *testing.T, cfg Config) { write(t, cfg.KeyFile, []byte("junk")) },
		"certificate missing": func(t *testing.T, cfg Config) { remove(t, cfg.CertFile) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			clk := clock.NewFake(epoch)
			ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
			caFile := filepath.Join(dir, "ca.pem")
			write(t, caFile, ca.pem)
			cfg := ca.issue(t, dir, "server", "broker.test", epoch.AddDate(1, 0, 0))
			cfg.CAFile, cfg.RequireClientCert = caFile, true
			server := open(t, cfg, clk)
			clientCA := filepath.Join(dir, "client-ca.pem")
			write(t, clientCA, ca.pem)
			good := ca.issue(t, dir, "good", "c", epoch.AddDate(1, 0, 0))
			good.CAFile = clientCA
			bad := other.issue(t, dir, "bad", "c", epoch.AddDate(1, 0, 0))
			bad.CAFile = clientCA

			damage(t, cfg)
			clk.Advance(time.Minute)
			if _, clientErr, serverErr := shake(t, server, open(t, good, clk), "broker.test"); clientErr != nil || serverErr != nil {
				t.Fatalf("%v, %v", clientErr, serverErr)
			}
			if _, clientErr, _ := shake(t, server, open(t, bad, clk), "broker.test"); clientErr == nil {
				t.Fatal("failed open")
			}
			if _, failed := server.Reloads(); failed == 0 {
				t.Fatal("the fault was not counted")
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func TestStartFailsClosed(t *testing.T) {
	dir := t.TempDir()
	ca := newAuthority(t, "ca")
	cfg := ca.issue(t, dir, "server", "broker.test", epoch.AddDate(1, 0, 0))
	junk := filepath.Join(dir, "junk.pem")
	write(t, junk, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	change := func(f func(*Config)) Config { c := cfg; f(&c); return c }
	for name, tc := range map[string]struct {
		cfg  Config
		want error
		text string
	}{
		"missing CA file":      {change(func(c *Config) { c.CAFile = filepath.Join(dir, "absent.pem") }), ErrFile, "absent.pem"},
		"malformed CA file":    {change(func(c *Config) { c.CAFile = junk }), ErrFile, "junk.pem"},
		"key as CA file":       {change(func(c *Config) { c.CAFile = c.KeyFile }), ErrFile, "no certificate"},
		"mTLS without CA file": {change(func(c *Config) { c.RequireClientCert = true }), ErrConfig, "no CA file"},
		"certificate, no key":  {change(func(c *Config) { c.KeyFile = "" }), ErrConfig, "together"},
		"wrong key":            {change(func(c *Config) { c.KeyFile = junk }), ErrFile, "server.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(tc.cfg, clock.NewFake(epoch), slog.New(slog.DiscardHandler))
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got %v, want %v with %q", err, tc.want, tc.text)
			}
		})
	}
	all := Config{CertFile: "c", RequireClientCert: true, CheckInterval: -1}.Validate()
	for _, text := range []string{"together", "no CA file", "negative"} {
		if all == nil || !strings.Contains(all.Error(), text) {
			t.Fatalf("%v lacks %q", all, text)
		}
	}
	s := open(t, Config{CAFile: write2(t, dir, ca.pem)}, clock.NewFake(epoch))
	if _, err := s.Server("h2"); !errors.Is(err, ErrConfig) {
		t.Fatalf("a listener without certificate: %v", err)
	}
}

func write2(t *testing.T, dir string, b []byte) string {
	t.Helper()
	p := filepath.Join(dir, "ca-only.pem")
	write(t, p, b)
	return p
}

// TestClientConfigVerifies covers the path without gRPC credentials: a plain *tls.Config for dialers that keep one for ever.
func TestClientConfigVerifies(t *testing.T) {
	dir := t.TempDir()
	clk := clock.NewFake(epoch)
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	caFile := filepath.Join(dir, "ca.pem")
	write(t, caFile, ca.pem)
	serverCfg := ca.issue(t, dir, "server", "broker.test", epoch.AddDate(1, 0, 0))
	serverCfg.CAFile, serverCfg.RequireClientCert = caFile, true
	server, err := open(t, serverCfg, clk).Server("h2")
	if err != nil {
		t.Fatal(err)
	}
	clientCA := filepath.Join(dir, "client-ca.pem")
	write(t, clientCA, ca.pem)
	clientCfg := ca.issue(t, dir, "client", "client.test", epoch.AddDate(1, 0, 0))
	clientCfg.CAFile = clientCA
	client := open(t, clientCfg, clk).Client()

	dial := func(host string) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		a, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer b.Close()
			if c := tls.Server(b, server); c.Handshake() == nil {
				_, _ = c.Write([]byte("x"))
			}
		}()
		cfg := client.Clone()
		cfg.ServerName = host
		c := tls.Client(a, cfg)
		if err := c.Handshake(); err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		return err
	}
	if err := dial("broker.test"); err != nil {
		t.Fatal(err)
	}
	if err := dial("elsewhere.test"); err == nil {
		t.Fatal("accepted another name")
	}
	write(t, clientCA, other.pem)
	clk.Advance(time.Minute)
	var verification *tls.CertificateVerificationError
	if err := dial("broker.test"); !errors.As(err, &verification) {
		t.Fatalf("after the authority was replaced: %v", err)
	}
	clk.Advance(20 * 365 * 24 * time.Hour)
	write(t, clientCA, ca.pem)
	if err := dial("broker.test"); err == nil {
		t.Fatal("accepted an expired server")
	}
}
