package replica

import "runnel.dev/runnel/internal/invariant"

// The invariants of replication. Comments and checks name them; a test of the same name shows what each forbids.
const (
	// InvariantOneIncarnation: an epoch is led by one incarnation. A replica leads only under the registration that the record names, and
	// never again an epoch that it has stopped to lead.
	InvariantOneIncarnation = "an epoch is led by one incarnation"
	// InvariantEpochTruncation: in every leader epoch a follower truncates to where its history leaves the leader's, before it takes
	// data or acknowledges. It never truncates for another reason, and never to the high watermark.
	InvariantEpochTruncation = "a follower truncates by epoch before it fetches"
	// InvariantHighWatermark: the high watermark is the least offset that every member, confirmed or proposed, has acknowledged in the current
	// epoch; it moves only while the confirmed set has the minimum, and never goes back.
	InvariantHighWatermark = "the high watermark is what every member has acknowledged in this epoch"
	// InvariantMinimumInSync: the in-sync set never shrinks below the minimum, unless storage was lost. At the minimum a member is replaced.
	InvariantMinimumInSync = "the in-sync set does not shrink below the minimum"
	// InvariantGrowth: a member is added by what it has acknowledged in this epoch and session, at or above the high watermark and the
	// epoch's start, with the registration that it named.
	InvariantGrowth = "a member is added by what it has acknowledged in this epoch"
	// InvariantStorageIdentity: acknowledgements count from the identity that the entry names. A member that came back with another, or
	// with less than it has acknowledged, leaves.
	InvariantStorageIdentity = "acknowledgements count from the identity that the entry names"
	// InvariantCleanElection: only a member of the in-sync set leads.
	InvariantCleanElection = "only a member of the in-sync set leads"
	// InvariantAck: a record is acknowledged once the high watermark has passed it; "latest" is known once it has passed the epoch's start.
	InvariantAck = "a record is acknowledged once the high watermark has passed it"
	// InvariantByteIdentity: replicas are byte-identical below the high watermark. A follower appends only what continues its log, from the
	// leader whose history it has truncated to; it is rebuilt only while nobody counts on it.
	InvariantByteIdentity = "replicas are byte-identical below the high watermark"
	// InvariantFencedPast: who acts on an older epoch, session, registration or revision changes nothing.
	InvariantFencedPast = "the past changes nothing"
	// InvariantNoStaleStart: a replica acts only on the newest record that it was given, and under a new registration starts over.
	InvariantNoStaleStart = "a replica acts on the newest record only"
)

// broken reports a broken invariant. Call it when the condition has failed: the arguments cost nothing before.
func broken(name, format string, args ...any) {
	invariant.Check(false, name+": "+format, args...)
}
