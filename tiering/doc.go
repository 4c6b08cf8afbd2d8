// Package tiering moves sealed log data to object storage and reads it back.
//
// What exists today is the lowest layer, package objectstore: the Store
// interface with two implementations, file (a directory) and mem (tests, with
// fault injection), and storetest, the suite that every implementation has to
// pass. Nothing in Runnel uses it yet.
//
// What will stand on it: the formats of tiered objects and manifests, the
// archiver of a partition's leader, the reader with its cache, retention and
// sweep, verification, and restore of a topic or a cluster from the bucket
// alone; and two more stores, for S3 and for what speaks its protocol.
//
// Tiering sees a segment as offsets and an io.ReaderAt, and a bucket as a
// Store. It imports record and internal packages, and nothing of broker: a
// restore has to work where no broker runs. Package internal/archtest enforces
// that.
package tiering
