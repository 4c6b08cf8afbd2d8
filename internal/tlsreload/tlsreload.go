// Package tlsreload gives listeners and dialers TLS settings whose files may change under them: certificates are rotated by
// replacing files, without a restart and without touching connections that are open.
//
// A [Source] looks at its files when a handshake begins, at most once per Config.CheckInterval, and compares contents (not
// times: atomic symlink swaps, as Kubernetes does them, keep old times). New contents apply to all later handshakes at once,
// certificate, key and authorities together, so that no handshake sees half of a rotation.
//
// It fails closed. A file that is missing, unreadable or malformed at the start is an error. Later, such a fault is logged and
// the last good settings stay: peers are still verified against the last good authorities, and an expired certificate is still
// expired. Verification is never skipped, and a source with a CA file never falls back to the system's authorities.
package tlsreload

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"runnel.dev/runnel/internal/clock"
)

// DefaultCheckInterval is how often files are looked at unless Config says otherwise.
const DefaultCheckInterval = time.Second

// Errors to test for with errors.Is.
var (
	// ErrConfig: settings that contradict each other.
	ErrConfig = errors.New("invalid TLS settings")
	// ErrFile: a file is missing, unreadable, or not what it should be. Wrapped by *FileError.
	ErrFile = errors.New("unusable TLS file")
)

// FileError says which file is unusable and why.
type FileError struct {
	Path string
	Err  error
}

// Error implements error.
func (e *FileError) Error() string { return fmt.Sprintf("TLS file %s: %v", e.Path, e.Err) }

// Unwrap returns the cause and ErrFile.
func (e *FileError) Unwrap() []error { return []error{ErrFile, e.Err} }

// Config names the files of one listener or dialer. All are PEM.
type Config struct {
	// CertFile and KeyFile are the own certificate (with its intermediates) and key. Needed by listeners; dialers have them when
	// the other side asks for client certificates.
	CertFile, KeyFile string
	// CAFile holds the authorities that the peer's certificate is verified against. Empty: a dialer uses the system's, a listener
	// asks for no client certificate.
	CAFile string
	// RequireClientCert makes a listener refuse clients without a certificate of CAFile's authorities (mTLS). Without it, a
	// listener with a CAFile verifies certificates that are given.
	RequireClientCert bool
	// ServerName overrides the name that a dialer verifies the server's certificate for. Empty: the host that was dialed.
	ServerName string
	// CheckInterval is the least time between two looks at the files. Default 1 s.
	CheckInterval time.Duration
}

// Enabled reports whether any TLS setting was made.
func (c Config) Enabled() bool {
	return c.CertFile != "" || c.KeyFile != "" || c.CAFile != "" || c.RequireClientCert
}

// Validate returns all faults, joined; each is an ErrConfig.
func (c Config) Validate() error {
	var faults []error
	if (c.CertFile == "") != (c.KeyFile == "") {
		faults = append(faults, fmt.Errorf("%w: certificate file %q and key file %q have to be set together", ErrConfig, c.CertFile, c.KeyFile))
	}
	if c.RequireClientCert && c.CAFile == "" {
		faults = append(faults, fmt.Errorf("%w: client certificates are required but there is no CA file to verify them with", ErrConfig))
	}
	if c.RequireClientCert && c.CertFile == "" {
		faults = append(faults, fmt.Errorf("%w: a listener that requires client certificates needs a certificate of its own", ErrConfig))
	}
	if c.CheckInterval < 0 {
		faults = append(faults, fmt.Errorf("%w: check interval %v is negative", ErrConfig, c.CheckInterval))
	}
	return errors.Join(faults...)
}

// Source serves the current settings. Safe for concurrent use. It starts nothing.
type Source struct {
	cfg Config
	clk clock.Clock
	lg  *slog.Logger

	// current is what handshakes use: one immutable snapshot, replaced as a whole.
	current atomic.Pointer[material]
	// reloads and failures count changes that were taken over, and those that could not be.
	reloads, failures atomic.Int64

	mu struct {
		sync.Mutex
		next   time.Time // no look at the files before
		failed string    // last fault, so that a lasting one is logged once
	}
}

// material is the content of the files, as read and as parsed.
type material struct {
	certPEM, keyPEM, caPEM []byte
	cert                   *tls.Certificate // nil: none
	ca                     *x509.CertPool   // nil: none given
}

// New reads the files and returns a source, or the first fault.
func New(cfg Config, clk clock.Clock, lg *slog.Logger) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.CheckInterval == 0 {
		cfg.CheckInterval = DefaultCheckInterval
	}
	s := &Source{cfg: cfg, clk: clk, lg: lg}
	m, err := s.read()
	if err != nil {
		return nil, err
	}
	if err := m.parse(cfg); err != nil {
		return nil, err
	}
	s.current.Store(m)
	s.mu.next = clk.Now().Add(cfg.CheckInterval)
	return s, nil
}

// Reloads returns how often changed files were taken over, and how often they could not be.
func (s *Source) Reloads() (taken, failed int64) { return s.reloads.Load(), s.failures.Load() }

// NotAfter returns when the own certificate expires; zero when there is none. For metrics and warnings.
func (s *Source) NotAfter() time.Time {
	m := s.latest()
	if m.cert == nil || m.cert.Leaf == nil {
		return time.Time{}
	}
	return m.cert.Leaf.NotAfter
}

// latest returns the settings for a handshake that begins now.
func (s *Source) latest() *material {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clk.Now()
	if now.Before(s.mu.next) {
		return s.current.Load()
	}
	s.mu.next = now.Add(s.cfg.CheckInterval)
	s.reloadLocked()
	return s.current.Load()
}

func (s *Source) reloadLocked() {
	old := s.current.Load()
	m, err := s.read()
	if err == nil && m.sameFiles(old) {
		s.mu.failed = ""
		return
	}
	if err == nil {
		err = m.parse(s.cfg)
	}
	if err != nil {
		s.failures.Add(1)
		if text := err.Error(); text != s.mu.failed {
			s.mu.failed = text
			s.lg.Error("changed TLS files are unusable, the previous ones stay in use", slog.Any("error", err))
		}
		return
	}
	s.mu.failed = ""
	s.current.Store(m)
	s.reloads.Add(1)
	s.lg.Info("TLS files reloaded", slog.String("cert", s.cfg.CertFile), slog.String("ca", s.cfg.CAFile))
}

func (s *Source) read() (*material, error) {
	m := &material{}
	for _, f := range []struct {
		path string
		dst  *[]byte
	}{{s.cfg.CertFile, &m.certPEM}, {s.cfg.KeyFile, &m.keyPEM}, {s.cfg.CAFile, &m.caPEM}} {
		if f.path == "" {
			continue
		}
		b, err := os.ReadFile(f.path)
		if err != nil {
			return nil, &FileError{Path: f.path, Err: err}
		}
		*f.dst = b
	}
	return m, nil
}

func (m *material) sameFiles(o *material) bool {
	return bytes.Equal(m.certPEM, o.certPEM) && bytes.Equal(m.keyPEM, o.keyPEM) && bytes.Equal(m.caPEM, o.caPEM)
}

func (m *material) parse(cfg Config) error {
	if cfg.CertFile != "" {
		cert, err := tls.X509KeyPair(m.certPEM, m.keyPEM)
		if err != nil {
			// The pair may be half rotated, or one of both malformed; the key's content is never part of the message.
			return &FileError{Path: cfg.CertFile, Err: fmt.Errorf("with key %s: %w", cfg.KeyFile, err)}
		}
		m.cert = &cert
	}
	if cfg.CAFile == "" {
		return nil
	}
	m.ca = x509.NewCertPool()
	n := 0
	for rest := m.caPEM; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return &FileError{Path: cfg.CAFile, Err: fmt.Errorf("certificate %d: %w", n, err)}
		}
		m.ca.AddCert(c)
		n++
	}
	if n == 0 {
		return &FileError{Path: cfg.CAFile, Err: errors.New("holds no certificate")}
	}
	return nil
}
