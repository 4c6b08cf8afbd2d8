package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/tlsreload"
)

const (
	// MaxBatchBytes is the largest batch that any topic can allow.
	MaxBatchBytes = 16 << 20
	// MaxMessageBytes is the largest message: the largest batch and room for what surrounds it.
	MaxMessageBytes = MaxBatchBytes + 64<<10
)

// Limits bound what clients can make the server hold. Zero fields take the defaults.
type Limits struct {
	// InFlightBytes is what all produce streams together may have unanswered. Default 256 MiB, at least 16 MiB.
	InFlightBytes int64
	// StreamInFlightBytes is the same per stream. Default 64 MiB, at least 1 MiB.
	StreamInFlightBytes int64
	// StreamsPerConnection bounds concurrent calls of one connection. Default 1,000.
	StreamsPerConnection uint32
	// Subscriptions bounds the partitions of one fetch stream. Default 10,000.
	Subscriptions int
	// UnaryTimeout is the deadline of unary calls that come without one. Default 30 s.
	UnaryTimeout time.Duration
	// StopTimeout bounds how long Run waits for what is in flight when it is told to stop. Default 10 s.
	StopTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.InFlightBytes == 0 {
		l.InFlightBytes = 256 << 20
	}
	if l.StreamInFlightBytes == 0 {
		l.StreamInFlightBytes = 64 << 20
	}
	if l.StreamsPerConnection == 0 {
		l.StreamsPerConnection = 1000
	}
	if l.Subscriptions == 0 {
		l.Subscriptions = 10_000
	}
	if l.UnaryTimeout == 0 {
		l.UnaryTimeout = 30 * time.Second
	}
	if l.StopTimeout == 0 {
		l.StopTimeout = 10 * time.Second
	}
	return l
}

// Listener is one named way in.
type Listener struct {
	// Name is what brokers register their advertised addresses under.
	Name string
	// Listener accepts connections; the server closes it.
	Listener net.Listener
	// TLS is nil for plain text.
	TLS *tlsreload.Source
}

// Config is everything that a Server needs.
type Config struct {
	// BrokerID is this broker.
	BrokerID  int32
	Listeners []Listener
	Limits    Limits
	// AutoCreateTopics allows Metadata.Watch to create topics, when clients ask for it.
	AutoCreateTopics bool

	Partitions  Partitions
	Topics      TopicAdmin
	Metadata    Metadata
	ProducerIDs ProducerIDs
	// Cluster serves the calls that concern brokers and placement. Nil: they are refused as not yet available.
	Cluster ClusterAdmin
	// Replication serves the calls of other brokers. Nil: there are none.
	Replication Replication
	// Forwarder reaches other brokers. Nil: nothing is forwarded, and no caller is taken for a broker.
	Forwarder Forwarder
	// Refused is why there will be no metadata: all calls but public ones and those of brokers are answered with it. Nil: they are served.
	Refused error
	// StopWithin is asked, when Run is told to stop, how long what is in flight may take. Nil: Limits.StopTimeout.
	StopWithin func() time.Duration

	Clock      clock.Clock
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Validate returns all faults, joined.
func (c *Config) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("server: "+format, args...))
		}
	}
	check(c.BrokerID >= 0, "broker id is %d, it must not be negative", c.BrokerID)
	check(len(c.Listeners) > 0, "there is no listener")
	names := map[string]bool{}
	for i, l := range c.Listeners {
		check(l.Name != "", "listener %d has no name", i)
		check(l.Listener != nil, "listener %q is not open", l.Name)
		check(!names[l.Name], "listener name %q occurs twice", l.Name)
		names[l.Name] = true
	}
	lim := c.Limits.withDefaults()
	check(lim.InFlightBytes >= MaxBatchBytes, "in-flight bytes are %d, they must be at least %d", lim.InFlightBytes, MaxBatchBytes)
	check(lim.StreamInFlightBytes >= 1<<20, "in-flight bytes per stream are %d, they must be at least %d", lim.StreamInFlightBytes, 1<<20)
	check(lim.Subscriptions > 0, "subscriptions per stream are %d, they must be positive", lim.Subscriptions)
	check(lim.UnaryTimeout > 0 && lim.StopTimeout > 0, "timeouts %v and %v must be positive", lim.UnaryTimeout, lim.StopTimeout)
	check(c.Partitions != nil && c.Topics != nil && c.Metadata != nil && c.ProducerIDs != nil, "a source is missing")
	check(c.Clock != nil && c.Logger != nil && c.Registerer != nil, "clock, logger and registerer are required")
	return errors.Join(faults...)
}
