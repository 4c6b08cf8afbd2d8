package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
)

func (a *app) partitionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "partition", Aliases: []string{"partitions"}, Short: "Show, move and repair partitions",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.partitionDescribe(), a.partitionReassign(), a.partitionElect(), a.partitionRecover())
	return cmd
}

func (a *app) partitionDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe TOPIC [PARTITION…]", Aliases: []string{"list", "show"}, Short: "Show offsets, sizes, health and replicas of partitions",
		Long: "Show offsets, sizes and health of partitions and, for each partition that is named or under-replicated, how far its replicas are.",
		Args: minArgs(1), ValidArgsFunction: a.completeTopics,
		RunE: func(c *cobra.Command, v []string) error {
			numbers, err := parsePartitions(v[1:])
			if err != nil {
				return usageError{err: err, command: c.CommandPath()}
			}
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
				return a.describePartitions(ctx, cl, v[0], numbers)
			})
		},
	}
}

func parsePartitions(v []string) ([]int32, error) {
	numbers := make([]int32, 0, len(v))
	for _, s := range v {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("partition %q: want a number, 0 or more", s)
		}
		numbers = append(numbers, int32(n))
	}
	return numbers, nil
}

func (a *app) describePartitions(ctx context.Context, cl *client.Client, topic string, numbers []int32) error {
	ctx, cancel := a.request(ctx)
	defer cancel()
	infos, err := cl.Admin().DescribePartitions(ctx, topic, numbers...)
	if err != nil {
		return adviseTopic(err, topic)
	}
	err = a.print(viewPartitions(infos), func(tb *table) {
		partitionRows(tb, infos)
		replicaRows(tb, infos, len(numbers) > 0)
	})
	if err != nil {
		return err
	}
	failed := 0
	for _, p := range infos {
		if p.Err != nil {
			failed++
			err = fmt.Errorf("partition %d: %w", p.Partition, p.Err)
		}
	}
	if failed > 0 && failed < len(infos) {
		return partialError{err}
	}
	return err
}

func partitionRows(tb *table, infos []client.PartitionInfo) {
	tb.header("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "HEALTH", "START", "FLUSHED", "HIGH-WATERMARK", "END", "SIZE", "SEGMENTS", "DETAIL")
	for _, p := range infos {
		leader := strconv.Itoa(int(p.Leader))
		if p.Leader < 0 {
			leader = "none"
		}
		if p.Err != nil {
			tb.row(p.Partition, leader, p.LeaderEpoch, brokerList(p.Replicas), brokerList(p.ISR), p.Health, "-", "-", "-", "-", "-", "-", p.Err)
			continue
		}
		tb.row(p.Partition, leader, p.LeaderEpoch, brokerList(p.Replicas), brokerList(p.ISR), p.Health,
			known(p.LogStart), known(p.Flushed), known(p.HighWatermark), known(p.LogEnd), roundBytes(p.SizeBytes), p.Segments, partitionDetail(p))
	}
}

// partitionDetail marks what is remarkable.
func partitionDetail(p client.PartitionInfo) string {
	var marks []string
	if p.UnderReplicated {
		marks = append(marks, fmt.Sprintf("under-replicated, %d of %d in sync", len(p.ISR), len(p.Replicas)))
	}
	if len(p.ISR) < p.MinInSyncReplicas {
		marks = append(marks, fmt.Sprintf("below the minimum of %d", p.MinInSyncReplicas))
	}
	if len(p.Adding)+len(p.Removing) > 0 {
		marks = append(marks, "moving: "+moves(p.Adding, p.Removing))
	}
	if p.Detail != "" {
		marks = append(marks, p.Detail)
	}
	return strings.Join(marks, "; ")
}

// moves is "+3 -1".
func moves(adding, removing []int32) string {
	out := make([]string, 0, len(adding)+len(removing))
	for _, id := range adding {
		out = append(out, "+"+strconv.Itoa(int(id)))
	}
	for _, id := range removing {
		out = append(out, "-"+strconv.Itoa(int(id)))
	}
	return strings.Join(out, " ")
}

func brokerList(ids []int32) string {
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = strconv.Itoa(int(id))
	}
	return strings.Join(text, ",")
}

func (a *app) partitionRecover() *cobra.Command {
	var accept bool
	broker := int32(-1)
	cmd := &cobra.Command{
		Use: "recover TOPIC PARTITION", Short: "Bring a quarantined partition back at the price of its damaged records",
		Long: "A partition whose acknowledged records are damaged is quarantined: its files are left as they are. recover prints what would\n" +
			"be kept and lost; with --accept-data-loss it goes ahead. While other replicas are in sync none of this is needed: the damaged one\n" +
			"is replaced by itself.",
		Args: exactArgs(2), ValidArgsFunction: a.completeTopics,
		RunE: func(c *cobra.Command, v []string) error {
			numbers, err := parsePartitions(v[1:])
			if err != nil {
				return usageError{err: err, command: c.CommandPath()}
			}
			tp := client.TopicPartition{Topic: v[0], Partition: numbers[0]}
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
				return a.recoverPartition(ctx, cl, tp, broker, accept)
			},
				client.TopicWait(0))
		},
	}
	cmd.Flags().BoolVar(&accept, "accept-data-loss", false, "do it")
	cmd.Flags().Int32Var(&broker, "broker", -1, "whose replica; default: the leader's, or the first there is where there is no leader")
	return cmd
}

func (a *app) recoverPartition(ctx context.Context, cl *client.Client, tp client.TopicPartition, broker int32, accept bool) error {
	ctx, cancel := a.request(ctx)
	defer cancel()
	info, err := cl.Admin().RecoverReplica(ctx, tp, broker, accept)
	if err != nil {
		return adviseTopic(err, tp.Topic)
	}
	view := struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		KeptEnd   int64  `json:"keptEnd"`
		LostEnd   int64  `json:"lostEnd"`
		Detail    string `json:"detail,omitempty"`
		Applied   bool   `json:"applied"`
	}{tp.Topic, tp.Partition, info.KeptEnd, info.LostEnd, info.Detail, info.Applied}
	err = a.print(view, func(tb *table) {
		tb.header("PARTITION", "KEPT-BELOW", "LOST-UP-TO", "RECORDS-LOST", "APPLIED", "DETAIL")
		tb.row(tp, info.KeptEnd, info.LostEnd, max(0, info.LostEnd-info.KeptEnd), info.Applied, info.Detail)
	})
	if err == nil && !info.Applied {
		flag := ""
		if broker >= 0 {
			flag = fmt.Sprintf(" --broker %d", broker)
		}
		fmt.Fprintf(a.Err, "nothing was changed; to accept the loss: runnel partition recover %s %d%s --accept-data-loss\n", cell(tp.Topic), tp.Partition, flag)
	}
	return err
}
