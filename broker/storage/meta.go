package storage

import (
	"encoding/binary"
	"time"

	"runnel.dev/runnel/internal/ids"
)

// meta is the identity of a data directory, written once, when it is formatted. Sealed file `meta`, version 1, body:
//
//	 0            16          24       26
//	┌────────────┬───────────┬────────┬──────────────┐
//	│ storage ID │ formatted │ length │ cluster id … │
//	└────────────┴───────────┴────────┴──────────────┘
//	  16           8           2        length
//
// formatted is the time of formatting in milliseconds since 1970.
type meta struct {
	StorageID ids.StorageID
	ClusterID string
	Formatted time.Time
}

const (
	metaName  = "meta"
	metaFixed = 26
)

var metaFile = sealedKind{metaName, "RNLMETA\x00", 1}

func (m meta) encode() []byte {
	body := make([]byte, metaFixed, metaFixed+len(m.ClusterID))
	copy(body, m.StorageID[:])
	binary.LittleEndian.PutUint64(body[16:], uint64(m.Formatted.UnixMilli()))
	binary.LittleEndian.PutUint16(body[24:], uint16(len(m.ClusterID)))
	return metaFile.encode(append(body, m.ClusterID...))
}

func decodeMeta(name string, b []byte) (meta, error) {
	body, err := metaFile.decode(name, b)
	if err != nil {
		return meta{}, err
	}
	corrupt := func(detail string) (meta, error) {
		return meta{}, &CorruptFileError{File: name, Offset: sealedHeaderSize, Detail: detail}
	}
	if len(body) < metaFixed || len(body) != metaFixed+int(binary.LittleEndian.Uint16(body[24:])) {
		return corrupt("the cluster id does not fill the body")
	}
	m := meta{
		StorageID: ids.StorageID(body[:16]),
		Formatted: time.UnixMilli(int64(binary.LittleEndian.Uint64(body[16:]))).UTC(),
		ClusterID: string(body[metaFixed:]),
	}
	if m.StorageID.IsZero() {
		return corrupt("the storage ID is zero")
	}
	if m.ClusterID == "" {
		return corrupt("the cluster id is empty")
	}
	return m, nil
}
