package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
)

func (a *app) topicTrim() *cobra.Command {
	var before string
	var partitions []int32
	cmd := &cobra.Command{
		Use: "trim NAME --before OFFSET|latest", Short: "Delete the records before an offset",
		Long: "Move the start of partitions forward: the records before it are gone for good. \"latest\" trims everything that has been\n" +
			"written so far. Without -p, latest means all partitions, and an offset needs a topic of one partition.",
		Example: "  runnel topic trim orders --before 120000 -p 3\n  runnel topic trim orders --before latest",
		Args:    exactArgs(1), ValidArgsFunction: a.completeTopics,
		RunE: func(c *cobra.Command, v []string) error {
			if before == "" {
				return usagef(c, "--before is missing: want an offset, or latest")
			}
			offset := int64(-1)
			if before != "latest" {
				var err error
				if offset, err = strconv.ParseInt(before, 10, 64); err != nil || offset < 0 {
					return usagef(c, "--before %q: want an offset, 0 or more, or latest", before)
				}
			}
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
				return a.trimTopic(ctx, c, cl, v[0], offset, partitions)
			})
		},
	}
	cmd.Flags().StringVar(&before, "before", "", "offset of the first record to keep, or latest")
	partitionsFlag(cmd.Flags(), &partitions, "`partitions` to trim, such as 0,2")
	return cmd
}

// trimView is the outcome for one partition.
type trimView struct {
	Partition int32  `json:"partition"`
	LogStart  *int64 `json:"logStart,omitempty"`
	Error     string `json:"error,omitempty"`
}

// trimTopic moves log starts to offset, -1: the high watermark.
func (a *app) trimTopic(ctx context.Context, c *cobra.Command, cl *client.Client, name string, offset int64, partitions []int32) error {
	t, err := a.lookUp(ctx, cl, name)
	if err != nil {
		return err
	}
	if len(partitions) == 0 {
		if offset >= 0 && t.Partitions > 1 {
			return usagef(c, "offset %d of which of the %d partitions? Name some with -p", offset, t.Partitions)
		}
		for p := range t.Partitions {
			partitions = append(partitions, p)
		}
	}
	before := make(map[int32]int64, len(partitions))
	for _, p := range partitions {
		before[p] = offset
	}
	ctx, cancel := a.request(ctx)
	defer cancel()
	results, err := cl.Admin().DeleteRecords(ctx, name, before)
	if len(results) == 0 {
		return err
	}
	views, failed := make([]trimView, 0, len(results)), 0
	for _, r := range results {
		v := trimView{Partition: r.Partition, LogStart: &r.LogStart}
		if r.Err != nil {
			v = trimView{Partition: r.Partition, Error: r.Err.Error()}
			failed++
		}
		views = append(views, v)
	}
	if printErr := a.print(views, func(tb *table) { trimRows(tb, views) }); printErr != nil {
		return errors.Join(err, printErr)
	}
	if failed > 0 && failed < len(results) {
		return partialError{fmt.Errorf("%d of %d partitions were not trimmed: %w", failed, len(results), err)}
	}
	return err
}

func trimRows(tb *table, views []trimView) {
	tb.header("PARTITION", "LOG-START", "ERROR")
	for _, v := range views {
		start := "-"
		if v.LogStart != nil {
			start = strconv.FormatInt(*v.LogStart, 10)
		}
		tb.row(v.Partition, start, v.Error)
	}
}
