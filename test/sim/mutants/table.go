package main

// mutant is a bug that somebody could have written. old is text of file that occurs exactly once, and is replaced by text.
type mutant struct {
	name, file, old, text string
}

// mutants has one or more for each way of which it is known that it breaks replication, each at a site of its own.
var mutants = []mutant{
	{
		name: "a follower acknowledges before the flush",
		file: "broker/replica/follower.go",
		old:  "flushed, start := r.log.Flushed(), r.log.JournaledLogStart()",
		text: "flushed, start := r.log.End(), r.log.JournaledLogStart()",
	},
	{
		name: "a leader counts itself before the flush",
		file: "broker/replica/leader.go",
		old:  "		return r.log.Flushed()\n	}\n	if p := r.lead.peer(m.BrokerID)",
		text: "		return r.log.End()\n	}\n	if p := r.lead.peer(m.BrokerID)",
	},
	{
		name: "truncation to the high watermark instead of by epoch",
		file: "broker/replica/truncate.go",
		old:  "		to = min(to, ev.Offset)\n",
		text: "		to = r.log.HighWatermark()\n",
	},
	{
		name: "no truncation",
		file: "broker/replica/truncate.go",
		old:  "	r.emit(Effect{Kind: EffectDiverging, Session: ev.Session, Epoch: epoch, Offset: epochEnd})\n	return true\n",
		text: "	return false\n",
	},
	{
		name: "the same epoch is led again after a restart",
		file: "broker/replica/role.go",
		old:  "rec.LeaderBrokerEpoch == r.brokerEpoch &&\n",
		text: "rec.LeaderBrokerEpoch <= r.brokerEpoch &&\n",
	},
	{
		name: "no pending set: members of a change under way do not count",
		file: "broker/replica/leader.go",
		old:  "	if l.proposal.id != 0 {\n		for _, m := range l.proposal.isr {",
		text: "	if l.proposal.applied {\n		for _, m := range l.proposal.isr {",
	},
	{
		name: "a shrink counts before it is confirmed",
		file: "broker/replica/leader.go",
		old:  "	effective := r.rec.ISR\n	if l.proposal.id != 0 {\n",
		text: "	effective := r.rec.ISR\n	if l.proposal.id != 0 {\n		effective = l.proposal.isr\n",
	},
	{
		name: "growth by the appended instead of the acknowledged offset",
		file: "broker/replica/truncate.go",
		old:  "	p.session, p.heard = ev.Session, false\n",
		text: "	p.session, p.heard, p.acked = ev.Session, true, max(p.acked, ev.Offset)\n",
	},
	{
		name: "growth before the epoch's start",
		file: "broker/replica/isr.go",
		old:  "p.acked < hw || p.acked < l.start || p.logStart",
		text: "p.acked < hw || p.logStart",
	},
	{
		name: "growth against the registration that the leader knows",
		file: "broker/metadata/isr.go",
		old:  "more = append(more, unchanged(b.keys.broker(a.BrokerID), a.BrokerEpoch), unchanged(b.keys.storage(a.BrokerID), st.Revision))",
		text: "if live, ok := s.Broker(a.BrokerID); ok {\n			more = append(more, unchanged(b.keys.broker(a.BrokerID), live.Epoch))\n		}",
	},
	{
		name: "reading back instead of fencing",
		file: "broker/metadata/settlement.go",
		old:  "	case Unanswered:\n		s.open = true\n",
		text: "	case Unanswered:\n		return Failed, Outcome{}\n",
	},
	{
		name: "a change of the in-sync set that does not compare the revision",
		file: "broker/metadata/isr.go",
		old:  "	return b.partition(\"change_isr\", next, more...)\n",
		text: "	tx, err := b.partition(\"change_isr\", next, more...)\n	tx.Compares[0] = Compare{Key: tx.Compares[0].Key, Not: true}\n	return tx, err\n",
	},
	{
		name: "the in-sync set shrinks below the minimum",
		file: "broker/replica/isr.go",
		old:  "	if lags && len(r.rec.ISR) > r.minISR() {\n",
		text: "	if lags && len(r.rec.ISR) > 1 {\n",
	},
	{
		name: "the controller shrinks the in-sync set below the minimum",
		file: "broker/controller/elect.go",
		old:  "	dead = dead[:min(len(dead), spare)]\n",
		text: "	dead = dead[:min(len(dead), len(p.ISR)-1)]\n",
	},
	{
		name: "the high watermark moves while the confirmed set is below the minimum",
		file: "broker/replica/leader.go",
		old:  "	if len(r.rec.ISR) < r.minISR() {\n		return\n	}\n	least := int64(-1)\n",
		text: "	least := int64(-1)\n",
	},
	{
		name: "members of a change under way count towards the minimum",
		file: "broker/replica/leader.go",
		old:  "	if len(r.rec.ISR) < r.minISR() {\n		return\n	}\n	least := int64(-1)\n",
		text: "	if len(r.lead.effective) < r.minISR() {\n		return\n	}\n	least := int64(-1)\n",
	},
	{
		name: "membership is kept after a disk was lost",
		file: "broker/controller/elect.go",
		old:  "	if b, alive := s.Broker(m.BrokerID); alive && b.StorageID != m.StorageID {\n		return true\n	}\n",
		text: "",
	},
	{
		name: "membership is kept after a log was rebuilt",
		file: "broker/replica/role.go",
		old:  "rec.LeaderEpoch > r.spent && !r.follow.rebuilding() && slices.Contains(rec.ISR, r.self) && !r.ahead()",
		text: "rec.LeaderEpoch > r.spent && !r.follow.rebuilding() && !r.ahead()",
	},
	{
		name: "acknowledgements of another epoch count",
		file: "broker/replica/leader.go",
		old:  "	if r.role != roleLeading || ev.Epoch != r.lead.epoch {\n		return\n	}\n	p := r.lead.bySession(ev.Session)\n	if p == nil || ev.PeerEpoch != p.epoch ||",
		text: "	if r.role != roleLeading {\n		return\n	}\n	p := r.lead.peer(ev.Peer.BrokerID)\n	if p == nil ||",
	},
	{
		name: "acknowledgements of another session count",
		file: "broker/replica/leader.go",
		old:  "	p := r.lead.bySession(ev.Session)\n	if p == nil || ev.PeerEpoch != p.epoch || ev.Offset",
		text: "	p := r.lead.peer(ev.Peer.BrokerID)\n	if p == nil || ev.Offset",
	},
	{
		name: "acknowledgements of another identity count",
		file: "broker/replica/leader.go",
		old:  "p != nil && p.known && p.id == m && !p.lost {\n		return p.acked\n",
		text: "p != nil && p.known && !p.lost {\n		return p.acked\n",
	},
	{
		name: "a follower takes appends of an older leader",
		file: "broker/replica/follower.go",
		old:  "	if !r.current(ev, stateFollowing) || ev.Epoch != f.of.epoch {\n		return\n	}\n	f.highWatermark",
		text: "	if r.role != roleFollowing || f.state != stateFollowing {\n		return\n	}\n	f.highWatermark",
	},
	{
		name: "an election from outside of the in-sync set",
		file: "broker/controller/elect.go",
		old:  "		if !member || !electable(s, p.PartitionRef, m) {\n",
		text: "		if !member && !s.Eligible(id) || member && !electable(s, p.PartitionRef, m) {\n",
	},
	{
		name: "the latest offset is known before the epoch's start is committed",
		file: "broker/replica/replica.go",
		old:  "s.Leading, s.Epoch, s.EpochStart = true, l.epoch, l.start\n",
		text: "s.Leading, s.Epoch, s.EpochStart = true, l.epoch, 0\n",
	},
	{
		name: "a record older than the known one is acted on",
		file: "broker/replica/role.go",
		old:  "	if rec != nil && (r.rec == nil || rec.Revision >= r.rec.Revision) {\n",
		text: "	if rec != nil {\n",
	},
	{
		name: "what was true under an earlier registration is acted on",
		file: "broker/replica/follower.go",
		old:  "registration: r.brokerEpoch, self: r.self}",
		text: "self: r.self}",
	},
}
