// Package index encodes and searches the two sparse indexes of a segment, in Kafka's formats: `.index` maps
// offsets to file positions, `.timeindex` maps timestamps to offsets. All integers are big endian; offsets
// are relative to the segment's base offset, which is in the file's name.
//
//	.index entry, 8 bytes              .timeindex entry, 12 bytes
//	0          4          8            0                     8          12
//	+----------+----------+            +---------------------+----------+
//	| relative | position |            | timestamp (ms)      | relative |
//	| offset   |          |            |                     | offset   |
//	+----------+----------+            +---------------------+----------+
//
// An offset entry (o, p) names a batch: o is its last offset, p is where it starts. A batch that holds an
// offset ≥ o starts at p or behind. A time entry (t, o) is the largest timestamp so far: t is the maximum
// timestamp of the batch whose last offset is o, every batch up to o has a maximum ≤ t, and every earlier
// batch a maximum < t.
//
// Invariant: both columns of both indexes increase strictly, and relative offsets fit into 31 bits.
//
// The package is pure: it works on bytes that its caller reads and writes. Offsets and Times are safe for
// concurrent use as long as nobody changes the bytes; Builder is not.
package index
