package sim

import (
	"fmt"

	"runnel.dev/runnel/broker/replica"
)

var eventNames = map[replica.EventKind]string{
	replica.EventMetadata: "metadata", replica.EventEpochAssigned: "epoch-assigned", replica.EventFlushed: "flushed", replica.EventTick: "tick",
	replica.EventSubscribe: "subscribe", replica.EventAck: "ack", replica.EventUnsubscribed: "unsubscribed",
	replica.EventProposalSettled: "proposal-settled", replica.EventWantLogStart: "want-log-start", replica.EventGranted: "granted",
	replica.EventDiverging: "diverging", replica.EventBelowStart: "below-start", replica.EventRefused: "refused", replica.EventData: "data",
	replica.EventAppendFailed: "append-failed", replica.EventTruncated: "truncated", replica.EventLogStartJournaled: "log-start-journaled",
	replica.EventFailed: "failed",
}

var effectNames = map[replica.EffectKind]string{
	replica.EffectAssignEpoch: "assign-epoch", replica.EffectRole: "role", replica.EffectHighWatermark: "high-watermark",
	replica.EffectPropose: "propose", replica.EffectGrant: "grant", replica.EffectDiverging: "diverging", replica.EffectBelowStart: "below-start",
	replica.EffectRefuse: "refuse", replica.EffectSubscribe: "subscribe", replica.EffectUnsubscribe: "unsubscribe", replica.EffectAppend: "append",
	replica.EffectTruncate: "truncate", replica.EffectReset: "reset", replica.EffectAck: "ack", replica.EffectJournalLogStart: "journal-log-start",
	replica.EffectPublishLogStart: "publish-log-start",
}

// describe is an event as the trace shows it.
func describe(ev *replica.Event) string {
	name := eventNames[ev.Kind]
	switch ev.Kind { //nolint:exhaustive // the others need no more than the common fields
	case replica.EventMetadata:
		if r := ev.Record; r != nil {
			return fmt.Sprintf("%s rev %d leader %d/%d epoch %d isr %s; own epoch %d usable %v", name, r.Revision, r.Leader, r.LeaderBrokerEpoch, r.LeaderEpoch,
				replicaMembers(r.ISR), ev.BrokerEpoch, ev.Usable)
		}
		return name
	case replica.EventSubscribe:
		return fmt.Sprintf("%s s%d from %d/%d their s%d epoch %d at %d last %d start %d", name, ev.Session, ev.Peer.BrokerID, ev.PeerEpoch, ev.PeerSession,
			ev.Epoch, ev.Offset, ev.LastEpoch, ev.LogStart)
	case replica.EventData:
		return fmt.Sprintf("%s s%d epoch %d at %d +%d hw %d start %d/%d", name, ev.Session, ev.Epoch, ev.Offset, ev.Length, ev.HighWatermark, ev.LogStart,
			ev.Published)
	case replica.EventProposalSettled:
		return fmt.Sprintf("%s #%d applied %v", name, ev.Proposal, ev.Applied)
	}
	s := fmt.Sprintf("%s s%d epoch %d at %d", name, ev.Session, ev.Epoch, ev.Offset)
	if ev.Kind == replica.EventAck {
		s += fmt.Sprintf(" start %d", ev.LogStart)
	}
	if ev.Err != nil {
		s += fmt.Sprintf(" err %v", ev.Err)
	}
	return s
}

// describeEffect is an effect as the trace shows it.
func describeEffect(e *replica.Effect) string {
	name := effectNames[e.Kind]
	switch e.Kind { //nolint:exhaustive // the others need no more than the common fields
	case replica.EffectPropose:
		return fmt.Sprintf("%s #%d at %d isr %s added %v", name, e.Proposal, e.Revision, replicaMembers(e.ISR), e.Added)
	case replica.EffectRole:
		return name
	case replica.EffectSubscribe:
		return fmt.Sprintf("%s s%d at %d epoch %d offset %d last %d", name, e.Session, e.Leader, e.Epoch, e.Offset, e.LastEpoch)
	}
	return fmt.Sprintf("%s s%d epoch %d at %d start %d reason %d", name, e.Session, e.Epoch, e.Offset, e.LogStart, e.Reason)
}
