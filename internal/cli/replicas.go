package cli

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"runnel.dev/runnel/client"
)

// way is what a replica goes through until it is in sync.
var way = []client.ReplicaState{
	client.ReplicaDamaged, client.ReplicaStarting, client.ReplicaSubscribed, client.ReplicaCatchingUp, client.ReplicaCaughtUp, client.ReplicaInSync,
}

// replicaRows shows how far replicas are: of all partitions, or only of those that lack some. They are left out of -o name, which has named the
// partitions already.
func replicaRows(tb *table, infos []client.PartitionInfo, all bool) {
	if tb.nameOnly {
		return
	}
	first := true
	for _, p := range infos {
		if len(p.ReplicaStates) == 0 || !all && !p.UnderReplicated && len(p.Adding)+len(p.Removing) == 0 {
			continue
		}
		if first {
			tb.gap()
			tb.header("REPLICA", "BROKER", "STATE", "ACKED", "LAG", "RATE", "LEFT", "PATH")
			first = false
		}
		for _, r := range p.ReplicaStates {
			tb.row(p.TopicPartition, r.Broker, replicaMarks(r), known(r.Acked), known(r.Lag), rate(r.Rate), left(r), path(r))
		}
	}
}

func known(n int64) string {
	if n < 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

func rate(perSecond float64) string {
	if perSecond < 0 {
		return "-"
	}
	return groupDigits(int64(perSecond)) + "/s"
}

// left is how long the rest takes at the present rate.
func left(r client.ReplicaInfo) string {
	if r.InSync || r.Lag <= 0 || r.Rate <= 0 {
		return "-"
	}
	return formatDuration(max(time.Duration(float64(r.Lag)/r.Rate*float64(time.Second)).Round(time.Second), time.Second))
}

func replicaMarks(r client.ReplicaInfo) string {
	marks := []string{string(r.State)}
	if r.Adding {
		marks = append(marks, "being added")
	}
	if r.Removing {
		marks = append(marks, "being removed")
	}
	if r.BrokerState != client.BrokerActive && r.BrokerState != client.BrokerUnknown {
		marks = append(marks, "broker "+string(r.BrokerState))
	}
	return strings.Join(marks, ", ")
}

// path shows where on the way a replica is that is not in sync, and why.
func path(r client.ReplicaInfo) string {
	if r.State == client.ReplicaInSync || r.State == client.ReplicaLeader {
		return r.Detail
	}
	at := slices.Index(way, r.State)
	if at < 0 {
		return r.Detail
	}
	var steps []string
	for i, s := range way {
		switch {
		case i == 0 && at > 0:
			continue // only a damaged one begins there
		case i == at:
			steps = append(steps, "["+string(s)+"]")
		default:
			steps = append(steps, string(s))
		}
	}
	out := strings.Join(steps, " → ")
	if r.Detail != "" {
		out += ": " + r.Detail
	}
	return out
}
