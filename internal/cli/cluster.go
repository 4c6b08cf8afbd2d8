package cli

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"runnel.dev/runnel/client"
)

func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cluster", Short: "Show the cluster and its brokers, and take brokers out", Args: cobra.ArbitraryArgs, RunE: group}
	cmd.AddCommand(
		&cobra.Command{
			Use: "describe", Short: "Show the cluster, its brokers, and what is under way", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error { return a.describeCluster(c.Context(), true) },
		},
		&cobra.Command{
			Use: "brokers", Short: "List the brokers", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error { return a.describeCluster(c.Context(), false) },
		},
		a.clusterConfig(), a.clusterDrain(), a.clusterUndrain(), a.clusterDecommission(), a.clusterSafeToStop(), a.clusterFence(), a.clusterUnfence(),
	)
	return cmd
}

type brokerView struct {
	ID              int32             `json:"id"`
	Epoch           int64             `json:"epoch"`
	Rack            string            `json:"rack,omitempty"`
	Version         string            `json:"version"`
	StorageID       string            `json:"storageID"`
	Listeners       map[string]string `json:"listeners"`
	State           string            `json:"state"`
	Live            bool              `json:"live"`
	Eligible        bool              `json:"eligible"`
	Suspect         bool              `json:"suspect"`
	Stopping        bool              `json:"stopping"`
	Controller      bool              `json:"controller"`
	Leaders         int               `json:"leaders"`
	Replicas        int               `json:"replicas"`
	UnderReplicated int               `json:"underReplicated"`
	Damaged         int               `json:"damaged"`
	// -1: unknown.
	SizeBytes  int64   `json:"sizeBytes"`
	FreeBytes  int64   `json:"freeBytes"`
	TotalBytes int64   `json:"totalBytes"`
	FullInMs   int64   `json:"fullInMs"`
	BytesIn    float64 `json:"bytesInPerSecond"`
	BytesOut   float64 `json:"bytesOutPerSecond"`
}

type clusterView struct {
	ID              string          `json:"id"`
	Controller      int32           `json:"controller"`
	Topics          int             `json:"topics"`
	Partitions      int             `json:"partitions"`
	UnderReplicated int             `json:"underReplicated"`
	BelowMinimum    int             `json:"belowMinimum"`
	Leaderless      int             `json:"leaderless"`
	Brokers         []brokerView    `json:"brokers"`
	Operations      []operationView `json:"operations"`
}

func viewBroker(b client.BrokerInfo) brokerView {
	v := brokerView{
		ID: b.ID, Epoch: b.Epoch, Rack: b.Rack, Version: b.Version, StorageID: b.StorageID, Listeners: b.Listeners,
		State: string(b.State), Live: b.Live, Eligible: b.Eligible, Suspect: b.Suspect, Stopping: b.Stopping, Controller: b.Controller,
		Leaders: b.Leaders, Replicas: b.Replicas, UnderReplicated: b.UnderReplicated, Damaged: b.Damaged,
		SizeBytes: b.SizeBytes, FreeBytes: b.FreeBytes, TotalBytes: b.TotalBytes, FullInMs: -1, BytesIn: b.BytesIn, BytesOut: b.BytesOut,
	}
	if b.FullIn >= 0 {
		v.FullInMs = b.FullIn.Milliseconds()
	}
	return v
}

// describeCluster prints the brokers; whole: the cluster above them, and what is under way below.
func (a *app) describeCluster(ctx context.Context, whole bool) error {
	return a.withClient(ctx, func(ctx context.Context, cl *client.Client) error {
		ctx, cancel := a.request(ctx)
		defer cancel()
		info, err := cl.Admin().DescribeCluster(ctx)
		if err != nil {
			return err
		}
		v := clusterView{
			ID: info.ID, Controller: info.Controller, Topics: info.Topics, Partitions: info.Partitions, UnderReplicated: info.UnderReplicated,
			BelowMinimum: info.BelowMinimum, Leaderless: info.Leaderless, Brokers: []brokerView{}, Operations: []operationView{},
		}
		for _, b := range info.Brokers {
			v.Brokers = append(v.Brokers, viewBroker(b))
		}
		if !whole {
			return a.print(v.Brokers, func(t *table) { brokerRows(t, v) })
		}
		operations, opErr := cl.Admin().Operations(ctx)
		for _, o := range operations {
			v.Operations = append(v.Operations, viewOperation(o, a.Clock.Now()))
		}
		err = a.print(v, func(t *table) {
			if t.nameOnly {
				t.row(v.ID)
				return
			}
			clusterFacts(t, v)
			t.gap()
			brokerRows(t, v)
			if len(v.Operations) > 0 {
				t.gap()
				operationRows(t, v.Operations)
			}
		})
		if err == nil && opErr != nil { // a cluster without a controller can be described, what it is doing cannot
			return partialError{opErr}
		}
		return err
	})
}

func clusterFacts(t *table, v clusterView) {
	t.fact("cluster", v.ID)
	if v.Controller < 0 {
		t.fact("controller", "none")
	} else {
		t.fact("controller", v.Controller)
	}
	t.fact("topics", v.Topics)
	t.fact("partitions", v.Partitions)
	t.fact("under-replicated", v.UnderReplicated)
	t.fact("below minimum", v.BelowMinimum)
	t.fact("without leader", v.Leaderless)
}

func brokerRows(t *table, v clusterView) {
	t.header("BROKER", "STATE", "LISTENERS", "RACK", "LEADERS", "REPLICAS", "NOT-IN-SYNC", "SIZE", "FREE", "VERSION", "STORAGE-ID")
	for _, b := range v.Brokers {
		listeners := make([]string, 0, len(b.Listeners))
		for _, name := range slices.Sorted(maps.Keys(b.Listeners)) {
			listeners = append(listeners, name+"="+b.Listeners[name])
		}
		t.row(b.ID, brokerMarks(b), strings.Join(listeners, ","), b.Rack, b.Leaders, b.Replicas, b.UnderReplicated, knownBytes(b.SizeBytes),
			freeSpace(b), b.Version, b.StorageID)
	}
}

// brokerMarks is the state, and what is remarkable about the broker now. One that is down is not called active: it may hold replicas, and does nothing.
func brokerMarks(b brokerView) string {
	marks := []string{b.State}
	if !b.Live && b.State == string(client.BrokerActive) {
		marks = nil
	}
	add := func(on bool, mark string) {
		if on {
			marks = append(marks, mark)
		}
	}
	add(b.Controller, "controller")
	add(!b.Live, "down")
	add(b.Live && !b.Eligible, "not eligible")
	add(b.Suspect, "suspect")
	add(b.Stopping, "stopping")
	add(b.Damaged > 0, counted(int64(b.Damaged), "damaged log"))
	return strings.Join(marks, ",")
}

func freeSpace(b brokerView) string {
	free := knownBytes(b.FreeBytes)
	if b.FullInMs >= 0 {
		free += " (full in " + formatDuration((time.Duration(b.FullInMs) * time.Millisecond).Round(time.Minute)) + ")"
	}
	return free
}

func knownBytes(n int64) string {
	if n < 0 {
		return "-"
	}
	return roundBytes(n)
}

type operationView struct {
	Kind           string         `json:"kind"`
	Broker         *int32         `json:"broker,omitempty"`
	Partitions     int            `json:"partitions"`
	PartitionsDone int            `json:"partitionsDone"`
	Bytes          int64          `json:"bytes"`
	BytesDone      int64          `json:"bytesDone"`
	RunningMs      int64          `json:"runningMs"`
	Blocked        string         `json:"blocked,omitempty"`
	Blocking       []blockingView `json:"blocking,omitempty"`
}

type blockingView struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Reason    string `json:"reason"`
	InSync    int    `json:"inSync"`
	MinInSync int    `json:"minInSync"`
}

func viewBlocking(bs []client.Blocking) []blockingView {
	out := make([]blockingView, 0, len(bs))
	for _, b := range bs {
		out = append(out, blockingView{b.Topic, b.Partition, b.Reason, b.InSync, b.MinInSyncReplicas})
	}
	return out
}

func viewOperation(o client.Operation, now time.Time) operationView {
	v := operationView{
		Kind: string(o.Kind), Partitions: o.Partitions, PartitionsDone: o.PartitionsDone, Bytes: o.Bytes, BytesDone: o.BytesDone, RunningMs: -1,
		Blocked: o.Blocked, Blocking: viewBlocking(o.Blocking),
	}
	if o.Broker >= 0 {
		v.Broker = &o.Broker
	}
	if !o.Since.IsZero() {
		v.RunningMs = max(now.Sub(o.Since).Milliseconds(), 0)
	}
	return v
}

func operationRows(t *table, ops []operationView) {
	t.header("OPERATION", "BROKER", "PARTITIONS", "BYTES", "RUNNING", "BLOCKED")
	for _, o := range ops {
		broker, bytes, running := "-", "-", "-"
		if o.Broker != nil {
			broker = brokerList([]int32{*o.Broker})
		}
		if o.Bytes >= 0 && o.BytesDone >= 0 {
			bytes = roundBytes(o.BytesDone) + "/" + roundBytes(o.Bytes)
		}
		if o.RunningMs >= 0 {
			running = formatDuration((time.Duration(o.RunningMs) * time.Millisecond).Round(time.Second))
		}
		t.row(o.Kind, broker, groupDigits(int64(o.PartitionsDone))+"/"+groupDigits(int64(o.Partitions)), bytes, running, o.Blocked)
	}
}

func blockingRows(t *table, bs []blockingView) {
	t.header("PARTITION", "IN-SYNC", "MINIMUM", "REASON")
	for _, b := range bs {
		minimum := "-" // it is not what is in the way
		if b.MinInSync > 0 {
			minimum = strconv.Itoa(b.MinInSync)
		}
		t.row(client.TopicPartition{Topic: b.Topic, Partition: b.Partition}, b.InSync, minimum, b.Reason)
	}
}
