package metadata

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

// Version 1 of a cluster snapshot. Integers are little-endian; lengths and counts within the body are unsigned varints. The CRC-32C
// (Castagnoli) is over all bytes before it. docs/formats/cluster-snapshot.md has the same.
//
//	 0       8         12     20         28             36      44          n-4
//	┌───────┬─────────┬──────┬──────────┬──────────────┬───────┬──────  ──┬─────┐
//	│ magic │ version │ era  │ revision │ etcd cluster │ taken │ body …   │ crc │
//	└───────┴─────────┴──────┴──────────┴──────────────┴───────┴──────  ──┴─────┘
//	  8       4         8      8          8              8                   4
//
//	body:   cluster name (length, bytes) · cluster id (length, bytes) · number of keys · keys
//	key:    key (length, bytes) · value (length, bytes) · mod revision
const (
	snapshotMagic   = "RNLSNAP\x00"
	snapshotVersion = 1
	snapshotFixed   = 44
	snapshotCRC     = 4

	// MaxSnapshotBytes is the largest cluster snapshot that is read or written.
	MaxSnapshotBytes = 1 << 30
	// Bounds of a key and of a value. Etcd itself takes 1.5 MiB per request unless told otherwise.
	maxSnapshotKey   = 4 << 10
	maxSnapshotValue = 16 << 20
	maxSnapshotName  = 255
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// EncodeSnapshot writes a snapshot. Recovering is not in it: a cluster in recovery is not worth keeping.
func EncodeSnapshot(s *Snapshot) ([]byte, error) {
	size := snapshotFixed + snapshotCRC + len(s.Cluster) + len(s.Position.ClusterID) + 32
	for _, kv := range s.Keys {
		size += len(kv.Key) + len(kv.Value) + 3*binary.MaxVarintLen64
		if len(kv.Key) > maxSnapshotKey || len(kv.Value) > maxSnapshotValue {
			return nil, invalid("snapshot", fmt.Sprintf("a key of %d bytes with %d bytes", len(kv.Key), len(kv.Value)),
				fmt.Sprintf("at most %d and %d bytes", maxSnapshotKey, maxSnapshotValue))
		}
	}
	if size > MaxSnapshotBytes || len(s.Cluster) > maxSnapshotName || len(s.Position.ClusterID) > maxSnapshotName {
		return nil, invalid("snapshot", fmt.Sprintf("%d bytes", size), fmt.Sprintf("at most %d bytes", MaxSnapshotBytes))
	}
	b := make([]byte, 0, size)
	b = append(b, snapshotMagic...)
	b = binary.LittleEndian.AppendUint32(b, snapshotVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.Position.Era))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.Position.Revision))
	b = binary.LittleEndian.AppendUint64(b, s.Position.EtcdClusterID)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.Taken.UnixMilli()))
	b = appendText(b, s.Cluster)
	b = appendText(b, s.Position.ClusterID)
	b = binary.AppendUvarint(b, uint64(len(s.Keys)))
	for _, kv := range s.Keys {
		b = appendText(b, kv.Key)
		b = appendText(b, kv.Value)
		b = binary.AppendUvarint(b, uint64(kv.Revision))
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// DecodeSnapshot reads a snapshot. It allocates no more than a small multiple of what it is given, whatever that declares. The error is a
// *SnapshotError.
func DecodeSnapshot(b []byte) (*Snapshot, error) {
	r := snapshotReader{b: b}
	switch {
	case len(b) > MaxSnapshotBytes:
		return nil, r.fault("%d bytes, the limit is %d", len(b), MaxSnapshotBytes)
	case len(b) < 12 || string(b[:8]) != snapshotMagic:
		return nil, r.fault("no cluster snapshot: the magic is missing")
	}
	// The place of magic and version is the same in all versions.
	if v := binary.LittleEndian.Uint32(b[8:]); v != snapshotVersion {
		return nil, &SnapshotError{Offset: 8, Detail: fmt.Sprintf("version %d, this version reads %d", v, snapshotVersion), Err: ErrSnapshotVersion}
	}
	end := len(b) - snapshotCRC
	if end < snapshotFixed {
		return nil, r.fault("%d bytes, a snapshot has at least %d", len(b), snapshotFixed+snapshotCRC)
	}
	if got, want := crc32.Checksum(b[:end], castagnoli), binary.LittleEndian.Uint32(b[end:]); got != want {
		r.at = end
		return nil, r.fault("checksum %08x, the bytes have %08x", want, got)
	}
	s := &Snapshot{
		Position: Position{
			Era: int64(binary.LittleEndian.Uint64(b[12:])), Revision: int64(binary.LittleEndian.Uint64(b[20:])),
			EtcdClusterID: binary.LittleEndian.Uint64(b[28:]),
		},
		Taken: time.UnixMilli(int64(binary.LittleEndian.Uint64(b[36:]))),
	}
	r = snapshotReader{b: b[:end], at: snapshotFixed}
	s.Cluster = r.text(maxSnapshotName)
	s.Position.ClusterID = r.text(maxSnapshotName)
	for n := r.number(math.MaxInt64); n > 0 && r.err == nil; n-- {
		kv := KV{Key: r.text(maxSnapshotKey), Value: r.text(maxSnapshotValue), Revision: r.number(math.MaxInt64)}
		if r.err == nil && len(s.Keys) > 0 && kv.Key <= s.Keys[len(s.Keys)-1].Key {
			r.err = r.fault("key %q is not behind the one before it", kv.Key)
		}
		s.Keys = append(s.Keys, kv)
	}
	switch {
	case r.err != nil:
		return nil, r.err
	case r.at != end:
		return nil, r.fault("%d bytes behind the last key", end-r.at)
	case s.Position.Era < 0 || s.Position.Revision < 0:
		r.at = 12
		return nil, r.fault("era %d, revision %d: want 0 or more", s.Position.Era, s.Position.Revision)
	}
	return s, nil
}

// snapshotReader takes a body apart; after the first error everything is empty.
type snapshotReader struct {
	b   []byte
	at  int
	err error
}

func (r *snapshotReader) fault(format string, args ...any) error {
	return &SnapshotError{Offset: r.at, Detail: fmt.Sprintf(format, args...), Err: ErrCorruptSnapshot}
}

func (r *snapshotReader) number(limit uint64) int64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.at:])
	if n <= 0 || v > limit {
		r.err = r.fault("a number is cut off, or above %d", limit)
		return 0
	}
	r.at += n
	return int64(v)
}

func (r *snapshotReader) text(limit uint64) string {
	n := r.number(limit)
	if r.err != nil {
		return ""
	}
	if n > int64(len(r.b)-r.at) {
		r.err = r.fault("%d bytes declared, %d are left", n, len(r.b)-r.at)
		return ""
	}
	s := string(r.b[r.at : r.at+int(n)])
	r.at += int(n)
	return s
}
