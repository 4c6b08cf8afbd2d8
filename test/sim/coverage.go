package sim

import "fmt"

// Counter is a kind of thing that runs are to have met.
type Counter int

// The counters. All of them have to be met in a run over enough seeds.
const (
	Elections Counter = iota
	LeaderChanges
	Truncations
	ISRGrows
	ISRShrinks
	ISRReplacements
	ProposalsLost
	Recoveries
	TornRecoveries
	Resets
	StorageLosses
	EmptiedLogs
	DamagedLogs
	RebuiltLogs
	LostStorageRefusals
	AmbiguousTxns
	AmbiguousApplied
	LateTxns
	FencedAttempts
	StaleGrowths
	Relists
	WatchBreaks
	LeaseExpiries
	ReRegistrations
	TakeOvers
	ControllerChanges
	WitnessTakeovers
	Suspicions
	EtcdOutages
	EtcdLeaderChanges
	Pauses
	Cuts
	StreamBreaks
	LateMessages
	Duplicates
	Reorders
	Crashes
	PowerFailures
	CleanStops
	ControllerKills
	SlowDisks
	HungDisks
	SyncFailures
	ClockSteps
	LogStartMoves
	BelowMinimumRefusals
	OutcomesUnknown
	Acks
	IdempotentDuplicates
	LatestNotReady
	FencedProduces
	Reassignments
	Drains
	UncleanElections
	counters
)

var counterNames = [counters]string{
	"elections", "leader-changes", "truncations", "isr-grows", "isr-shrinks", "isr-replacements", "proposals-lost", "recoveries", "torn-recoveries",
	"resets", "storage-losses", "emptied-logs", "damaged-logs", "rebuilt-logs", "lost-storage-refusals", "ambiguous-txns", "ambiguous-applied",
	"late-txns", "fenced-attempts", "stale-growths", "relists", "watch-breaks", "lease-expiries", "re-registrations", "take-overs",
	"controller-changes", "witness-takeovers", "suspicions", "etcd-outages", "etcd-leader-changes", "pauses", "cuts", "stream-breaks",
	"late-messages", "duplicates", "reorders", "crashes", "power-failures", "clean-stops", "controller-kills", "slow-disks", "hung-disks", "sync-failures", "clock-steps",
	"log-start-moves", "below-minimum-refusals", "outcomes-unknown", "acks", "idempotent-duplicates", "latest-not-ready", "fenced-produces",
	"reassignments", "drains", "unclean-elections",
}

// String is the counter's name.
func (c Counter) String() string { return counterNames[c] }

// Coverage counts what happened.
type Coverage [counters]int

func (c *Coverage) hit(k Counter) { c[k]++ }

// Add adds another run's counts.
func (c *Coverage) Add(other *Coverage) {
	for i := range c {
		c[i] += other[i]
	}
}

// Missing names the counters that are zero.
func (c *Coverage) Missing() []string {
	var out []string
	for i, n := range c {
		if n == 0 {
			out = append(out, Counter(i).String())
		}
	}
	return out
}

// String is one line of name=count pairs.
func (c *Coverage) String() string {
	var b []byte
	for i, n := range c {
		if i > 0 {
			b = append(b, ' ')
		}
		b = fmt.Appendf(b, "%s=%d", Counter(i), n)
	}
	return string(b)
}
