package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc"

	"runnel.dev/runnel/internal/clock"
	"runnel.dev/runnel/internal/tlsreload"
)

// Option configures a [Client].
type Option func(*config)

type config struct {
	seeds          []string
	tls            *tls.Config
	tlsFiles       *tlsreload.Config
	dialer         func(ctx context.Context, address string) (net.Conn, error)
	dialOptions    []grpc.DialOption
	clientID       string
	logger         *slog.Logger
	hooks          Hooks
	clock          clock.Clock
	topicWait      time.Duration
	requestTimeout time.Duration
	autoCreate     bool
	anyBroker      bool
}

func newConfig(url string, opts []Option) (config, error) {
	cfg := config{
		logger: slog.New(slog.DiscardHandler), hooks: NoHooks{}, clock: clock.System(),
		topicWait: 10 * time.Second, requestTimeout: 30 * time.Second, clientID: "runnel-go",
	}
	for _, o := range opts {
		o(&cfg)
	}
	var err error
	cfg.seeds, err = parseURL(url)
	return cfg, errors.Join(err, cfg.validate())
}

func (c *config) validate() error {
	var faults []error
	if c.tls != nil && c.tlsFiles != nil {
		faults = append(faults, errors.New("client: TLS and TLSFiles exclude each other"))
	}
	if c.topicWait < 0 {
		faults = append(faults, fmt.Errorf("client: TopicWait %v is negative", c.topicWait))
	}
	if c.requestTimeout <= 0 {
		faults = append(faults, fmt.Errorf("client: RequestTimeout %v is not positive", c.requestTimeout))
	}
	if c.logger == nil || c.hooks == nil {
		faults = append(faults, errors.New("client: Logger and Observe do not take nil"))
	}
	return errors.Join(faults...)
}

// TLS encrypts connections with cfg, whose callbacks may reload certificates. Default: no TLS.
func TLS(cfg *tls.Config) Option { return func(c *config) { c.tls = cfg } }

// TLSFiles encrypts connections and reads PEM files anew when they change. ca holds the roots that brokers' certificates lead to
// (empty: the system's); cert and key, which belong together, are shown to brokers (empty: none); serverName is expected in
// brokers' certificates (empty: the dialled host).
func TLSFiles(ca, cert, key, serverName string) Option {
	return func(c *config) {
		c.tlsFiles = &tlsreload.Config{CAFile: ca, CertFile: cert, KeyFile: key, ServerName: serverName}
	}
}

// Dialer replaces how connections are made. address is host:port of a seed, or as metadata names a broker.
func Dialer(dial func(ctx context.Context, address string) (net.Conn, error)) Option {
	return func(c *config) { c.dialer = dial }
}

// DialOptions are added to every gRPC connection.
func DialOptions(opts ...grpc.DialOption) Option {
	return func(c *config) { c.dialOptions = append(c.dialOptions, opts...) }
}

// ClientID names this program in brokers' logs. Default "runnel-go".
func ClientID(id string) Option { return func(c *config) { c.clientID = id } }

// Logger receives what an operator may want to know. Default: nothing is logged.
func Logger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

// Observe sets the hooks for metrics and traces.
func Observe(h Hooks) Option { return func(c *config) { c.hooks = h } }

// TopicWait is how long producers and consumers wait for a topic that does not exist to appear. Default 10 s; 0: not at all.
func TopicWait(d time.Duration) Option { return func(c *config) { c.topicWait = d } }

// RequestTimeout bounds one request to one broker; a produce stream whose oldest batch waits longer is abandoned. Default 30 s.
func RequestTimeout(d time.Duration) Option { return func(c *config) { c.requestTimeout = d } }

// AutoCreateTopics lets brokers create topics that producers name, with the cluster's defaults, when the cluster allows it.
func AutoCreateTopics() Option { return func(c *config) { c.autoCreate = true } }

// AnyBroker sends everything through the seeds, one of them at a time, which forward to the brokers that have to do it: for clients that cannot reach
// every broker, behind one load balancer for instance. It costs a hop. Default: the client goes to partitions' leaders itself.
func AnyBroker() Option { return func(c *config) { c.anyBroker = true } }

// ProducerOption configures a [Producer].
type ProducerOption func(*producerConfig)

type producerConfig struct {
	acksLeader      bool
	linger          time.Duration
	batchBytes      int
	bufferBytes     int64
	deliveryTimeout time.Duration
	maxInFlight     int
	compression     Compression
	manual          bool
}

func newProducerConfig(opts []ProducerOption) (producerConfig, error) {
	cfg := producerConfig{
		linger: 5 * time.Millisecond, batchBytes: 1 << 20, bufferBytes: 64 << 20, deliveryTimeout: 2 * time.Minute, maxInFlight: 5,
	}
	for _, o := range opts {
		o(&cfg)
	}
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("client: "+format, args...))
		}
	}
	check(cfg.linger >= 0, "Linger %v is negative", cfg.linger)
	check(cfg.batchBytes >= 1<<10 && cfg.batchBytes <= 16<<20, "BatchBytes %d is outside 1 KiB to 16 MiB", cfg.batchBytes)
	check(cfg.bufferBytes >= 1<<10, "BufferBytes %d is below 1 KiB", cfg.bufferBytes)
	check(cfg.deliveryTimeout > 0, "DeliveryTimeout %v is not positive", cfg.deliveryTimeout)
	check(cfg.linger <= 0 || cfg.linger < cfg.deliveryTimeout, "Linger %v leaves nothing of DeliveryTimeout %v", cfg.linger, cfg.deliveryTimeout)
	check(cfg.maxInFlight >= 1 && cfg.maxInFlight <= 5, "MaxInFlight %d is outside 1 to 5", cfg.maxInFlight)
	check(cfg.compression >= CompressionTopic && cfg.compression <= CompressionZstd, "unknown compression %d", cfg.compression)
	return cfg, errors.Join(faults...)
}

// AcksLeader acknowledges a record as soon as the leader has appended it: it can be lost when the leader stops before its next
// sync. Without this option an acknowledged record is fsynced on the in-sync replicas.
func AcksLeader() ProducerOption { return func(c *producerConfig) { c.acksLeader = true } }

// Linger is how long a batch waits for more records. Default 5 ms; 0 sends at once, and batches only what queues up meanwhile.
func Linger(d time.Duration) ProducerOption { return func(c *producerConfig) { c.linger = d } }

// BatchBytes is how large a batch becomes before compression, 1 KiB to 16 MiB, bounded by the topic's maxBatchBytes. A larger
// record that the topic takes gets a batch of its own. Default 1 MiB.
func BatchBytes(n int) ProducerOption { return func(c *producerConfig) { c.batchBytes = n } }

// BufferBytes is how much may be queued, at least 1 KiB; Produce blocks beyond. Default 64 MiB.
func BufferBytes(n int64) ProducerOption { return func(c *producerConfig) { c.bufferBytes = n } }

// DeliveryTimeout is how long a record may take from Produce to its acknowledgement. Default 2 min.
func DeliveryTimeout(d time.Duration) ProducerOption {
	return func(c *producerConfig) { c.deliveryTimeout = d }
}

// MaxInFlight is how many batches per partition are sent before the first is answered, 1 to 5 (what brokers remember for
// recognising duplicates). Default 5.
func MaxInFlight(n int) ProducerOption { return func(c *producerConfig) { c.maxInFlight = n } }

// Compress chooses the codec. Default [CompressionTopic].
func Compress(codec Compression) ProducerOption {
	return func(c *producerConfig) { c.compression = codec }
}

// ManualPartitioner takes the partition from Record.Partition. Default: murmur2 of the key as Kafka's clients do, and one
// partition per batch for records whose key is nil.
func ManualPartitioner() ProducerOption { return func(c *producerConfig) { c.manual = true } }

// ConsumerOption configures a [Consumer].
type ConsumerOption func(*consumerConfig)

type consumerConfig struct {
	topics          []string
	partitions      []TopicPartition
	from            Position
	outOfRange      OutOfRangePolicy
	partitionCredit int64
	streamCredit    int64
	untilEnd        bool
}

func newConsumerConfig(opts []ConsumerOption) (consumerConfig, error) {
	cfg := consumerConfig{partitionCredit: 4 << 20, streamCredit: 32 << 20}
	for _, o := range opts {
		o(&cfg)
	}
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("client: "+format, args...))
		}
	}
	check(len(cfg.topics)+len(cfg.partitions) > 0, "a consumer needs Topics or Partitions")
	for _, name := range cfg.topics {
		err := checkTopicName(name)
		check(err == nil, "Topics: %w", err)
	}
	for _, tp := range cfg.partitions {
		err := checkTopicName(tp.Topic)
		check(err == nil, "Partitions: %w", err)
		check(tp.Partition >= 0, "Partitions: partition %d of %q is negative", tp.Partition, tp.Topic)
	}
	check(cfg.from.kind != posOffset || cfg.from.value >= 0, "From: offset %d is negative", cfg.from.value)
	check(cfg.outOfRange >= FailOutOfRange && cfg.outOfRange <= ResetToLatest, "unknown out-of-range policy %d", cfg.outOfRange)
	check(cfg.partitionCredit >= 1, "PartitionCredit %d is below 1", cfg.partitionCredit)
	check(cfg.streamCredit >= cfg.partitionCredit, "StreamCredit %d is below PartitionCredit %d", cfg.streamCredit, cfg.partitionCredit)
	return cfg, errors.Join(faults...)
}

// Topics reads all partitions of topics, those that are added later included.
func Topics(names ...string) ConsumerOption {
	return func(c *consumerConfig) { c.topics = append(c.topics, names...) }
}

// Partitions reads single partitions.
func Partitions(tps ...TopicPartition) ConsumerOption {
	return func(c *consumerConfig) { c.partitions = append(c.partitions, tps...) }
}

// From is where reading begins. Default [Earliest]. Partitions that appear later are read from their first record.
func From(p Position) ConsumerOption { return func(c *consumerConfig) { c.from = p } }

// OutOfRangePolicy says what happens when a position is not in the log (any more).
type OutOfRangePolicy int8

// The policies.
const (
	// FailOutOfRange reports an *OffsetOutOfRangeError; the partition waits for a Seek.
	FailOutOfRange OutOfRangePolicy = iota
	// ResetToEarliest goes on at the log start; it is logged, and Hooks.Reset says how much was lost.
	ResetToEarliest
	// ResetToLatest goes on at the high watermark, likewise.
	ResetToLatest
)

// OutOfRange sets the policy. Default [FailOutOfRange].
func OutOfRange(p OutOfRangePolicy) ConsumerOption {
	return func(c *consumerConfig) { c.outOfRange = p }
}

// PartitionCredit is how many bytes of a partition are fetched ahead, at least 1. One batch may exceed it. Default 4 MiB.
func PartitionCredit(bytes int64) ConsumerOption {
	return func(c *consumerConfig) { c.partitionCredit = bytes }
}

// StreamCredit is how many bytes are fetched ahead from one broker over all partitions. Default 32 MiB.
func StreamCredit(bytes int64) ConsumerOption {
	return func(c *consumerConfig) { c.streamCredit = bytes }
}

// UntilEnd ends the iteration once every partition has been read up to the high watermark that it had when reading began. A
// partition that cannot be read for a RequestTimeout is reported (ErrStalled) and given up, so that the end always comes.
func UntilEnd() ConsumerOption { return func(c *consumerConfig) { c.untilEnd = true } }
