package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"runnel.dev/runnel/broker/metadata"
	"runnel.dev/runnel/broker/recovery"
	"runnel.dev/runnel/client"
	"runnel.dev/runnel/internal/clock"
)

// leadersPoll is the pause between two looks at whether the cluster works again.
const leadersPoll = 500 * time.Millisecond

type recoveryView struct {
	ClusterID  string                  `json:"clusterID"`
	Era        int64                   `json:"era"`
	Source     string                  `json:"source"`
	Etcd       positionView            `json:"etcd"`
	Seen       positionView            `json:"seen"`
	Brokers    []recoveryBrokerView    `json:"brokers"`
	Missing    []int32                 `json:"missing"`
	Topics     []recoveryTopicView     `json:"topics"`
	Partitions []recoveryPartitionView `json:"partitions"`
	Findings   []recoveryFindingView   `json:"findings"`
}

type positionView struct {
	EtcdClusterID string `json:"etcdClusterID"`
	Era           int64  `json:"era"`
	Revision      int64  `json:"revision"`
}

type recoveryBrokerView struct {
	Address   string `json:"address"`
	ID        *int32 `json:"id,omitempty"`
	Standing  string `json:"standing"`
	StorageID string `json:"storageID,omitempty"`
	Logs      int    `json:"logs"`
	Damaged   int    `json:"damaged"`
	Revision  int64  `json:"revision"`
	Error     string `json:"error,omitempty"`
}

type recoveryTopicView struct {
	Name       string `json:"name"`
	ID         string `json:"id"`
	Outcome    string `json:"outcome"`
	Partitions int    `json:"partitions"`
}

type recoveryPartitionView struct {
	Topic       string            `json:"topic"`
	Partition   int32             `json:"partition"`
	Chosen      []int32           `json:"chosen"`
	LeaderEpoch int32             `json:"leaderEpoch"`
	End         int64             `json:"end"`
	Replicas    []int32           `json:"replicas"`
	Differing   []recoveryLogView `json:"differing"`
}

// recoveryLogView is a log that is not the chosen one.
type recoveryLogView struct {
	Broker       int32 `json:"broker"`
	AdoptedEpoch int32 `json:"adoptedEpoch"`
	LatestEpoch  int32 `json:"latestEpoch"`
	End          int64 `json:"end"`
	Damaged      bool  `json:"damaged"`
}

func (l recoveryLogView) String() string {
	damaged := ""
	if l.Damaged {
		damaged = " damaged"
	}
	return fmt.Sprintf("%d (end %d, epoch %d/%d%s)", l.Broker, l.End, l.AdoptedEpoch, l.LatestEpoch, damaged)
}

type recoveryFindingView struct {
	Severity  string `json:"severity"`
	Topic     string `json:"topic,omitempty"`
	Partition *int32 `json:"partition,omitempty"`
	Message   string `json:"message"`
}

func viewPosition(p metadata.Position) positionView {
	return positionView{EtcdClusterID: fmt.Sprintf("%016x", p.EtcdClusterID), Era: p.Era, Revision: p.Revision}
}

func viewRecovery(now *recovery.Situation, without []int32) recoveryView {
	v := recoveryView{
		ClusterID: now.ClusterID(), Etcd: viewPosition(now.Etcd.Position), Seen: viewPosition(now.Known()), Brokers: []recoveryBrokerView{}, Missing: []int32{},
		Topics: []recoveryTopicView{}, Partitions: []recoveryPartitionView{}, Findings: []recoveryFindingView{},
	}
	logs := map[metadata.PartitionRef][]recoveryLogView{}
	for _, b := range now.Brokers {
		row := recoveryBrokerView{Address: b.Address, Standing: string(b.Standing)}
		if b.Err != nil && b.Standing != recovery.Refuses {
			row.Error = b.Err.Error()
		}
		if b.Standing == recovery.Refuses {
			row.ID, row.StorageID, row.Logs, row.Revision = &b.ID, b.Inventory.StorageID.String(), len(b.Inventory.Logs), b.Inventory.Position.Revision
			if slices.Contains(without, b.ID) {
				row.Standing = "left out"
			}
		}
		for _, l := range b.Inventory.Logs {
			if l.Damaged {
				row.Damaged++
			}
			ref := metadata.PartitionRef{TopicID: l.TopicID, Partition: l.Partition}
			logs[ref] = append(logs[ref], recoveryLogView{b.ID, l.AdoptedEpoch, l.LatestEpoch, l.End, l.Damaged})
		}
		v.Brokers = append(v.Brokers, row)
	}
	if now.Plan != nil {
		v.plan(now.Plan, logs)
	}
	return v
}

// plan enters what will be.
func (v *recoveryView) plan(p *metadata.Recovery, logs map[metadata.PartitionRef][]recoveryLogView) {
	v.ClusterID, v.Era, v.Source, v.Missing = p.ClusterID, p.Era, p.Source, append(v.Missing, p.Missing...)
	partitions := map[string]int{}
	for _, part := range p.Partitions {
		partitions[part.Topic]++
		row := recoveryPartitionView{
			Topic: part.Topic, Partition: part.Partition, Chosen: []int32{}, LeaderEpoch: part.LeaderEpoch, End: part.End, Replicas: part.Replicas,
			Differing: []recoveryLogView{},
		}
		for _, m := range part.ISR {
			row.Chosen = append(row.Chosen, m.BrokerID)
		}
		for _, l := range logs[part.PartitionRef] {
			if !slices.Contains(row.Chosen, l.Broker) {
				row.Differing = append(row.Differing, l)
			}
		}
		v.Partitions = append(v.Partitions, row)
	}
	for _, t := range p.Topics {
		row := recoveryTopicView{Name: t.Name, ID: t.ID.String(), Outcome: string(t.Outcome)}
		if t.Outcome != metadata.TopicDropped {
			row.Partitions = partitions[t.Name]
		}
		v.Topics = append(v.Topics, row)
	}
	for _, f := range p.Findings {
		row := recoveryFindingView{Severity: string(f.Severity), Topic: f.Topic, Message: f.Message}
		if f.Partition >= 0 {
			row.Partition = &f.Partition
		}
		v.Findings = append(v.Findings, row)
	}
}

// show prints what was found, and the plan.
func (s *recoverSession) show(now *recovery.Situation) error {
	v, a := viewRecovery(now, s.f.without), s.a
	return a.print(v, func(t *table) {
		if t.nameOnly {
			t.row(v.ClusterID)
			return
		}
		t.fact("cluster", v.ClusterID)
		t.fact("etcd", fmt.Sprintf("era %d, revision %d", v.Etcd.Era, v.Etcd.Revision))
		t.fact("seen by brokers", fmt.Sprintf("era %d, revision %d", v.Seen.Era, v.Seen.Revision))
		if now.Plan != nil {
			t.fact("source", v.Source)
			t.fact("era to come", v.Era)
		}
		t.gap()
		recoveryRows(t, v)
	})
}

func recoveryRows(t *table, v recoveryView) {
	t.header("ADDRESS", "BROKER", "STANDING", "LOGS", "DAMAGED", "SEEN-REVISION", "STORAGE-ID", "DETAIL")
	for _, b := range v.Brokers {
		id := "-"
		if b.ID != nil {
			id = brokerList([]int32{*b.ID})
		}
		t.row(b.Address, id, b.Standing, b.Logs, b.Damaged, b.Revision, b.StorageID, b.Error)
	}
	for _, id := range v.Missing {
		t.row("-", id, "missing", 0, 0, 0, "", "known, and has not said what it has")
	}
	if len(v.Topics) > 0 {
		t.gap()
		t.header("TOPIC", "OUTCOME", "PARTITIONS", "ID")
	}
	for _, p := range v.Topics {
		t.row(p.Name, p.Outcome, p.Partitions, p.ID)
	}
	if len(v.Partitions) > 0 {
		t.gap()
		t.header("PARTITION", "CHOSEN", "LEADER-EPOCH", "END", "REPLICAS", "DIFFERING")
	}
	for _, p := range v.Partitions {
		chosen, differing := "none", make([]string, 0, len(p.Differing))
		if len(p.Chosen) > 0 {
			chosen = brokerList(p.Chosen)
		}
		for _, l := range p.Differing {
			differing = append(differing, l.String())
		}
		t.row(client.TopicPartition{Topic: p.Topic, Partition: p.Partition}, chosen, p.LeaderEpoch, p.End, brokerList(p.Replicas), strings.Join(differing, ", "))
	}
	if len(v.Findings) > 0 {
		t.gap()
		t.header("SEVERITY", "ABOUT", "FINDING")
	}
	for _, f := range v.Findings {
		about := f.Topic
		if about == "" {
			about = "cluster"
		}
		if f.Partition != nil {
			about = client.TopicPartition{Topic: f.Topic, Partition: *f.Partition}.String()
		}
		t.row(f.Severity, about, f.Message)
	}
}

// awaitLeaders waits until every partition that has a log has a leader. Those without are what a partly done recovery leaves.
func (s *recoverSession) awaitLeaders(ctx context.Context, now *recovery.Situation) error {
	with, offline := leadersToCome(now.Plan)
	deadline, told := s.a.Clock.Now().Add(time.Duration(s.f.wait)), ""
	a := *s.a
	a.server, a.timeout = strings.Join(s.f.brokers, ","), min(a.timeout, durationFlag(5*time.Second))
	for {
		var info client.ClusterInfo
		err := a.withClient(ctx, func(ctx context.Context, cl *client.Client) (err error) {
			ctx, cancel := a.request(ctx)
			defer cancel()
			info, err = cl.Admin().DescribeCluster(ctx)
			return err
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && info.Controller >= 0 && info.Leaderless <= offline && info.Partitions >= with {
			s.say("the cluster works: %d partitions, %d without a leader, %d still catching up", info.Partitions, info.Leaderless, info.UnderReplicated)
			if offline == 0 {
				return nil
			}
			return partialError{adviceError{
				err:    fmt.Errorf("%d partitions stay offline: no sound log of them is there", offline),
				advice: "runnel partition recover TOPIC PARTITION, which says what accepting the loss costs",
			}}
		}
		text := "waiting for brokers"
		if err == nil {
			text = fmt.Sprintf("waiting for leaders: %d of %d partitions have none", info.Leaderless, info.Partitions)
		}
		if text != told {
			s.say("%s", text)
			told = text
		}
		if s.a.Clock.Now().After(deadline) {
			return partialError{adviceError{
				err:    errors.Join(fmt.Errorf("etcd is recovered, but after %v the cluster does not work yet (%s)", time.Duration(s.f.wait), text), err),
				advice: "runnel cluster describe, and look at what the brokers log",
			}}
		}
		if err := clock.Sleep(ctx, s.a.Clock, leadersPoll); err != nil {
			return err
		}
	}
}

// leadersToCome counts partitions that will have a leader, and those that will not since all that was theirs is lost.
func leadersToCome(p *metadata.Recovery) (with, offline int) {
	if p == nil {
		return 0, 0
	}
	for _, part := range p.Partitions {
		if len(part.ISR) > 0 {
			with++
		} else if slices.ContainsFunc(p.Findings, func(f metadata.Finding) bool {
			return f.Severity == metadata.SeverityLoss && f.Topic == part.Topic && f.Partition == part.Partition
		}) {
			offline++
		}
	}
	return with, offline
}
