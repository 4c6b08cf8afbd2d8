package metadata

import (
	"cmp"
	"fmt"
	"slices"
)

// partition decides what becomes of one partition. record is the newest source's, nil: none; siblings are all logs of the topic.
func (pl *planner) partition(t *Topic, ref PartitionRef, record *Partition, siblings []holder) *Partition {
	logs := pl.logs[ref]
	next := &Partition{PartitionRef: ref}
	if record != nil {
		next = record.Clone()
		next.Adding, next.Removing, next.Revision = nil, nil, 0
	}
	next.Leader, next.LeaderBrokerEpoch, next.ISR = NoLeader, 0, nil
	next.Replicas = pl.replicas(t, record, logs, siblings)
	next.Purged = slices.DeleteFunc(next.Purged, func(id int32) bool {
		return slices.ContainsFunc(logs, func(l holder) bool { return l.member.BrokerID == id })
	})
	if pl.recorded[ref] == 0 && len(logs) == 0 && pl.complete {
		next.LeaderEpoch = 0 // nobody ever led it, and nobody has anything: replicas confirm new directories
		return next
	}
	epoch := pl.recorded[ref]
	for _, l := range logs {
		epoch = max(epoch, l.AdoptedEpoch, l.LatestEpoch)
	}
	next.LeaderEpoch = epoch + epochGap
	if t.State == TopicDeleting {
		return next
	}
	next.ISR = pl.choose(t, record, next, logs)
	return next
}

// choose returns the logs that hold everything, by the order that recovery.go explains.
func (pl *planner) choose(t *Topic, record, next *Partition, logs []holder) []Member {
	sound := slices.DeleteFunc(slices.Clone(logs), func(l holder) bool { return l.Damaged || l.LogID.IsZero() })
	if len(sound) == 0 {
		if len(logs) > 0 {
			pl.find(SeverityLoss, t.Name, next.Partition, "all %d logs are damaged: it stays offline until `partition recover` accepts the loss", len(logs))
		} else {
			pl.find(SeverityLoss, t.Name, next.Partition, "no directory has a log: it stays offline until `partition recover` accepts the loss")
		}
		return nil
	}
	top := best(sound)
	var isr []Member
	for _, id := range next.Replicas {
		for _, l := range sound {
			if l.member.BrokerID == id && (l.member == top.member || equalLogs(l, top)) {
				isr = append(isr, l.member)
			}
		}
	}
	pl.doubt(t, record, next.Partition, top, logs)
	return isr
}

// doubt reports what speaks against the choice.
func (pl *planner) doubt(t *Topic, record *Partition, n int32, top holder, logs []holder) {
	for _, l := range logs {
		if l.member == top.member {
			continue
		}
		longer := cmp.Or(cmp.Compare(l.LatestEpoch, top.LatestEpoch), cmp.Compare(l.End, top.End)) > 0
		if longer && !pl.complete || l.Damaged && newer(l, top) > 0 {
			pl.find(SeverityWarning, t.Name, n, "the log on broker %d (%s) may have records that the chosen one on broker %d (%s) does not have",
				l.member.BrokerID, shownLog(l), top.member.BrokerID, shownLog(top))
		}
	}
	if record == nil {
		return
	}
	for _, m := range record.ISR {
		if !slices.ContainsFunc(logs, func(l holder) bool { return l.member == m }) {
			pl.find(SeverityWarning, t.Name, n, "broker %d was in sync (leader epoch %d in %s), and its log %s is not here",
				m.BrokerID, record.LeaderEpoch, pl.newest.name, m.LogID)
		}
	}
	if !pl.complete && record.LeaderEpoch > max(top.AdoptedEpoch, top.LatestEpoch) {
		pl.find(SeverityWarning, t.Name, n, "leader epoch %d was given out, the chosen log has seen %d",
			record.LeaderEpoch, max(top.AdoptedEpoch, top.LatestEpoch))
	}
}

func shownLog(l holder) string {
	state := ""
	if l.Damaged {
		state = ", damaged"
	}
	return fmt.Sprintf("adopted epoch %d, latest epoch %d, end %d%s", l.AdoptedEpoch, l.LatestEpoch, l.End, state)
}

// newer orders logs by how much they hold.
func newer(a, b holder) int {
	return cmp.Or(cmp.Compare(a.AdoptedEpoch, b.AdoptedEpoch), cmp.Compare(a.LatestEpoch, b.LatestEpoch), cmp.Compare(a.End, b.End))
}

// best is the log that holds most; of equal ones the lowest broker's. logs must not be empty.
func best(logs []holder) holder {
	return slices.MaxFunc(logs, func(a, b holder) int { return cmp.Or(newer(a, b), cmp.Compare(b.member.BrokerID, a.member.BrokerID)) })
}

// equalLogs reports whether two logs are the same, byte for byte: they took part in the same epoch, and their histories are equal.
func equalLogs(a, b holder) bool {
	if newer(a, b) != 0 {
		return false
	}
	empty := a.End == 0 && a.LatestEpoch < 0
	return empty || a.Lineage != nil && slices.Equal(a.Lineage, b.Lineage)
}

// replicas are those of the record, in its order, without decommissioned brokers, and whoever has a log; failing both, brokers that have
// other partitions of the topic, or any.
func (pl *planner) replicas(t *Topic, record *Partition, logs, siblings []holder) []int32 {
	var out []int32
	add := func(id int32) {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	if record != nil {
		for _, id := range record.Replicas {
			if !pl.decommissioned(id) {
				add(id)
			}
		}
	}
	recorded := len(out)
	for _, l := range logs {
		add(l.member.BrokerID)
	}
	slices.Sort(out[recorded:])
	for _, l := range siblings {
		if len(out) == 0 || recorded == 0 && len(logs) == 0 && len(out) < int(t.Replicas) {
			add(l.member.BrokerID)
		}
	}
	for _, id := range pl.brokers {
		if len(out) == 0 || recorded == 0 && len(logs) == 0 && len(out) < int(t.Replicas) {
			add(id)
		}
	}
	return out
}
