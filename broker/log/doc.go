// Package log is the log of one partition on one data directory: an ordered list of segments, of which the last one
// takes appends, with producer state, leader epochs, retention, truncation and recovery.
//
// A partition directory holds
//
//	00000000000000004711.log, .index, .timeindex   a segment (package segment)
//	00000000000000004711.snapshot                  producer state at offset 4711
//	epochs                                         where each leader epoch starts
//	partition.meta                                 what this directory is: topic, partition, log ID, topic config
//	clean                                          after a clean Close only: sizes that make a recovery scan needless
//
// # The offsets
//
//	log start ≤ local start          first offset that may be read; first offset on this disk
//	log start ≤ journaled start      what this replica has agreed to lose, once all have
//	log start ≤ high watermark       what consumers may read ends here
//	high watermark ≤ flushed ≤ end   durable on this disk ends here; the next record gets the offset end
//	tiered end                       -1 until there is a tier
//
// # Who does what
//
// Append, AppendAsFollower, Roll and Truncate are serialised by appendMu. Log-start moves (JournalLogStart, PublishLogStart)
// are serialised by startMu and do not stop appends. The sync scheduler of the Host calls PrepareSync and
// CompleteSync, which take only mu, so a round never waits for a truncation that waits for the journal. Reads take no
// lock at all. Lock order: startMu, appendMu, mu.
//
// # Durability
//
// An append is in the page cache and visible to readers of the end; it is durable once Flushed has passed it. Flushed
// is the end that PrepareSync captured before the sync began, and void if the log was truncated meanwhile. What must
// outlive a crash beyond the bytes (flushed offset, epoch starts, log start) is in the Host's journal, which Open gets
// back as Recovered.
package log
