package partition

import "runnel.dev/runnel/broker/replica"

// Subscription is what a follower asks a leader for.
type Subscription struct {
	Session replica.Session
	// Leader is the broker to ask.
	Leader int32
	// Self is the replica that asks, BrokerEpoch the registration under which it will acknowledge.
	Self        replica.Member
	BrokerEpoch int64
	// Epoch is the leader epoch; Offset the follower's log end; LastEpoch the epoch of its last record, -1: none; LogStart its own.
	Epoch     int32
	LastEpoch int32
	Offset    int64
	LogStart  int64
}

// Transport carries what a follower says to its leader. Package replication implements it. No method blocks, and none calls the
// partition back before it has returned; what the leader answers comes later, one call at a time per partition, and only for the session
// that was subscribed last. A subscription that breaks is answered with Refused.
type Transport interface {
	// Subscribe begins a session; an earlier one of the partition is over.
	Subscribe(p *Partition, sub Subscription)
	// Unsubscribe ends a session. A call for it that has already begun may still be running.
	Unsubscribe(p *Partition, s replica.Session)
	// Ack tells the leader what is flushed, and which log start is journaled. The last value of a session wins.
	Ack(p *Partition, s replica.Session, epoch int32, flushed, logStart int64)
}

// Sender carries what a leader says to one follower: the other end of a subscription. Package replication implements it. No method
// blocks or calls the partition back before it has returned; all may be called while SubscribeFollower runs, and after the follower has gone.
type Sender interface {
	// Grant starts to push from offset on.
	Grant(offset int64)
	// Diverging says how far the leader's history goes: epoch, which ends at end. -1, -1: nothing.
	Diverging(epoch int32, end int64)
	// BelowStart says that the leader's log begins at logStart.
	BelowStart(logStart int64)
	// Refuse ends the subscription; FollowerGone does not follow.
	Refuse(reason replica.Reason)
	// Progress says that there may be something to send: the log grew, or the high watermark or a log start moved.
	Progress()
}

// FollowerLimits are the offsets that travel with what a follower is sent.
type FollowerLimits struct {
	HighWatermark int64
	// LogStartWanted is what followers are to journal, LogStartPublished the leader's own log start.
	LogStartWanted, LogStartPublished int64
	// Epoch is the leader epoch in which this broker leads.
	Epoch int32
}

// MetadataWriter writes changes of in-sync sets.
type MetadataWriter interface {
	// ProposeISR writes isr into the record of revision; added names the registrations under which new members acknowledged. It does not
	// block; the answer is ProposalSettled, once the outcome is known.
	ProposeISR(p *Partition, proposal uint64, revision int64, isr []replica.Member, added []replica.Added)
}

// Resetter makes a partition's log anew.
type Resetter interface {
	// Reset replaces the log by an empty one with a new log ID that begins at offset, with the epochs and producer state of broker leader,
	// which leads in epoch. It does not block; the answer is a new partition, or ResetFailed.
	Reset(p *Partition, leader, epoch int32, offset int64)
}
