package cli

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Show the cluster and its brokers", Args: cobra.ArbitraryArgs, RunE: group}
	cmd.AddCommand(
		&cobra.Command{
			Use: "describe", Short: "Show the cluster", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error { return a.describeCluster(c.Context(), clusterFacts) },
		},
		&cobra.Command{
			Use: "brokers", Short: "List the brokers", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error { return a.describeCluster(c.Context(), nil) },
		},
	)
	return cmd
}

type brokerView struct {
	ID        int32             `json:"id"`
	Epoch     int64             `json:"epoch"`
	Rack      string            `json:"rack,omitempty"`
	Version   string            `json:"version"`
	StorageID string            `json:"storageID"`
	Listeners map[string]string `json:"listeners"`
	Leaders   int               `json:"leaders"`
	Replicas  int               `json:"replicas"`
}

type clusterView struct {
	ID         string       `json:"id"`
	Controller int32        `json:"controller"`
	Topics     int          `json:"topics"`
	Partitions int          `json:"partitions"`
	Brokers    []brokerView `json:"brokers"`
}

// describeCluster prints the brokers, and with facts the cluster above them.
func (a *app) describeCluster(ctx context.Context, facts func(*table, clusterView)) error {
	return a.withClient(ctx, func(ctx context.Context, cl *client.Client) error {
		ctx, cancel := a.request(ctx)
		defer cancel()
		info, err := cl.Admin().DescribeCluster(ctx)
		if err != nil {
			return err
		}
		v := clusterView{ID: info.ID, Controller: info.Controller, Topics: info.Topics, Partitions: info.Partitions}
		for _, b := range info.Brokers {
			v.Brokers = append(v.Brokers, brokerView{
				ID: b.ID, Epoch: b.Epoch, Rack: b.Rack, Version: b.Version, StorageID: b.StorageID,
				Listeners: b.Listeners, Leaders: b.Leaders, Replicas: b.Replicas,
			})
		}
		if facts == nil {
			return a.print(v.Brokers, func(t *table) { brokerRows(t, v) })
		}
		return a.print(v, func(t *table) {
			if t.nameOnly {
				t.row(v.ID)
				return
			}
			facts(t, v)
			t.gap()
			brokerRows(t, v)
		})
	})
}

func clusterFacts(t *table, v clusterView) {
	t.fact("cluster", v.ID)
	t.fact("controller", v.Controller)
	t.fact("topics", v.Topics)
	t.fact("partitions", v.Partitions)
}

func brokerRows(t *table, v clusterView) {
	t.header("BROKER", "LISTENERS", "RACK", "LEADERS", "REPLICAS", "VERSION", "STORAGE-ID")
	for _, b := range v.Brokers {
		listeners := make([]string, 0, len(b.Listeners))
		for _, name := range slices.Sorted(maps.Keys(b.Listeners)) {
			listeners = append(listeners, name+"="+b.Listeners[name])
		}
		t.row(b.ID, strings.Join(listeners, ","), b.Rack, b.Leaders, b.Replicas, b.Version, b.StorageID)
	}
}
