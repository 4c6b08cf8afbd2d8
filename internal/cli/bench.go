package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/bench"
)

// benchFlags are the flags of the bench commands.
type benchFlags struct {
	topic, size, rate, compression, acks string
	partitions                           int32
	count                                int64
	duration, linger                     time.Duration
}

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure how fast a cluster takes and gives records",
		Long: "Measure a cluster with records of random bytes. Without --topic a temporary topic is made, and deleted afterwards.",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(
		a.benchRun("produce", "Send records, and wait for their acknowledgements", benchDefaults{count: 1_000_000},
			func(ctx context.Context, cl *client.Client, o bench.Options, p []client.ProducerOption) (bench.Result, error) {
				return bench.Produce(ctx, cl, o, p...)
			}),
		a.benchRun("consume", "Read records; into a temporary topic they are written first", benchDefaults{count: 1_000_000}, a.benchConsume),
		a.benchRun("e2e", "Measure from sending a record to reading it", benchDefaults{count: 100_000, rate: "10MB"},
			func(ctx context.Context, cl *client.Client, o bench.Options, p []client.ProducerOption) (bench.Result, error) {
				return bench.E2E(ctx, cl, o, p...)
			}),
		a.benchFailoverCommand(),
	)
	return cmd
}

type benchDefaults struct {
	count int64
	rate  string
}

type benchWork func(context.Context, *client.Client, bench.Options, []client.ProducerOption) (bench.Result, error)

func (a *app) benchRun(name, short string, d benchDefaults, work benchWork) *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use: name, Short: short, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			o, opts, err := f.plan(c)
			if err != nil {
				return usageError{err: err, command: c.CommandPath()}
			}
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
				return a.measure(ctx, cl, name, f, o, func(ctx context.Context, o bench.Options) (bench.Result, error) { return work(ctx, cl, o, opts) })
			})
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.topic, "topic", "", "use this topic, and leave it")
	fs.Int32VarP(&f.partitions, "partitions", "p", 6, "partitions of the temporary topic")
	fs.Int64Var(&f.count, "count", d.count, "records; 0 with --duration: as many as fit into it")
	fs.StringVar(&f.size, "size", "1KiB", "size of a record's value, 16B to 1MiB")
	fs.DurationVar(&f.duration, "duration", 0, "end after this time; 0: after --count records")
	fs.StringVar(&f.rate, "rate", d.rate, "bytes per second to send, such as 20MB; empty: as fast as it goes")
	fs.StringVar(&f.compression, "compression", "none", "none, gzip, snappy, lz4 or zstd")
	fs.StringVar(&f.acks, "acks", "all", "all or leader")
	fs.DurationVar(&f.linger, "linger", 5*time.Millisecond, "how long a record waits for others to fill a batch")
	return cmd
}

func (f *benchFlags) plan(c *cobra.Command) (bench.Options, []client.ProducerOption, error) {
	o := bench.Options{Topic: f.topic, Records: f.count, Duration: f.duration}
	if f.duration > 0 && !c.Flags().Changed("count") {
		o.Records = 0
	}
	size, err := parseBytes(f.size)
	faults := []error{err}
	o.RecordBytes = int(min(size, 1<<30))
	if f.rate != "" {
		o.BytesPerSecond, err = parseBytes(f.rate)
		faults = append(faults, err)
	}
	codec, err := client.ParseCompression(f.compression)
	faults = append(faults, err)
	opts := []client.ProducerOption{client.Compress(codec), client.Linger(max(0, f.linger))}
	switch f.acks {
	case "all":
	case "leader":
		opts = append(opts, client.AcksLeader())
	default:
		faults = append(faults, fmt.Errorf("--acks %q: want all or leader", f.acks))
	}
	if f.partitions < 1 {
		faults = append(faults, fmt.Errorf("--partitions %d: want 1 or more", f.partitions))
	}
	check := o
	if check.Topic == "" {
		check.Topic = "temporary"
	}
	return o, opts, errors.Join(append(faults, check.Validate())...)
}

// measure runs work on the topic asked for, or on a temporary one, and prints the result.
func (a *app) measure(ctx context.Context, cl *client.Client, name string, f benchFlags, o bench.Options, work func(context.Context, bench.Options) (bench.Result, error)) (err error) {
	if o.Topic == "" {
		t, err := a.temporaryTopic(ctx, cl, f.partitions)
		if err != nil {
			return err
		}
		o.Topic = t.Name
		defer func() { err = errors.Join(err, a.dropTopic(ctx, cl, t)) }()
	} else if _, err := a.lookUp(ctx, cl, o.Topic); err != nil {
		return err
	}
	r, err := work(ctx, o)
	if err != nil {
		return err
	}
	return a.printBench(name, r)
}

func (a *app) temporaryTopic(ctx context.Context, cl *client.Client, partitions int32) (client.Topic, error) {
	ctx, cancel := a.request(ctx)
	defer cancel()
	return cl.Admin().CreateTopic(ctx, client.TopicSpec{Name: temporaryName(), Partitions: partitions})
}

func temporaryName() string {
	var suffix [6]byte
	_, _ = rand.Read(suffix[:]) // never fails
	return "bench-" + hex.EncodeToString(suffix[:])
}

// dropTopic works after an interrupt, too.
func (a *app) dropTopic(ctx context.Context, cl *client.Client, t client.Topic) error {
	ctx, cancel := a.request(context.WithoutCancel(ctx))
	defer cancel()
	return cl.Admin().DeleteTopic(ctx, t.Name, t.ID)
}

// benchConsume fills a temporary topic first.
func (a *app) benchConsume(ctx context.Context, cl *client.Client, o bench.Options, opts []client.ProducerOption) (bench.Result, error) {
	ends, err := cl.Admin().EndOffsets(ctx, o.Topic)
	if err != nil {
		return bench.Result{}, err
	}
	var there int64
	for _, end := range ends {
		there += end
	}
	if there == 0 {
		fmt.Fprintln(a.Err, "writing the records to read")
		if _, err := bench.Produce(ctx, cl, o, opts...); err != nil {
			return bench.Result{}, err
		}
	}
	return bench.Consume(ctx, cl, o)
}

// benchView has milliseconds and 10^6 bytes.
type benchView struct {
	Bench            string       `json:"bench"`
	Records          int64        `json:"records"`
	Bytes            int64        `json:"bytes"`
	Seconds          float64      `json:"seconds"`
	RecordsPerSecond float64      `json:"recordsPerSecond"`
	MBPerSecond      float64      `json:"mbPerSecond"`
	LatencyMs        *latencyView `json:"latencyMs,omitempty"`
}

type latencyView struct {
	Samples int64   `json:"samples"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
}

func (a *app) printBench(name string, r bench.Result) error {
	v := benchView{
		Bench: name, Records: r.Records, Bytes: r.Bytes, Seconds: r.Took.Seconds(),
		RecordsPerSecond: r.RecordsPerSecond(), MBPerSecond: r.MBPerSecond(),
	}
	p50, p99, slowest := "-", "-", "-"
	if l := r.Latency; l != nil {
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
		v.LatencyMs = &latencyView{Samples: l.Samples, P50: ms(l.P50), P99: ms(l.P99), Max: ms(l.Max)}
		p50, p99, slowest = l.P50.String(), l.P99.String(), l.Max.String()
	}
	return a.print(v, func(t *table) {
		t.header("BENCH", "RECORDS", "BYTES", "TOOK", "RECORDS/S", "MB/S", "P50", "P99", "MAX")
		t.row(name, groupDigits(r.Records), roundBytes(r.Bytes), r.Took.Round(time.Millisecond), groupDigits(int64(v.RecordsPerSecond)),
			fmt.Sprintf("%.1f", v.MBPerSecond), p50, p99, slowest)
	})
}
