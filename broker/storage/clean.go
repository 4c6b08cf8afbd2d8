package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
)

// Sealed file `clean`, version 1: size and CRC-32C of the journal that a clean stop left. Its body:
//
//	 0      8       12
//	┌──────┬───────┐
//	│ size │ crc   │
//	└──────┴───────┘
//
// Crash windows: it is written last, after every log was closed and the journal was sealed, and removed durably by the next Open
// before anything else is written. So whoever finds it knows that nothing has changed since, and that a journal that differs is
// damaged, not torn. (What a log needs to be opened without a scan is in the partition's own marker.)
const (
	cleanName = "clean"
	cleanSize = 12
)

var cleanFile = sealedKind{cleanName, "RNLCLEAN", 1}

func writeClean(fsys vfs.FS, dir string, seal journalSeal) error {
	body := binary.LittleEndian.AppendUint64(nil, uint64(seal.size))
	body = binary.LittleEndian.AppendUint32(body, seal.crc)
	return cleanFile.write(fsys, dir, body)
}

// readClean returns the seal, nil when the last stop was not a clean one. A damaged marker is an error: it was whole once.
func readClean(fsys vfs.FS, dir string) (*journalSeal, error) {
	body, err := cleanFile.read(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(body) != cleanSize {
		return nil, &CorruptFileError{File: filepath.Join(dir, cleanName), Offset: sealedHeaderSize, Detail: fmt.Sprintf("the body has %d bytes, want %d", len(body), cleanSize)}
	}
	return &journalSeal{size: int64(binary.LittleEndian.Uint64(body)), crc: binary.LittleEndian.Uint32(body[8:])}, nil
}

// removeClean takes the marker away, durably, before the first change.
func removeClean(fsys vfs.FS, dir string) error {
	err := fsys.Remove(filepath.Join(dir, cleanName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// checkSeal compares the journal with what the clean stop said of it; nil when it is the same.
func checkSeal(fsys vfs.FS, dir string, seal journalSeal) (*CorruptFileError, error) {
	path := filepath.Join(dir, journalName)
	b, err := readWhole(fsys, path, journalMaxSize)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) == seal.size && crc32.Checksum(b, castagnoli) == seal.crc {
		return nil, nil
	}
	return &CorruptFileError{
		File: path, Offset: min(int64(len(b)), seal.size),
		Detail: fmt.Sprintf("%d bytes with another checksum than the %d bytes that the last stop left", len(b), seal.size),
	}, nil
}
