// Package segment is one segment of a partition's log: a file of concatenated record batches, its sparse offset and
// time indexes, and the reads, scans and repairs that need no more than one segment.
//
//	<dir>/00000000000000004711.log        batches, the first one's base offset is the name
//	<dir>/00000000000000004711.index      8-byte entries: relative last offset of a batch, position of the batch
//	<dir>/00000000000000004711.timeindex  12-byte entries: largest timestamp so far, relative offset that has it
//
// The formats are Kafka's; docs/formats/segment.md draws them.
//
// # One writer, many readers
//
// Append, Seal, Truncate and FlushIndex belong to one writer at a time, which package log serialises. Everything else
// is free for any number of goroutines and takes no lock on the path of a read: the size and the end are atomics that
// the writer stores after the bytes are in the file, and the index entries that are not in the files yet are an
// immutable prefix of a small array.
//
// # Files
//
// A segment owns no open file of its own. A Ref pins the open .log file, which stays readable after it was unlinked;
// a Cache shared by all segments of a broker bounds how many unpinned files stay open. A file with bytes that no sync
// has covered yet has to stay pinned until a sync has succeeded: the kernel reports a failed write-back to the files
// that were open when it happened.
//
// # Indexes are hints
//
// Nothing is ever lost with an index. Entries reach the index files lazily, and every entry is compared with the
// batch that it points to whenever it is used. An index that is absent, short, not ascending, or contradicts the
// batches is rebuilt from them.
package segment
