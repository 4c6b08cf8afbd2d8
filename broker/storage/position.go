package storage

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
)

// Position is how far a broker has seen the cluster's metadata. An etcd that is behind it was restored from an old snapshot, and would
// hand out epochs twice.
type Position struct {
	// ClusterID is the Runnel cluster's id, at most 255 bytes.
	ClusterID string
	// EtcdClusterID is etcd's own.
	EtcdClusterID uint64
	Era, Revision int64
}

// Sealed file `position`, version 1. Integers are little-endian.
//
//	 0       8       16      24
//	┌───────┬───────┬───────┬────────────┐
//	│ etcd  │ era   │ revi- │ cluster id │
//	│ id    │       │ sion  │            │
//	└───────┴───────┴───────┴────────────┘
//	  8       8       8       to the end
const (
	positionName    = "position"
	positionMagic   = "RNLPOSIT"
	positionVersion = 1
	positionFixed   = 24
)

// ReadPosition returns what the broker of a data directory had seen when it last saved it; the zero Position when it never did. It does
// not lock the directory, and may be called before Open. A damaged file is *CorruptFileError.
func ReadPosition(fsys vfs.FS, dir string) (Position, error) {
	path := filepath.Join(dir, positionName)
	b, err := readWhole(fsys, path, 4<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return Position{}, nil
	}
	if err != nil {
		return Position{}, err
	}
	_, body, err := decodeSealed(path, positionMagic, positionVersion, b)
	if err != nil {
		return Position{}, err
	}
	if len(body) < positionFixed {
		return Position{}, &CorruptFileError{File: path, Offset: sealedHeaderSize, Detail: "the body is too short for a position"}
	}
	return Position{
		EtcdClusterID: binary.LittleEndian.Uint64(body),
		Era:           int64(binary.LittleEndian.Uint64(body[8:])),
		Revision:      int64(binary.LittleEndian.Uint64(body[16:])),
		ClusterID:     string(body[positionFixed:]),
	}, nil
}

// SavePosition makes p durable, replacing what was saved before. The caller sees to it that positions only grow.
func (s *Store) SavePosition(p Position) error {
	body := binary.LittleEndian.AppendUint64(nil, p.EtcdClusterID)
	body = binary.LittleEndian.AppendUint64(body, uint64(p.Era))
	body = binary.LittleEndian.AppendUint64(body, uint64(p.Revision))
	body = append(body, p.ClusterID...)
	return writeSealed(s.dir.fsys, s.dir.path, positionName, encodeSealed(positionMagic, positionVersion, body))
}
