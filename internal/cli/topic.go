package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
)

func (a *app) topicCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "topic", Aliases: []string{"topics"}, Short: "Create, show, change and delete topics",
		Args: cobra.ArbitraryArgs, RunE: group,
	}
	cmd.AddCommand(a.topicCreate(), a.topicList(), a.topicDescribe(), a.topicUpdate(), a.topicDelete(), a.topicTrim())
	return cmd
}

func (a *app) topicCreate() *cobra.Command {
	var spec client.TopicSpec
	var config []string
	var minInSync int32
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a topic", Args: exactArgs(1),
		Long: "Create a topic. What is not said takes the cluster's defaults.\n\n" + settingsHelp(),
		Example: "  runnel topic create orders -p 6 --config retention=7d --config segment-bytes=64MiB\n" +
			"  runnel topic create payments --replicas 3 --min-in-sync-replicas 2",
		RunE: func(c *cobra.Command, v []string) error {
			var err error
			if spec.Config, err = parseSettings(config); err != nil {
				return usageError{err: err, command: c.CommandPath()}
			}
			if spec.Partitions < 0 || spec.Replicas < 0 {
				return usagef(c, "--partitions %d, --replicas %d: want 1 or more, or 0 for the cluster's default", spec.Partitions, spec.Replicas)
			}
			switch {
			case minInSync < 0:
				return usagef(c, "--min-in-sync-replicas %d: want 1 or more, or 0 for the cluster's default", minInSync)
			case minInSync > 0 && spec.Replicas > 0 && minInSync > spec.Replicas:
				return usagef(c, "--min-in-sync-replicas %d: want at most the %d of --replicas", minInSync, spec.Replicas)
			case minInSync > 0:
				spec.Config.MinInSyncReplicas = &minInSync
			}
			spec.Name = v[0]
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error { return a.createTopic(ctx, cl, spec) })
		},
	}
	f := cmd.Flags()
	f.Int32VarP(&spec.Partitions, "partitions", "p", 0, "number of partitions; 0: the cluster's default")
	f.Int32Var(&spec.Replicas, "replicas", 0, "replicas of each partition; 0: the cluster's default")
	f.Int32Var(&minInSync, "min-in-sync-replicas", 0, "replicas that have a record on disk before it is acknowledged; 0: the cluster's default, a majority")
	f.StringArrayVar(&config, "config", nil, "setting=value, may repeat")
	f.BoolVar(&spec.DryRun, "dry-run", false, "check, print the topic as it would be, and create nothing")
	_ = cmd.RegisterFlagCompletionFunc("config", completeSettings("="))
	return cmd
}

func (a *app) createTopic(ctx context.Context, cl *client.Client, spec client.TopicSpec) error {
	ctx, cancel := a.request(ctx)
	defer cancel()
	t, err := cl.Admin().CreateTopic(ctx, spec)
	if errors.Is(err, client.ErrTopicExists) {
		return adviceError{err: err, advice: "runnel topic describe " + spec.Name}
	}
	if err != nil {
		return err
	}
	if spec.DryRun {
		fmt.Fprintln(a.Err, "dry run: nothing was created")
	}
	return a.print(viewTopic(t), func(tb *table) { topicRows(tb, []client.Topic{t}) })
}

func (a *app) topicList() *cobra.Command {
	return &cobra.Command{
		Use: "list [NAME…]", Aliases: []string{"ls"}, Short: "List topics", ValidArgsFunction: a.completeTopics,
		Args: args(cobra.ArbitraryArgs),
		RunE: func(c *cobra.Command, v []string) error {
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error { return a.listTopics(ctx, cl, v) })
		},
	}
}

// listTopics shows those it finds; a name that does not exist makes the list partial.
func (a *app) listTopics(ctx context.Context, cl *client.Client, names []string) error {
	ctx, cancel := a.request(ctx)
	defer cancel()
	topics, err := cl.Admin().Topics(ctx, names...)
	if err != nil {
		return err
	}
	views := make([]topicView, 0, len(topics))
	found := make(map[string]bool, len(topics))
	for _, t := range topics {
		views = append(views, viewTopic(t))
		found[t.Name] = true
	}
	if err := a.print(views, func(tb *table) { topicRows(tb, topics) }); err != nil {
		return err
	}
	var missing []error
	for _, name := range names {
		if !found[name] {
			missing = append(missing, unknownTopic(name))
		}
	}
	if len(missing) > 0 && len(topics) > 0 {
		return partialError{errors.Join(missing...)}
	}
	return errors.Join(missing...)
}

// topicRows prints a topic that does not exist, of a dry run, without state and id.
func topicRows(tb *table, topics []client.Topic) {
	tb.header("NAME", "PARTITIONS", "REPLICAS", "RETENTION", "STATE", "ID")
	for _, t := range topics {
		retention := showValue(t.Config.Retention, func(d time.Duration) string {
			if d < 0 {
				return forever
			}
			return formatDuration(d)
		})
		state, id := "-", "-"
		if t.State != "" {
			state, id = string(t.State), t.ID.String()
		}
		tb.row(t.Name, t.Partitions, t.Replicas, retention, state, id)
	}
}

func (a *app) topicDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe NAME", Aliases: []string{"show", "get"}, Short: "Show a topic, its settings and its partitions",
		Args: exactArgs(1), ValidArgsFunction: a.completeTopics,
		RunE: func(c *cobra.Command, v []string) error {
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error { return a.describeTopic(ctx, cl, v[0]) })
		},
	}
}

func (a *app) describeTopic(ctx context.Context, cl *client.Client, name string) error {
	ctx, cancel := a.request(ctx)
	defer cancel()
	t, partitions, err := cl.Admin().DescribeTopic(ctx, name)
	if err != nil {
		return adviseTopic(err, name)
	}
	view := struct {
		topicView
		PartitionList []partitionView `json:"partitionList"`
	}{viewTopic(t), viewPartitions(partitions)}
	return a.print(view, func(tb *table) {
		if tb.nameOnly {
			tb.row(t.Name)
			return
		}
		describeFacts(tb, t)
		if n := underReplicated(partitions); n > 0 {
			tb.fact("under-replicated", counted(int64(n), "partition"))
		}
		tb.gap()
		partitionRows(tb, partitions)
		replicaRows(tb, partitions, false)
	})
}

func underReplicated(ps []client.PartitionInfo) (n int) {
	for _, p := range ps {
		if p.UnderReplicated {
			n++
		}
	}
	return n
}

func describeFacts(tb *table, t client.Topic) {
	tb.fact("name", t.Name)
	tb.fact("id", t.ID)
	tb.fact("state", t.State)
	tb.fact("partitions", t.Partitions)
	tb.fact("replicas", t.Replicas)
	tb.fact("generation", t.Generation)
	if !t.Created.IsZero() {
		tb.fact("created", t.Created.UTC().Format(time.RFC3339))
	}
	if t.Owner != "" {
		tb.fact("owner", t.Owner)
	}
	for _, s := range settings {
		tb.fact(s.key, s.show(t.Config))
	}
}

// lookUp finds a topic by name.
func (a *app) lookUp(ctx context.Context, cl *client.Client, name string) (client.Topic, error) {
	ctx, cancel := a.request(ctx)
	defer cancel()
	topics, err := cl.Admin().Topics(ctx, name)
	if err != nil {
		return client.Topic{}, err
	}
	for _, t := range topics {
		if t.Name == name {
			return t, nil
		}
	}
	return client.Topic{}, unknownTopic(name)
}

func unknownTopic(name string) error {
	return adviceError{
		err:    fmt.Errorf("topic %q: %w", name, client.ErrUnknownTopic),
		advice: "runnel topic list, or create it with: runnel topic create " + name,
	}
}

// adviseTopic adds what to try when err says that the topic does not exist.
func adviseTopic(err error, name string) error {
	var advised adviceError
	if errors.Is(err, client.ErrUnknownTopic) && !errors.As(err, &advised) {
		return adviceError{err: err, advice: "runnel topic list, or create it with: runnel topic create " + name}
	}
	return err
}

const completionTimeout = 3 * time.Second

// completeTopics offers topic names for the first argument, and says nothing when no broker answers.
func (a *app) completeTopics(c *cobra.Command, v []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(v) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(c.Context(), completionTimeout)
	defer cancel()
	var names []string
	_ = a.withClient(ctx, func(ctx context.Context, cl *client.Client) error {
		topics, err := cl.Admin().Topics(ctx)
		for _, t := range topics {
			if strings.HasPrefix(t.Name, prefix) {
				names = append(names, cell(t.Name))
			}
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeSettings offers the names of settings, with what follows a name.
func completeSettings(after string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	names := make([]string, len(settings))
	for i, s := range settings {
		names[i] = s.key + after
	}
	return cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace)
}
