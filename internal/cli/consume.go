package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"runnel.dev/runnel/client"
)

// consumeFlags are the flags of consume.
type consumeFlags struct {
	number     int64
	from       string
	untilEnd   bool
	partitions []int32
	format     string
}

func (a *app) consumeCommand() *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use: "consume TOPIC", Short: "Print records to standard output",
		Long: "Print a topic's records, from the earliest on unless --from says otherwise, until Ctrl-C or the given end, and Ctrl-C\n" +
			"before a given end exits with 3 (1 if nothing came). Records of one partition come in order. Values and keys are printed byte for byte.\n\n" + formatHelp +
			"  raw            values with nothing between them",
		Example: "  runnel consume orders --until-end\n  runnel consume orders --from -15m -f '%p/%o %k: %v\\n'\n" +
			"  runnel consume orders --from @2026-01-02T03:04:05Z -n 10 -p 0",
		Args: exactArgs(1), ValidArgsFunction: a.completeTopics,
		RunE: func(c *cobra.Command, v []string) error {
			if err := a.consume(c, v[0], f); c.Context().Err() == nil || !errors.Is(err, context.Canceled) {
				return err
			}
			return nil // Ctrl-C is how one ends reading
		},
	}
	fs := cmd.Flags()
	fs.Int64VarP(&f.number, "number", "n", 0, "end after so many records; 0: no end")
	fs.StringVar(&f.from, "from", "earliest", "earliest, latest, -1h (ago), @2006-01-02T15:04:05Z (a time), or an offset")
	fs.BoolVar(&f.untilEnd, "until-end", false, "end where the partitions end now")
	partitionsFlag(fs, &f.partitions, "`partitions` to read, such as 0,2; default: all")
	fs.StringVarP(&f.format, "format", "f", defaultTemplate, "form of a record: a format such as '%k %v\\n', json, or raw")
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions([]string{"earliest", "latest"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// renderer appends one record to the output.
type renderer func([]byte, *client.Record) []byte

func (f *consumeFlags) renderer(c *cobra.Command, output format) (renderer, error) {
	form := f.format
	if output != formatTable {
		if output != formatJSON || c.Flags().Changed("format") && form != formatRecordJSON {
			return nil, fmt.Errorf("-o %s: records have their own formats, see -f", output)
		}
		form = formatRecordJSON
	}
	switch form {
	case formatRecordJSON:
		return appendRecordJSON, nil
	case formatRecordRaw:
		return func(b []byte, r *client.Record) []byte { return append(b, r.Value...) }, nil
	}
	t, err := parseTemplate(form)
	if err != nil {
		return nil, err
	}
	if len(t) == 0 {
		return nil, errors.New("-f: the format is empty")
	}
	return t.append, nil
}

func (a *app) consume(c *cobra.Command, topic string, f consumeFlags) error {
	from, err := parsePosition(f.from, a.Clock.Now())
	render, renderErr := f.renderer(c, a.output)
	err = errors.Join(err, renderErr)
	if f.number < 0 {
		err = errors.Join(err, fmt.Errorf("-n %d: want 0 or more", f.number))
	}
	for _, p := range f.partitions {
		if p < 0 {
			err = errors.Join(err, fmt.Errorf("-p %d: want 0 or more", p))
		}
	}
	if err != nil {
		return usageError{err: err, command: c.CommandPath()}
	}
	return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
		t, err := a.lookUp(ctx, cl, topic)
		if err != nil {
			return err
		}
		opts, err := consumerOptions(t, from, f)
		if err != nil {
			return err
		}
		cs, err := cl.NewConsumer(opts...)
		if err != nil {
			return err
		}
		rd := &reading{render: render, limit: f.number, untilEnd: f.untilEnd, partitions: int(t.Partitions)}
		if len(f.partitions) > 0 {
			rd.partitions = len(f.partitions)
		}
		err = a.readAll(ctx, cs, rd)
		return errors.Join(err, cs.Close(context.WithoutCancel(ctx)))
	}, client.Observe(&retryNotes{a: a}))
}

func consumerOptions(t client.Topic, from client.Position, f consumeFlags) ([]client.ConsumerOption, error) {
	opts := []client.ConsumerOption{client.From(from)}
	if f.untilEnd {
		opts = append(opts, client.UntilEnd())
	}
	if len(f.partitions) == 0 {
		return append(opts, client.Topics(t.Name)), nil
	}
	for _, p := range f.partitions {
		if p >= t.Partitions {
			return nil, fmt.Errorf("partition %d: %w: %s has %d, 0 to %d", p, client.ErrUnknownPartition, t.Name, t.Partitions, t.Partitions-1)
		}
		opts = append(opts, client.Partitions(client.TopicPartition{Topic: t.Name, Partition: p}))
	}
	return opts, nil
}

// reading prints records. It is used by one goroutine.
type reading struct {
	out        *output
	render     renderer
	n, limit   int64 // limit 0: none
	untilEnd   bool
	partitions int // that are read
	failed     int // of those, with untilEnd
}

// readAll prints records until the limit, the end, an error, or the end of ctx, which is none.
func (a *app) readAll(ctx context.Context, cs *client.Consumer, rd *reading) error {
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	rd.out = a.startOutput(cancel)
	var watching sync.WaitGroup
	watching.Go(func() {
		if readerGone(ctx, a.Out) { // as in `consume t | head -1`, where no further record may come for hours
			rd.out.abandon()
		}
	})
	defer watching.Wait()
	defer cancel()
	var err error
	for err == nil && (rd.limit == 0 || rd.n < rd.limit) {
		var batch *client.Batch
		if batch, err = cs.Poll(ctx); err == nil {
			err = rd.out.write(func(b []byte) ([]byte, error) { return rd.batchLocked(b, batch) })
		}
		err = a.goOn(rd, err)
	}
	if errors.Is(err, io.EOF) || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		ended := errors.Is(err, io.EOF)
		err = rd.incomplete()
		if !ended && asked.Err() != nil {
			err = errors.Join(err, rd.interrupted())
		}
	}
	if closeErr := rd.out.close(); !errors.Is(err, closeErr) {
		err = errors.Join(err, closeErr)
	}
	return adviseReading(err)
}

// goOn prints errors that do not end the reading, those of one partition while others are read on, and returns nil for them.
func (a *app) goOn(rd *reading, err error) error {
	if _, ok := errors.AsType[*client.PartitionError](err); !ok || !rd.untilEnd && !errors.Is(err, client.ErrStalled) {
		return err
	}
	if rd.untilEnd {
		rd.failed++
	}
	fmt.Fprintln(a.Err, "runnel: "+sanitize(adviseReading(err).Error()))
	return nil
}

// incomplete says at the end how much is missing.
func (rd *reading) incomplete() error {
	if rd.failed == 0 {
		return nil
	}
	err := fmt.Errorf("%d of %d partitions were not read to the end", rd.failed, rd.partitions)
	if rd.failed < rd.partitions {
		return partialError{err}
	}
	return err
}

// interrupted is nil when there was no end to reach: Ctrl-C is then how one ends reading.
func (rd *reading) interrupted() error {
	if !rd.untilEnd && rd.limit == 0 {
		return nil
	}
	err := fmt.Errorf("interrupted before the end, after %s", counted(rd.n, "record"))
	if rd.n > 0 {
		return partialError{err}
	}
	return err
}

// partitionsFlag binds -p of commands that take several partitions.
func partitionsFlag(fs *pflag.FlagSet, to *[]int32, usage string) {
	fs.Int32SliceVarP(to, "partition", "p", nil, usage)
	fs.Lookup("partition").DefValue = "" // no "(default [])"
}

// batchLocked appends the records of a batch to b, and writes it whenever a block is full.
func (rd *reading) batchLocked(b []byte, batch *client.Batch) ([]byte, error) {
	for r, err := range batch.Records() {
		if err != nil {
			return b, err
		}
		b = rd.render(b, r)
		rd.n++
		if rd.n == rd.limit {
			break
		}
		if len(b) >= outputBlock {
			if b, err = rd.out.flushLocked(b); err != nil {
				return b, err
			}
		}
	}
	return b, nil
}

func adviseReading(err error) error {
	if gone, ok := errors.AsType[*client.OffsetOutOfRangeError](err); ok {
		return adviceError{err: err, advice: fmt.Sprintf("--from earliest, or an offset from %d to %d", gone.Earliest, gone.Latest)}
	}
	at, ok := errors.AsType[*client.PartitionError](err)
	if !ok {
		return err
	}
	if answer, ok := errors.AsType[*client.Error](err); ok && answer.Reason == reasonQuarantined {
		return adviceError{err: err, advice: fmt.Sprintf("runnel partition recover %s %d, which shows what can be kept", cell(at.Topic), at.Partition)}
	}
	if errors.Is(err, client.ErrStalled) {
		return adviceError{err: err, advice: "runnel partition describe " + cell(at.Topic)}
	}
	return err
}

// reasonQuarantined is the brokers' reason for a partition whose acknowledged records are damaged.
const reasonQuarantined = "PARTITION_QUARANTINED"
