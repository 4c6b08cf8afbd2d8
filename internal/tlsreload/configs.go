package tlsreload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc/credentials"
)

// server returns the settings of one incoming handshake.
func (s *Source) server(nextProtos []string) (*tls.Config, error) {
	m := s.latest()
	if m.cert == nil {
		return nil, fmt.Errorf("%w: a listener needs a certificate", ErrConfig)
	}
	cfg := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   nextProtos,
		Certificates: []tls.Certificate{*m.cert},
		ClientCAs:    m.ca,
		// A resumed session would be admitted by the authorities of its first handshake.
		SessionTicketsDisabled: true,
		Time:                   s.clk.Now,
	}
	switch {
	case s.cfg.RequireClientCert:
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	case m.ca != nil:
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return cfg, nil
}

// Server returns settings for a listener, e.g. of an HTTP server. The protocols are offered by ALPN.
func (s *Source) Server(nextProtos ...string) (*tls.Config, error) {
	first, err := s.server(nextProtos)
	if err != nil {
		return nil, err
	}
	first.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.server(nextProtos) }
	return first, nil
}

// client returns the settings of one outgoing handshake with name.
func (s *Source) client(name string, nextProtos []string) *tls.Config {
	m := s.latest()
	if s.cfg.ServerName != "" {
		name = s.cfg.ServerName
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: nextProtos, ServerName: name, RootCAs: m.ca, Time: s.clk.Now}
	if m.cert != nil {
		cfg.Certificates = []tls.Certificate{*m.cert}
	}
	return cfg
}

// Client returns settings for dialers that take a *tls.Config once and use it for ever, such as etcd's client. Where gRPC
// credentials are possible, Credentials is the simpler choice.
func (s *Source) Client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: s.cfg.ServerName,
		Time:       s.clk.Now,
		// crypto/tls has no hook for changing authorities, so its own check is replaced, not dropped: VerifyConnection does
		// the same with the current ones, and runs for resumed sessions too.
		InsecureSkipVerify: true, //nolint:gosec // see above; verified by VerifyConnection
		VerifyConnection:   s.verifyServer,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if c := s.latest().cert; c != nil {
				return c, nil
			}
			return &tls.Certificate{}, nil
		},
	}
}

func (s *Source) verifyServer(cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the server gave no certificate")
	}
	name := cs.ServerName
	if s.cfg.ServerName != "" {
		name = s.cfg.ServerName
	}
	if name == "" {
		return errors.New("no server name to verify the certificate for")
	}
	opts := x509.VerifyOptions{DNSName: name, Roots: s.latest().ca, Intermediates: x509.NewCertPool(), CurrentTime: s.clk.Now()}
	for _, c := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := cs.PeerCertificates[0].Verify(opts); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	return nil
}

// h2 is the only protocol of gRPC connections.
var h2 = []string{"h2"}

// Credentials returns gRPC transport credentials for listeners and dialers alike; each handshake uses the settings of its time.
func (s *Source) Credentials() credentials.TransportCredentials { return &transport{source: s} }

// transport hands each handshake to gRPC's own TLS credentials, made of the current settings.
type transport struct {
	source *Source
	name   string
}

func (t *transport) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if t.source.cfg.ServerName != "" {
		authority = t.source.cfg.ServerName
	}
	return credentials.NewTLS(t.source.client(t.name, h2)).ClientHandshake(ctx, authority, conn)
}

func (t *transport) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := t.source.server(h2)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg).ServerHandshake(conn)
}

func (t *transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (t *transport) Clone() credentials.TransportCredentials {
	c := *t
	return &c
}

// OverrideServerName is deprecated in gRPC, but part of its interface.
func (t *transport) OverrideServerName(name string) error {
	t.name = name
	return nil
}
