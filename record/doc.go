// Package record encodes, checks, stamps and reads Kafka record batches, format v2 (magic 2).
//
// One encoding serves everywhere: in Produce and Fetch messages, in segment files, in replication and in
// tier objects. A broker never re-encodes what a producer built. It stamps the base offset and the leader
// epoch in place, which the format keeps outside the checksum for exactly this purpose:
//
//	byte   0        8       12      16 17     21    23       27
//	       +--------+-------+-------+--+------+-----+--------+--------------+
//	       | base   | batch | leader|M | CRC  | att-| last   | base         |
//	       | offset | length| epoch |2 | 32C  | rib.| offset | timestamp    |
//	       |        |       |       |  |      |     | delta  | (ms)         |
//	       +--------+-------+-------+--+------+-----+--------+--------------+
//	       |<- stamped  -->|<stamp>|    CRC covers from byte 21 to the end ->
//
//	byte   35             43            51       53         57       61
//	       +--------------+-------------+--------+----------+--------+--------------------+
//	       | max          | producer    | prod.  | base     | record | records, whole or  |
//	       | timestamp    | id          | epoch  | sequence | count  | compressed         |
//	       +--------------+-------------+--------+----------+--------+--------------------+
//
// Batch length counts the bytes behind itself, so a batch occupies 12 + length bytes. All integers of the
// header are big endian. Attributes:
//
//	bit   15 ... 7    6           5        4               3                  2 1 0
//	      reserved    delete      control  transactional   log append time    codec
//	      (zero)      horizon
//
// A record, where v is a zig-zag variable-length integer as in Protocol Buffers (32 bits, the timestamp
// delta 64 bits):
//
//	+--------+------------+-----------+--------+---------+-----+---------+-------+---------+---------+
//	| length | attributes | timestamp | offset | key     | key | value   | value | header  | headers |
//	| v      | 1 byte, 0  | delta v   | delta v| length v|     | length v|       | count v |         |
//	+--------+------------+-----------+--------+---------+-----+---------+-------+---------+---------+
//	         |<------------------------------- length bytes ---------------------------------------->|
//
//	header: | key length v | key | value length v | value |
//
// A length of -1 stands for a null key, value or header value; a header's key is never null.
//
// The records section is compressed as one unit. What each codec looks like on the wire is described in
// docs/formats/record-batch.md and implemented in compress.go and decompress.go.
//
// The package is pure: bytes in, bytes out; no I/O, no clock, no goroutines. Validator, Builder and Reader
// reuse their buffers and are meant to be kept; none of them is safe for concurrent use.
package record
