package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
)

// topicUpdateFlags are the flags of topic update.
type topicUpdateFlags struct {
	config, reset []string
	minInSync     int32
	change        client.TopicChange
}

func (a *app) topicUpdate() *cobra.Command {
	var f topicUpdateFlags
	cmd := &cobra.Command{
		Use: "update NAME", Aliases: []string{"alter"}, Short: "Change a topic's settings or replicas, or add partitions",
		Long: "Change settings or the number of replicas, or add partitions, and print what differs. Nothing is done when nothing differs. Replicas that are\n" +
			"added copy the partitions in the background.\n\n" + settingsHelp(),
		Example: "  runnel topic update orders --config retention=30d --reset segment-bytes --dry-run\n  runnel topic update orders -p 12\n" +
			"  runnel topic update orders --replicas 3",
		Args: exactArgs(1), ValidArgsFunction: a.completeTopics,
		RunE: func(c *cobra.Command, v []string) error {
			if err := f.parse(); err != nil {
				return usageError{err: err, command: c.CommandPath()}
			}
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error { return a.updateTopic(ctx, cl, v[0], f.change) })
		},
	}
	fs := cmd.Flags()
	fs.Int32VarP(&f.change.Partitions, "partitions", "p", 0, "new number of partitions, which can only grow; keys move to other partitions")
	fs.Int32Var(&f.change.Replicas, "replicas", 0, "new number of replicas of each partition")
	fs.Int32Var(&f.minInSync, "min-in-sync-replicas", 0, "replicas that have a record on disk before it is acknowledged")
	fs.StringArrayVar(&f.config, "config", nil, "setting=value, may repeat")
	fs.StringArrayVar(&f.reset, "reset", nil, "setting that goes back to the cluster's default, may repeat")
	fs.Int64Var(&f.change.Generation, "generation", 0, "change only the topic of this generation, as describe shows it")
	fs.BoolVar(&f.change.Force, "force", false, "change a topic although a resource owns it")
	fs.BoolVar(&f.change.DryRun, "dry-run", false, "print what would change, and change nothing")
	_ = cmd.RegisterFlagCompletionFunc("config", completeSettings("="))
	_ = cmd.RegisterFlagCompletionFunc("reset", completeSettings(""))
	return cmd
}

func (f *topicUpdateFlags) parse() error {
	config, err := parseSettings(f.config)
	reset, resetErr := resetFields(f.reset)
	f.change.Config, f.change.Reset = config, reset
	if err := errors.Join(err, resetErr); err != nil {
		return err
	}
	if f.change.Partitions < 0 {
		return fmt.Errorf("--partitions %d: want 1 or more", f.change.Partitions)
	}
	if f.change.Replicas < 0 || f.minInSync < 0 {
		return fmt.Errorf("--replicas %d, --min-in-sync-replicas %d: want 1 or more", f.change.Replicas, f.minInSync)
	}
	if f.minInSync > 0 {
		f.change.Config.MinInSyncReplicas = &f.minInSync
	}
	if f.change.Generation < 0 {
		return fmt.Errorf("--generation %d: want 1 or more", f.change.Generation)
	}
	if len(f.config)+len(f.reset) == 0 && f.change.Partitions == 0 && f.change.Replicas == 0 && f.minInSync == 0 {
		return errors.New("nothing to change: give --config, --reset, --partitions or --replicas")
	}
	return nil
}

// changeView is one difference, as the command line spells settings.
type changeView struct {
	Setting string `json:"setting"`
	Before  string `json:"before"`
	After   string `json:"after"`
}

// updateTopic asks first what would differ. The change is then bound to that very topic and generation, so that what was printed is
// what happened.
func (a *app) updateTopic(ctx context.Context, cl *client.Client, name string, ch client.TopicChange) error {
	before, err := a.lookUp(ctx, cl, name)
	if err != nil {
		return err
	}
	ch.ID = before.ID
	if ch.Generation == 0 {
		ch.Generation = before.Generation
	}
	ctx, cancel := a.request(ctx)
	defer cancel()
	after, diff, err := cl.Admin().PlanTopic(ctx, name, ch)
	if err != nil {
		return adviseConflict(err, name)
	}
	changes := viewChanges(before, after, diff)
	if !ch.DryRun && len(changes) > 0 {
		if _, err := cl.Admin().UpdateTopic(ctx, name, ch); err != nil {
			return adviseConflict(err, name)
		}
	}
	switch {
	case len(changes) == 0:
		fmt.Fprintln(a.Err, "nothing differs, nothing was changed")
	case ch.DryRun:
		fmt.Fprintln(a.Err, "dry run: nothing was changed")
	}
	return a.print(changes, func(t *table) {
		if len(changes) == 0 {
			return
		}
		t.header("SETTING", "BEFORE", "AFTER")
		for _, c := range changes {
			t.row(c.Setting, c.Before, c.After)
		}
	})
}

func adviseConflict(err error, name string) error {
	if errors.Is(err, client.ErrConflict) {
		return adviceError{err: err, advice: "runnel topic describe " + name + ", and then the change again"}
	}
	return adviseTopic(err, name)
}

func viewChanges(before, after client.Topic, diff []client.ConfigChange) []changeView {
	changes := make([]changeView, 0, len(diff)+1)
	partitions := before.Partitions != after.Partitions
	for _, d := range diff {
		v := changeView{Setting: d.Field, Before: d.Before, After: d.After}
		if s, err := findSetting(d.Field); err == nil {
			v = changeView{Setting: s.key, Before: orDefault(d.Before, s.human), After: orDefault(d.After, s.human)}
		}
		partitions = partitions && d.Field != "partitions"
		changes = append(changes, v)
	}
	if partitions {
		changes = append(changes, changeView{"partitions", strconv.Itoa(int(before.Partitions)), strconv.Itoa(int(after.Partitions))})
	}
	return changes
}

func orDefault(value string, human func(string) string) string {
	if value == "" {
		return "default"
	}
	return human(value)
}

func (a *app) topicDelete() *cobra.Command {
	var yes, force bool
	cmd := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a topic and its records",
		Long: "Delete a topic and all of its records, for good. The topic is deleted by its id, never a namesake that was created meanwhile.",
		Args: exactArgs(1), ValidArgsFunction: a.completeTopics,
		RunE: func(c *cobra.Command, v []string) error {
			if !yes && !a.Terminal {
				return usagef(c, "deleting %q cannot be undone: confirm it with --yes", v[0])
			}
			return a.withClient(c.Context(), func(ctx context.Context, cl *client.Client) error {
				return a.deleteTopic(ctx, cl, v[0], yes, force)
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&force, "force", false, "delete a topic although a resource owns it")
	return cmd
}

func (a *app) deleteTopic(ctx context.Context, cl *client.Client, name string, yes, force bool) error {
	t, err := a.lookUp(ctx, cl, name)
	if err != nil {
		return err
	}
	if !yes {
		if err := a.confirm(name, fmt.Sprintf("This deletes topic %s with %d partitions and all of its records.", name, t.Partitions)); err != nil {
			return err
		}
	}
	ctx, cancel := a.request(ctx)
	defer cancel()
	remove := cl.Admin().DeleteTopic
	if force {
		remove = cl.Admin().ForceDeleteTopic
	}
	if err := remove(ctx, name, t.ID); err != nil {
		return adviseConflict(err, name)
	}
	fmt.Fprintf(a.Err, "topic %s deleted\n", cell(name))
	return nil
}

// confirm wants name typed.
func (a *app) confirm(name, consequence string) error {
	fmt.Fprintf(a.Err, "%s\nType its name to go on: ", cell(consequence))
	line, err := bufio.NewReader(a.In).ReadString('\n')
	if got := strings.TrimSpace(line); got != name {
		return errors.Join(fmt.Errorf("%q is not %q: nothing was deleted", got, name), ignoreEOF(err))
	}
	return nil
}
