package log

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"

	"runnel.dev/runnel/internal/vfs"
)

// Every small file of a partition directory has the same frame, big endian:
//
//	byte 0       4         6      8        12       16
//	     +-------+---------+------+--------+--------+----------+
//	     | magic | version | zero | length | CRC32C | body     |
//	     +-------+---------+------+--------+--------+----------+
//
// length counts the body; nothing follows it. The checksum covers bytes 0-11 and the body. The version is the body's;
// a reader refuses one that it does not know.
const (
	envelopeSize = 16
	// maxEnvelope bounds a file in bytes: what is written, and so what a reader allocates for a damaged length.
	maxEnvelope = 256 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func envelopeCRC(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[envelopeSize:])
}

// format is what a kind of file begins with.
type format struct {
	magic   string // 4 bytes
	version uint16 // the newest one that is known, and the one that is written
}

// seal frames a body.
func seal(f format, body []byte) []byte {
	b := make([]byte, envelopeSize, envelopeSize+len(body))
	copy(b, f.magic)
	binary.BigEndian.PutUint16(b[4:], f.version)
	binary.BigEndian.PutUint32(b[8:], uint32(len(body))) // #nosec G115 -- bodies are small
	b = append(b, body...)
	binary.BigEndian.PutUint32(b[12:], envelopeCRC(b))
	return b
}

// unseal checks the frame and returns the body. ErrVersion for a version above that of the format; every other fault is a
// *CorruptError for file name.
func unseal(name string, f format, b []byte) ([]byte, error) {
	corrupt := func(pos int64, format string, args ...any) error {
		return &CorruptError{File: name, Position: pos, Detail: fmt.Sprintf(format, args...)}
	}
	if len(b) < envelopeSize {
		return nil, corrupt(int64(len(b)), "%d bytes, the frame alone has %d", len(b), envelopeSize)
	}
	if string(b[:4]) != f.magic {
		return nil, corrupt(0, "magic is %q, expected %q", b[:4], f.magic)
	}
	if n := binary.BigEndian.Uint32(b[8:]); int64(n) != int64(len(b)-envelopeSize) {
		return nil, corrupt(8, "length says %d, %d bytes follow", n, len(b)-envelopeSize)
	}
	if got, want := envelopeCRC(b), binary.BigEndian.Uint32(b[12:]); got != want {
		return nil, corrupt(12, "CRC-32C of the content is %08x, the file says %08x", got, want)
	}
	if v := binary.BigEndian.Uint16(b[4:]); v == 0 || v > f.version {
		return nil, fmt.Errorf("%s has format version %d, this program knows 1 to %d: %w", name, v, f.version, ErrVersion)
	}
	return b[envelopeSize:], nil
}

// readFile reads a small file whole.
func readFile(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > maxEnvelope {
		return nil, &CorruptError{File: name, Detail: fmt.Sprintf("%d bytes, at most %d make sense", size, maxEnvelope)}
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if n < len(b) && err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}

// fits tells whether a file of n bytes could be read back.
func fits(name string, n int) error {
	if n > maxEnvelope {
		return fmt.Errorf("write %s: %d bytes, at most %d can be read back", name, n, maxEnvelope)
	}
	return nil
}

const tmpSuffix = ".tmp"

// errSync marks a sync that failed, as opposed to a write that did.
var errSync = errors.New("sync failed")

func syncError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errSync, err)
}

// replaceFile makes name hold b, durably: a crash leaves the old content or the new.
//
// Crash windows: before the rename, the old file and a stray temporary one, which Open removes; the bytes of the new
// file are synced before it gets the name; between rename and the sync of the directory either name may survive.
//
// errSync is matched if a sync failed: nothing that comes later proves that the content is durable.
func replaceFile(fsys vfs.FS, name string, b []byte) error {
	if err := prepareFile(fsys, name, b); err != nil {
		return err
	}
	return commitFile(fsys, name)
}

// prepareFile is the part of replaceFile that takes space: b is durable under another name. Where more has to be done between this
// and commitFile, a full disk is noticed before any of it.
func prepareFile(fsys vfs.FS, name string, b []byte) error {
	if err := fits(name, len(b)); err != nil {
		return err
	}
	f, err := createTruncated(fsys, name+tmpSuffix)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = syncError(f.Sync())
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// commitFile gives what prepareFile wrote its name.
func commitFile(fsys vfs.FS, name string) error {
	err := fsys.Rename(name+tmpSuffix, name)
	if err == nil {
		err = syncError(fsys.SyncDir(filepath.Dir(name)))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// createTruncated creates a file, or empties one that a crash left.
func createTruncated(fsys vfs.FS, name string) (vfs.File, error) {
	f, err := fsys.Create(name)
	if err == nil {
		return f, nil
	}
	f, oerr := fsys.OpenRW(name)
	if oerr != nil {
		return nil, errors.Join(err, oerr)
	}
	if err := f.Truncate(0); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
