package replica

import (
	"time"

	"runnel.dev/runnel/internal/ids"
)

// Member is an entry of the in-sync set: an identity, not merely a broker. A log that was emptied or rebuilt has another log ID.
type Member struct {
	BrokerID  int32
	StorageID ids.StorageID
	LogID     ids.LogID
}

// Record is the partition's record in the metadata, as far as replication cares. It is not changed after it was handed over.
type Record struct {
	// Revision is the key's mod revision: it orders records, and every change of the in-sync set compares it.
	Revision int64
	// Leader is a broker id, -1 while there is none.
	Leader            int32
	LeaderEpoch       int32
	LeaderBrokerEpoch int64
	Replicas          []int32
	ISR               []Member
	// MinISR is the topic's effective min_in_sync_replicas.
	MinISR int
}

// Log is what the machine needs of the partition's log. No method blocks or does I/O; all are safe beside appends.
type Log interface {
	// LogStart ≤ HighWatermark ≤ End; Flushed ≤ End.
	LogStart() int64
	// ReplicaStart ≤ LogStart is the base of the batch that holds LogStart: where a replica that is made of this log begins.
	ReplicaStart() int64
	HighWatermark() int64
	Flushed() int64
	End() int64
	// LatestEpoch is the newest epoch that the log has a start of, -1 if none.
	LatestEpoch() int32
	// EndOffsetForEpoch returns the largest epoch ≤ epoch that the log has, and the offset behind its last record; (-1, -1) if none.
	EndOffsetForEpoch(epoch int32) (found int32, end int64)
	// JournaledLogStart is the log start that is durable, at or above LogStart, which readers see.
	JournaledLogStart() int64
	// SetHighWatermark raises the high watermark, at most to the log end; it never lowers it.
	SetHighWatermark(offset int64)
	// AdoptEpoch notes that this replica takes part in a leader epoch: it leads it, or has truncated to its leader's history. It
	// becomes durable with the next sync round; no acknowledgement of an epoch counts before (AdoptedDurable).
	AdoptEpoch(epoch int32)
	AdoptedDurable() int32
}

// Session identifies one subscription. The follower's machine numbers its own, upwards within its process even if the machine is made anew;
// the leader's shell numbers those it receives, unique within the process. The two numbers are matched by the transport's stream. 0 is none.
type Session uint64

// EventKind says what happened.
type EventKind uint8

// The events. Each lists the fields of Event that it sets beside Kind and Now.
const (
	// EventMetadata: a record, or this broker's own situation, changed. Record; BrokerEpoch, Self and Usable as they are now. Older
	// records than the known one are ignored. The shell never hands over one that is older than BrokerEpoch's registration.
	EventMetadata EventKind = iota + 1
	// EventEpochAssigned answers EffectAssignEpoch: Epoch; Offset, where the epoch starts; Err.
	EventEpochAssigned
	// EventFlushed: the log's flushed offset, or its durable adopted epoch, moved.
	EventFlushed
	// EventTick comes about every 100 ms while the partition leads or wants to follow. A leader that has met no event for half of LagTimeout
	// was paused itself: that time is not held against its followers.
	EventTick

	// Leader.

	// EventSubscribe: a follower asks. Session (the leader's number), Epoch, Peer, PeerEpoch (the registration it names), Offset (its
	// log end), LastEpoch, LogStart (its own, journaled). PeerSession, the number of EffectSubscribe, if the transport carries it: it orders
	// the subscriptions of one registration, so that one that was delayed in the network is not taken for a log that has lost records.
	EventSubscribe
	// EventAck: Session, Epoch, PeerEpoch, Offset (flushed), LogStart.
	EventAck
	// EventUnsubscribed: the follower or its stream is gone. Session.
	EventUnsubscribed
	// EventProposalSettled: Proposal, and Applied with the Record as it is after the change; or not Applied, and the record, if any,
	// that overtook it. An unanswered proposal is not settled: the shell goes on until it knows.
	EventProposalSettled
	// EventWantLogStart: retention or a user wants the log to begin at Offset, at most the high watermark.
	EventWantLogStart

	// Follower. Session is the follower's number; events of another session than the present one are ignored.

	// EventGranted: the leader pushes from Offset on. Epoch.
	EventGranted
	// EventDiverging: the leader's history has, at or below the epoch asked about, Epoch last, which ends at Offset. -1, -1: nothing.
	EventDiverging
	// EventBelowStart: what the follower asks for is not there any more, the leader's log begins at Offset.
	EventBelowStart
	// EventRefused: the leader does not lead that epoch, or does not know it yet, or the stream broke. Reason if known. The machine tries again.
	EventRefused
	// EventData: batches, or only offsets (Length 0). Epoch, Offset (base of the first batch), Length, HighWatermark, LogStart (wanted by
	// the leader), Published (the leader's own log start).
	EventData
	// EventAppendFailed: the batches of the last EffectAppend could not be appended. Err.
	EventAppendFailed

	// Both.

	// EventTruncated answers EffectTruncate and EffectReset. Err. After a reset the log and Self's log ID are new: the shell sends
	// EventMetadata with them before this.
	EventTruncated
	// EventLogStartJournaled answers EffectJournalLogStart: Offset, Err.
	EventLogStartJournaled
	// EventFailed: the log failed or the partition closes; the machine neither leads nor follows until EventMetadata says Usable.
	EventFailed
)

// Event is one input. Which fields count depends on Kind; slices are borrowed for the call, a Record is kept.
type Event struct {
	Kind EventKind
	// Now is monotonic time since a fixed point of the process.
	Now time.Duration

	Record      *Record
	BrokerEpoch int64
	Self        Member
	// Usable: the log can serve, and the process may act for this registration.
	Usable bool

	Session       Session
	Peer          Member
	PeerEpoch     int64
	PeerSession   Session // the follower's own number, 0 if unknown
	Epoch         int32
	LastEpoch     int32
	Offset        int64
	HighWatermark int64
	LogStart      int64
	Published     int64
	Length        int
	Proposal      uint64
	Applied       bool
	Reason        Reason
	Err           error
}

// EffectKind says what the shell has to do.
type EffectKind uint8

// The effects. The shell carries those of one partition out in the order in which they came.
const (
	// EffectAssignEpoch: this broker is to lead Epoch. The shell records the epoch at the log end (log.AssignEpoch), with appends
	// held up, and answers EventEpochAssigned.
	EffectAssignEpoch EffectKind = iota + 1
	// EffectRole: whether or what this broker leads or follows has changed, or whether it may append. The shell publishes Status.
	// What waits for an acknowledgement of an epoch that is not led any more fails.
	EffectRole
	// EffectHighWatermark: the high watermark moved to Offset. Waiting produces are settled, readers woken, followers told.
	EffectHighWatermark
	// EffectPropose: write ISR as the in-sync set into the record of Revision. Added names the registration under which each member that
	// is new acknowledged. Proposal identifies the answer. There is one at a time in an epoch; a later epoch does not wait for that of an
	// earlier one, which compares a revision that has passed.
	EffectPropose
	// EffectGrant: push to Session from Offset on, batches of every epoch.
	EffectGrant
	// EffectDiverging: answer Session with Epoch and Offset.
	EffectDiverging
	// EffectBelowStart: answer Session with where a replica can begin, Offset.
	EffectBelowStart
	// EffectRefuse: end Session at the leader's side, telling the follower why (Reason).
	EffectRefuse

	// EffectSubscribe: subscribe at broker Leader as Session, with Epoch, Offset, LastEpoch. An earlier session is over.
	EffectSubscribe
	// EffectUnsubscribe: end Session at the follower's side.
	EffectUnsubscribe
	// EffectAppend: append the batches of the EventData that this answers. It comes as the only effect, or not at all. Like every effect it
	// is carried out before those of later events; the log end has moved before the next EventData.
	EffectAppend
	// EffectTruncate: cut the log to Offset; nothing is appended before EventTruncated.
	EffectTruncate
	// EffectReset: replace the log by an empty one with a new log ID that begins at Offset, with the leader's epochs and producer state.
	EffectReset
	// EffectAck: tell the leader of Session: Epoch, Offset (flushed), LogStart (journaled).
	EffectAck

	// EffectJournalLogStart: make the log start Offset durable, without publishing it.
	EffectJournalLogStart
	// EffectPublishLogStart: the log begins at Offset from now on; what lies below is unlinked.
	EffectPublishLogStart
)

// Reason is why a subscription was refused.
type Reason uint8

// Reasons.
const (
	ReasonNotLeader    Reason = iota + 1 // this broker does not lead the partition
	ReasonFencedEpoch                    // the follower's epoch is older than the leader's
	ReasonUnknownEpoch                   // the follower's epoch is newer: retriable
	ReasonNotReplica                     // the record does not name the follower
	ReasonLostStorage                    // the follower fetches below what it has acknowledged in this epoch
	ReasonOvertaken                      // a newer subscription of the same follower exists
)

// Added names the registration under which a member that a change adds has acknowledged.
type Added struct {
	BrokerID    int32
	BrokerEpoch int64
}

// Effect is one output. Slices belong to the receiver.
type Effect struct {
	Kind EffectKind

	Session   Session
	Leader    int32
	Epoch     int32
	LastEpoch int32
	Offset    int64
	LogStart  int64
	Reason    Reason

	Proposal uint64
	Revision int64
	ISR      []Member
	Added    []Added
}

// Config are the machine's settings.
type Config struct {
	BrokerID int32
	// LagTimeout is how long a member may stay behind before it leaves the in-sync set. Default 3 s.
	LagTimeout time.Duration
	// RetryDelay is the time between two attempts to subscribe. Default 50 ms.
	RetryDelay time.Duration
}

// Status is the machine's state as requests and people see it. A copy.
type Status struct {
	Leading bool
	// LeaderID is the leader that the record names, -1: none.
	LeaderID int32
	Epoch    int32
	// EpochStart is the log end when leadership began. "Latest" is answered once the high watermark has reached it.
	EpochStart int64
	// Writable: at least MinISR confirmed members keep up.
	Writable bool
	// LogStartWanted is where a leader wants the log to begin; the shell tells followers in data frames. It changes with
	// EffectJournalLogStart. 0: nothing is wanted.
	LogStartWanted int64
	// ISR is the confirmed set, Effective what counts towards the high watermark: with the members of a change under way. Shared, unchanging.
	ISR, Effective []Member
	MinISR         int
	Followers      []FollowerStatus
	// Following and its state, for people: "subscribing", "truncating", "following", "resetting", "waiting".
	Following string
}

// FollowerStatus is what a leader knows of a follower.
type FollowerStatus struct {
	Peer      Member
	PeerEpoch int64
	// Acked is -1 before the first acknowledgement in this epoch.
	Acked    int64
	CaughtUp time.Duration // when it last was, on the clock of Event.Now
	InSync   bool
}
