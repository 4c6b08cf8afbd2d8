package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// DefaultPort is where brokers listen for gRPC unless told otherwise.
const DefaultPort = "7650"

// parseURL reads "runnel://h1:7650,h2:7650"; the scheme and the port may be left out.
func parseURL(s string) ([]string, error) {
	rest, hasScheme := strings.CutPrefix(s, "runnel://")
	if !hasScheme && strings.Contains(s, "://") {
		return nil, fmt.Errorf("client: %q: the scheme has to be runnel://", s)
	}
	var seeds []string
	for part := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), ",") {
		part = strings.TrimSpace(part)
		host, port, err := net.SplitHostPort(part)
		if err != nil {
			host, port = strings.Trim(part, "[]"), DefaultPort
			if strings.Contains(host, ":") && !strings.HasPrefix(part, "[") {
				return nil, fmt.Errorf("client: %q: %w", s, err)
			}
		}
		if _, err := url.Parse("//" + net.JoinHostPort(host, port)); err != nil || host == "" || strings.ContainsAny(host, "/?#@ ") {
			return nil, fmt.Errorf("client: %q: want runnel://host:port,…, got the address %q", s, part)
		}
		seeds = append(seeds, net.JoinHostPort(host, port))
	}
	return seeds, nil
}

// tlsFiles reads its files anew when their modification time or size changes; it is consulted once per handshake.
type tlsFiles struct {
	ca, cert, key, serverName string

	mu struct {
		sync.Mutex
		roots   *x509.CertPool
		rootsAt fileState
		pair    *tls.Certificate
		certAt  fileState
		keyAt   fileState
	}
}

type fileState struct {
	mod  time.Time
	size int64
}

func stateOf(name string) (fileState, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return fileState{}, err
	}
	return fileState{fi.ModTime(), fi.Size()}, nil
}

// check loads the files once, so that a mistake shows at Open.
func (f *tlsFiles) check() error {
	if (f.cert == "") != (f.key == "") {
		return errors.New("client: a TLS certificate and its key belong together, only one file is named")
	}
	_, err := f.config()
	return err
}

// config is the configuration for one handshake, with the files as they are now.
func (f *tlsFiles) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.serverName}
	if f.ca != "" {
		roots, err := f.loadRoots()
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = roots
	}
	if f.cert != "" {
		pair, err := f.loadPair()
		if err != nil {
			return nil, err
		}
		cfg.Certificates = []tls.Certificate{*pair}
	}
	return cfg, nil
}

// reloadingCredentials are gRPC credentials that look at the files before each handshake.
type reloadingCredentials struct{ files *tlsFiles }

var _ credentials.TransportCredentials = reloadingCredentials{}

// ClientHandshake implements credentials.TransportCredentials.
func (c reloadingCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := c.files.config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// ServerHandshake implements credentials.TransportCredentials; clients do not serve.
func (c reloadingCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("client: these credentials are for clients")
}

// Info implements credentials.TransportCredentials.
func (c reloadingCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls", ServerName: c.files.serverName}
}

// Clone implements credentials.TransportCredentials; the files are shared.
func (c reloadingCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName implements credentials.TransportCredentials.
func (c reloadingCredentials) OverrideServerName(string) error {
	return errors.New("client: the server name is an argument of TLSFiles")
}

func (f *tlsFiles) loadRoots() (*x509.CertPool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := stateOf(f.ca)
	if err != nil {
		return nil, fmt.Errorf("client: TLS roots: %w", err)
	}
	if f.mu.roots != nil && at == f.mu.rootsAt {
		return f.mu.roots, nil
	}
	pem, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, fmt.Errorf("client: TLS roots: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("client: TLS roots: %s holds no PEM certificate", f.ca)
	}
	f.mu.roots, f.mu.rootsAt = roots, at
	return roots, nil
}

func (f *tlsFiles) loadPair() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	certAt, err := stateOf(f.cert)
	if err != nil {
		return nil, fmt.Errorf("client: TLS certificate: %w", err)
	}
	keyAt, err := stateOf(f.key)
	if err != nil {
		return nil, fmt.Errorf("client: TLS key: %w", err)
	}
	if f.mu.pair != nil && certAt == f.mu.certAt && keyAt == f.mu.keyAt {
		return f.mu.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		if f.mu.pair != nil {
			return f.mu.pair, nil // the files are being replaced one after the other
		}
		return nil, fmt.Errorf("client: TLS certificate: %w", err)
	}
	f.mu.pair, f.mu.certAt, f.mu.keyAt = &pair, certAt, keyAt
	return f.mu.pair, nil
}
