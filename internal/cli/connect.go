package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"runnel.dev/runnel/client"
)

const (
	defaultServer  = "localhost:7650"
	defaultTimeout = 30 * time.Second
	// openTimeout bounds the wait for a first broker: a mistyped address should not cost half a minute.
	openTimeout  = 10 * time.Second
	closeTimeout = 30 * time.Second
)

// tlsFlags name the files that secure the connection.
type tlsFlags struct {
	on            bool
	ca, cert, key string
	serverName    string
}

func (t *tlsFlags) bind(f *pflag.FlagSet) {
	f.BoolVar(&t.on, "tls", false, "use TLS with the system's roots; implied by the files below")
	f.StringVar(&t.ca, "tls-ca-file", "", "PEM roots that the brokers' certificates lead to")
	f.StringVar(&t.cert, "tls-cert-file", "", "PEM certificate to show to brokers")
	f.StringVar(&t.key, "tls-key-file", "", "PEM key of that certificate")
	f.StringVar(&t.serverName, "tls-server-name", "", "name expected in the brokers' certificates")
}

func (t *tlsFlags) enabled() bool { return t.on || t.ca != "" || t.cert != "" || t.key != "" }

// durationFlag is a positive duration.
type durationFlag time.Duration

func (d *durationFlag) String() string { return time.Duration(*d).String() }
func (d *durationFlag) Type() string   { return "duration" }
func (d *durationFlag) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		return err
	}
	if v <= 0 {
		return errors.New("want more than 0s")
	}
	*d = durationFlag(v)
	return nil
}

func (a *app) serverAddress() string {
	if a.server != "" {
		return a.server
	}
	if v, ok := a.Getenv("RUNNEL_SERVER"); ok && v != "" {
		return v
	}
	return defaultServer
}

// withClient opens a client, runs f, and closes the client; what closing reports is added to f's error.
func (a *app) withClient(ctx context.Context, f func(context.Context, *client.Client) error, opts ...client.Option) error {
	if a.tls.enabled() {
		opts = append(opts, client.TLSFiles(a.tls.ca, a.tls.cert, a.tls.key, a.tls.serverName))
	}
	if a.any {
		opts = append(opts, client.AnyBroker())
	}
	if a.Dial != nil {
		opts = append(opts, client.Dialer(a.Dial))
	}
	opts = append(opts, client.ClientID("runnel-cli"), client.RequestTimeout(time.Duration(a.timeout)))
	openCtx, cancel := context.WithTimeout(ctx, min(openTimeout, time.Duration(a.timeout)))
	defer cancel()
	c, err := client.Open(openCtx, a.serverAddress(), opts...)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if openCtx.Err() == nil {
			return err // of the settings: no broker was asked
		}
		return a.noBroker(err)
	}
	err = f(ctx, c)
	var advised adviceError
	if errors.Is(err, context.DeadlineExceeded) && exitCode(err) == exitFailed && ctx.Err() == nil && !errors.As(err, &advised) {
		err = adviceError{err: err, advice: fmt.Sprintf("more time than --timeout %s, or runnel cluster describe", a.timeout.String())}
	}
	closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, c.Close(closeCtx))
}

// request bounds one request.
func (a *app) request(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Duration(a.timeout))
}

// noBroker says why nobody answered, once: the client's error names the addresses again, and that the time is over.
func (a *app) noBroker(err error) error {
	advice := "runnel dev --detach, or name a broker with --server or $RUNNEL_SERVER"
	text := err.Error()
	if refused, ok := errors.AsType[*client.Error](err); ok {
		if refused.Reason == "METADATA_REFUSED" {
			advice = "runnel etcd recover --help"
		} else if refused.Reason != "" {
			advice = "again in a moment, or another broker with --server or $RUNNEL_SERVER"
		}
		text = refused.Error()
	}
	if i := strings.Index(text, "dial tcp"); i >= 0 {
		text = strings.TrimSuffix(text[i:], `"`)
	}
	return adviceError{err: toldError{fmt.Sprintf("no broker answers at %s: %s", a.serverAddress(), text), err}, advice: advice}
}

// toldError is err in other words.
type toldError struct {
	text string
	err  error
}

func (e toldError) Error() string { return e.text }
func (e toldError) Unwrap() error { return e.err }
