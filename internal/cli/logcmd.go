package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/broker/log"
	"runnel.dev/runnel/broker/storage"
	"runnel.dev/runnel/internal/vfs"
)

func (a *app) logCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "log", Short: "Look into a broker's files, without a broker", Args: cobra.ArbitraryArgs, RunE: group}
	cmd.AddCommand(a.logDump(), a.logVerify())
	return cmd
}

func (a *app) logDump() *cobra.Command {
	var opts log.DumpOptions
	cmd := &cobra.Command{
		Use: "dump FILE", Short: "Print a segment, an index, or another file of a partition directory",
		Long: "Print a file of a partition directory, a line per entry: the batches of a .log file, the entries of an index, the producers of\n" +
			"a snapshot. It only reads, and may be used beside a running broker. Damage ends the output, and the exit code is 1.",
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, v []string) error {
			if a.output != formatTable {
				return usagef(c, "-o %s: a dump is lines of text", a.output)
			}
			return log.DumpSegment(vfs.OS(), v[0], a.Out, opts)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&opts.Records, "records", false, "print every record, not only the batches")
	f.Int64Var(&opts.From, "from", 0, "begin with the batch that holds this offset")
	f.IntVarP(&opts.Max, "number", "n", 0, "end after so many batches; 0: all")
	return cmd
}

func (a *app) logVerify() *cobra.Command {
	return &cobra.Command{
		Use: "verify DIR", Short: "Check every segment and index of a data directory",
		Long: "Check every file of a broker's data directory and name file, segment and offset of what is damaged. It only reads, and may be\n" +
			"used beside a running broker. The exit code is 1 when something is damaged.",
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, v []string) error { return a.verifyLog(c.Context(), v[0]) },
	}
}

type findingView struct {
	Severity string `json:"severity"`
	File     string `json:"file"`
	Segment  *int64 `json:"segment,omitempty"`
	Offset   *int64 `json:"offset,omitempty"`
	Position *int64 `json:"position,omitempty"`
	Detail   string `json:"detail"`
}

type verifyView struct {
	Partitions int64         `json:"partitions"`
	Segments   int64         `json:"segments"`
	Batches    int64         `json:"batches"`
	Records    int64         `json:"records"`
	Bytes      int64         `json:"bytes"`
	Damages    int64         `json:"damages"`
	Notes      int64         `json:"notes"`
	Findings   []findingView `json:"findings"`
}

// verifyLog prints findings as they come, as a table's lines; the other formats come at the end.
func (a *app) verifyLog(ctx context.Context, dir string) error {
	lines := a.output == formatTable
	findings := []findingView{}
	var writeErr error
	sum, err := storage.VerifyDir(ctx, vfs.OS(), dir, func(f storage.Finding) {
		if lines {
			_, e := fmt.Fprintln(a.Out, sanitize(f.String()))
			writeErr = errors.Join(writeErr, e)
			return
		}
		findings = append(findings, viewFinding(f))
	})
	if err = errors.Join(err, writeErr); err != nil {
		return err
	}
	if lines {
		_, err = fmt.Fprintf(a.Out, "%s partitions, %s segments, %s batches, %s records, %s: %s damaged, %s notes\n", groupDigits(sum.Partitions),
			groupDigits(sum.Segments), groupDigits(sum.Batches), groupDigits(sum.Records), roundBytes(sum.Bytes), groupDigits(sum.Damages), groupDigits(sum.Notes))
	} else {
		view := verifyView{sum.Partitions, sum.Segments, sum.Batches, sum.Records, sum.Bytes, sum.Damages, sum.Notes, findings}
		err = a.print(view, func(t *table) {
			for _, f := range findings {
				t.row(f.File)
			}
		})
	}
	if err != nil || sum.Damages == 0 {
		return err
	}
	return adviceError{
		err:    fmt.Errorf("%s: %s found", dir, counted(sum.Damages, "damage")),
		advice: "runnel partition describe TOPIC, and for a quarantined partition: runnel partition recover TOPIC PARTITION",
	}
}

func viewFinding(f storage.Finding) findingView {
	known := func(n int64) *int64 {
		if n < 0 {
			return nil
		}
		return &n
	}
	v := findingView{Severity: f.Severity.String(), File: f.File, Position: known(f.Position), Detail: f.Detail}
	if f.Segment >= 0 {
		v.Segment, v.Offset = known(f.Segment), known(f.Offset)
	}
	return v
}
