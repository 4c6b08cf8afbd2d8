// Package storage is a broker's data directory: its identity, the journal, the sync scheduler that makes appends durable, and the
// opening, making, deleting, recovering and replacing of partition directories. What is in one partition directory belongs to package log.
//
//	Store ── dataDir    meta, lock, stops: is this disk ours, and may it be used?        datadir.go meta.go stops.go
//	     ├── journal    recovery bounds and epochs of all logs, one file                 journal*.go, docs/formats/journal.md
//	     ├── syncer     group commit: one round at a time                                sync.go round.go
//	     ├── diskWatch  reserve, refusal of produce, time until the disk is full         disk.go
//	     └── partitions opening, making, deleting, recovering, replacing                 open.go partition.go recover.go rebuild.go replace.go
//
// # Durability
//
// An acknowledgement means fsynced. A log tells the syncer that it is dirty; the syncer runs rounds, one at a time, each of which
// captures the ends of all dirty logs, syncs, and publishes what it captured. What is appended while a round runs is covered by
// the next. Nothing is delayed on purpose: an idle broker syncs at once, a busy one collects.
//
// A sync that fails stops the broker: Run returns a *SyncFailedError and nothing is acknowledged any more, because a failed sync
// marks pages clean, so a later success would prove nothing. A disk that is full stops nobody: produce is refused below a reserve,
// and resumes by itself.
//
// # Rejected
//
// A sync per append (a round costs as much as one append's sync and covers all), a delay to fill rounds (under load they fill by
// themselves), a journal per partition (thousands of files to sync), and trusting what an earlier process wrote last into the
// journal (after a failed sync the page cache shows bytes that the disk does not have; every open writes the journal anew).
//
// Lock order: docs/locks.md.
package storage
