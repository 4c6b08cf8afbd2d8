package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
)

// Position is how far this broker has seen the cluster's metadata. It is kept so that an etcd that is older, or another one, is
// refused after a restart.
type Position struct {
	ClusterID     string // Runnel's cluster id, up to 255 bytes
	EtcdClusterID uint64
	Era, Revision int64
}

// Sealed file `position`, version 1, body:
//
//	 0             8     16         24       26
//	┌─────────────┬─────┬──────────┬────────┬──────────────┐
//	│ etcd cluster│ era │ revision │ length │ cluster id … │
//	└─────────────┴─────┴──────────┴────────┴──────────────┘
const (
	positionName  = "position"
	positionFixed = 26
)

var positionFile = sealedKind{positionName, "RNLPOSN\x00", 1}

// SavePosition replaces the stored position, durably. The caller makes sure that positions only go forward. A full disk is an
// error that may be tried again.
func (s *Store) SavePosition(p Position) error {
	if len(p.ClusterID) > 255 {
		return fmt.Errorf("storage: cluster id of %d bytes, the limit is 255", len(p.ClusterID))
	}
	body := binary.LittleEndian.AppendUint64(nil, p.EtcdClusterID)
	body = binary.LittleEndian.AppendUint64(body, uint64(p.Era))
	body = binary.LittleEndian.AppendUint64(body, uint64(p.Revision))
	body = binary.LittleEndian.AppendUint16(body, uint16(len(p.ClusterID)))
	body = append(body, p.ClusterID...)
	s.positionMu.Lock()
	defer s.positionMu.Unlock()
	return s.diskFault(positionFile.write(s.fsys, s.cfg.DataDir, body))
}

// LoadPosition reads the position in a data directory, before or after it is opened: the zero value when none was saved, or when
// there is no such directory yet. *CorruptFileError and *FutureFormatError are the refusals.
func LoadPosition(fsys vfs.FS, dir string) (Position, error) {
	body, err := positionFile.read(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return Position{}, nil
	}
	if err != nil {
		return Position{}, err
	}
	if len(body) < positionFixed || len(body) != positionFixed+int(binary.LittleEndian.Uint16(body[24:])) {
		return Position{}, &CorruptFileError{File: filepath.Join(dir, positionName), Offset: sealedHeaderSize, Detail: "the cluster id does not fill the body"}
	}
	return Position{
		EtcdClusterID: binary.LittleEndian.Uint64(body),
		Era:           int64(binary.LittleEndian.Uint64(body[8:])),
		Revision:      int64(binary.LittleEndian.Uint64(body[16:])),
		ClusterID:     string(body[positionFixed:]),
	}, nil
}
