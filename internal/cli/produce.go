package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
)

// produceFlags are the flags of produce.
type produceFlags struct {
	key, keySep, format, acks, compression string
	headers                                []string
	partition                              int32
	linger, delivery                       time.Duration
	autoCreate                             bool
}

const (
	formatRecordJSON = "json"
	formatRecordRaw  = "raw"
	defaultTemplate  = `%v\n`
)

func (a *app) produceCommand() *cobra.Command {
	var f produceFlags
	cmd := &cobra.Command{
		Use: "produce TOPIC", Short: "Write records from standard input",
		Long: "Write standard input to a topic, one record per line unless -f says otherwise, in order, and wait until all of them are\n" +
			"acknowledged. The first failure ends it: nothing behind a failed record is sent.\n\n" + formatHelp +
			"                 (topic, partition and offset are ignored)\n" +
			"  raw            all of the input is one record\n\n" +
			"Exit codes: 0 all written, 1 none, 3 some, 4 the outcome of some is unknown.",
		Example: "  seq 5 | runnel produce orders\n  echo 'user-7:hello' | runnel produce orders --key-sep :\n" +
			"  runnel consume a --until-end -f json | runnel produce b -f json",
		Args: exactArgs(1), ValidArgsFunction: a.completeTopics,
		RunE: func(c *cobra.Command, v []string) error { return a.produce(c, v[0], f) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.key, "key", "k", "", "key of every record; default: none")
	fs.StringArrayVarP(&f.headers, "header", "H", nil, "k=v, header of every record, may repeat")
	fs.StringVar(&f.keySep, "key-sep", "", "each line is key, this separator, value")
	fs.StringVarP(&f.format, "format", "f", defaultTemplate, "form of a record: a format such as '%k %v\\n', json, or raw")
	fs.StringVar(&f.acks, "acks", "all", "all: written and synced on the in-sync replicas; leader: appended by the leader, may still be lost")
	fs.StringVar(&f.compression, "compression", "topic", "none, gzip, snappy, lz4, zstd, or topic for the topic's default")
	fs.Int32Var(&f.partition, "partition", -1, "write to this partition; default: by key, or spread when there is none")
	fs.DurationVar(&f.linger, "linger", 5*time.Millisecond, "how long a record waits for others to fill a batch")
	fs.DurationVar(&f.delivery, "delivery-timeout", 2*time.Minute, "how long a record may take until it is acknowledged, retries included")
	fs.BoolVar(&f.autoCreate, "auto-create", false, "let the cluster create the topic, when it allows that")
	_ = cmd.RegisterFlagCompletionFunc("compression", cobra.FixedCompletions([]string{"topic", "none", "gzip", "snappy", "lz4", "zstd"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("acks", cobra.FixedCompletions([]string{"all", "leader"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

const formatHelp = "Formats (-f):\n" +
	"  '%k %v\\n'      %k key, %v value, %t timestamp (ms since 1970), %p partition, %o offset, %h headers, %% percent;\n" +
	"                 \\n \\t \\r \\0 \\\\ \\xHH bytes\n" +
	"  json           a JSON object per line, which loses nothing: what is not UTF-8 stands in keyBase64, valueBase64\n"

// plan is what the flags of produce come to.
type producePlan struct {
	parse recordParser
	blank client.Record
	opts  []client.ProducerOption
}

// plan reports all faults of the flags.
func (f *produceFlags) plan(c *cobra.Command, topic string) (producePlan, error) {
	p := producePlan{blank: client.Record{Topic: topic}}
	var faults []error
	headers, err := parseHeaders(f.headers)
	faults = append(faults, err)
	p.blank.Headers = headers
	manual, err := f.choosePartition(&p)
	faults = append(faults, err)
	if c.Flags().Changed("key") {
		p.blank.Key = []byte(f.key)
	}
	codec, err := client.ParseCompression(f.compression)
	if err != nil {
		faults = append(faults, fmt.Errorf("--compression %q: want none, gzip, snappy, lz4, zstd or topic", f.compression))
	}
	switch f.acks {
	case "all":
	case "leader":
		p.opts = append(p.opts, client.AcksLeader())
	default:
		faults = append(faults, fmt.Errorf("--acks %q: want all or leader", f.acks))
	}
	if f.linger < 0 || f.delivery <= f.linger {
		faults = append(faults, fmt.Errorf("--linger %v, --delivery-timeout %v: want 0s or more, and more than that", f.linger, f.delivery))
	}
	if manual {
		p.opts = append(p.opts, client.ManualPartitioner())
	}
	p.opts = append(p.opts, client.Compress(codec), client.Linger(f.linger), client.DeliveryTimeout(f.delivery))
	if err := errors.Join(faults...); err != nil {
		return p, usageError{err: err, command: c.CommandPath()}
	}
	return p, nil
}

// choosePartition sets the parser, and says whether records name their partition.
func (f *produceFlags) choosePartition(p *producePlan) (manual bool, err error) {
	if f.partition < -1 {
		return false, fmt.Errorf("--partition %d: want 0 or more", f.partition)
	}
	if f.partition >= 0 {
		p.blank.Partition, manual = f.partition, true
	}
	format := f.format
	if f.keySep != "" {
		if format != defaultTemplate {
			return manual, errors.New("--key-sep and -f exclude each other")
		}
		format = "%k" + strings.ReplaceAll(f.keySep, "%", "%%") + `%v\n`
	}
	switch format {
	case formatRecordJSON:
		p.parse = parseJSONLine
		return manual, nil
	case formatRecordRaw:
		p.parse = parseWhole
		return manual, nil
	}
	t, err := parseTemplate(format)
	if err == nil {
		err = t.checkInput()
	}
	if err != nil {
		return manual, fmt.Errorf("-f %q: %w", f.format, err)
	}
	if t.has('p') && f.partition >= 0 {
		return manual, errors.New("--partition and %p exclude each other")
	}
	p.parse = t.parser()
	return manual || t.has('p'), nil
}

func parseHeaders(pairs []string) ([]client.Header, error) {
	headers := make([]client.Header, 0, len(pairs))
	for _, pair := range pairs {
		k, v, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("-H %q: want key=value", pair)
		}
		headers = append(headers, client.Header{Key: k, Value: []byte(v)})
	}
	return headers, nil
}

func (a *app) produce(c *cobra.Command, topic string, f produceFlags) error {
	plan, err := f.plan(c, topic)
	if err != nil {
		return err
	}
	opts := []client.Option{client.Observe(&retryNotes{a: a, then: fmt.Sprintf(" for up to %v (--delivery-timeout)", f.delivery)})}
	if f.autoCreate {
		opts = append(opts, client.AutoCreateTopics())
	}
	return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
		if !f.autoCreate {
			t, err := a.lookUp(ctx, cl, topic)
			if err != nil {
				return err
			}
			if f.partition >= t.Partitions {
				return fmt.Errorf("partition %d: %w: %s has %d, 0 to %d", f.partition, client.ErrUnknownPartition, topic, t.Partitions, t.Partitions-1)
			}
		}
		p, err := cl.NewProducer(plan.opts...)
		if err != nil {
			return err
		}
		in := &input{r: a.In, parse: plan.parse, blank: plan.blank}
		return adviseTopic(a.produceAll(ctx, p, in, topic), topic)
	}, opts...)
}

// inputSize is the size of standard input when it is a file, else 0.
func (a *app) inputSize() int64 {
	if f, ok := a.In.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return info.Size()
		}
	}
	return 0
}
